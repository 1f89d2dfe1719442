"""Random features: their kernels, their bias, their error, and what is learned of them."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm, t

from fedgauss.errors import SettingsError
from fedgauss.gp import kernels
from fedgauss.gp.features import (
    Exponential,
    Features,
    Fourier,
    FourierFeature,
    Network,
    NetworkFeature,
    Polynomial,
    RandomFeature,
    feature_matrix,
    join,
    rebuild,
    sine_cosine,
    skeleton,
    split,
)

check_grads: Any = jax.test_util.check_grads  # untyped in JAX
FAMILIES: dict[str, kernels.Kernel] = {
    "rbf": kernels.RBF(ard=True),
    "matern12": kernels.Matern12(ard=True),
    "matern32": kernels.Matern32(ard=True),
    "matern52": kernels.Matern52(ard=True),
}
every_family = pytest.mark.parametrize("family", list(FAMILIES))
LENGTHSCALES = np.array([0.3, 0.8])
X = jnp.asarray(np.random.default_rng(0).uniform(-0.6, 0.6, (6, 2)))


made = eqx.filter_jit(lambda make, num_inputs: make(jax.random.key(0), num_inputs))
"""What these settings make; compiled, since one operation at a time takes seconds."""

draws_of = eqx.filter_jit(lambda feature, key, num_samples: feature.draw(key, num_samples))


def stationary_kernel(family: str) -> Any:
    parameters = {"lengthscale": LENGTHSCALES, "variance": np.ones(())}
    return np.asarray(FAMILIES[family].gram(parameters, X))


def fourier(family: Any) -> FourierFeature:
    return dataclasses.replace(
        Fourier(family=family, ard=True)(jax.random.key(0), 2), log_lengthscale=jnp.log(jnp.asarray(LENGTHSCALES))
    )


def shifted(feature: RandomFeature) -> RandomFeature:
    """Every parameter moved, so that no part of a network is at a special start."""
    parameters, rest = split(feature)
    rng = np.random.default_rng(1)
    return join({name: leaf + 0.3 * rng.normal(size=leaf.shape) for name, leaf in parameters.items()}, rest)


@eqx.filter_jit
def _kernel_matrices(feature: RandomFeature, omega: Any, sizes: tuple[int, ...]) -> Any:
    def one(omega: Any) -> Any:
        matrices = [feature_matrix(feature, omega[:size], X) for size in sizes]
        return [phi @ phi.T for phi in matrices]

    return jax.lax.map(one, omega)


def kernel_matrices(feature: RandomFeature, omega: Any, *sizes: int) -> list[Any]:
    """Estimates of the kernel at `X`, for each number of draws from as many groups of draws as there are."""
    groups = omega[: len(omega) // max(sizes) * max(sizes)].reshape(-1, max(sizes), omega.shape[1])
    return [np.asarray(estimates) for estimates in _kernel_matrices(feature, groups, sizes)]


@functools.cache
def pool(name: str) -> Any:
    """Draws of a kernel: they take long to compile."""
    return draws_of(closed_form(name)[0], jax.random.key(7), 200 * 1024)


@functools.cache
def closed_form(name: str) -> tuple[RandomFeature, Any]:
    """A feature, and the kernel that it stands for."""
    inner = np.asarray(X @ X.T)
    match name:
        case "exponential":
            squares = np.sum((np.asarray(X)[:, None] + np.asarray(X)[None]) ** 2, axis=-1)
            return Exponential(2), np.exp(0.5 * squares)
        case "polynomial":
            return Polynomial(2, 3, 0.7), (inner + 0.7) ** 3
        case "network":
            network = made(Network(widths=(8,), latent=2), 2)
            latent = np.asarray(jax.vmap(network.extractor)(X))
            return network, np.exp(-0.5 * np.sum((latent[:, None] - latent[None]) ** 2, axis=-1))
        case "shifted network":  # no closed form: a hundred times as many draws stand for it
            network = shifted(made(Network(widths=(8,), latent=2, replicate=True), 2))
            return network, kernel_matrices(network, draws_of(network, jax.random.key(9), 1 << 17), 1 << 17)[0][0]
        case _:
            return fourier(name), stationary_kernel(name)


# Kernels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FAMILIES, "exponential", "polynomial", "network", "shifted network"])
def test_the_error_of_the_kernel_falls_with_the_root_of_the_number_of_draws(name: str) -> None:
    feature, exact = closed_form(name)
    sizes = (16, 64, 256, 1024)
    errors = [np.sqrt(np.mean((found - exact) ** 2)) for found in kernel_matrices(feature, pool(name), *sizes)]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4  # three standard errors of 200 keys are below 0.05


@pytest.mark.parametrize("name", [*FAMILIES, "exponential", "polynomial", "network"])
def test_the_estimate_is_unbiased_and_would_not_be_with_one_draw_less(name: str) -> None:
    """Equation 17 of the paper divides by m - 1. At 6 standard errors a false alarm in 36 entries is below 1e-7."""
    feature, exact = closed_form(name)
    num_samples = 2
    (estimates,) = kernel_matrices(feature, pool(name)[:40_000], num_samples)
    error = estimates.std(axis=0) / np.sqrt(len(estimates)) + 1e-12  # the diagonal of a stationary kernel does not vary
    assert np.all(np.abs(estimates.mean(axis=0) - exact) < 6 * error)
    with_one_less = estimates * (num_samples / (num_samples - 1))
    assert np.max(np.abs(with_one_less.mean(axis=0) - exact) / error) > 12  # its own error is twice as large


@every_family
def test_fourier_features_approach_the_kernel_of_their_family_and_no_other(family: str) -> None:
    omega = pool(family)
    estimate = kernel_matrices(fourier(family), omega, len(omega))[0][0]
    tolerance = 5.5 / np.sqrt(len(omega))  # a cosine has a variance of at most one
    for other in FAMILIES:
        error = np.max(np.abs(estimate - stationary_kernel(other)))
        assert (error < tolerance) == (other == family), other


@every_family
def test_frequencies_have_the_spectral_density_of_their_family(family: Any) -> None:
    draws = np.asarray(pool(family))
    assert draws.shape == (200 * 1024, 2)
    marginal = norm() if family == "rbf" else t({"matern12": 1, "matern32": 3, "matern52": 5}[family])
    for column in draws.T:
        assert kstest(column, marginal.cdf).pvalue > 1e-6
        assert kstest(1.1 * column, marginal.cdf).pvalue < 1e-6
    # One chi-square is shared by the coordinates: the sum of two is a Student t again.
    assert kstest(draws.sum(axis=1) / np.sqrt(2.0), marginal.cdf).pvalue > 1e-6


@pytest.mark.parametrize(("degree", "constant"), [(1, 0.0), (2, 1.0), (3, 0.3)])
def test_polynomial_features_average_to_the_polynomial_kernel_also_for_negative_inputs(
    degree: int, constant: float
) -> None:
    """Theorem A.2 over all of the multinomial's outcomes, without chance."""
    feature = Polynomial(2, degree, constant)
    x, z = np.array([-0.8, 1.7]), np.array([0.6, -1.1])
    probabilities = np.array([0.5, 0.25, 0.25])
    expected = 0.0
    for omega in itertools.product(range(degree + 1), repeat=3):
        if sum(omega) != degree:
            continue
        ways = math.factorial(degree) / np.prod([math.factorial(count) for count in omega])
        draw = jnp.asarray(omega, dtype=float)
        values = feature(draw, jnp.asarray(x)) @ feature(draw, jnp.asarray(z))
        expected += ways * np.prod(probabilities ** np.array(omega)) * float(values)
    np.testing.assert_allclose(expected, (x @ z + constant) ** degree, rtol=1e-12, atol=1e-13)


