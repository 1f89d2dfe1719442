"""The sparse posterior against dense algebra: exact where Z is the data, additive over rows, open about its limits."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedgauss.errors import DataError, NotPositiveDefiniteError
from fedgauss.gp import sparse
from fedgauss.gp.kernels import RBF, Kernel, Linear, Matern12, Matern32, Matern52, Parameters
from fedgauss.gp.sparse import (
    SparsePosterior,
    SparseStatistics,
    client_statistics,
    collapsed_bound,
    inducing_basis,
    row_statistics,
)
from reference import large_gp as dense

KERNELS: dict[str, Kernel] = {"rbf": RBF(), "matern12": Matern12(), "matern32": Matern32(), "matern52": Matern52()}


def parameters(lengthscale: float, variance: float, noise_variance: float) -> Parameters:
    return {
        "lengthscale": np.array([lengthscale]),
        "variance": np.array(variance),
        "noise_variance": np.array(noise_variance),
    }


def data(num_rows: int, num_inputs: int = 1, seed: int = 0) -> tuple[Any, Any, Any]:
    """Inputs, targets and test inputs, the last of them far away."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (num_rows, num_inputs))
    X_new = np.concatenate([rng.uniform(-1, 1, (30, num_inputs)), np.full((1, num_inputs), 50.0)])
    return X, np.sin(4 * X.sum(1)) + 0.1 * rng.normal(size=num_rows), X_new


def assert_same(one: SparseStatistics, other: SparseStatistics) -> None:
    for name, a, b in zip(SparseStatistics._fields, one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * float(one.count), err_msg=name)


