r"""Exact Gaussian process regression: the likelihood with its derivatives, and the dense posterior.

    y = f(X) + noise,  K = k(X, X) + noise_variance I = L L^T,  a = K^-1 y

    -log p(y) = y^T a / 2 + sum_i log L_ii + N log(2 pi) / 2                   (Rasmussen and Williams 2006, eq. 2.30)

Nothing is differentiated through the Cholesky factorisation: d(-log p) = <G, dK> with G = (K^-1 - a a^T) / 2 (5.9).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int

from fedgauss.gp.chunks import predict_in_chunks
from fedgauss.gp.kernels import AnyArray, Kernel, Parameters
from fedgauss.gp.posterior import Prediction
from fedgauss.linalg import cholesky, host_cholesky, inverse_from_cholesky, solve_triangular

_PREDICTION_ROWS = 1024
"""Test inputs in one call: memory stays bounded, and every call has the same shape."""


def negative_log_marginal_likelihood(
    kernel: Kernel,
    parameters: Parameters,
    X: Float[AnyArray, "N D"],
    y: Float[AnyArray, " N"],
    count: Int[AnyArray, ""] | int | None = None,
) -> Float[Array, ""]:
    """-log p(y), in nats, of exact GP regression with zero mean.

    Args:
        kernel: The covariance function.
        parameters: Of the kernel, and `noise_variance`.
        X: Inputs.
        y: Targets.
        count: How many leading rows are data. The others are padding: any values whose squares are finite, best zeros;
            they change nothing.

    Returns:
        The value; NaN if the covariance cannot be factorised with any jitter. Its gradient costs one matrix inverse.

    Example:
        >>> from fedgauss.gp.kernels import RBF
        >>> parameters = RBF().start(1) | {"noise_variance": np.ones(())}
        >>> value = negative_log_marginal_likelihood(RBF(), parameters, np.zeros((1, 1)), np.zeros(1))
        >>> bool(np.isclose(value, 0.5 * np.log(2 * np.pi * 2.0)))
        True
    """
    K = kernel.gram(parameters, X)
    return _gaussian(K, jnp.asarray(parameters["noise_variance"]), jnp.asarray(y), count)


@jax.custom_vjp
def _gaussian(
    K: Float[Array, "N N"], noise_variance: Float[Array, ""], y: Float[Array, " N"], count: Any
) -> Float[Array, ""]:
    """-log N(y; 0, K + noise_variance I) of the first `count` entries."""
    return _gaussian_forward(K, noise_variance, y, count)[0]


def _gaussian_forward(
    K: Float[Array, "N N"], noise_variance: Float[Array, ""], y: Float[Array, " N"], count: Any
) -> tuple[Float[Array, ""], Any]:
    num_data, K, y, scale = _with_noise(K, noise_variance, y, count)
    L, _ = cholesky(K, scale)
    w = solve_triangular(L, y[:, None])[:, 0]
    log_diagonal = jnp.log(jnp.diagonal(L))
    if count is not None:  # padding rows would add the logarithm of 1 and of any jitter
        log_diagonal = jnp.where(_valid(y, count), log_diagonal, 0.0)
    log_det = 2.0 * jnp.sum(log_diagonal)
    return 0.5 * (w @ w + log_det + num_data * np.log(2.0 * np.pi)), (L, y, count)


def _gaussian_backward(residuals: Any, value_bar: Float[Array, ""]) -> tuple[Any, ...]:
    L, y, count = residuals
    K_inv = inverse_from_cholesky(L)
    a = K_inv @ y
    G = (0.5 * value_bar) * (K_inv - a[:, None] * a[None, :])
    g = (0.5 * value_bar) * (jnp.diagonal(K_inv) - a * a)
    if count is not None:
        valid = _valid(y, count)
        G = jnp.where(valid[:, None] & valid[None, :], G, 0.0)
        g = jnp.where(valid, g, 0.0)
    return G, jnp.sum(g), value_bar * a, None


_gaussian.defvjp(_gaussian_forward, _gaussian_backward)


def _valid(rows: Float[Array, "N ..."], count: Any) -> Any:
    return jnp.arange(rows.shape[0], dtype=jnp.int32) < jnp.asarray(count).astype(jnp.int32)


def _with_noise(
    K: Float[Array, "N N"], noise_variance: Float[Array, ""], y: Float[Array, " N"], count: Any
) -> tuple[Any, Float[Array, "N N"], Float[Array, " N"], Float[Array, ""]]:
    """The number of data, K + noise_variance I, y, and the mean variance of the data.

    Where there is padding the covariance has rows of the identity, and y has zeros.
    """
    eye = jnp.eye(K.shape[0], dtype=K.dtype)
    variances = jnp.diagonal(K) + noise_variance
    if count is None:
        return float(K.shape[0]), K + noise_variance * eye, y, jnp.mean(variances)
    valid = _valid(y, count)
    num_data = jnp.asarray(count).astype(K.dtype)
    padded = jnp.where(valid[:, None] & valid[None, :], K + noise_variance * eye, eye)
    mean_variance = jnp.sum(jnp.where(valid, variances, 0.0)) / jnp.maximum(num_data, 1.0)
    return num_data, padded, jnp.where(valid, y, 0.0), mean_variance


def negative_log_marginal_likelihood_derivatives(
    kernel: Kernel,
    unravel: Callable[[Float[Array, " K"]], Parameters],
    vector: Float[AnyArray, " K"],
    X: Float[AnyArray, "N D"],
    y: Float[AnyArray, " N"],
    count: Int[AnyArray, ""] | int | None = None,
) -> tuple[Float[Array, ""], Float[Array, " K"], Float[Array, "K K"]]:
    r"""-log p(y) with its gradient and its observed Hessian with respect to `vector`.

        H_ij = <G, d2K / dv_i dv_j> - tr(K^-1 dK_i K^-1 dK_j) / 2 + (dK_i a)^T K^-1 (dK_j a)

    Args:
        kernel: The covariance function.
        unravel: From the vector to parameters with `noise_variance`, through any smooth transformation.
        vector: Where to differentiate.
        X: Inputs.
        y: Targets.
        count: How many leading rows are data, as in `negative_log_marginal_likelihood`.

    Returns:
        The value, the gradient and the symmetric Hessian. Memory for K + 3 matrices [N, N], K the vector's length.

    Example:
        >>> from fedgauss.gp.kernels import RBF
        >>> def unravel(v):
        ...     return {"lengthscale": v[:1], "variance": v[1], "noise_variance": v[2]}
        >>> value, gradient, hessian = negative_log_marginal_likelihood_derivatives(
        ...     RBF(), unravel, np.ones(3), np.zeros((1, 1)), np.zeros(1)
        ... )
        >>> gradient, hessian[1]
        (Array([0.  , 0.25, 0.25], dtype=float64), Array([ 0.   , -0.125, -0.125], dtype=float64))
    """
    vector, targets = jnp.asarray(vector), jnp.asarray(y)

    def covariance(vector: Float[Array, " K"]) -> Float[Array, "N N"]:
        parameters = unravel(vector)
        return _with_noise(kernel.gram(parameters, X), jnp.asarray(parameters["noise_variance"]), targets, count)[1]

    parameters = unravel(vector)
    K, noise_variance = kernel.gram(parameters, X), jnp.asarray(parameters["noise_variance"])
    value, (L, padded, _) = _gaussian_forward(K, noise_variance, targets, count)
    K_inv = inverse_from_cholesky(L)
    a = K_inv @ padded
    G = 0.5 * (K_inv - a[:, None] * a[None, :])
    _, pullback = jax.vjp(covariance, vector)
    # The kernels define what multiplies the Jacobian from the left; its transpose multiplies from the right.
    pushforward = jax.linear_transpose(lambda K_bar: pullback(K_bar)[0], K)
    dK = jax.vmap(lambda direction: pushforward(direction)[0])(jnp.eye(vector.shape[0]))  # [K, N, N]
    gradient = jnp.einsum("nm,inm->i", G, dK)
    K_inv_dK = jnp.einsum("nl,ilm->inm", K_inv, dK)
    dK_a = dK @ a
    # d2K only ever meets G: forward over reverse
    hessian = jax.jacfwd(jax.grad(lambda vector: jnp.sum(G * covariance(vector))))(vector)
    hessian = hessian - 0.5 * jnp.einsum("inm,jmn->ij", K_inv_dK, K_inv_dK) + dK_a @ K_inv @ dK_a.T
    return value, gradient, 0.5 * (hessian + hessian.T)


# The dense posterior -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DensePosterior:
    """The exact posterior of f by one Cholesky factorisation: N^3 operations once, N^2 for each prediction.

    Made by `condition`, and computed on the host by LAPACK, which needs no compilation for each client's size.

    Args:
        kernel: The prior's covariance.
        parameters: Of the kernel, with `noise_variance`.
        X: The inputs it has seen.
        L: The Cholesky factor of their covariance with noise.
        weights: K^-1 y.
        notes: `jitter`, relative to the mean variance of the data.
    """

    kernel: Kernel
    parameters: Parameters
    X: Float[np.ndarray, "N D"]
    L: Float[np.ndarray, "N N"]
    weights: Float[np.ndarray, " N"]
    notes: dict[str, float | int | str]

    @property
    def kind(self) -> str:
        """Always "dense"."""
        return "dense"

    @classmethod
    def condition(
        cls, kernel: Kernel, parameters: Parameters, X: Float[AnyArray, "N D"], y: Float[AnyArray, " N"]
    ) -> "DensePosterior":
        """The posterior of f given noisy values `y` at `X`.

        Args:
            kernel: The prior's covariance.
            parameters: Of the kernel, with `noise_variance`.
            X: Inputs.
            y: Targets.

        Raises:
            NotPositiveDefiniteError: If the covariance cannot be factorised; says which jitter was tried.

        Example:
            >>> from fedgauss.gp.kernels import RBF
            >>> parameters = RBF().start(1) | {"noise_variance": np.array(1.0)}
            >>> posterior = DensePosterior.condition(RBF(), parameters, np.zeros((1, 1)), np.ones(1))
            >>> posterior.predict(np.zeros((1, 1)))
            Prediction(mean=array([0.5]), variance=array([0.5]), clamped=0)
        """
        X, y = np.asarray(X), np.asarray(y)
        K = np.array(_gram(kernel, parameters, _padded(X)))[: len(X), : len(X)]
        K[np.diag_indices(len(X))] += np.asarray(parameters["noise_variance"])
        L, jitter = host_cholesky(K, f"the covariance of {len(X)} training inputs")
        weights = scipy.linalg.cho_solve((L, True), y, check_finite=False)
        return cls(kernel, parameters, X, L, weights, {"jitter": jitter})

    def predict(self, X_new: Float[AnyArray, "T D"]) -> Prediction:
        """Mean and variance of f at `X_new`, without observation noise."""

        def piece(X: Float[np.ndarray, "B D"]) -> tuple[Any, Any]:
            Ksx, V = self._whitened(X)
            prior = np.asarray(self.kernel.diagonal(self.parameters, X))
            return Ksx @ self.weights, prior - np.einsum("nt,nt->t", V, V)

        rows = min(_PREDICTION_ROWS, 1 << max(len(X_new) - 1, 0).bit_length())
        return predict_in_chunks(piece, np.asarray(X_new), rows)

    def covariance(self, X_new: Float[AnyArray, "T D"]) -> Float[np.ndarray, "T T"]:
        """The posterior covariance of f at `X_new`."""
        X_new = np.asarray(X_new)
        _, V = self._whitened(X_new)
        covariance: Float[np.ndarray, "T T"] = np.asarray(_gram(self.kernel, self.parameters, X_new)) - V.T @ V
        return covariance

    def sample(self, key: Array, X_new: Float[AnyArray, "T D"], num_samples: int) -> Float[np.ndarray, "S T"]:
        """Joint draws of f at `X_new`.

        Args:
            key: Used once.
            X_new: Test inputs.
            num_samples: S.

        Raises:
            NotPositiveDefiniteError: If the posterior covariance cannot be factorised.
        """
        X_new = np.asarray(X_new)
        # Rounding in a posterior covariance is relative to the prior's, which may be far larger.
        scale = float(np.mean(self.kernel.diagonal(self.parameters, X_new)))
        L, _ = host_cholesky(self.covariance(X_new), f"the posterior covariance of {len(X_new)} inputs", scale)
        z = np.asarray(jax.random.normal(key, (num_samples, len(X_new)), dtype=np.float64))
        draws: Float[np.ndarray, "S T"] = self.predict(X_new).mean[None, :] + z @ L.T
        return draws

    def _whitened(self, X_new: Float[np.ndarray, "T D"]) -> tuple[Float[np.ndarray, "T N"], Float[np.ndarray, "N T"]]:
        """k(X_new, X), and L^-1 times its transpose."""
        Ksx = np.asarray(_cross_covariance(self.kernel, self.parameters, X_new, _padded(self.X)))[:, : len(self.X)]
        return Ksx, scipy.linalg.solve_triangular(self.L, Ksx.T, lower=True, check_finite=False)


def _padded(X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "M D"]:
    """Zero rows added up to one of eight sizes between two powers of two: clients of like sizes share a compilation."""
    step = max(32, 1 << max(len(X).bit_length() - 4, 0))
    return np.pad(X, [(0, -len(X) % step), (0, 0)])


@functools.partial(jax.jit, static_argnums=0)
def _gram(kernel: Kernel, parameters: Parameters, X: Float[AnyArray, "N D"]) -> Float[Array, "N N"]:
    return kernel.gram(parameters, X)


@functools.partial(jax.jit, static_argnums=0)
def _cross_covariance(
    kernel: Kernel, parameters: Parameters, X: Float[AnyArray, "N D"], Z: Float[AnyArray, "M D"]
) -> Float[Array, "N M"]:
    return kernel.cross_covariance(parameters, X, Z)
