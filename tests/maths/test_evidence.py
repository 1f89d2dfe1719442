"""The evidence of a regression on features, its gradient and best scales; whitening, and the bound built on both."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgauss.gp.evidence import best_scales, log_evidence
from fedgauss.gp.sparse import SparseStatistics, collapsed_bound
from fedgauss.linalg import whitening
from reference import feature_regression as dense

check_grads: Any = jax.test_util.check_grads  # untyped in JAX
SHAPES = [(1, 1), (3, 20), (20, 3), (40, 100), (70, 30)]
"""Features and rows: fewer, more, and enough of them for inverses by blocks."""

evidence = jax.jit(log_evidence)
evidence_gradient = jax.jit(jax.grad(log_evidence, argnums=(4, 5)))


def data(num_features: int, num_rows: int, seed: int = 0) -> tuple[Any, Any]:
    """Features [R, N] and targets with some signal."""
    rng = np.random.default_rng(seed)
    Phi = rng.normal(size=(num_features, num_rows)) / np.sqrt(num_features)
    return Phi, rng.normal(size=num_features) @ Phi + 0.5 * rng.normal(size=num_rows)


def sums(Phi: Any, y: Any) -> tuple[Any, ...]:
    return jnp.asarray(Phi @ Phi.T), jnp.asarray(Phi @ y), jnp.asarray(y @ y), jnp.asarray(float(len(y)))


def logs(noise_std: float, weight_std: float) -> tuple[Any, Any]:
    return jnp.asarray(np.log(noise_std)), jnp.asarray(np.log(weight_std))


# The evidence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_features", "num_rows"), SHAPES)
def test_evidence_is_the_density_of_all_targets_together(num_features: int, num_rows: int) -> None:
    rng = np.random.default_rng(1)
    for seed in range(20):
        Phi, y = data(num_features, num_rows, seed)
        noise_std, weight_std = np.exp(rng.uniform([-2.0, -2.0], [2.0, 2.0]))
        expected = dense.log_density(Phi, y, noise_std, weight_std)
        value = evidence(*sums(Phi, y), *logs(noise_std, weight_std))
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-9)


def test_evidence_is_half_of_the_formula_of_the_paper_and_a_constant() -> None:
    Phi, y = data(5, 30)
    value = evidence(*sums(Phi, y), *logs(0.3, 2.0))
    paper = dense.primal_log_likelihood(Phi, y, 0.3, 2.0)
    np.testing.assert_allclose(value, 0.5 * (paper - 30 * np.log(2 * np.pi)), rtol=1e-10)


def test_evidence_keeps_its_digits_with_many_smooth_features_and_little_noise() -> None:
    """Without care, y^T y - b^T B^-1 b loses as many digits as B = G + rho I is badly conditioned."""
    rng = np.random.default_rng(0)
    X, omega = rng.normal(size=(50, 3)), rng.normal(size=(100, 3)) / 2
    Phi = np.concatenate([np.cos(omega @ X.T), np.sin(omega @ X.T)]) / 10.0
    y = np.sin(X.sum(axis=1)) + 0.1 * rng.normal(size=50)
    for weight_std in (1.0, 10.0, 100.0):
        value = evidence(*sums(Phi, y), *logs(0.01, weight_std))
        np.testing.assert_allclose(value, dense.log_density(Phi, y, 0.01, weight_std), rtol=1e-8)


@given(log_noise=st.floats(-5.0, 5.0), log_weight=st.floats(-5.0, 5.0))
def test_nothing_is_said_of_the_scales_by_no_rows(log_noise: float, log_weight: float) -> None:
    empty = sums(np.zeros((4, 0)), np.zeros(0))
    scales = jnp.asarray(log_noise), jnp.asarray(log_weight)
    np.testing.assert_allclose(evidence(*empty, *scales), 0.0, atol=1e-12)
    np.testing.assert_allclose(evidence_gradient(*empty, *scales), 0.0, atol=1e-12)


ARGUMENTS = ["phi_phi", "phi_y", "y_y", "num_rows", "log_noise_std", "log_weight_std"]


@pytest.mark.parametrize("argument", range(6), ids=ARGUMENTS)
@pytest.mark.parametrize(("num_features", "num_rows"), [(3, 20), (20, 3)])
def test_gradient_in_every_argument_is_that_of_finite_differences(
    argument: int, num_features: int, num_rows: int
) -> None:
    point = list((*sums(*data(num_features, num_rows)), *logs(0.9, 0.7)))

    @jax.jit
    def along(value: Any) -> Any:
        value = 0.5 * (value + value.T) if argument == 0 else value  # G stays symmetric
        return log_evidence(*point[:argument], value, *point[argument + 1 :])

    check_grads(along, (point[argument],), order=1, modes=["rev"], atol=1e-7, rtol=1e-7)
    assert np.any(np.abs(jax.grad(along)(point[argument])) > 1e-3)


def test_gradient_in_features_and_targets_is_that_of_the_dense_density() -> None:
    """The dense density is differentiated by JAX, the evidence by its own rule, through G, b and y^T y at once."""
    Phi, y = (jnp.asarray(part) for part in data(40, 60))

    def through_sums(Phi: Any, y: Any, log_noise: Any, log_weight: Any) -> Any:
        return log_evidence(Phi @ Phi.T, Phi @ y, y @ y, jnp.asarray(60.0), log_noise, log_weight)

    def directly(Phi: Any, y: Any, log_noise: Any, log_weight: Any) -> Any:
        K = jnp.exp(2 * log_weight) * Phi.T @ Phi + jnp.exp(2 * log_noise) * jnp.eye(60)
        return -0.5 * (y @ jnp.linalg.solve(K, y) + jnp.linalg.slogdet(K)[1])

    point = Phi, y, *logs(0.4, 1.3)
    ours, theirs = (jax.jit(jax.grad(one, argnums=(0, 1, 2, 3)))(*point) for one in (through_sums, directly))
    for own, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-9, atol=1e-9)


def test_evidence_of_several_models_at_a_time() -> None:
    """`vmap`, as several clients are computed together; also of the gradient."""
    several = [(*sums(*data(4, 9, seed)), *logs(0.5 + seed, 1.0)) for seed in range(3)]
    stacked = [jnp.stack(parts) for parts in zip(*several, strict=True)]
    together = jax.vmap(log_evidence)(*stacked)
    np.testing.assert_allclose(together, [log_evidence(*one) for one in several], rtol=1e-13)
    by_noise, by_weight = jax.vmap(jax.grad(log_evidence, argnums=(4, 5)))(*stacked)
    expected = [evidence_gradient(*one) for one in several]
    np.testing.assert_allclose(np.stack([by_noise, by_weight], axis=1), expected, rtol=1e-12, atol=1e-12)


# Best scales -------------------------------------------------------------------------------------------------------


def found(Phi: Any, y: Any, noise_floor: float = 1e-12) -> Any:
    return best_scales(Phi @ Phi.T, Phi @ y, float(y @ y), float(len(y)), noise_floor)


@pytest.mark.parametrize(("num_features", "num_rows"), [(3, 40), (40, 100), (70, 50)])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_scales_have_more_evidence(num_features: int, num_rows: int, seed: int) -> None:
    Phi, y = data(num_features, num_rows, seed)
    scales = found(Phi, y)
    best = float(evidence(*sums(Phi, y), *logs(scales.noise_std, scales.weight_std)))
    np.testing.assert_allclose(best, dense.log_density(Phi, y, scales.noise_std, scales.weight_std), rtol=1e-9)
    np.testing.assert_allclose(scales.log_evidence, best, rtol=1e-9)
    rng = np.random.default_rng(seed)
    near, far = rng.normal(scale=0.05, size=(100, 2)), rng.uniform([-6.0, -8.0], [4.0, 6.0], (200, 2))
    for log_noise, log_weight in [*(np.log([scales.noise_std, scales.weight_std]) + near), *far]:
        assert dense.log_density(Phi, y, np.exp(log_noise), np.exp(log_weight)) <= best + 1e-8
    gradient = evidence_gradient(*sums(Phi, y), *logs(scales.noise_std, scales.weight_std))
    np.testing.assert_allclose(gradient, 0.0, atol=1e-5 * num_rows)


def test_scales_of_the_data_are_found() -> None:
    """Thousands of rows and weights: each within five standard errors, and as one who knows the weights would say."""
    rng = np.random.default_rng(0)
    weights, noise = 2.0 * rng.normal(size=300), 0.3 * rng.normal(size=5000)
    Phi = rng.normal(size=(300, 5000))
    scales = found(Phi, weights @ Phi + noise)
    assert abs(scales.noise_std / 0.3 - 1.0) < 5 / np.sqrt(2 * 4700)
    assert scales.weight_std == pytest.approx(np.sqrt(np.mean(weights**2)), rel=1e-3)


@pytest.mark.parametrize(("num_features", "num_rows"), [(3, 40), (60, 20)])
def test_noise_stays_at_its_floor_where_there_is_none(num_features: int, num_rows: int) -> None:
    Phi, _ = data(num_features, num_rows)
    y = np.random.default_rng(5).normal(size=num_features) @ Phi
    floor = 1e-4
    scales = found(Phi, y, floor)
    if num_features < num_rows:
        assert scales.noise_std == pytest.approx(np.sqrt(floor), rel=1e-12)
    assert scales.noise_std >= np.sqrt(floor) * (1 - 1e-12)
    assert 0.1 < scales.weight_std < 10.0
    best = float(evidence(*sums(Phi, y), *logs(scales.noise_std, scales.weight_std)))
    for log_noise in np.log(scales.noise_std) + np.array([0.0, 0.01, 0.1, 1.0, 5.0]):
        for log_weight in np.log(scales.weight_std) + np.linspace(-3.0, 3.0, 25):
            value = evidence(*sums(Phi, y), jnp.asarray(log_noise), jnp.asarray(log_weight))
            assert float(value) <= best + 1e-6 * abs(best)


@pytest.mark.parametrize("target_size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("feature_size", [1e-6, 1.0, 1e6])
def test_scales_follow_the_units_of_targets_and_features(target_size: float, feature_size: float) -> None:
    Phi, y = data(5, 60)
    one, floor = found(Phi, y), 1e-12 * target_size**2
    other = found(feature_size * Phi, target_size * y, floor)
    assert other.noise_std == pytest.approx(target_size * one.noise_std, rel=1e-5)
    assert other.weight_std == pytest.approx(target_size / feature_size * one.weight_std, rel=1e-5)
    assert other.log_evidence == pytest.approx(one.log_evidence - 60 * np.log(target_size), rel=1e-9)


def assert_usable(scales: Any, Phi: Any, y: Any) -> None:
    """Finite, positive, and with as much evidence as the noise alone."""
    assert 0.0 < scales.noise_std < np.inf
    assert 0.0 < scales.weight_std < np.inf
    value = float(evidence(*sums(Phi, y), *logs(scales.noise_std, scales.weight_std)))
    noise_alone = dense.log_density(0.0 * Phi, y, scales.noise_std, 1.0)
    assert value >= noise_alone - 1e-4 * max(1.0, abs(noise_alone))


def test_features_that_are_zero_leave_noise_alone() -> None:
    Phi, y = np.zeros((4, 30)), data(4, 30)[1]
    scales = found(Phi, y)
    assert scales.noise_std == pytest.approx(np.sqrt(np.mean(y**2)), rel=1e-10)
    assert_usable(scales, Phi, y)


def test_targets_that_features_know_nothing_of_leave_noise_alone() -> None:
    Phi, _ = data(4, 30)
    y = np.linalg.svd(Phi)[2][10]  # orthogonal to every feature
    scales = found(Phi, y)
    assert scales.noise_std == pytest.approx(np.sqrt(np.mean(y**2)), rel=1e-5)
    assert scales.weight_std < 1e-2 * scales.noise_std
    assert_usable(scales, Phi, y)


def test_targets_that_are_zero_leave_the_floor() -> None:
    Phi, y = data(4, 30)
    scales = found(Phi, 0.0 * y, 1e-6)
    assert scales.noise_std == pytest.approx(1e-3, rel=1e-12)
    assert_usable(scales, Phi, 0.0 * y)


@pytest.mark.parametrize("noise_floor", [1e-12, 1e-4])
def test_more_features_than_rows_and_equal_features_do_no_harm(noise_floor: float) -> None:
    Phi, y = data(100, 20)
    assert_usable(found(Phi, y, noise_floor), Phi, y)
    few, y = data(4, 20)
    twice = np.concatenate([few, few])
    assert_usable(found(twice, y, noise_floor), twice, y)
    once = found(few, y)
    assert found(twice, y).noise_std == pytest.approx(once.noise_std, rel=1e-5)
    assert found(twice, y).weight_std == pytest.approx(once.weight_std / np.sqrt(2.0), rel=1e-5)


def test_one_row_and_one_feature_do_no_harm() -> None:
    Phi, y = np.array([[0.5]]), np.array([2.0])
    assert_usable(found(Phi, y, 1e-4), Phi, y)


# Whitening and the collapsed bound ---------------------------------------------------------------------------------


def covariance(size: int, seed: int = 0) -> Any:
    A = np.random.default_rng(seed).normal(size=(size, size))
    return jnp.asarray(A @ A.T + size * np.eye(size))


@pytest.mark.parametrize("size", [1, 5, 40, 70])
def test_whitening_makes_a_covariance_the_identity(size: int) -> None:
    K = covariance(size)
    W = whitening(K)
    np.testing.assert_allclose(W @ K @ W.T, np.eye(size), atol=1e-12)
    np.testing.assert_array_equal(W, np.tril(W))
    np.testing.assert_allclose(W, np.linalg.inv(np.linalg.cholesky(np.asarray(K))), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_gradient_of_whitening_is_that_of_the_inverse_factor(size: int) -> None:
    K = covariance(size)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(size, size)))

    def by(function: Any) -> Any:
        return jax.jit(jax.grad(lambda K: jnp.sum(weights * function(0.5 * (K + K.T)))))(K)

    expected = by(lambda K: jnp.linalg.inv(jnp.linalg.cholesky(K)))
    np.testing.assert_allclose(by(whitening), expected, rtol=1e-9, atol=1e-12)
    check_grads(jax.jit(lambda K: whitening(0.5 * (K + K.T))), (K,), order=1, modes=["rev"], atol=1e-7, rtol=1e-7)


def test_whitening_of_a_singular_covariance_stays_finite_with_jitter() -> None:
    K = jnp.ones((6, 6))
    W = whitening(K)
    assert np.all(np.isfinite(W))
    np.testing.assert_allclose(W @ (K + 1e-10 * jnp.eye(6)) @ W.T, np.eye(6), atol=1e-4)
    assert np.all(np.isfinite(jax.grad(lambda K: jnp.sum(whitening(K) ** 2))(K)))


def test_gradient_of_the_collapsed_bound_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    phi, Y = rng.normal(size=(5, 30)), rng.normal(size=(30, 2))
    trace = float(np.sum(phi**2)) + 3.0
    parts = phi @ phi.T, phi @ Y, np.sum(Y**2), np.array(trace), np.array(30.0)
    statistics = SparseStatistics(*(jnp.asarray(part) for part in parts))

    @jax.jit
    def bound(statistics: Any, noise_variance: Any) -> Any:
        G = statistics.phi_phi
        return collapsed_bound(statistics._replace(phi_phi=0.5 * (G + G.T)), noise_variance)

    Q = phi.T @ phi
    expected = sum(dense.log_density(phi, y, np.sqrt(0.3), 1.0) for y in Y.T) - 2 * (trace - np.trace(Q)) / (2 * 0.3)
    np.testing.assert_allclose(bound(statistics, jnp.asarray(0.3)), expected, rtol=1e-10)
    check_grads(bound, (statistics, jnp.asarray(0.3)), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)
    for one in range(5):  # each by itself: none hides behind another

        def along(part: Any, one: int = one) -> Any:
            return bound(statistics._replace(**{SparseStatistics._fields[one]: part}), jnp.asarray(0.3))

        check_grads(along, (statistics[one],), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)
        assert np.any(np.abs(jax.grad(along)(statistics[one])) > 1e-3)