@pytest.mark.parametrize("num_inputs", [1, 3])
@pytest.mark.parametrize("kind", ["rbf", "matern12", "matern52"])
def test_inducing_inputs_at_the_data_give_the_dense_posterior(kind: str, num_inputs: int) -> None:
    X, y, X_new = data(60, num_inputs)
    ell, var, s2 = 0.3, 2.0, 0.1
    posterior = SparsePosterior.condition(KERNELS[kind], parameters(ell, var, s2), X, y, inducing_inputs=X)
    prediction = posterior.predict(X_new)
    Kxx, Kxs = dense.covariance(kind, X, X, ell, var), dense.covariance(kind, X, X_new, ell, var)
    mean, variance = dense.posterior(Kxx, Kxs, np.full(len(X_new), var), y, s2)
    # Jitter 0. In one dimension the RBF inputs that the others determine to 1e-12 are left out.
    assert posterior.notes["jitter"] == 0.0
    np.testing.assert_allclose(prediction.mean, mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(prediction.variance, variance, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", ["rbf", "matern32"])
def test_given_inducing_inputs_give_the_posterior_and_bound_of_the_paper(kind: str) -> None:
    X, y, X_new = data(200, 2)
    Z = np.stack(np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 3)), axis=-1).reshape(12, 2)
    ell, var, s2 = 0.7, 2.0, 0.1
    posterior = SparsePosterior.condition(KERNELS[kind], parameters(ell, var, s2), X, y, inducing_inputs=Z)
    prediction = posterior.predict(X_new)
    Kuu, Kux = dense.covariance(kind, Z, Z, ell, var), dense.covariance(kind, Z, X, ell, var)
    kxx = np.full(len(X), var)
    Kus, kss = dense.covariance(kind, Z, X_new, ell, var), np.full(len(X_new), var)
    mean, variance = dense.sparse_posterior(Kuu, Kux, Kus, kss, y, s2)
    np.testing.assert_allclose(prediction.mean, mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(prediction.variance, variance, rtol=0, atol=1e-9)
    assert posterior.notes["num_inducing"] == 12
    assert posterior.notes["residual"] == pytest.approx(dense.residual(Kuu, Kux, kxx) / (200 * s2), rel=1e-9)

    basis, _ = inducing_basis(KERNELS[kind], parameters(ell, var, s2), Z)
    bound = collapsed_bound(client_statistics(KERNELS[kind], parameters(ell, var, s2), basis, X, y[:, None]), s2)
    np.testing.assert_allclose(bound, dense.collapsed_bound(Kuu, Kux, kxx, y, s2), rtol=1e-9)


def test_linear_kernel_needs_one_inducing_input_a_column() -> None:
    X, _, X_new = data(300, 2)
    y = X @ np.array([1.0, -2.0])
    values: Parameters = {"variance": np.array(3.0), "noise_variance": np.array(0.1)}
    posterior = SparsePosterior.condition(Linear(), values, X, y)
    precision = np.eye(2) / 3.0 + X.T @ X / 0.1  # of the weights: Bayesian linear regression
    prediction = posterior.predict(X_new)
    np.testing.assert_allclose(prediction.mean, X_new @ np.linalg.solve(precision, X.T @ y / 0.1), rtol=1e-9, atol=1e-9)
    variance = (X_new * np.linalg.solve(precision, X_new.T).T).sum(1)
    np.testing.assert_allclose(prediction.variance, variance, rtol=1e-6, atol=1e-9)
    assert posterior.notes["num_inducing"] == 2
    assert posterior.notes["resolved"] == 1


@pytest.mark.parametrize("chunk_rows", [7, 100, 101, 1000])
def test_any_split_into_chunks_gives_the_same_statistics(chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, X_new = data(101, 2)
    Y = np.stack([y, X[:, 0]], axis=1)
    kernel, values = Matern32(), parameters(0.5, 2.0, 0.1)
    basis, _ = inducing_basis(kernel, values, X[:20])
    whole = row_statistics(kernel, values, basis, X, Y, np.ones(101))
    before = SparsePosterior.condition(kernel, values, X, y).predict(X_new)
    monkeypatch.setattr(sparse, "_CHUNK_ROWS", chunk_rows)
    assert_same(client_statistics(kernel, values, basis, X, Y), whole)
    after = SparsePosterior.condition(kernel, values, X, y).predict(X_new)
    np.testing.assert_allclose(after.mean, before.mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(after.variance, before.variance, rtol=1e-10, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(owner=st.lists(st.integers(0, 4), min_size=40, max_size=40))
def test_any_split_over_clients_gives_the_same_statistics_and_bound(owner: list[int]) -> None:
    X, y, _ = data(40, 2)
    kernel, values = RBF(), parameters(0.5, 2.0, 0.1)
    basis, _ = inducing_basis(kernel, values, X[::4])
    whole = client_statistics(kernel, values, basis, X, y[:, None])
    clients = [np.flatnonzero(np.array(owner) == c) for c in range(5)]  # some may have no rows
    parts = [client_statistics(kernel, values, basis, X[rows], y[rows, None]) for rows in clients]
    total: SparseStatistics = jax.tree.map(lambda *leaves: sum(leaves), *parts)
    assert_same(total, whole)
    np.testing.assert_allclose(collapsed_bound(total, 0.1), collapsed_bound(whole, 0.1), rtol=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["matern12", "matern32"]),
    lengthscale=st.floats(0.03, 3.0),
    variance=st.floats(0.1, 10.0),
    noise_variance=st.floats(0.01, 10.0),
)
@example(kind="rbf", lengthscale=0.05, variance=2.0, noise_variance=0.1)
@example(kind="rbf", lengthscale=0.5, variance=2.0, noise_variance=0.1)
@example(kind="rbf", lengthscale=2.0, variance=2.0, noise_variance=0.1)
def test_bound_is_below_the_evidence_and_meets_it_at_the_data(
    kind: str, lengthscale: float, variance: float, noise_variance: float
) -> None:
    X, y, _ = data(30)
    values = parameters(lengthscale, variance, noise_variance)
    exact = dense.log_evidence(dense.covariance(kind, X, X, lengthscale, variance), y, noise_variance)

    def bound(M: int) -> float:
        Z = sparse._select(KERNELS[kind], values, X, M, lambda _: 0.0)  # the first M of one order
        basis, _ = inducing_basis(KERNELS[kind], values, Z)
        statistics = client_statistics(KERNELS[kind], values, basis, X, y[:, None])
        return float(collapsed_bound(statistics, noise_variance))

    rounding = 1e-8 * max(1.0, abs(exact))
    assert bound(4) <= bound(12) + rounding
    assert bound(12) <= exact + rounding
    np.testing.assert_allclose(bound(30), exact, rtol=0, atol=rounding)


def test_bound_of_several_outputs_is_the_sum_over_outputs() -> None:
    X, y, _ = data(50)
    kernel, values = RBF(), parameters(0.5, 2.0, 0.1)
    basis, _ = inducing_basis(kernel, values, X[:8])
    Y = np.stack([y, X[:, 0]], axis=1)
    both = collapsed_bound(client_statistics(kernel, values, basis, X, Y), 0.1)
    single = [collapsed_bound(client_statistics(kernel, values, basis, X, Y[:, [p]]), 0.1) for p in range(2)]
    np.testing.assert_allclose(both, sum(single), rtol=1e-12)


def test_greedy_choice_is_the_most_uncertain_row_given_those_before() -> None:
    X, _, _ = data(40, 2)
    ell, var = 0.6, 2.0
    Z = sparse._select(Matern32(), parameters(ell, var, 0.1), X, 6, lambda _: 0.0)
    K = dense.covariance("matern32", X, X, ell, var)
    chosen: list[int] = []
    for z in Z:
        Kuu, Kux = K[np.ix_(chosen, chosen)], K[chosen]
        uncertainty = np.diag(K) - (Kux * np.linalg.solve(Kuu, Kux)).sum(0)
        pivot = int(np.flatnonzero((z == X).all(1))[0])
        np.testing.assert_allclose(uncertainty[pivot], uncertainty.max(), rtol=1e-10)
        chosen.append(pivot)


def test_short_lengthscale_with_few_inducing_inputs_is_reported_as_unresolved() -> None:
    X, y, _ = data(2000)
    values = parameters(0.01, 1.0, 0.1)
    short = SparsePosterior.condition(RBF(), values, X, y, num_inducing=20)
    assert short.notes["resolved"] == 0
    assert short.notes["num_inducing"] == 20
    assert float(short.notes["residual"]) > 1.0  # in noise variances
    enough = SparsePosterior.condition(RBF(), values, X, y)
    assert enough.notes["resolved"] == 1
    assert float(enough.notes["residual"]) < 1e-3
    assert int(enough.notes["num_inducing"]) < 400


def test_more_rows_need_a_smaller_residual() -> None:
    # The posterior narrows with N: what Z leaves out must narrow with it.
    rows = {N: data(N)[:2] for N in (1000, 50_000)}
    posteriors = {N: SparsePosterior.condition(RBF(), parameters(0.3, 1.0, 0.1), *rows[N]) for N in rows}
    for N, posterior in posteriors.items():
        assert posterior.notes["resolved"] == 1
        assert float(posterior.notes["residual"]) <= 0.2 * int(posterior.notes["num_inducing"]) / N
    assert int(posteriors[50_000].notes["num_inducing"]) > int(posteriors[1000].notes["num_inducing"])


def test_choice_among_a_sample_of_the_rows_depends_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "_CANDIDATES", 200)
    X, y, X_new = data(3000)
    same, again, other = (
        SparsePosterior.condition(RBF(), parameters(0.1, 1.0, 0.1), X, y, seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(same.basis.inducing_inputs, again.basis.inducing_inputs)
    np.testing.assert_array_equal(same.predict(X_new).mean, again.predict(X_new).mean)
    assert not np.array_equal(same.basis.inducing_inputs[0], other.basis.inducing_inputs[0])


def test_repeated_inducing_inputs_count_once_and_need_no_jitter() -> None:
    X, y, X_new = data(100)
    Z = np.linspace(-1, 1, 9)[:, None]
    values = parameters(0.5, 1.0, 0.1)
    once = SparsePosterior.condition(RBF(), values, X, y, inducing_inputs=Z)
    twice = SparsePosterior.condition(RBF(), values, X, y, inducing_inputs=np.concatenate([Z, Z + 1e-9]))
    assert twice.notes["num_inducing"] == 9
    assert twice.notes["jitter"] == 0.0
    np.testing.assert_allclose(twice.predict(X_new).mean, once.predict(X_new).mean, rtol=0, atol=1e-6)


def test_no_rows_and_bad_values_are_refused() -> None:
    with pytest.raises(DataError, match="got no rows"):
        SparsePosterior.condition(RBF(), parameters(1.0, 1.0, 0.1), np.zeros((0, 1)), np.zeros(0))
    with pytest.raises(NotPositiveDefiniteError, match="covariance of 1 inducing inputs"):
        inducing_basis(RBF(), parameters(1.0, -1.0, 0.1), np.zeros((1, 1)))
