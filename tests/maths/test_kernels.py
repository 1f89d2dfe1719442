"""Kernels against their equations, GPJax and scikit-learn; gradients, settings and units."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.gaussian_process.kernels as sk
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from fedgauss.errors import SettingsError
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
    Product,
    RationalQuadratic,
    Sum,
    check_active,
    from_config,
    resolve,
    scale_parameters,
    to_config,
)
from reference import dense_gp

SINGLE: list[Kernel] = [
    RBF(),
    RBF(ard=True),
    RBF(ard=True, active=(2, 0)),
    Matern12(),
    Matern12(ard=True),
    Matern32(ard=True),
    Matern52(active=(1,)),
    RationalQuadratic(ard=True),
    Periodic(),
    Periodic(ard=True, active=(0, 2)),
    Linear(),
    Linear(active=(1, 2)),
    Polynomial(),
    Polynomial(degree=3, active=(0,)),
]
COMPOUND: list[Kernel] = [
    RBF(ard=True) * Linear() + Periodic(),
    RBF() + RBF(ard=True) + RBF(active=(0,)),
    Matern32() * (RationalQuadratic() + Linear()) * Polynomial(),
    (RBF() + Linear()) * (Periodic() + Matern12(ard=True)),
]
KERNELS = SINGLE + COMPOUND


def label(kernel: Kernel) -> str:
    return repr(to_config(kernel)).replace("'", "")


every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=label)


def inputs(rows: int, columns: int = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def some_parameters(kernel: Kernel, num_inputs: int = 3, seed: int = 7) -> Parameters:
    """The starting values, each moved by its own factor."""
    rng = np.random.default_rng(seed)
    moved: Parameters = jax.tree.map(
        lambda value: np.asarray(value * rng.uniform(0.5, 2.0, size=value.shape)), kernel.start(num_inputs)
    )
    return moved


def contracted(kernel: Kernel, B: Any) -> Any:
    """<B, K> as a function of parameters and inputs."""
    return lambda parameters, X: jnp.sum(kernel.gram(parameters, X) * B)


@every_kernel
def test_covariance_is_the_equation(kernel: Kernel) -> None:
    parameters, X, Z = some_parameters(kernel), inputs(6), inputs(4, seed=1)
    config = to_config(kernel)
    np.testing.assert_allclose(
        kernel.gram(parameters, X), dense_gp.gram(config, parameters, X, X), rtol=1e-12, atol=1e-13
    )
    np.testing.assert_allclose(
        kernel.cross_covariance(parameters, X, Z), dense_gp.gram(config, parameters, X, Z), rtol=1e-12, atol=1e-13
    )
    np.testing.assert_allclose(kernel.diagonal(parameters, X), np.diag(kernel.gram(parameters, X)), rtol=1e-13)


@every_kernel
def test_covariance_is_that_of_gpjax(kernel: Kernel) -> None:
    parameters, X = some_parameters(kernel), jnp.asarray(inputs(6))
    oracle = kernel.to_gpjax(parameters).gram(X).as_matrix()
    np.testing.assert_allclose(kernel.gram(parameters, X), oracle, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("kernel", "oracle"),
    [
        (RBF(), sk.RBF(0.7)),
        (Matern12(), sk.Matern(0.7, nu=0.5)),
        (Matern32(), sk.Matern(0.7, nu=1.5)),
        (Matern52(), sk.Matern(0.7, nu=2.5)),
        (RationalQuadratic(), sk.RationalQuadratic(length_scale=0.7, alpha=1.3)),
        (Periodic(), sk.ExpSineSquared(length_scale=1.4, periodicity=2.1)),  # its lengthscale is twice ours
        (Linear(), sk.DotProduct(sigma_0=0.0)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_covariance_is_that_of_scikit_learn(kernel: Kernel, oracle: Any) -> None:
    X = inputs(6, columns=1)
    values = {
        "lengthscale": np.array([0.7]),
        "alpha": np.array(1.3),
        "period": np.array(2.1),
        "variance": np.array(1.0),
    }
    parameters = {key: values[key] for key in kernel.start(1)}
    np.testing.assert_allclose(kernel.gram(parameters, X), oracle(X), rtol=1e-12, atol=1e-14)


@every_kernel
def test_gradient_in_parameters_and_inputs(kernel: Kernel) -> None:
    parameters, X, B = some_parameters(kernel), inputs(5), inputs(5, columns=5, seed=2)
    vector, unravel = ravel_pytree((parameters, X))

    def reference(vector: Any) -> Any:
        flat, tree = jax.tree.flatten((parameters, X))
        ends = np.cumsum([leaf.size for leaf in flat])[:-1]
        pieces = [piece.reshape(leaf.shape) for piece, leaf in zip(np.split(vector, ends), flat, strict=True)]
        moved, X_moved = jax.tree.unflatten(tree, pieces)
        return np.sum(dense_gp.gram(to_config(kernel), moved, X_moved, X_moved) * B)

    gradient = jax.grad(contracted(kernel, B), argnums=(0, 1))(*unravel(vector))
    expected = dense_gp.derivatives(reference, np.asarray(vector))
    np.testing.assert_allclose(ravel_pytree(gradient)[0], expected, rtol=1e-10, atol=1e-11)


@every_kernel
def test_gradient_in_both_inputs_of_a_cross_covariance(kernel: Kernel) -> None:
    parameters, X, Z, B = some_parameters(kernel), inputs(4), inputs(3, seed=1), inputs(4, columns=3, seed=2)

    def value(X: Any, Z: Any) -> Any:
        return jnp.sum(kernel.cross_covariance(parameters, X, Z) * B)

    for i, gradient in enumerate(jax.grad(value, argnums=(0, 1))(jnp.asarray(X), jnp.asarray(Z))):

        def reference(flat: Any, i: int = i) -> Any:
            moved = [X, Z]
            moved[i] = flat.reshape(moved[i].shape)
            return np.sum(dense_gp.gram(to_config(kernel), parameters, *moved) * B)

        expected = dense_gp.derivatives(reference, [X, Z][i].ravel())
        np.testing.assert_allclose(np.ravel(gradient), expected, rtol=1e-10, atol=1e-11)


@every_kernel
def test_forward_over_reverse(kernel: Kernel) -> None:
    vector, unravel = ravel_pytree((some_parameters(kernel), inputs(4)))
    gradient = jax.jit(jax.grad(lambda v: contracted(kernel, inputs(4, columns=4, seed=2))(*unravel(v))))
    h = 1e-5
    expected = np.stack([(gradient(vector + h * e) - gradient(vector - h * e)) / (2 * h) for e in np.eye(len(vector))])
    # the error of central differences is h^2 times a third derivative, 1e-10 times up to 1e4 for products
    np.testing.assert_allclose(jax.jacfwd(gradient)(vector), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [k for k in SINGLE if "active" not in to_config(k)], ids=label)
def test_many_columns(kernel: Kernel) -> None:
    X, B = inputs(5, columns=20) + 10.0, inputs(5, columns=5, seed=2)
    parameters = kernel.start(20)
    K = kernel.gram(parameters, X)
    np.testing.assert_allclose(K, dense_gp.gram(to_config(kernel), parameters, X, X), rtol=1e-11, atol=1e-12)
    if "lengthscale" in parameters:
        assert np.all(np.diag(K) == 1.0)

    def reference(lengthscale: Any) -> Any:
        return np.sum(dense_gp.gram(to_config(kernel), parameters | {"lengthscale": lengthscale}, X, X) * B)

    if "lengthscale" in parameters:
        gradient = jax.grad(contracted(kernel, B))(jax.tree.map(jnp.asarray, parameters), X)
        expected = dense_gp.derivatives(reference, parameters["lengthscale"])
        np.testing.assert_allclose(gradient["lengthscale"], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "kernel", [RBF(ard=True), Matern12(ard=True), Matern32(), Matern52(), RationalQuadratic()], ids=label
)
@pytest.mark.parametrize("distance", [0.0, 1e-160, 1e-12, 1e-6])
def test_gradient_at_equal_and_nearly_equal_inputs(kernel: Kernel, distance: float) -> None:
    X, B = inputs(4), inputs(4, columns=4, seed=2)
    X[1] = X[0] + distance
    parameters = some_parameters(kernel)

    def reference(lengthscale: Any) -> Any:
        return np.sum(dense_gp.gram(to_config(kernel), parameters | {"lengthscale": lengthscale}, X, X) * B)

    gradients = jax.jit(jax.grad(contracted(kernel, B), argnums=(0, 1)))(jax.tree.map(jnp.asarray, parameters), X)
    expected = dense_gp.derivatives(reference, parameters["lengthscale"])
    np.testing.assert_allclose(gradients[0]["lengthscale"], expected, rtol=1e-10, atol=1e-12)
    assert np.all(np.isfinite(gradients[1]))
    hessian = jax.jacfwd(jax.grad(lambda p: contracted(kernel, B)(p, X)))(jax.tree.map(jnp.asarray, parameters))
    assert all(np.all(np.isfinite(part)) for part in jax.tree.leaves(hessian))


def test_far_from_the_origin() -> None:
    X, parameters = inputs(5), some_parameters(RBF(ard=True))
    B = inputs(5, columns=5, seed=2)
    near, far = (jax.grad(contracted(RBF(ard=True), B))(parameters, X + shift)["lengthscale"] for shift in (0.0, 1e5))
    # the inputs themselves are rounded at 1e-11, and so are the terms of each sum, which may cancel
    np.testing.assert_allclose(near, far, rtol=1e-9, atol=1e-11)


def recipes() -> st.SearchStrategy[Callable[[], Kernel]]:
    """Ways to make a kernel. Made in the test: run-time type checks draw random numbers, which strategies must not."""
    leaves = st.sampled_from(SINGLE)
    compound = st.tuples(st.sampled_from([Sum, Product]), st.lists(leaves, min_size=2, max_size=3))

    def product(pair: Any, leaf: Kernel) -> Kernel:
        return pair[0](tuple(pair[1])) * leaf  # type: ignore[no-any-return]

    return st.one_of(
        leaves.map(lambda leaf: lambda: leaf),
        compound.map(lambda pair: lambda: pair[0](tuple(pair[1]))),
        st.tuples(compound, leaves).map(lambda both: lambda: product(*both)),
    )


@given(make=recipes(), seed=st.integers(0, 1000))
def test_covariances_are_symmetric_and_positive_semidefinite(make: Callable[[], Kernel], seed: int) -> None:
    kernel = make()
    with jax.disable_jit():
        K = np.asarray(kernel.gram(some_parameters(kernel, seed=seed), inputs(7, seed=seed)))
    np.testing.assert_allclose(K, K.T, rtol=1e-13)
    eigenvalues = np.linalg.eigvalsh(K)
    assert eigenvalues[0] >= -1e-13 * eigenvalues[-1] * len(K)


@given(make=recipes())
def test_settings_survive_json(make: Callable[[], Kernel]) -> None:
    kernel = make()
    again = from_config(json.loads(json.dumps(to_config(kernel))))
    assert again == kernel
    assert hash(again) == hash(kernel)


@every_kernel
def test_scaled_parameters_mean_the_same_in_other_units(kernel: Kernel) -> None:
    parameters, X = some_parameters(kernel), inputs(5)
    for input_scale in (np.array([2.0, 0.1, 30.0]), np.full(3, 4.0)):
        scaled = scale_parameters(kernel, parameters | {"noise_variance": np.array(0.3)}, input_scale, 5.0)
        assert scaled.pop("noise_variance") == pytest.approx(0.3 * 25.0)
        np.testing.assert_allclose(
            kernel.gram(scaled, X * input_scale), 25.0 * np.asarray(kernel.gram(parameters, X)), rtol=1e-11, atol=1e-12
        )
        np.testing.assert_allclose(
            kernel.diagonal(scaled, X * input_scale), 25.0 * np.asarray(kernel.diagonal(parameters, X)), rtol=1e-11
        )


def test_one_lengthscale_stays_one_when_scales_are_equal() -> None:
    start = RBF(active=(0, 1)).start(3)
    assert scale_parameters(RBF(active=(0, 1)), start, np.array([2.0, 2.0, 5.0]), 1.0)["lengthscale"].tolist() == [2.0]
    assert scale_parameters(RBF(), start, np.array([2.0, 2.0, 5.0]), 1.0)["lengthscale"].tolist() == [2.0, 2.0, 5.0]


def test_only_the_first_factor_has_a_scale() -> None:
    start = (RBF() * Linear() * (Matern12() + Polynomial())).start(1)
    assert set(start) == {"rbf", "linear", "matern12+polynomial"}
    assert set(start["rbf"]) == {"lengthscale", "variance"}
    assert set(start["linear"]) == set()
    assert set(start["matern12+polynomial"]["matern12"]) == {"lengthscale"}
    assert set(start["matern12+polynomial"]["polynomial"]) == {"shift", "variance"}
    for leaf in jax.tree.leaves(start):
        assert leaf.dtype == np.float64


def test_sums_and_products_are_flat_and_parts_have_names_of_their_own() -> None:
    kernel = RBF() + (RBF(ard=True) + Linear() * (Linear() * RBF()))
    assert isinstance(kernel, Sum)
    assert kernel.name == "rbf+rbf+linear*linear*rbf"
    assert list(kernel.start(2)) == ["rbf", "rbf_2", "linear*linear*rbf"]
    assert list(kernel.start(2)["linear*linear*rbf"]) == ["linear", "linear_2", "rbf"]
    assert ((RBF() + Linear()) * Periodic()).name == "(rbf+linear)*periodic"


def test_batches_of_parameters() -> None:
    kernel = RBF(ard=True) * Linear() + Periodic()
    parameters = [some_parameters(kernel, seed=seed) for seed in range(3)]
    X = np.stack([inputs(4, seed=seed) for seed in range(3)])
    batch = jax.vmap(kernel.gram)(jax.tree.map(lambda *leaves: np.stack(leaves), *parameters), X)
    for K, each, x in zip(batch, parameters, X, strict=True):
        np.testing.assert_allclose(K, kernel.gram(each, x), rtol=1e-13)


def test_kernels_by_name() -> None:
    names = ["rbf", "matern12", "matern32", "matern52", "periodic", "rq", "linear", "polynomial"]
    assert [resolve(name).name for name in names] == names
    assert resolve(RBF(ard=True)) == RBF(ard=True)
    with pytest.raises(SettingsError, match='unknown name "mattern32"; did you mean "matern32"'):
        resolve("mattern32")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "rbff"}, 'did you mean "rbf"'),
        ({}, 'unknown name "None"'),
        ({"name": "rbf", "adr": True}, 'kernel rbf: unknown key "adr"; did you mean "ard"'),
        ({"name": "sum", "factors": []}, 'kernel sum: unknown key "factors"'),
        ({"name": "product", "factors": [{"name": "rbf"}]}, "kernel product: got 1 kernels"),
        ({"name": "polynomial", "degree": 0}, "degree is 0"),
    ],
)
def test_bad_settings_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        from_config(config)


@pytest.mark.parametrize(
    ("active", "message"),
    [((0, 3), "column 3 does not exist"), ((-1,), "column -1"), ((1, 1), "different"), ((), "one or")],
)
def test_columns_that_do_not_exist_are_named(active: tuple[int, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=f"kernel matern32: .*{message}"):
        check_active(RBF() + Linear() * Matern32(active=active), num_inputs=3)
