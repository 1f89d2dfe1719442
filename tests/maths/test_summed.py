"""Models of sums over rows: chunks, clients and padding change nothing, and dense algebra says the same."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgauss.gp import feature_regression, summed
from fedgauss.gp.feature_regression import FeatureModel, FeatureSums
from fedgauss.gp.features import Features, Fourier, Network, feature_matrix, rebuild
from fedgauss.gp.inducing import InducingModel
from fedgauss.gp.kernels import RBF, Matern32
from fedgauss.gp.parameters import Space
from fedgauss.gp.posterior import Posterior
from fedgauss.gp.summed import SummedModel, sums_of
from reference import feature_regression as dense
from reference import large_gp

check_grads: Any = jax.test_util.check_grads  # untyped in JAX
NETWORK = Network(widths=(6,), latent=2, shifter=4)


def feature_model(features: Features = NETWORK, num_targets: int = 2, num_samples: int = 5) -> FeatureModel:
    return FeatureModel(
        features=features, num_inputs=2, num_targets=num_targets, num_samples=num_samples, noise_floor=1e-4,
        noise_std=0.3, weight_std=1.0,
    )  # fmt: skip


def inducing_model(num_inducing: int = 7) -> InducingModel:
    kernel = Matern32(ard=True)
    return InducingModel(space=Space(kernel=kernel, num_inputs=2, transform="log"), num_inducing=num_inducing)


MODELS: dict[str, SummedModel] = {"features": feature_model(num_targets=1), "inducing": inducing_model()}
every_model = pytest.mark.parametrize("name", list(MODELS))


def start(model: SummedModel, seed: int = 0) -> tuple[Any, Any]:
    """Parameters moved away from their start."""
    theta, constants = _init(model, jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return {name: leaf + 0.2 * rng.normal(size=leaf.shape) for name, leaf in sorted(theta.items())}, constants


_init = jax.jit(lambda model, key: model.init(key), static_argnums=0)


def data(num_rows: int, num_targets: int = 1, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 2))
    waves = np.sin(X @ np.array([[1.0, 2.0, -1.0], [2.0, 0.3, 1.0]]))[:, :num_targets]
    return jnp.asarray(X), jnp.asarray(waves + 0.3 * rng.normal(size=waves.shape))


def padded(X: Any, Y: Any, rows: int) -> tuple[Any, Any]:
    return tuple(jnp.asarray(np.pad(part, [(0, rows - len(part)), (0, 0)])) for part in (X, Y))  # type: ignore[return-value]


def dense_features(model: FeatureModel, theta: Any, constants: Any, X: Any) -> Any:
    """Phi [R, N], row by row of the matrix that `test_features` compares with a loop."""
    parameters = {name.removeprefix("features."): leaf for name, leaf in theta.items() if name.startswith("features.")}
    feature = rebuild(model.features, model.num_inputs, parameters)
    return np.asarray(feature_matrix(feature, constants["omega"], X)).T


def assert_same(one: Any, other: Any, rtol: float = 1e-10) -> None:
    """Every array, relative to its largest entry."""
    flat, structure = jax.tree_util.tree_flatten_with_path(one)
    assert str(structure) == str(jax.tree.structure(other))
    for (path, a), b in zip(flat, jax.tree.leaves(other), strict=True):
        size = float(np.max(np.abs(np.asarray(b)), initial=1e-300))
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * size + 1e-12, err_msg=jax.tree_util.keystr(path))


def add(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *parts)


run_sums = jax.jit(sums_of, static_argnums=0)
"""At the size of chunks that is read when it is first traced: for tests that leave that alone."""


def value(model: SummedModel, theta: Any, constants: Any, X: Any, Y: Any, num_rows: Any) -> Any:
    return model.objective(sums_of(model, theta, constants, X, Y, num_rows), theta)


def value_and_gradient(model: SummedModel, theta: Any, *rest: Any) -> Any:
    """Compiled anew: the size of a chunk is read while tracing."""
    return jax.jit(jax.value_and_grad(functools.partial(value, model)))(theta, *rest)


# Chunks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "num_rows"), [(40, 33), (2 * 2048 + 1, 4097), (5000, 4321)])
def test_sums_over_padded_rows_are_those_of_dense_features(rows: int, num_rows: int) -> None:
    model = feature_model()
    theta, constants = start(model)
    X, Y = data(num_rows, 2)
    found = run_sums(model, theta, constants, *padded(X, Y, rows), num_rows)
    Phi, Y = dense_features(model, theta, constants, X), np.asarray(Y)
    expected = Phi @ Phi.T, Phi @ Y, np.sum(Y**2, axis=0), np.asarray(float(num_rows))
    assert_same(found, FeatureSums(*(jnp.asarray(part) for part in expected)))


@every_model
def test_value_and_gradient_do_not_depend_on_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[name]
    theta, constants = start(model)
    X, Y = padded(*data(79), 80)
    whole, gradient = value_and_gradient(model, theta, constants, X, Y, 79)
    assert all(np.any(np.abs(leaf) > 1e-4) for leaf in gradient.values())
    chunked, called = summed._chunked, []

    def counted(*given: Any) -> Any:
        called.append(1)
        return chunked(*given)

    monkeypatch.setattr(summed, "_chunked", counted)
    for chunk in (20, 23):  # nothing is left over, or some rows are
        monkeypatch.setattr(summed, "CHUNK", chunk)
        by_chunk, chunked_gradient = value_and_gradient(model, theta, constants, X, Y, 79)
        assert_same(by_chunk, whole)
        assert_same(chunked_gradient, gradient)
    assert called


@every_model
def test_gradient_by_chunks_is_that_of_finite_differences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summed, "CHUNK", 8)
    model = MODELS[name]
    theta, constants = start(model)
    X, Y = padded(*data(28), 30)
    of_theta = jax.jit(lambda theta: value(model, theta, constants, X, Y, 28))
    check_grads(of_theta, (theta,), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


@every_model
def test_several_clients_at_a_time_are_each_as_if_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summed, "CHUNK", 4)
    model = MODELS[name]
    theta, constants = start(model)
    counts = [12, 7, 0]
    blocks = [padded(*data(count, seed=count), 12) for count in counts]
    X, Y = (jnp.stack(parts) for parts in zip(*blocks, strict=True))
    alone = functools.partial(jax.value_and_grad(functools.partial(value, model)), theta, constants)
    together = jax.jit(jax.vmap(alone))(X, Y, jnp.asarray(counts))
    for client, (block, count) in enumerate(zip(blocks, counts, strict=True)):
        one = jax.jit(alone)(*block, count)
        assert_same(jax.tree.map(lambda leaf, c=client: leaf[c], together), one)


# Clients -----------------------------------------------------------------------------------------------------------


def assert_split_changes_nothing(name: str, clients: list[Any]) -> tuple[Any, Any]:
    """In sums, objective, and the objective's own gradient. Returns the sums of the split, and the pooled ones."""
    model = MODELS[name]
    theta, constants = start(model)
    X, Y = data(24)
    pooled = run_sums(model, theta, constants, X, Y, 24)
    parts = [run_sums(model, theta, constants, *padded(X[own], Y[own], 24), len(own)) for own in clients]
    total = add(parts)
    assert_same(total, pooled)
    assert_same(_objective_and_gradient(name, total, theta), _objective_and_gradient(name, pooled, theta))
    return total, pooled


