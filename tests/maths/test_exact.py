"""Exact Gaussian processes: the likelihood and its derivatives, jitter, and the dense posterior, against equations."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from fedgauss.errors import NotPositiveDefiniteError
from fedgauss.gp.exact import (
    DensePosterior,
    negative_log_marginal_likelihood,
    negative_log_marginal_likelihood_derivatives,
)
from fedgauss.gp.kernels import (
    RBF,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Parameters,
    Periodic,
    Polynomial,
    RationalQuadratic,
    to_config,
)
from fedgauss.linalg import JITTERS, cholesky, host_cholesky, inverse_from_cholesky
from reference import dense_gp

COMPOUND = RBF(ard=True) * Linear() + Periodic()
KERNELS: list[Kernel] = [
    RBF(),
    RBF(ard=True, active=(1, 0)),
    Matern12(ard=True),
    Matern52(ard=True),
    RationalQuadratic(),
    Polynomial(),
    COMPOUND,
    Matern32() * (RationalQuadratic() + Linear()),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def data(rows: int, seed: int = 0, columns: int = 2) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)), 2.0 * rng.normal(size=rows)


def some_parameters(kernel: Kernel, noise_variance: float = 0.3, seed: int = 7) -> Parameters:
    """The starting values, each moved by its own factor, and noise."""
    rng = np.random.default_rng(seed)
    moved: Parameters = jax.tree.map(
        lambda value: np.asarray(value * rng.uniform(0.6, 1.6, value.shape)), kernel.start(2)
    )
    return moved | {"noise_variance": np.array(noise_variance)}


def with_padding(X: Any, y: Any, rows: int, value: float) -> tuple[Any, Any]:
    """Rows added at the end, all of one value."""
    return np.pad(X, [(0, rows), (0, 0)], constant_values=value), np.pad(y, (0, rows), constant_values=value)


def numpy_unravel(tree: Any) -> Callable[[Any], Any]:
    """From a vector, which may be complex, to parameters."""
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def unravel(vector: Any) -> Any:
        pieces = np.split(vector, ends)
        return jax.tree.unflatten(structure, [p.reshape(leaf.shape) for p, leaf in zip(pieces, leaves, strict=True)])

    return unravel


def reference_covariance(kernel: Kernel, parameters: Parameters, X: Any) -> Any:
    return dense_gp.gram(to_config(kernel), parameters, X, X) + parameters["noise_variance"] * np.eye(len(X))


def reference_gradient(kernel: Kernel, unravel: Callable[[Any], Parameters], vector: Any, X: Any, y: Any) -> Any:
    """With respect to the vector; derivatives of the covariance are by complex steps."""
    dK = dense_gp.derivatives(lambda vector: reference_covariance(kernel, unravel(vector), X), vector)
    return dense_gp.gradient(reference_covariance(kernel, unravel(vector), X), dK, y)


def on_jax(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


@functools.cache
def compiled_derivatives(kernel: Kernel) -> tuple[Callable[..., Any], Callable[[Any], Parameters]]:
    """Value, gradient and Hessian with respect to the logarithms of the parameters; and parameters from those."""
    _, unravel = ravel_pytree(on_jax(some_parameters(kernel)))

    def constrained(logs: Any) -> Any:
        return jax.tree.map(jnp.exp, unravel(logs))

    @jax.jit
    def run(logs: Any, X: Any, y: Any, count: Any = None) -> Any:
        return negative_log_marginal_likelihood_derivatives(kernel, constrained, logs, X, y, count)

    return run, constrained


def logarithms(parameters: Parameters) -> Any:
    return jnp.log(ravel_pytree(on_jax(parameters))[0])


@jax.jit
def value_and_gradients(parameters: Parameters, X: Any, y: Any, count: Any = None) -> Any:
    """The gradient in all but the count."""
    return jax.value_and_grad(functools.partial(negative_log_marginal_likelihood, COMPOUND), argnums=(0, 1, 2))(
        parameters, X, y, count
    )


# The likelihood ----------------------------------------------------------------------------------------------------


@every_kernel
def test_value_and_gradient_in_parameters_and_noise_are_the_equations(kernel: Kernel) -> None:
    (X, y), parameters = data(9), some_parameters(kernel)
    value, gradient = jax.jit(jax.value_and_grad(functools.partial(negative_log_marginal_likelihood, kernel)))(
        on_jax(parameters), X, y
    )
    expected = dense_gp.negative_log_marginal_likelihood(reference_covariance(kernel, parameters, X), y)
    assert float(value) == pytest.approx(expected, rel=1e-10)
    vector = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters)])
    in_vector = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
    expected = reference_gradient(kernel, numpy_unravel(parameters), vector, X, y)
    np.testing.assert_allclose(in_vector, expected, rtol=1e-10, atol=1e-10)


def test_value_of_one_row() -> None:
    (X, y), parameters = data(1), some_parameters(COMPOUND)
    expected = dense_gp.negative_log_marginal_likelihood(reference_covariance(COMPOUND, parameters, X), y)
    value, _ = value_and_gradients(on_jax(parameters), X, y)
    assert float(value) == pytest.approx(expected, rel=1e-10)


def test_gradient_in_targets_inputs_and_noise_scales_with_what_comes_after() -> None:
    (X, y), parameters = data(9), some_parameters(COMPOUND)

    def value(X: Any, y: Any, noise_variance: Any) -> Any:
        with_noise = parameters | {"noise_variance": noise_variance}
        return -3.0 * negative_log_marginal_likelihood(COMPOUND, with_noise, X, y)

    in_X, in_y, in_noise = jax.jit(jax.grad(value, argnums=(0, 1, 2)))(X, y, parameters["noise_variance"])
    K = reference_covariance(COMPOUND, parameters, X)
    np.testing.assert_allclose(in_y, -3.0 * np.linalg.solve(K, y), rtol=1e-10)
    assert float(in_noise) == pytest.approx(-3.0 * float(dense_gp.gradient(K, np.eye(9)[None], y)[0]), rel=1e-10)
    dK = dense_gp.derivatives(lambda x: reference_covariance(COMPOUND, parameters, x.reshape(X.shape)), X.ravel())
    np.testing.assert_allclose(np.ravel(in_X), -3.0 * dense_gp.gradient(K, dK, y), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("count", [1, 7])
def test_padding_rows_change_nothing(count: int) -> None:
    (X, y), parameters = data(count), on_jax(some_parameters(COMPOUND))
    value, gradients = value_and_gradients(parameters, X, y)
    for fill in (0.0, 1.0, -1e3, 1e6, 1e12):
        X_padded, y_padded = with_padding(X, y, 9 - count, fill)
        padded_value, padded = value_and_gradients(parameters, X_padded, y_padded, jnp.array(count))
        assert float(padded_value) == pytest.approx(float(value), rel=1e-12)
        for a, b in zip(jax.tree.leaves(padded[0]), jax.tree.leaves(gradients[0]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        for rows, expected in zip(padded[1:], gradients[1:], strict=True):
            np.testing.assert_allclose(rows[:count], expected, rtol=1e-12, atol=1e-12)
            assert np.all(rows[count:] == 0.0)


def test_padding_rows_change_nothing_where_jitter_is_added() -> None:
    X, y = data(4)
    X, y = np.concatenate([X, X]), np.concatenate([y, y])
    parameters = some_parameters(RBF(), noise_variance=0.0) | {"variance": np.array(1e8)}
    padded = with_padding(X, y, 40, 1.0)
    value_of = jax.jit(functools.partial(negative_log_marginal_likelihood, RBF()))
    value, same = value_of(parameters, X, y), value_of(parameters, *padded, jnp.array(8))
    assert float(same) == pytest.approx(float(value), rel=1e-12)


def test_no_data_cost_nothing() -> None:
    X, y = data(9)
    value, gradients = value_and_gradients(on_jax(some_parameters(COMPOUND)), X, y, jnp.array(0))
    assert float(value) == 0.0
    assert np.all(ravel_pytree(gradients)[0] == 0.0)


def test_batches_of_clients() -> None:
    counts = np.array([3, 9, 0, 6])
    X, y = (np.stack(part) for part in zip(*[data(9, seed) for seed in range(4)], strict=True))
    parameters = [on_jax(some_parameters(COMPOUND, seed=seed)) for seed in range(4)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parameters)
    batch = jax.vmap(value_and_gradients)(stacked, X, y, counts)
    for i, count in enumerate(counts):
        one = value_and_gradients(parameters[i], X[i], y[i], jnp.asarray(count))
        for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(one), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-12, atol=1e-12)


# Value, gradient and Hessian ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "padding"),
    [(RBF(), 4), (Matern52(ard=True), 0), (Matern52(ard=True), 4), (COMPOUND, 4)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_gradient_and_hessian_are_derivatives_of_the_value(kernel: Kernel, padding: int) -> None:
    (X, y), parameters = data(8), some_parameters(kernel)
    count = None if padding == 0 else jnp.array(8)
    run, constrained = compiled_derivatives(kernel)
    logs = logarithms(parameters)
    value, gradient, hessian = run(logs, *with_padding(X, y, padding, 3.0), count)

    @jax.jit
    def of_logs(logs: Any) -> Any:
        each = jax.value_and_grad(lambda logs: negative_log_marginal_likelihood(kernel, constrained(logs), X, y))
        return each(logs)

    expected_value, expected_gradient = of_logs(logs)
    assert float(value) == pytest.approx(float(expected_value), rel=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-10, atol=1e-10)

    unravel = numpy_unravel(parameters)

    def reference(logs: Any) -> Any:
        return reference_gradient(kernel, lambda logs: unravel(np.exp(logs)), logs, X, y)

    h = 1e-4
    logs = np.asarray(logs)
    steps = h * np.eye(len(logs))
    # two central differences, so that their error is h^4
    once = np.stack([(reference(logs + e) - reference(logs - e)) / (2 * h) for e in steps])
    twice = np.stack([(reference(logs + 2 * e) - reference(logs - 2 * e)) / (4 * h) for e in steps])
    np.testing.assert_allclose(hessian, (4 * once - twice) / 3, rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(hessian, hessian.T)


@pytest.mark.parametrize("kernel", [RBF(), Matern52(ard=True)], ids=lambda kernel: kernel.name)
def test_independent_clients_add(kernel: Kernel) -> None:
    """Clients so far apart that covariances between them are zero."""
    parameters = some_parameters(kernel)
    sizes = [4, 1, 7]
    clients = [data(size, seed) for seed, size in enumerate(sizes)]
    clients = [(X + 100.0 * i, y) for i, (X, y) in enumerate(clients)]
    union = np.concatenate([X for X, _ in clients]), np.concatenate([y for _, y in clients])
    run, _ = compiled_derivatives(kernel)
    logs = logarithms(parameters)
    together = run(logs, *union, jnp.array(12))
    apart = [run(logs, *with_padding(X, y, 12 - len(y), 0.5), jnp.array(len(y))) for X, y in clients]
    for whole, parts in zip(together, zip(*apart, strict=True), strict=True):
        np.testing.assert_allclose(whole, sum(parts), rtol=1e-10, atol=1e-10)


# Jitter ------------------------------------------------------------------------------------------------------------


def indefinite(by: float, scale: float = 1.0) -> Any:
    """A matrix of mean diagonal `scale` whose least eigenvalue is `-by * scale`."""
    K = np.eye(5)
    K[1, 4] = K[4, 1] = 1.0 + by
    return scale * K


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
@pytest.mark.parametrize(("by", "jitter"), [(-0.1, 0.0), (3e-11, 1e-10), (3e-9, 1e-8), (3e-7, 1e-6), (3e-5, 1e-4)])
def test_the_smallest_jitter_that_works_is_used_and_is_relative(by: float, jitter: float, scale: float) -> None:
    K = indefinite(by, scale)
    for L, used in (cholesky(K), host_cholesky(K, "K"), jax.jit(cholesky)(K)):
        assert float(used) == jitter
        L = np.asarray(L)
        np.testing.assert_array_equal(L, np.tril(L))
        np.testing.assert_allclose(L @ L.T, K + jitter * scale * np.eye(5), rtol=1e-14, atol=1e-14 * scale)


def test_jitter_may_be_relative_to_another_scale() -> None:
    K = indefinite(3e-7)
    for L, used in (cholesky(K, np.array(1e4)), host_cholesky(K, "K", scale=1e4)):
        assert float(used) == 1e-10
        np.testing.assert_allclose(np.asarray(L @ L.T), K + 1e-6 * np.eye(5), rtol=1e-14, atol=1e-14)


def test_each_matrix_of_a_batch_has_its_own_jitter() -> None:
    L, jitter = jax.jit(jax.vmap(cholesky))(np.stack([indefinite(by) for by in (3e-7, -0.1, 0.1, 3e-11)]))
    assert jitter.tolist() == [1e-6, 0.0, JITTERS[-1], 1e-10]
    diagonals = np.diagonal(L, axis1=1, axis2=2)
    assert np.isnan(diagonals).all(axis=1).tolist() == [False, False, True, False]
    assert np.isnan(L).any(axis=(1, 2)).tolist() == [False, False, True, False]


def test_no_jitter_helps_an_indefinite_matrix() -> None:
    assert np.all(np.isnan(np.diagonal(cholesky(indefinite(1e-3))[0])))
    with pytest.raises(
        NotPositiveDefiniteError, match=r"^this is not .* 0, 1e-10, 1e-08, 1e-06, 0.0001 times its mean"
    ):
        host_cholesky(indefinite(1e-3), "this")
    with pytest.raises(NotPositiveDefiniteError, match=r"^this holds NaN or infinity"):
        host_cholesky(np.full((2, 2), np.nan), "this")


def test_a_negative_variance_gives_nan_or_a_message() -> None:
    X, y = data(6)
    parameters = [some_parameters(RBF(), noise_variance) for noise_variance in (0.3, -0.9)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parameters)
    each = jax.value_and_grad(lambda parameters: negative_log_marginal_likelihood(RBF(), parameters, X, y))
    values, gradients = jax.jit(jax.vmap(each))(stacked)
    assert np.isnan(values).tolist() == [False, True]
    for leaf in jax.tree.leaves(gradients):
        assert np.isnan(leaf.reshape(2, -1)).all(axis=1).tolist() == [False, True]
    with pytest.raises(
        NotPositiveDefiniteError, match=r"covariance of 6 training inputs .* 0, 1e-10, .*, 0.0001 times"
    ):
        DensePosterior.condition(RBF(), parameters[1], X, y)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
def test_equal_inputs_without_noise_take_jitter(scale: float) -> None:
    X, y = data(4)
    twice = np.concatenate([X, X]), np.concatenate([y, y])
    parameters = some_parameters(RBF(), noise_variance=0.0)
    parameters["variance"] = np.array(scale)
    posterior = DensePosterior.condition(RBF(), parameters, *twice)
    assert posterior.notes == {"jitter": 1e-10}
    np.testing.assert_allclose(posterior.predict(X).mean, y, rtol=1e-6)
    value = float(jax.jit(functools.partial(negative_log_marginal_likelihood, RBF()))(parameters, *twice))
    K = reference_covariance(RBF(), parameters, twice[0]) + 1e-10 * scale * np.eye(8)
    assert value == pytest.approx(dense_gp.negative_log_marginal_likelihood(K, twice[1]), rel=1e-5)
    assert DensePosterior.condition(RBF(), parameters, X, y).notes == {"jitter": 0.0}
    with_noise = parameters | {"noise_variance": np.array(1e-3 * scale)}
    assert DensePosterior.condition(RBF(), with_noise, *twice).notes == {"jitter": 0.0}


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 65, 129])
def test_inverse_from_a_cholesky_factor(size: int) -> None:
    A = np.random.default_rng(size).normal(size=(size, size + 3))
    K = A @ A.T / size + 0.5 * np.eye(size)
    inverse = np.asarray(jax.jit(inverse_from_cholesky)(np.linalg.cholesky(K)))
    np.testing.assert_allclose(inverse, np.linalg.inv(K), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(inverse, inverse.T, rtol=1e-13, atol=1e-13)


# The posterior -----------------------------------------------------------------------------------------------------


def reference_posterior(kernel: Kernel, parameters: Parameters, X: Any, y: Any, X_new: Any) -> tuple[Any, Any]:
    config = to_config(kernel)
    Ksx = dense_gp.gram(config, parameters, X_new, X)
    Kss = dense_gp.gram(config, parameters, X_new, X_new)
    return dense_gp.posterior(reference_covariance(kernel, parameters, X), Ksx, Kss, y)


@pytest.mark.parametrize(
    ("kernel", "rows", "new_rows"),
    [*((kernel, 10, 7) for kernel in KERNELS), (KERNELS[0], 1, 7), (KERNELS[0], 10, 1), (KERNELS[0], 40, 1)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_posterior_is_the_equation(kernel: Kernel, rows: int, new_rows: int) -> None:
    (X, y), (X_new, _), parameters = data(rows), data(new_rows, seed=1), some_parameters(kernel)
    posterior = DensePosterior.condition(kernel, parameters, X, y)
    mean, covariance = reference_posterior(kernel, parameters, X, y, X_new)
    prediction = posterior.predict(X_new)
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(prediction.variance, np.diag(covariance), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(posterior.covariance(X_new), covariance, rtol=1e-10, atol=1e-10)
    assert prediction.clamped == 0
    assert posterior.notes == {"jitter": 0.0}
    assert posterior.kind == "dense"


@pytest.mark.parametrize("new_rows", [1024, 1025, 2100])
def test_posterior_at_more_rows_than_fit_in_one_call(new_rows: int) -> None:
    (X, y), (X_new, _), parameters = data(5), data(new_rows, seed=1), some_parameters(Matern52(ard=True))
    prediction = DensePosterior.condition(Matern52(ard=True), parameters, X, y).predict(X_new)
    assert prediction.mean.shape == prediction.variance.shape == (new_rows,)
    for t in [*range(0, new_rows, 97), 1022, 1023, *range(1024, min(new_rows, 1030)), new_rows - 1]:
        mean, covariance = reference_posterior(Matern52(ard=True), parameters, X, y, X_new[t : t + 1])
        assert prediction.mean[t] == pytest.approx(mean[0], rel=1e-10, abs=1e-10)
        assert prediction.variance[t] == pytest.approx(covariance[0, 0], rel=1e-10)


@given(seed=st.integers(0, 10_000), noise_variance=st.floats(1e-6, 10.0), index=st.integers(0, len(KERNELS) - 1))
def test_data_never_add_variance(seed: int, noise_variance: float, index: int) -> None:
    (X, y), parameters = data(12, seed), some_parameters(KERNELS[index], noise_variance, seed)
    X_new = np.concatenate([X, data(12, seed + 1)[0], [[100.0, -100.0]]])
    variance = DensePosterior.condition(KERNELS[index], parameters, X, y).predict(X_new).variance
    prior = np.asarray(KERNELS[index].diagonal(parameters, X_new))
    assert np.all(variance <= prior)
    assert np.all(variance >= 0.0)
    fewer = DensePosterior.condition(KERNELS[index], parameters, X[:5], y[:5]).predict(X_new).variance
    assert np.all(variance <= fewer + 1e-9 * prior)


def test_nothing_is_left_to_learn_at_a_training_input_without_noise() -> None:
    (X, y), parameters = data(30), some_parameters(Matern32(), noise_variance=1e-15)
    posterior = DensePosterior.condition(Matern32(), parameters, X, y)
    prediction = posterior.predict(X)
    np.testing.assert_allclose(prediction.mean, y, rtol=1e-9)
    assert np.all(prediction.variance >= 0.0)
    assert np.all(prediction.variance < 1e-12)
    rounded = np.diag(posterior.covariance(X))
    assert prediction.clamped > 0
    assert prediction.clamped <= int(np.sum(prediction.variance == 0.0))
    np.testing.assert_allclose(prediction.variance, np.maximum(rounded, 0.0), atol=1e-13)


def test_draws_have_the_mean_and_covariance_of_the_posterior() -> None:
    """Each entry within five standard errors."""
    num_samples = 100_000
    (X, y), (X_new, _), parameters = data(4), data(5, seed=1), some_parameters(RBF())
    posterior = DensePosterior.condition(RBF(), parameters, X, y)
    draws = posterior.sample(jax.random.key(0), X_new, num_samples)
    assert draws.shape == (num_samples, 5)
    mean, covariance = reference_posterior(RBF(), parameters, X, y, X_new)
    variance = np.diag(covariance)
    assert np.all(np.abs(draws.mean(0) - mean) < 5 * np.sqrt(variance / num_samples))
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / num_samples)
    assert np.all(np.abs(np.cov(draws.T) - covariance) < 5 * error)
    np.testing.assert_array_equal(draws, posterior.sample(jax.random.key(0), X_new, num_samples))


def test_draws_at_training_inputs_without_noise_are_the_targets() -> None:
    """A covariance of zeros up to rounding: its jitter is relative to the prior's variance."""
    (X, y), parameters = data(8), some_parameters(Matern32(), noise_variance=1e-12)
    parameters["variance"] = np.array(1e4)
    posterior = DensePosterior.condition(Matern32(), parameters, X, y)
    draws = posterior.sample(jax.random.key(0), np.concatenate([X, X]), 20)
    np.testing.assert_allclose(draws, np.tile(y, (20, 2)), atol=0.01)  # a standard deviation of 1e-3
    assert np.std(draws - np.tile(y, (20, 2))) == pytest.approx(1e-3, rel=0.3)
