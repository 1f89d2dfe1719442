"""Factorising and inverting covariances: the only place that adds jitter, and that calls LAPACK under `vmap`.

JAX hands a batch of matrices to LAPACK in one call, which deals them out to XLA's thread pool and waits for them from a
thread of that same pool (jaxlib 0.10). With as many calls at a time as the pool has threads, as when every core
computes clients of its own, nobody is left to do the work, and the process hangs. So here a batch is a loop over single
calls, which never wait: `lapack_cholesky`, `solve_triangular` and `eigh` are the ones to use in anything a client
computes.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax import lax
from jaxtyping import Array, Bool, Float

from fedgauss.errors import NotPositiveDefiniteError

AnyArray: TypeAlias = Array | np.ndarray
Function = TypeVar("Function", bound=Callable[..., Any])

JITTERS = (0.0, 1e-10, 1e-8, 1e-6, 1e-4)
"""What is added to the diagonal, in turn, until the factorisation succeeds; relative to the mean diagonal."""

# Below these sizes one LAPACK or matrix product call is quicker than splitting further (one core, AVX-512).
_SOLVE_SIZE = 32
_PRODUCT_SIZE = 64


def _one_by_one(function: Function) -> Function:
    """The function with a loop in place of a batch."""
    looped: Function = jax.custom_batching.sequential_vmap(function)  # type: ignore[no-untyped-call]
    return looped


@_one_by_one
def lapack_cholesky(K: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """The lower Cholesky factor; NaN where there is none. Reads the lower triangle alone."""
    return lax.linalg.cholesky(K, symmetrize_input=False)


@_one_by_one
def solve_triangular(L: Float[Array, "N N"], B: Float[Array, "N M"]) -> Float[Array, "N M"]:
    """L^-1 B for a lower triangular L."""
    return lax.linalg.triangular_solve(L, B, left_side=True, lower=True)


@_one_by_one
def eigh(H: Float[Array, "N N"]) -> tuple[Float[Array, " N"], Float[Array, "N N"]]:
    """Eigenvalues, ascending, and eigenvectors in columns, of a symmetric matrix."""
    values, vectors = jnp.linalg.eigh(H)
    return values, vectors


def cholesky(
    K: Float[AnyArray, "N N"], scale: Float[AnyArray, ""] | None = None
) -> tuple[Float[Array, "N N"], Float[Array, ""]]:
    """The lower factor L of K + jitter * scale * I = L L^T, with the smallest of `JITTERS` that succeeds.

    Usable inside `jit` and `vmap`. The first attempt adds nothing and normally is the only one.

    Args:
        K: Symmetric; only the lower triangle is read.
        scale: What the jitter is relative to; by default the mean of K's diagonal.

    Returns:
        L and the relative jitter that was added. L is NaN when even the largest jitter failed.

    Example:
        >>> L, jitter = cholesky(4.0 * np.eye(2))
        >>> float(L[0, 0]), float(jitter)
        (2.0, 0.0)
    """
    K = jnp.asarray(K)
    step = jnp.mean(jnp.diagonal(K)) if scale is None else jnp.asarray(scale)

    def failed(attempt: tuple[Array, Array]) -> Bool[Array, ""]:
        i, L = attempt
        return jnp.isnan(L[-1, -1]) & (i < len(JITTERS) - 1)

    def again(attempt: tuple[Array, Array]) -> tuple[Array, Array]:
        i = attempt[0] + 1
        jittered = K + (jnp.asarray(JITTERS)[i] * step) * jnp.eye(K.shape[0], dtype=K.dtype)
        return i, lapack_cholesky(jittered)

    first = jnp.zeros((), dtype=jnp.int32), lapack_cholesky(K)
    i, L = lax.while_loop(failed, again, first)
    return L, jnp.asarray(JITTERS)[i]


def host_cholesky(
    K: Float[AnyArray, "N N"], what: str, scale: float | None = None
) -> tuple[Float[np.ndarray, "N N"], float]:
    """`cholesky` on the host, by LAPACK: raises instead of returning NaN.

    Args:
        K: Symmetric; only one triangle is read.
        what: Which covariance this is, to begin the message.
        scale: What the jitter is relative to; by default the mean of K's diagonal.

    Returns:
        L and the relative jitter that was added.

    Raises:
        NotPositiveDefiniteError: If even the largest jitter failed; says which were tried.

    Example:
        >>> host_cholesky(np.ones((2, 2)), "the covariance of two equal inputs")[1]
        1e-10
    """
    K = np.asarray(K)
    if not np.all(np.isfinite(K)):
        raise NotPositiveDefiniteError(f"{what} holds NaN or infinity: check the inputs and the parameters.")
    step = np.mean(np.diagonal(K)) if scale is None else scale
    for jitter in JITTERS:
        jittered = K if jitter == 0.0 else K + (jitter * step) * np.eye(len(K))
        try:
            # the transpose is the same matrix in LAPACK's order of memory
            return scipy.linalg.cholesky(jittered.T, lower=True, check_finite=False), jitter
        except np.linalg.LinAlgError:
            continue
    tried = ", ".join(f"{jitter:g}" for jitter in JITTERS)
    raise NotPositiveDefiniteError(
        f"{what} is not positive definite, also after adding {tried} times its mean diagonal. Remove duplicate inputs, "
        f"or use a larger noise variance or shorter lengthscales."
    )


def checked_cholesky(
    K: Float[AnyArray, "N N"], what: str, scale: float | None = None
) -> tuple[Float[Array, "N N"], float]:
    """`host_cholesky` for computations that go on in JAX.

    Args:
        K: Symmetric; only one triangle is read.
        what: Which covariance this is, to begin the message.
        scale: What the jitter is relative to; by default the mean of K's diagonal.

    Raises:
        NotPositiveDefiniteError: If even the largest jitter failed; says which were tried.
    """
    L, jitter = host_cholesky(K, what, scale)
    return jnp.asarray(L), jitter


def inverse_from_cholesky(L: Float[AnyArray, "N N"]) -> Float[Array, "N N"]:
    """K^-1 from the lower Cholesky factor of K.

    XLA has no counterpart of LAPACK's `potri`. Recursion by halves leaves nearly all the work to matrix products on
    whole blocks, at a third of the operations of solving against the identity, and with only plain-times-transposed
    products, the quick ones on CPU.

    Args:
        L: Lower triangular, K = L L^T.

    Returns:
        The inverse, symmetric up to rounding.

    Example:
        >>> inverse_from_cholesky(np.diag([2.0, 4.0])).diagonal()
        Array([0.25  , 0.0625], dtype=float64)
    """
    return _times_transpose(_inverse_transpose(jnp.asarray(L)))


def _inverse_transpose(L: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """U = L^-T, upper triangular."""
    n = L.shape[0]
    if n <= _SOLVE_SIZE:
        return solve_triangular(L, jnp.eye(n, dtype=L.dtype)).T
    # [A 0; B C]^-T = [A^-T  -A^-T B^T C^-T; 0  C^-T]
    h = n // 2
    P, R = _inverse_transpose(L[:h, :h]), _inverse_transpose(L[h:, h:])
    Q = -(P @ L[h:, :h].T) @ R
    return jnp.block([[P, Q], [jnp.zeros((n - h, h), L.dtype), R]])


def _times_transpose(U: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """U U^T for upper triangular U."""
    n = U.shape[0]
    if n <= _PRODUCT_SIZE:
        return U @ U.T
    h = n // 2
    P, Q, R = U[:h, :h], U[:h, h:], U[h:, h:]
    lower = R @ Q.T
    return jnp.block([[_times_transpose(P) + Q @ Q.T, lower.T], [lower, _times_transpose(R)]])


@jax.custom_vjp
def whitening(K: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """W = L^-1, with K = L L^T up to the least jitter of `JITTERS` that succeeds: W K W^T = I.

    Its gradient is three matrix products: dW = -half(W dK W^T) W, where half keeps the lower triangle and halves the
    diagonal.

    Example:
        >>> whitening(4.0 * jnp.eye(2)).tolist()
        [[0.5, 0.0], [0.0, 0.5]]
    """
    return _whitening_forward(K)[0]


def _whitening_forward(K: Float[Array, "N N"]) -> tuple[Float[Array, "N N"], Float[Array, "N N"]]:
    W = _inverse_transpose(cholesky(K)[0]).T
    return W, W


def _whitening_backward(W: Float[Array, "N N"], change: Float[Array, "N N"]) -> tuple[Float[Array, "N N"]]:
    product = change @ W.T
    half = jnp.tril(product) - 0.5 * jnp.diag(jnp.diagonal(product))
    by_K = -(W.T @ half @ W)
    return (0.5 * (by_K + by_K.T),)


whitening.defvjp(_whitening_forward, _whitening_backward)


_GRAM_SIZE = 192
"""Below this many rows one product is quicker than one by halves."""


@jax.custom_vjp
def gram(A: Float[Array, "R N"]) -> Float[Array, "R R"]:
    """A A^T, of which what is above the diagonal is copied and not computed. XLA has no counterpart of BLAS's `syrk`.

    Example:
        >>> gram(jnp.array([[1.0, 2.0]])).tolist()
        [[5.0]]
    """
    return _gram(A)


def _gram(A: Float[Array, "R N"]) -> Float[Array, "R R"]:
    h = A.shape[0] // 2
    if 2 * h < _GRAM_SIZE:
        return A @ A.T
    lower = A[h:] @ A[:h].T
    return jnp.block([[_gram(A[:h]), lower.T], [lower, _gram(A[h:])]])


gram.defvjp(lambda A: (_gram(A), A), lambda A, change: ((change + change.T) @ A,))
