"""Covariances that depend on distance alone, with an analytic gradient.

The backward pass is one elementwise product and one thin matrix product, where differentiating a covariance entry by
entry, by a nested `vmap`, costs several passes over [N, N].
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Profile: TypeAlias = Callable[..., tuple[Array, Array]]

_DIRECT_COLUMNS = 16
"""Up to here squared distances are added up column by column: exact near zero, and one fused loop."""


def _squared_distances(
    X: Float[Array, "N D"], Z: Float[Array, "M D"], lengthscale: Float[Array, " L"], same: bool
) -> Float[Array, "N M"]:
    if X.shape[1] <= _DIRECT_COLUMNS:
        # Weighting each square, rather than scaling the inputs, keeps divisions out of the loop over pairs.
        weights = jnp.broadcast_to(1.0 / lengthscale**2, X.shape[1:])
        return functools.reduce(operator.add, [weights[d] * _differences(X, Z, d) ** 2 for d in range(X.shape[1])])
    X, Z = _centred(X, Z)
    X, Z = X / lengthscale[None, :], Z / lengthscale[None, :]
    r2 = jnp.sum(X * X, axis=1)[:, None] + jnp.sum(Z * Z, axis=1)[None, :] - 2.0 * (X @ Z.T)
    r2 = jnp.maximum(r2, 0.0)  # |x|^2 + |z|^2 - 2 x.z of near points may round below 0
    return jnp.where(jnp.eye(X.shape[0], dtype=bool), 0.0, r2) if same else r2


def _differences(X: Float[Array, "N D"], Z: Float[Array, "M D"], column: int) -> Float[Array, "N M"]:
    return X[:, column][:, None] - Z[:, column][None, :]


def _centred(X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> tuple[Float[Array, "N D"], Float[Array, "M D"]]:
    """Both moved by a row of `Z`: differences stay, and their expansion into products loses fewer digits.

    By the first: it is data where others may be padding, which would take part in a mean.
    """
    return X - Z[:1], Z - Z[:1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def stationary(
    profile: Profile,
    is_steep: bool,
    same: bool,
    X: Float[Array, "N D"],
    Z: Float[Array, "M D"],
    lengthscale: Float[Array, " L"],
    variance: Float[Array, ""],
    shape: tuple[Float[Array, ""], ...],
) -> Float[Array, "N M"]:
    """variance * profile(r2, *shape), r2 the squared distances of `X` and `Z` in lengthscales.

    Args:
        profile: The covariance for unit variance and its derivative with respect to `r2`, both finite at 0.
        is_steep: Whether that derivative has no bound near 0: sums over it must not cancel.
        same: Whether `X` and `Z` are one array.
        X: Inputs.
        Z: Other inputs.
        lengthscale: One for all columns, or one for each.
        variance: The covariance at distance 0.
        shape: What the profile depends on besides the distance.
    """
    return _forward(profile, is_steep, same, X, Z, lengthscale, variance, shape)[0]


def _forward(
    profile: Profile,
    is_steep: bool,
    same: bool,
    X: Float[Array, "N D"],
    Z: Float[Array, "M D"],
    lengthscale: Float[Array, " L"],
    variance: Float[Array, ""],
    shape: tuple[Float[Array, ""], ...],
) -> tuple[Float[Array, "N M"], Any]:
    r2 = _squared_distances(X, Z, lengthscale, same)
    k, slope = profile(r2, *shape)
    return variance * k, (X, Z, lengthscale, variance, shape, r2, k, slope)


def _backward(
    profile: Profile, is_steep: bool, same: bool, residuals: Any, K_bar: Float[Array, "N M"]
) -> tuple[Any, ...]:
    X, Z, lengthscale, variance, shape, r2, k, slope = residuals
    W = variance * K_bar * slope  # the gradient with respect to r2
    columns = range(X.shape[1])
    # For each column: sum_m W_nm (x_n - z_m), sum_n W_nm (z_m - x_n) and sum_nm W_nm (x_n - z_m)^2
    if is_steep and X.shape[1] <= _DIRECT_COLUMNS:
        forces_x = jnp.stack([jnp.sum(W * _differences(X, Z, d), axis=1) for d in columns], axis=1)
        forces_z = -jnp.stack([jnp.sum(W * _differences(X, Z, d), axis=0) for d in columns], axis=1)
        squares = jnp.stack([jnp.sum(W * _differences(X, Z, d) ** 2) for d in columns])
    else:
        X, Z = _centred(X, Z)
        of_x, of_z = jnp.sum(W, axis=1)[:, None], jnp.sum(W, axis=0)[:, None]
        WZ = W @ Z
        forces_x, forces_z = of_x * X - WZ, of_z * Z - W.T @ X
        squares = jnp.sum(X * (of_x * X - 2.0 * WZ), axis=0) + jnp.sum(of_z * Z * Z, axis=0)
    if lengthscale.shape == (1,):
        squares = jnp.sum(squares)[None]
    weights = 2.0 / lengthscale[None, :] ** 2
    _, shape_pullback = jax.vjp(lambda *values: profile(r2, *values)[0], *shape)
    return (
        weights * forces_x,
        weights * forces_z,
        -2.0 * squares / lengthscale**3,
        jnp.sum(K_bar * k),
        shape_pullback(variance * K_bar),
    )


stationary.defvjp(_forward, _backward)