@functools.partial(jax.jit, static_argnums=0)
def _objective_and_gradient(name: str, sums: Any, theta: Any) -> Any:
    return jax.value_and_grad(MODELS[name].objective, argnums=1)(sums, theta)


@every_model
@settings(max_examples=15)
@given(owner=st.lists(st.integers(0, 3), min_size=24, max_size=24))
def test_any_split_over_clients_changes_nothing(name: str, owner: list[int]) -> None:
    clients = [np.flatnonzero(np.array(owner) == client) for client in range(5)]  # the last has no rows
    assert_split_changes_nothing(name, clients)


@every_model
@pytest.mark.parametrize("num_clients", [1, 100])
def test_one_client_and_a_hundred_have_the_same_posterior(name: str, num_clients: int) -> None:
    model = MODELS[name]
    theta, constants = start(model)
    both = assert_split_changes_nothing(name, [np.arange(24)[client::num_clients] for client in range(num_clients)])
    ours, theirs = (model.posterior(sums, theta, constants) for sums in both)
    assert_same(ours.weights, theirs.weights)  # type: ignore[attr-defined]
    assert_same(ours.contract, theirs.contract)  # type: ignore[attr-defined]
    assert_same(tuple(ours.predict(data(5, seed=9)[0])), tuple(theirs.predict(data(5, seed=9)[0])))


