r"""The evidence of Bayesian linear regression from four sums, its gradient, and the scales at which it is largest.

    y = Phi^T w + noise,   w ~ N(0, lambda^2 I),   noise ~ N(0, sigma^2 I)

With G = Phi Phi^T, b = Phi y, R features, N rows, rho = sigma^2 / lambda^2 and B = G + rho I,

    log p(y) = -1/2 [ N log(2 pi sigma^2) + log|B| - R log rho + (y^T y - b^T B^-1 b) / sigma^2 ].

This is equation 18 of Yu et al., "Federated Bayesian Neural Regression" (their A is B / sigma^2), with what that leaves
out: the factor 1/2 and N log 2 pi, which do not change where the maximum lies. (The paper's Algorithm 1 then descends
it; a log likelihood is ascended.) With lambda = 1 and whitened features it is the likelihood part of Titsias's bound.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from fedgauss.linalg import AnyArray, inverse_from_cholesky, lapack_cholesky


@jax.custom_vjp
def log_evidence(
    phi_phi: Float[AnyArray, "R R"], phi_y: Float[AnyArray, " R"], y_y: Float[AnyArray, ""],
    num_rows: Float[AnyArray, ""], log_noise_std: Float[AnyArray, ""], log_weight_std: Float[AnyArray, ""],
) -> Float[Array, ""]:  # fmt: skip
    """log p(y) of one target, from its sums; the formula above. Its gradient is analytic.

    Args:
        phi_phi: G.
        phi_y: b.
        y_y: y^T y.
        num_rows: N.
        log_noise_std: log sigma.
        log_weight_std: log lambda.

    Example:
        >>> value = log_evidence(jnp.eye(1), jnp.zeros(1), jnp.zeros(()), jnp.ones(()), jnp.zeros(()), jnp.zeros(()))
        >>> bool(jnp.isclose(value, -0.5 * jnp.log(2 * jnp.pi * 2.0)))  # one row of variance 1 + 1
        True
    """
    value: Float[Array, ""] = _forward(phi_phi, phi_y, y_y, num_rows, log_noise_std, log_weight_std)[0]
    return value


def _forward(G: Any, b: Any, y_y: Any, N: Any, log_sigma: Any, log_lambda: Any) -> Any:
    R = G.shape[0]
    log_rho = 2.0 * (log_sigma - log_lambda)
    L = lapack_cholesky(G + jnp.exp(log_rho) * jnp.eye(R))
    inverse = inverse_from_cholesky(L)
    w = inverse @ b
    rho = jnp.exp(log_rho)
    w = w + inverse @ (b - G @ w - rho * w)  # one step of refinement, and the square as a sum of squares: y_y - b @ w
    square = y_y - 2.0 * b @ w + w @ (G @ w) + rho * w @ w  # would lose as many digits as B is badly conditioned
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(L)))
    noise = jnp.exp(2.0 * log_sigma)
    value = -0.5 * (N * (jnp.log(2.0 * np.pi) + 2.0 * log_sigma) + log_det - R * log_rho + square / noise)
    return value, (inverse, w, square, N, log_sigma, log_rho)


def _backward(kept: Any, change: Float[Array, ""]) -> Any:
    inverse, w, square, N, log_sigma, log_rho = kept
    R = w.shape[0]
    noise, rho = jnp.exp(2.0 * log_sigma), jnp.exp(log_rho)
    by_G = -0.5 * (inverse + w[:, None] * w[None, :] / noise)
    by_log_rho = -0.5 * (rho * (jnp.trace(inverse) + w @ w / noise) - R)
    by_log_sigma = square / noise - N + 2.0 * by_log_rho
    by_N = -0.5 * (jnp.log(2.0 * np.pi) + 2.0 * log_sigma)
    gradient = by_G, w / noise, -0.5 / noise, by_N, by_log_sigma, -2.0 * by_log_rho
    return tuple(change * part for part in gradient)


log_evidence.defvjp(_forward, _backward)


class Scales(NamedTuple):
    """The best noise and prior standard deviations of one target."""

    noise_std: float
    weight_std: float
    log_evidence: float


def best_scales(
    phi_phi: Float[np.ndarray, "R R"], phi_y: Float[np.ndarray, " R"], y_y: float, num_rows: float, noise_floor: float
) -> Scales:
    """The sigma and lambda of the largest evidence, from the sums alone: no validation data, no further exchange.

    With G = U diag(g) U^T and c = U^T b, the evidence at a given rho is largest for
    sigma^2 = (y^T y - sum_i c_i^2 / (g_i + rho)) / N, which leaves a function of one number, searched over all of its
    range and then refined.

    Args:
        phi_phi: G.
        phi_y: b.
        y_y: y^T y.
        num_rows: N.
        noise_floor: The least sigma^2.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> phi = rng.normal(size=(5, 4000))
        >>> y = 2.0 * rng.normal(size=5) @ phi + 0.3 * rng.normal(size=4000)
        >>> found = best_scales(phi @ phi.T, phi @ y, float(y @ y), 4000.0, 1e-6)
        >>> round(found.noise_std, 2), 1.0 < found.weight_std < 4.0
        (0.3, True)
    """
    values, vectors = np.linalg.eigh(phi_phi)
    values = np.maximum(values, 0.0)
    squares = (vectors.T @ phi_y) ** 2

    def profiled(log_rho: float) -> tuple[float, float]:
        rho = np.exp(log_rho)
        left = y_y - float(np.sum(squares / (values + rho)))
        noise = max(left / num_rows, noise_floor)
        log_det = float(np.sum(np.log1p(values / rho)))  # log|B| - R log rho
        value = -0.5 * (num_rows * np.log(2 * np.pi * noise) + log_det + left / noise)
        return value, noise

    size = float(values.mean()) or 1.0  # without any feature the evidence does not depend on lambda
    grid = np.log(size) + np.linspace(-30.0, 15.0, 181)
    start = int(np.argmax([profiled(at)[0] for at in grid]))
    low, high = grid[max(start - 1, 0)], grid[min(start + 1, len(grid) - 1)]
    found = scipy.optimize.minimize_scalar(
        lambda at: -profiled(at)[0], bounds=(low, high), method="bounded", options={"xatol": 1e-10}
    )
    log_rho = max((grid[start], float(found.x)), key=lambda at: profiled(at)[0])
    value, noise = profiled(log_rho)
    return Scales(float(np.sqrt(noise)), float(np.sqrt(noise / np.exp(log_rho))), value)


_UNEQUAL, _INDEFINITE = 1e-9, 1e-10
"""Rounding that sums over rows may show, relative to their largest entry."""


def why_not_sums(
    phi_phi: Float[np.ndarray, "R R"], phi_y: Float[np.ndarray, "R P"], y_y: Float[np.ndarray, " P"], num_rows: float
) -> str | None:
    """Why these cannot be a client's sums over rows, in words without numbers; `None` where they can.

    G must be symmetric, and [G b; b^T y^T y] a matrix of squares for every target.

    Example:
        >>> why_not_sums(-np.eye(2), np.zeros((2, 1)), np.zeros(1), 3.0)
        'its matrix of feature products is indefinite'
    """
    if not all(np.isfinite(part).all() for part in (phi_phi, phi_y, y_y, num_rows)):
        return "they are not finite"
    size = float(np.abs(phi_phi).max(initial=0.0)) or 1.0
    if num_rows < 0.0 or np.any(y_y < 0.0):
        return "its number of rows or its sum of squares is negative"
    if not np.allclose(phi_phi, phi_phi.T, rtol=0.0, atol=_UNEQUAL * size):
        return "its matrix of feature products is not symmetric"
    if np.linalg.eigvalsh(phi_phi)[0] < -_INDEFINITE * size * len(phi_phi):
        return "its matrix of feature products is indefinite"
    for b, square in zip(phi_y.T, y_y, strict=True):
        unit = np.sqrt(float(square) / size) or 1.0  # of the targets, so that all parts of the joint matrix are alike
        joint = np.block([[phi_phi, b[:, None] / unit], [b[None, :] / unit, np.full((1, 1), square / unit**2)]])
        if np.linalg.eigvalsh(joint)[0] < -_INDEFINITE * size * len(joint):
            return "its products of features and targets cannot belong to its matrix of feature products"
    return None