def test_polynomial_draws_are_multinomial() -> None:
    """Each mean and second moment within six standard errors."""
    draws = np.asarray(Polynomial(3, 4, 1.0).draw(jax.random.key(0), 50_000))
    probabilities = np.array([1 / 2, 1 / 6, 1 / 6, 1 / 6])
    np.testing.assert_array_equal(draws.sum(axis=1), 4.0)
    covariance = 4 * (np.diag(probabilities) - np.outer(probabilities, probabilities))
    error = np.sqrt(np.diag(covariance) / len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - 4 * probabilities) < 6 * error)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.03)


def test_exponential_features_average_to_the_kernel_of_the_paper() -> None:
    """Theorem A.1 by Gauss-Hermite quadrature over omega, without chance."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    feature, x, z = Exponential(2), np.array([-0.8, 0.7]), np.array([0.6, -0.3])
    expected = 0.0
    for (a, p), (b, q) in itertools.product(zip(nodes, weights, strict=True), repeat=2):
        omega = jnp.array([a, b])
        expected += p * q / (2 * np.pi) * float(feature(omega, jnp.asarray(x)) @ feature(omega, jnp.asarray(z)))
    np.testing.assert_allclose(expected, np.exp(0.5 * np.sum((x + z) ** 2)), rtol=1e-10)


@functools.cache
def every_feature() -> dict[str, RandomFeature]:
    key = jax.random.key(4)
    return {
        "fourier": Fourier()(key, 2),
        "network": shifted(made(Network(widths=(5, 5), latent=3), 2)),
        "replicate": shifted(made(Network(widths=(5,), latent=3, shifter=None, replicate=True, activation="silu"), 2)),
        "exponential": Exponential(2),
        "polynomial": Polynomial(2, 3, 0.5),
    }


every = pytest.mark.parametrize("name", list(every_feature()))


@every
def test_the_matrix_is_a_loop_over_rows_and_draws(name: str) -> None:
    feature = every_feature()[name]
    omega = draws_of(feature, jax.random.key(1), 4)
    g = eqx.filter_jit(lambda feature, draw, x: feature(draw, x))
    values = np.array([[g(feature, draw, x) for draw in omega] for x in X])  # [N, m, d]
    expected = values.transpose(0, 2, 1).reshape(len(X), -1) / np.sqrt(4.0)
    np.testing.assert_allclose(feature_matrix(feature, omega, X), expected, rtol=1e-12, atol=1e-14)


@eqx.filter_jit
def gram(feature: RandomFeature, key: Any, num_samples: int, inputs: Any) -> Any:
    phi = feature_matrix(feature, feature.draw(key, num_samples), inputs)
    return phi @ phi.T


@every
@given(num_samples=st.sampled_from([1, 2, 20]), seed=st.integers(0, 2**31), size=st.floats(0.01, 3.0))
def test_the_gram_matrix_of_any_features_is_positive_semi_definite(
    name: str, num_samples: int, seed: int, size: float
) -> None:
    inputs = size * np.random.default_rng(seed).normal(size=(6, 2))
    K = np.asarray(gram(every_feature()[name], jax.random.key(seed), num_samples, jnp.asarray(inputs)))
    values = np.linalg.eigvalsh(K)
    assert np.all(np.isfinite(values))
    np.testing.assert_allclose(K, K.T, rtol=1e-12)
    assert values[0] >= -1e-12 * max(values[-1], 1.0)


@every
def test_the_same_key_gives_the_same_draws_and_another_key_others(name: str) -> None:
    feature = every_feature()[name]
    one, again, other = (draws_of(feature, jax.random.key(seed), 50) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert one.dtype == jnp.float64


# Gradients ---------------------------------------------------------------------------------------------------------


def test_features_are_smooth_in_the_lengthscales() -> None:
    feature = fourier("rbf")
    parameters, rest = split(feature)
    omega = draws_of(feature, jax.random.key(1), 20)
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(6, 6)))

    @jax.jit
    def total(parameters: Any) -> Any:
        phi = feature_matrix(join(parameters, rest), omega, X)
        return jnp.sum(weights * (phi @ phi.T))

    check_grads(total, (parameters,), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)
    gradient = jax.grad(total)(parameters)["log_lengthscale"]
    assert gradient.shape == (2,)
    assert np.all(np.abs(gradient) > 1e-3)


def test_every_parameter_of_a_network_has_a_gradient_even_at_the_start() -> None:
    feature = made(Network(widths=(4, 4), latent=2, replicate=True), 2)
    parameters, _ = split(feature)
    omega = draws_of(feature, jax.random.key(1), 5)
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(6, 6)))

    @jax.jit
    def total(parameters: Any) -> Any:
        phi = feature_matrix(rebuild(Network(widths=(4, 4), latent=2, replicate=True), 2, parameters), omega, X)
        return jnp.sum(weights * (phi @ phi.T))

    check_grads(total, (parameters,), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)
    gradient = jax.grad(total)(parameters)
    # A first layer of h has none before its last layer has moved from zero.
    at_rest = {"shifter.layers.0.weight", "shifter.layers.0.bias"}
    assert {name for name, leaf in gradient.items() if np.all(np.abs(leaf) < 1e-6)} == at_rest


def test_polynomial_features_have_a_gradient_at_zero_and_below() -> None:
    feature = Polynomial(2, 3, 0.5)
    omega = draws_of(feature, jax.random.key(0), 50)

    @jax.jit
    def total(x: Any) -> Any:
        return jnp.sum(jnp.sin(feature_matrix(feature, omega, x[None])))

    for x in (jnp.array([-0.5, 0.7]), jnp.zeros(2)):
        check_grads(total, (x,), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


# Sine and cosine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-3, 1.0, 10.0, 1e3, 1e5, 1e6])
@pytest.mark.parametrize("compiled", [False, True])
def test_sine_and_cosine_are_those_of_numpy(size: float, compiled: bool) -> None:
    rng = np.random.default_rng(0)
    quarters = 0.5 * np.pi * np.round(rng.uniform(-size, size, 20_000))
    edges = quarters[np.abs(quarters) <= size]
    angles = np.concatenate([rng.uniform(-size, size, 100_000), edges, edges + 0.25 * np.pi, [0.0, -0.0]])
    sine, cosine = (jax.jit(sine_cosine) if compiled else sine_cosine)(jnp.asarray(angles))
    np.testing.assert_allclose(sine, np.sin(angles), rtol=0, atol=4e-16)
    np.testing.assert_allclose(cosine, np.cos(angles), rtol=0, atol=4e-16)


def test_sine_and_cosine_stay_on_the_circle_far_beyond_their_range() -> None:
    angles = jnp.asarray(np.random.default_rng(0).uniform(-1e12, 1e12, 10_000))
    sine, cosine = sine_cosine(angles)
    np.testing.assert_allclose(sine**2 + cosine**2, 1.0, rtol=1e-12)


def test_sine_and_cosine_are_each_others_derivatives() -> None:
    angles = jnp.asarray(np.random.default_rng(0).uniform(-50.0, 50.0, 100))
    change = jnp.linspace(-1.0, 2.0, 100)
    _, (by_sine, by_cosine) = jax.jvp(sine_cosine, (angles,), (change,))
    np.testing.assert_allclose(by_sine, np.cos(angles) * change, atol=1e-15)
    np.testing.assert_allclose(by_cosine, -np.sin(angles) * change, atol=1e-15)
    first = jax.vmap(jax.grad(lambda angle: sine_cosine(angle)[0]))(angles)
    np.testing.assert_allclose(first, np.cos(angles), atol=1e-15)
    second = jax.vmap(jax.hessian(lambda angle: sine_cosine(angle)[1]))(angles)
    np.testing.assert_allclose(second, -np.cos(angles), atol=1e-15)


# Networks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_a_network_is_its_layers_then_a_stationary_kernel(activation: Any) -> None:
    feature = shifted(made(Network(widths=(7, 7), latent=3, activation=activation), 2))
    parameters, _ = split(feature)
    functions: dict[str, Any] = {
        "tanh": np.tanh,
        "relu": lambda a: np.maximum(a, 0.0),
        "silu": lambda a: a / (1 + np.exp(-a)),
    }
    between = functions[activation]

    def network(which: str, depth: int, values: Any) -> Any:
        for layer in range(depth + 1):
            values = np.asarray(parameters[f"{which}.layers.{layer}.weight"]) @ values
            if f"{which}.layers.{layer}.bias" in parameters:
                values = values + np.asarray(parameters[f"{which}.layers.{layer}.bias"])
            values = between(values) if layer < depth else values
        return values

    omega, x = np.random.default_rng(3).normal(size=3), np.array([0.4, -1.2])
    angle = (omega + network("shifter", 1, omega)) @ network("extractor", 2, x)
    np.testing.assert_allclose(
        feature(jnp.asarray(omega), jnp.asarray(x)), [np.cos(angle), np.sin(angle)], rtol=1e-12, atol=1e-14
    )


def test_the_shifter_starts_as_the_identity_and_leaves_it_once_moved() -> None:
    feature = made(Network(widths=(6,), latent=3), 2)
    assert feature.shifter is not None
    omega = draws_of(feature, jax.random.key(1), 10)
    without = dataclasses.replace(feature, shifter=None)
    np.testing.assert_array_equal(feature_matrix(feature, omega, X), feature_matrix(without, omega, X))
    moved = eqx.tree_at(lambda own: own.shifter.layers[-1].bias, feature, jnp.ones(3))
    assert not np.allclose(feature_matrix(moved, omega, X), feature_matrix(without, omega, X), atol=1e-2)


def test_random_copies_depend_on_draws_of_their_own() -> None:
    feature = made(Network(widths=(6,), latent=3, replicate=True), 2)
    assert feature.log_replicate is not None
    omega = draws_of(feature, jax.random.key(1), 10)
    assert omega.shape == (10, 3 + 2)
    x = jnp.array([0.7, -1.5])
    for draw in omega:
        plain = dataclasses.replace(feature, log_replicate=None)
        copied = x * (1.0 + 0.1 * draw[3:])
        np.testing.assert_allclose(feature(draw, x), plain(draw, copied), rtol=1e-12)
        assert not np.allclose(feature(draw, x), feature(draw.at[3:].add(1.0), x), rtol=1e-6)
    assert made(Network(widths=(6,), latent=3), 2).draw(jax.random.key(1), 10).shape == (10, 3)


def test_outputs_of_a_network_start_at_the_scale_that_was_asked_for() -> None:
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(500, 2)))

    def latent(scale: float) -> Any:
        feature: NetworkFeature = made(Network(widths=(100,), latent=40, shifter=None, scale=scale), 2)
        return eqx.filter_vmap(feature.extractor)(inputs)

    np.testing.assert_allclose(latent(0.3), 0.3 * latent(1.0), rtol=1e-12, atol=1e-14)
    assert 0.3 < float(jnp.std(latent(1.0))) < 1.0  # tanh makes it less than one


# Parameters and settings -------------------------------------------------------------------------------------------


@every
def test_what_was_split_joins_again(name: str) -> None:
    feature = every_feature()[name]
    parameters, rest = split(feature)
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in parameters.values())
    assert eqx.tree_equal(join(parameters, rest), feature)


def test_parameters_in_any_order_rebuild_the_same_module() -> None:
    make = Network(widths=(5, 5), latent=3, replicate=True)
    feature = shifted(made(make, 2))
    parameters, _ = split(feature)
    assert {"extractor.layers.0.weight", "shifter.layers.1.bias", "log_replicate"} <= set(parameters)
    by_name = jax.tree.map(lambda leaf: leaf, parameters)  # JAX sorts dicts
    assert eqx.tree_equal(rebuild(make, 2, by_name), feature)
    assert eqx.tree_equal(rebuild(make, 2, dict(reversed(parameters.items()))), feature)


class Wave(RandomFeature):
    """A user's own: sin(omega x + phase), with a part that is no array."""

    phase: Any
    power: int
    omit: None = None

    def draw(self, key: Any, num_samples: int) -> Any:
        return jax.random.normal(key, (num_samples, 1))

    def __call__(self, omega: Any, x: Any) -> Any:
        return jnp.sin(omega * jnp.sum(x) + self.phase) ** self.power