@every_model
def test_gradients_of_clients_add_up_to_the_pooled_one(name: str) -> None:
    """With the cotangent of the total sums, which is what a server sends back."""
    model = MODELS[name]
    theta, constants = start(model)
    X, Y = data(24)
    _, pooled = value_and_gradient(model, theta, constants, X, Y, 24)
    clients = [(*padded(X[rows], Y[rows], 24), len(X[rows])) for rows in (slice(0, 5), slice(5, 24), slice(0))]
    total = add([run_sums(model, theta, constants, *own) for own in clients])
    by_sums, directly = jax.jit(jax.grad(model.objective, argnums=(0, 1)))(total, theta)

    @jax.jit
    def part(X: Any, Y: Any, num_rows: Any) -> Any:
        return jax.vjp(lambda theta: sums_of(model, theta, constants, X, Y, num_rows), theta)[1](by_sums)[0]

    assert_same(add([directly] + [part(*own) for own in clients]), pooled)


@every_model
def test_no_rows_have_sums_of_zero(name: str) -> None:
    model = MODELS[name]
    theta, constants = start(model)
    sums = run_sums(model, theta, constants, *padded(*data(0), 24), 0)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(sums))
    number, gradient = _objective_and_gradient(name, sums, theta)
    np.testing.assert_allclose(number, 0.0, atol=1e-12)
    assert all(np.allclose(leaf, 0.0, atol=1e-12) for leaf in gradient.values())


# Regression on features --------------------------------------------------------------------------------------------


SCALES = {"noise_std": jnp.log(jnp.array([0.3, 0.8])), "weight_std": jnp.log(jnp.array([1.5, 0.4]))}


