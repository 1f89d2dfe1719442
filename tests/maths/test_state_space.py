"""The state-space posterior is the dense one, wherever the test inputs lie and however the data are ordered."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgauss.errors import NotPositiveDefiniteError, SettingsError
from fedgauss.gp import state_space
from fedgauss.gp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, Parameters
from fedgauss.gp.state_space import StateSpacePosterior, supports
from reference import large_gp as dense

TERMS: dict[str, Kernel] = {"matern12": Matern12(), "matern32": Matern32(), "matern52": Matern52()}
Term = tuple[str, float, float]


def prior(terms: list[Term], noise_variance: float) -> tuple[Kernel, Parameters]:
    """The sum of (kind, lengthscale, variance) terms."""
    noise = {"noise_variance": np.array(noise_variance)}
    (kind, lengthscale, variance), *others = terms
    kernel = TERMS[kind]
    parameters: Parameters = {"lengthscale": np.array([lengthscale]), "variance": np.array(variance)}
    if not others:
        return kernel, parameters | noise
    parameters = {kind: parameters}
    for other, lengthscale, variance in others:
        kernel = kernel + TERMS[other]
        key = f"{other}_2" if other in parameters else other
        parameters[key] = {"lengthscale": np.array([lengthscale]), "variance": np.array(variance)}
    return kernel, parameters | noise


def check(terms: list[Term], noise_variance: float, x: Any, y: Any, x_new: Any, tolerance: float = 1e-8) -> None:
    def covariance(a: Any, b: Any) -> Any:
        return sum(dense.covariance(kind, a[:, None], b[:, None], ell, var) for kind, ell, var in terms)

    kss = np.full(len(x_new), sum(term[2] for term in terms))
    mean, variance = dense.posterior(covariance(x, x), covariance(x, x_new), kss, y, noise_variance)
    prediction = StateSpacePosterior.condition(*prior(terms, noise_variance), x, y).predict(x_new[:, None])
    np.testing.assert_allclose(prediction.mean, mean, rtol=0, atol=tolerance)
    np.testing.assert_allclose(prediction.variance, variance, rtol=tolerance, atol=1e-12)
    assert prediction.clamped == 0


def wiggly(num_rows: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Unsorted inputs, some of them repeated; test inputs among them, equal to them and far outside."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, num_rows)
    x = rng.permutation(np.concatenate([x, np.repeat(x[:5], 3)]))
    y = np.sin(9 * x) + 0.1 * rng.normal(size=len(x))
    return x, y, np.concatenate([rng.uniform(-1.5, 1.5, 50), x[:20], [x.min(), x.max(), -50.0, 50.0]])


@pytest.mark.parametrize("noise_variance", [1e-3, 1.0])
@pytest.mark.parametrize("lengthscale", [0.01, 0.3])
@pytest.mark.parametrize("kind", ["matern12", "matern32", "matern52"])
def test_equals_the_dense_posterior(kind: str, lengthscale: float, noise_variance: float) -> None:
    check([(kind, lengthscale, 2.0)], noise_variance, *wiggly(300))


@pytest.mark.parametrize(
    "terms",
    [
        [("matern52", 0.5, 2.0), ("matern12", 0.05, 0.3)],
        [("matern32", 1.0, 1.0), ("matern32", 0.02, 0.5)],
        [("matern12", 1.0, 1.0), ("matern32", 0.02, 0.5), ("matern52", 0.3, 0.1)],
    ],
    ids=lambda terms: "+".join(term[0] for term in terms),
)
def test_sums_equal_the_dense_posterior(terms: list[Term]) -> None:
    check(terms, 0.01, *wiggly(200))


def test_many_inputs_within_a_lengthscale() -> None:
    # Solving with a condition number of 2000 / 1e-2 loses that many digits of 16, in the dense reference too.
    check([("matern52", 5.0, 1.0)], 0.01, *wiggly(2000))


@settings(max_examples=40, deadline=None)
@given(
    x=st.lists(st.integers(-8, 8), min_size=1, max_size=30),
    x_new=st.lists(st.integers(-20, 20), min_size=1, max_size=30),
)
def test_ties_and_gaps_of_any_pattern(x: list[int], x_new: list[int]) -> None:
    inputs = np.array(x) / 8
    check([("matern32", 0.4, 1.5)], 0.1, inputs, np.cos(5 * inputs), np.array(x_new) / 8)


@pytest.mark.parametrize("num_rows", [1, 1009, 1010])
def test_padding_changes_nothing(num_rows: int) -> None:
    x, y, x_new = wiggly(num_rows)  # and 15 repeated, at most: 1024 is the first padded length
    check([("matern32", 0.2, 1.0)], 0.1, x, y, x_new)


def test_padded_lengths_are_few_and_near() -> None:
    lengths = [state_space._padded_length(n) for n in range(1, 100_000)]
    assert all(n <= length <= max(1024, 1.125 * n + 1) for n, length in enumerate(lengths, start=1) if n > 8192)
    assert all(length - n < 1024 for n, length in enumerate(lengths, start=1) if n <= 8192)
    assert len(set(lengths)) < 50


def test_order_of_the_data_and_of_the_test_inputs_is_kept() -> None:
    x, y, _ = wiggly(100)
    kernel, parameters = prior([("matern32", 0.2, 1.0)], 0.1)
    x_new = np.linspace(-2, 2, 2 * state_space._PREDICTION_ROWS + 1)[:, None]
    shuffle = np.random.default_rng(0).permutation(len(x_new))
    sorted_first = np.argsort(x)
    one = StateSpacePosterior.condition(kernel, parameters, x[sorted_first], y[sorted_first]).predict(x_new)
    other = StateSpacePosterior.condition(kernel, parameters, x, y).predict(x_new[shuffle])
    np.testing.assert_allclose(other.mean, np.asarray(one.mean)[shuffle], rtol=0, atol=1e-12)
    np.testing.assert_allclose(other.variance, np.asarray(one.variance)[shuffle], rtol=0, atol=1e-12)


def test_no_data_leaves_the_prior() -> None:
    kernel, parameters = prior([("matern52", 0.2, 3.0)], 0.1)
    prediction = StateSpacePosterior.condition(kernel, parameters, np.zeros(0), np.zeros(0)).predict(np.ones((2, 1)))
    np.testing.assert_allclose(prediction.mean, 0.0, atol=0)
    np.testing.assert_allclose(prediction.variance, 3.0, rtol=1e-14)


def test_which_kernels_it_supports() -> None:
    assert supports(Matern52(ard=True), 1)
    assert supports(Matern12() + Matern32() + Matern52(), 1)
    assert not supports(Matern32(), 2)
    assert not supports(RBF(), 1)
    assert not supports(Matern12() + RBF(), 1)
    assert not supports(Matern12() * Matern12(), 1)


def test_an_unsupported_kernel_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="kernel rbf has no exact state space"):
        StateSpacePosterior.condition(RBF(), RBF().start(1) | {"noise_variance": np.ones(())}, np.ones(2), np.ones(2))


def test_without_tinygp_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinygp.kernels", None)
    with pytest.raises(SettingsError, match=r"pip install 'fedgauss\[statespace\]'"):
        StateSpacePosterior.condition(*prior([("matern32", 0.2, 1.0)], 0.1), np.ones(2), np.ones(2))


def test_a_covariance_that_cannot_be_factorised_is_reported() -> None:
    with pytest.raises(NotPositiveDefiniteError, match="covariance of 2 inputs under matern32"):
        StateSpacePosterior.condition(*prior([("matern32", 0.2, 1.0)], 0.0), np.ones(2), np.ones(2))