def make_wave(key: Any, num_inputs: int) -> RandomFeature:
    return Wave(jax.random.normal(key, (1,)), 2)


def test_a_module_and_a_function_of_the_user_will_do() -> None:
    feature = make_wave(jax.random.key(0), 2)
    parameters, _ = split(feature)
    assert list(parameters) == ["phase"]
    names = skeleton(make_wave, 2).names
    assert names == ("phase",)
    rebuilt = rebuild(make_wave, 2, {"phase": jnp.array([0.5])})
    omega = rebuilt.draw(jax.random.key(1), 3)
    expected = np.sin(np.asarray(omega)[:, 0] * np.sum(np.asarray(X), axis=1)[:, None] + 0.5) ** 2 / np.sqrt(3.0)
    np.testing.assert_allclose(feature_matrix(rebuilt, omega, X), expected, rtol=1e-12)


def test_arrays_of_numpy_are_learned_too() -> None:
    def make(key: Any, num_inputs: int) -> RandomFeature:
        return Wave(np.array([0.5]), 2)

    assert skeleton(make, 2).names == ("phase",)
    assert eqx.tree_equal(rebuild(make, 2, {"phase": jnp.array([0.5])}), Wave(jnp.array([0.5]), 2))


def test_a_function_around_features_without_parameters_will_do() -> None:
    def make(key: Any, num_inputs: int) -> RandomFeature:
        return Exponential(num_inputs)

    assert skeleton(make, 2)[0] == ()
    assert rebuild(make, 2, {}) == Exponential(2)