@pytest.mark.parametrize(("num_rows", "num_samples"), [(0, 4), (3, 40), (60, 4)])
def test_feature_posterior_is_that_of_the_covariance_between_rows(num_rows: int, num_samples: int) -> None:
    model = feature_model(num_samples=num_samples)
    theta, constants = start(model)
    theta |= SCALES
    (X, Y), X_new = data(num_rows, 2), data(6, seed=5)[0]
    sums = run_sums(model, theta, constants, X, Y, num_rows)
    posterior = model.posterior(sums, theta, constants)
    assert isinstance(posterior, Posterior)
    assert posterior.notes == {"num_features": 2 * num_samples, "jitter": 0.0}
    prediction, covariance = posterior.predict(X_new), posterior.covariance(X_new)
    Phi, Phi_new = (dense_features(model, theta, constants, inputs) for inputs in (X, X_new))
    value = 0.0
    for p in range(2):
        scales = float(np.exp(SCALES["noise_std"][p])), float(np.exp(SCALES["weight_std"][p]))
        mean, expected = dense.posterior(Phi, np.asarray(Y[:, p]), Phi_new, *scales)
        np.testing.assert_allclose(prediction.mean[:, p], mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(prediction.variance[:, p], np.diag(expected), rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(covariance[p], expected, rtol=1e-8, atol=1e-10)
        value -= dense.log_density(Phi, np.asarray(Y[:, p]), *scales)
    np.testing.assert_allclose(model.objective(sums, theta), value / max(num_rows, 1), rtol=1e-9, atol=1e-12)


def test_two_targets_are_two_models_of_one_target() -> None:
    both, one = feature_model(num_targets=2), feature_model(num_targets=1)
    theta, constants = start(both)
    theta |= SCALES
    (X, Y), X_new = data(30, 2), data(6, seed=5)[0]
    sums = run_sums(both, theta, constants, X, Y, 30)
    together = both.posterior(sums, theta, constants).predict(X_new)
    values = 0.0
    for p in range(2):
        own = theta | {name: leaf[p : p + 1] for name, leaf in SCALES.items()}
        own_sums = run_sums(one, own, constants, X, Y[:, p : p + 1], 30)
        prediction = one.posterior(own_sums, own, constants).predict(X_new)
        np.testing.assert_allclose(together.mean[:, p], prediction.mean[:, 0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(together.variance[:, p], prediction.variance[:, 0], rtol=1e-12)
        values += float(one.objective(own_sums, own))
    np.testing.assert_allclose(both.objective(sums, theta), values, rtol=1e-12)


@given(num_rows=st.integers(0, 12), seed=st.integers(0, 1000), noise=st.floats(0.02, 3.0), weight=st.floats(0.1, 10.0))
def test_rows_never_add_variance(num_rows: int, seed: int, noise: float, weight: float) -> None:
    model = feature_model(Fourier(), num_targets=1)
    theta, constants = _init(model, jax.random.key(seed))
    theta |= {"noise_std": jnp.log(jnp.array([noise])), "weight_std": jnp.log(jnp.array([weight]))}
    X, Y = data(12, seed=seed)
    X_new = np.concatenate([X, data(12, seed=seed + 1)[0]])
    fewer, more = (
        model.posterior(run_sums(model, theta, constants, X, Y, count), theta, constants).predict(X_new).variance
        for count in (max(num_rows - 1, 0), num_rows)
    )
    prior = weight**2 * np.sum(dense_features(model, theta, constants, jnp.asarray(X_new)) ** 2, axis=0)[:, None]
    assert np.all(np.asarray(more) >= 0.0)
    assert np.all(np.asarray(more) <= np.asarray(fewer) + 1e-9 * prior)
    assert np.all(np.asarray(fewer) <= prior * (1 + 1e-9))


def test_predictions_do_not_depend_on_pieces_of_test_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = feature_model()
    theta, constants = start(model)
    posterior = model.posterior(run_sums(model, theta, constants, *data(20, 2), 20), theta, constants)
    X_new = data(150, seed=3)[0]
    whole = posterior.predict(X_new)
    monkeypatch.setattr(feature_regression, "_CHUNK_ROWS", 64)
    assert_same(tuple(posterior.predict(X_new)), tuple(whole), 1e-12)


def test_draws_have_the_mean_and_covariance_of_the_posterior() -> None:
    """Each entry within six standard errors."""
    model, num_samples = feature_model(), 50_000
    theta, constants = start(model)
    theta |= SCALES
    posterior = model.posterior(run_sums(model, theta, constants, *data(6, 2), 6), theta, constants)
    X_new = data(3, seed=5)[0]
    draws = posterior.sample(jax.random.key(0), X_new, num_samples)
    assert draws.shape == (num_samples, 3, 2)
    mean, covariance = posterior.predict(X_new).mean, np.asarray(posterior.covariance(X_new))
    for p in range(2):
        variance = np.diag(covariance[p])
        assert np.all(np.abs(draws[:, :, p].mean(0) - mean[:, p]) < 6 * np.sqrt(variance / num_samples))
        error = np.sqrt((np.outer(variance, variance) + covariance[p] ** 2) / num_samples)
        assert np.all(np.abs(np.cov(draws[:, :, p].T) - covariance[p]) < 6 * error)
    across = np.corrcoef(draws[:, 0, 0], draws[:, 0, 1])[0, 1]
    assert abs(across) < 6 / np.sqrt(num_samples)  # targets are independent


def test_tuned_scales_have_the_most_evidence_and_leave_the_rest_alone() -> None:
    model = feature_model()
    theta, constants = start(model)
    sums = run_sums(model, theta, constants, *data(60, 2), 60)
    tuned = model.tuned(sums, theta)
    assert all(tuned[name] is theta[name] for name in theta if name not in model.scales)
    best = float(model.objective(sums, jax.tree.map(jnp.asarray, tuned)))
    rng = np.random.default_rng(0)
    for spread in (0.01, 0.1, 1.0):
        for _ in range(20):
            moved = {name: jnp.asarray(tuned[name] + spread * rng.normal(size=2)) for name in model.scales}
            assert float(model.objective(sums, theta | moved)) > best
    gradient = jax.grad(model.objective, argnums=1)(sums, jax.tree.map(jnp.asarray, tuned))
    for name in model.scales:
        np.testing.assert_allclose(gradient[name], 0.0, atol=1e-6)


def test_noise_is_kept_at_its_floor_and_scales_are_averaged_as_they_are() -> None:
    model = feature_model()
    theta, _ = start(model)
    low = model.bounded(theta | {"noise_std": jnp.log(jnp.array([1e-9, 0.5]))})
    np.testing.assert_allclose(model.noise_variance(low), [1e-4, 0.25], rtol=1e-12)
    values = model.constrained(theta)
    for name in theta:
        expected = np.exp(theta[name]) if name in ("noise_std", "weight_std") else theta[name]
        np.testing.assert_allclose(values[name], expected, rtol=1e-14)
    assert_same(model.unconstrained(values), theta, 1e-14)


def test_the_start_is_that_of_the_settings_and_draws_come_from_the_key() -> None:
    model = feature_model()
    (theta, constants), (again, same), (_, other) = (model.init(jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_allclose(np.exp(theta["noise_std"]), [0.3, 0.3], rtol=1e-12)
    np.testing.assert_allclose(np.exp(theta["weight_std"]), [1.0, 1.0], rtol=1e-12)
    assert_same((theta, constants), (again, same), 0.0)
    assert not np.allclose(constants["omega"], other["omega"])
    assert constants["omega"].shape == (5, 2)


# What cannot be a client's sums ------------------------------------------------------------------------------------


def honest(model: SummedModel, num_rows: int, size: float = 1.0, num_targets: int = 1) -> Any:
    theta, constants = start(model)
    X, Y = data(num_rows, num_targets)
    return run_sums(model, theta, constants, X, size * Y, num_rows)


@every_model
@pytest.mark.parametrize("num_rows", [0, 1, 3, 500])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_honest_sums_are_accepted(name: str, num_rows: int, size: float) -> None:
    assert MODELS[name].refusal(honest(MODELS[name], num_rows, size)) is None


def test_honest_sums_of_dependent_features_and_exact_targets_are_accepted() -> None:
    model = feature_model(num_samples=30)
    theta, constants = start(model)
    X, Y = data(40, 2)
    omega = constants["omega"]
    twice = {"omega": jnp.concatenate([omega[:15], omega[:15]])}  # every feature there twice
    assert model.refusal(run_sums(model, theta, twice, X, Y, 40)) is None
    exact = model.phi(model.prepare(theta, twice), X) @ jnp.ones((60, 2))  # nothing but features
    assert model.refusal(run_sums(model, theta, twice, X, exact, 40)) is None
    assert model.refusal(run_sums(model, theta, twice, X, 0.0 * Y, 40)) is None
    far = run_sums(model, theta, twice, X, Y * jnp.array([[1e6, 1e-6]]), 40)  # targets of unlike size
    assert model.refusal(far) is None


def test_honest_sums_of_features_that_are_zero_are_accepted() -> None:
    sums = honest(feature_model(), 40, num_targets=2)
    nothing = sums._replace(phi_phi=0.0 * sums.phi_phi, phi_y=0.0 * sums.phi_y)
    assert feature_model().refusal(nothing) is None


def broken(sums: Any, how: str) -> Any:
    G = sums.phi_phi
    count = "count" if hasattr(sums, "trace") else "num_rows"
    match how:
        case "not symmetric":
            return sums._replace(phi_phi=G.at[0, 1].add(1e-6 * G[0, 0]))
        case "indefinite":
            _, vectors = jnp.linalg.eigh(G)
            return sums._replace(phi_phi=G - 1.01 * jnp.trace(G) * jnp.outer(vectors[:, 0], vectors[:, 0]))
        case "negative count":
            return sums._replace(**{count: -sums[-1]})
        case "negative squares":
            return sums._replace(y_y=-sums.y_y)
        case "products too large for the features":
            # twice the b of the largest y^T y: b^T G^+ b > y^T y
            b = sums.phi_y[:, 0]
            explained = b @ jnp.linalg.solve(G + 1e-9 * jnp.trace(G) * jnp.eye(len(G)), b)
            return sums._replace(phi_y=sums.phi_y * 1.1 * jnp.sqrt(jnp.max(sums.y_y) / explained))
        case "products with features that are not there":
            return sums._replace(phi_phi=0.0 * G)
    raise ValueError(how)


@every_model
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    "how",
    [
        "not symmetric",
        "indefinite",
        "negative count",
        "negative squares",
        "products too large for the features",
        "products with features that are not there",
    ],
)
def test_sums_that_no_rows_can_have_are_refused(name: str, how: str, size: float) -> None:
    model = MODELS[name]
    assert model.refusal(broken(honest(model, 60, size), how)) is not None


def test_sums_of_any_one_target_that_cannot_be_are_refused() -> None:
    model = feature_model()
    sums = honest(model, 60, num_targets=2)
    for p in range(2):
        assert model.refusal(sums._replace(phi_y=sums.phi_y.at[:, p].multiply(30.0))) is not None


def test_more_of_features_than_the_prior_allows_is_refused() -> None:
    model = inducing_model()
    sums = honest(model, 60)
    assert model.refusal(sums._replace(trace=0.9 * jnp.trace(sums.phi_phi))) is not None


# Inducing inputs ---------------------------------------------------------------------------------------------------


def inducing_theta(model: InducingModel, Z: Any, lengthscale: Any, variance: float, noise_variance: float) -> Any:
    theta = {
        "inducing_inputs": jnp.asarray(Z),
        "log.lengthscale": jnp.log(jnp.asarray(lengthscale)),
        "log.variance": jnp.asarray(np.log(variance)),
        "log.noise_variance": jnp.asarray(np.log(noise_variance)),
    }
    assert set(theta) == set(model.init(jax.random.key(0))[0])
    return theta


_inducing_value = jax.jit(functools.partial(value, inducing_model()))


@given(
    seed=st.integers(0, 1000), lengthscale=st.tuples(st.floats(0.2, 3.0), st.floats(0.2, 3.0)),
    variance=st.floats(0.1, 10.0), noise_variance=st.floats(0.01, 3.0), spread=st.floats(0.1, 3.0),
)  # fmt: skip
def test_the_bound_is_below_the_evidence_wherever_the_inducing_inputs_are(
    seed: int, lengthscale: tuple[float, float], variance: float, noise_variance: float, spread: float
) -> None:
    X, Y = data(25, seed=seed)
    Z = spread * np.random.default_rng(seed).normal(size=(7, 2))
    theta = inducing_theta(inducing_model(), Z, lengthscale, variance, noise_variance)
    bound = -25 * float(_inducing_value(theta, {}, X, Y, 25))
    scaled = np.asarray(X) / np.array(lengthscale)
    K = large_gp.covariance("matern32", scaled, scaled, 1.0, variance)
    exact = large_gp.log_evidence(K, np.asarray(Y[:, 0]), noise_variance)
    assert bound <= exact + 1e-8 * max(1.0, abs(exact))


@pytest.mark.parametrize("lengthscale", [(0.5, 0.5), (0.6, 2.0)])
def test_inducing_inputs_at_the_data_give_the_exact_evidence_and_posterior(lengthscale: tuple[float, float]) -> None:
    X, Y = data(40)
    model = inducing_model(num_inducing=40)
    theta = inducing_theta(model, X, lengthscale, 2.0, 0.1)
    sums = run_sums(model, theta, {}, X, Y, 40)
    y, X_new = np.asarray(Y[:, 0]), np.asarray(data(10, seed=3)[0])
    one, other = (np.asarray(inputs) / np.array(lengthscale) for inputs in (X, X_new))
    Kxx, Kxs = (large_gp.covariance("matern32", one, inputs, 1.0, 2.0) for inputs in (one, other))
    np.testing.assert_allclose(-40 * model.objective(sums, theta), large_gp.log_evidence(Kxx, y, 0.1), rtol=1e-8)
    mean, variance = large_gp.posterior(Kxx, Kxs, np.full(10, 2.0), y, 0.1)
    prediction = model.posterior(sums, theta, {}).predict(X_new)
    np.testing.assert_allclose(prediction.mean, mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(prediction.variance, variance, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.noise_variance(theta), [0.1], rtol=1e-12)


def test_the_bound_and_posterior_of_few_inducing_inputs_are_those_of_the_paper() -> None:
    X, Y = data(60)
    model = inducing_model()
    Z = np.random.default_rng(2).normal(size=(7, 2))
    theta = inducing_theta(model, Z, (0.7, 0.7), 2.0, 0.1)
    sums = run_sums(model, theta, {}, X, Y, 60)
    y, X_new = np.asarray(Y[:, 0]), np.asarray(data(10, seed=3)[0])
    Kuu, Kux, Kus = (large_gp.covariance("matern32", Z, np.asarray(inputs), 0.7, 2.0) for inputs in (Z, X, X_new))
    bound = large_gp.collapsed_bound(Kuu, Kux, np.full(60, 2.0), y, 0.1)
    np.testing.assert_allclose(-60 * model.objective(sums, theta), bound, rtol=1e-9)
    mean, variance = large_gp.sparse_posterior(Kuu, Kux, Kus, np.full(10, 2.0), y, 0.1)
    posterior = model.posterior(sums, theta, {})
    prediction = posterior.predict(X_new)
    np.testing.assert_allclose(prediction.mean, mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(prediction.variance, variance, rtol=0, atol=1e-9)
    assert posterior.notes["num_inducing"] == 7
    assert posterior.notes["residual"] == pytest.approx(large_gp.residual(Kuu, Kux, np.full(60, 2.0)) / 6.0, rel=1e-9)


def test_equal_inducing_inputs_keep_bound_and_gradient_finite_and_are_reported() -> None:
    model = inducing_model()
    theta = inducing_theta(model, np.zeros((7, 2)), (1.0, 1.0), 1.0, 0.1)
    X, Y = data(20)
    number, gradient = value_and_gradient(model, theta, {}, X, Y, 20)
    assert np.isfinite(number)
    assert all(np.all(np.isfinite(leaf)) for leaf in gradient.values())
    posterior = model.posterior(run_sums(model, theta, {}, X, Y, 20), theta, {})
    assert np.all(np.isfinite(posterior.predict(X).variance))
    assert posterior.notes["jitter"] == 1e-10


def test_without_rows_the_inducing_posterior_is_the_prior() -> None:
    model = inducing_model()
    theta, constants = start(model)
    X, Y = padded(*data(0), 4)
    prediction = model.posterior(run_sums(model, theta, constants, X, Y, 0), theta, constants).predict(data(5)[0])
    np.testing.assert_allclose(prediction.mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(prediction.variance, np.exp(theta["log.variance"]), rtol=1e-10)


def test_hyper_parameters_are_kept_in_their_box_and_inducing_inputs_are_free() -> None:
    space = Space(
        kernel=RBF(), num_inputs=2, transform="log", noise_floor=1e-3, lower=(("lengthscale", 0.1),),
        upper=(("variance", 9.0),),
    )  # fmt: skip
    model = InducingModel(space=space, num_inducing=3)
    theta = inducing_theta(model, 1e9 * np.ones((3, 2)), np.array([1e-3]), 100.0, 1e-9)
    inside = model.values(model.bounded(theta))
    np.testing.assert_allclose(inside["lengthscale"], [0.1], rtol=1e-12)
    np.testing.assert_allclose(inside["variance"], 9.0, rtol=1e-12)
    np.testing.assert_allclose(inside["noise_variance"], 1e-3, rtol=1e-12)
    np.testing.assert_array_equal(model.bounded(theta)["inducing_inputs"], theta["inducing_inputs"])
    first, _ = model.init(jax.random.key(0))
    assert_same(model.bounded(first), first, 1e-14)
    assert first["inducing_inputs"].shape == (3, 2)


def test_models_are_equal_and_hash_alike_when_their_settings_are() -> None:
    for one, other in ((feature_model(), feature_model()), (inducing_model(), inducing_model())):
        assert one == other
        assert hash(one) == hash(other)
    assert feature_model() != dataclasses.replace(feature_model(), num_samples=6)