def make_whole(key: Any, num_inputs: int) -> RandomFeature:
    return Wave(jnp.arange(3), 2)


def make_whole_numpy(key: Any, num_inputs: int) -> RandomFeature:
    return Wave(np.arange(3), 2)


def make_key(key: Any, num_inputs: int) -> RandomFeature:
    return Wave(key, 2)


def make_nothing(key: Any, num_inputs: int) -> Any:
    return jnp.zeros(3)


def make_without_arguments() -> Any:
    return Exponential(1)


def make_from_a_value(key: Any, num_inputs: int) -> RandomFeature:
    return Wave(jnp.zeros(1), int(jax.random.normal(key)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_whole, "no other arrays"),
        (make_whole_numpy, "no other arrays"),
        (make_key, "no other arrays"),
        (make_nothing, "expected a fg.features.RandomFeature"),
        (make_without_arguments, "could not be made"),
        (make_from_a_value, "could not be made"),
    ],
)
def test_what_cannot_be_features_is_refused(make: Features, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        skeleton(make, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widths": (100, 50)}, "one width"),
        ({"widths": ()}, "one width"),
        ({"widths": (0,)}, "positive whole number"),
        ({"widths": (2.5,)}, "positive whole number"),
        ({"latent": 0}, "positive whole number"),
        ({"shifter": 0}, "positive whole number"),
        ({"scale": 0.0}, "positive number"),
        ({"family": "matern"}, "expected one of 'rbf'"),
        ({"activation": "sigmoid"}, "expected one of 'tanh'"),
        ({"width": (10,)}, 'did you mean "widths"'),
    ],
)
def test_bad_settings_of_a_network_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Network(**settings)


def test_bad_settings_of_fourier_features_are_refused() -> None:
    with pytest.raises(SettingsError, match='did you mean "matern32"'):
        Fourier(family="matern33")  # type: ignore[arg-type]
    assert Network(widths=7).widths == (7,)  # type: ignore[arg-type]
    assert hash(Network(widths=[7])) == hash(Network(widths=(7,)))  # type: ignore[arg-type]


def test_lengthscales_start_at_the_root_of_the_number_of_inputs() -> None:
    for ard, shape in ((False, (1,)), (True, (9,))):
        feature = Fourier(ard=ard)(jax.random.key(0), 9)
        np.testing.assert_allclose(jnp.exp(feature.log_lengthscale), np.full(shape, 3.0), rtol=1e-12)
