r"""Sparse posterior of a large client, with any kernel and any number of inputs, from sums over its rows.

M inducing inputs Z stand for the data. With Luu Luu^T = Kuu and the features phi(x) = Luu^-1 k(Z, x), whose inner
products are Q = Kfu Kuu^-1 Kuf, the best Gaussian over the function values at Z is (Titsias 2009, eq. 10)

    B = I + sum_n phi_n phi_n^T / s2,   w = B^-1 sum_n phi_n y_n / s2,
    mean = phi(x)^T w,   variance = k(x, x) - phi(x)^T phi(x) + phi(x)^T B^-1 phi(x).

The sums are whitened row by row, before adding: Luu^-1 (Kuf Kfu) Luu^-T would lose as many digits as Kuu is badly
conditioned, twice. They add over rows, chunks and clients, and do not depend on the noise variance.

What Z leaves out, trace(K - Q), is neither signal nor noise to this posterior. Once it is comparable to what the data
leave uncertain about f, intervals are too narrow; so inducing inputs are added until it is not, and `notes` say
whether that was reached.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float

from fedgauss.errors import DataError
from fedgauss.gp.chunks import chunks, predict_in_chunks
from fedgauss.gp.evidence import log_evidence
from fedgauss.gp.kernels import AnyArray, Kernel, Parameters
from fedgauss.gp.posterior import Prediction
from fedgauss.linalg import checked_cholesky

_CHUNK_ROWS = 8192
"""Rows in one call, of data or test inputs: 67 MB of features with the most inducing inputs."""

_CANDIDATES = 20_000
"""Inducing inputs are chosen among this many rows at most, drawn at random."""

_MOST_INDUCING = 1024

_UNEXPLAINED_NOISE = 1e-3
"""Residual a row, in noise variances, that an interval for a new observation does not notice."""

_UNEXPLAINED_POSTERIOR = 0.1
"""Residual a row, in mean posterior variances of f, that an interval for f does not notice."""

_REDUNDANT = 1e-12
"""Conditional variance, in mean prior variances, below which an inducing input is left out: at M eps it would be
nothing but rounding error, and Kuu no longer positive definite."""


class InducingBasis(NamedTuple):
    """The features phi(x) = whiten k(Z, x): f at the inducing inputs in coordinates that are independent a priori."""

    inducing_inputs: Float[AnyArray, "M D"]
    whiten: Float[Array, "M M"]
    """Luu^-1."""


class SparseStatistics(NamedTuple):
    """All that a sparse posterior or bound needs of the data. Statistics of disjoint rows add, field by field."""

    phi_phi: Float[Array, "M M"]
    """sum_n phi_n phi_n^T."""
    phi_y: Float[Array, "M P"]
    """sum_n phi_n y_n^T."""
    y_y: Float[Array, ""]
    """Sum of squares of all targets."""
    trace: Float[Array, ""]
    """sum_n k(x_n, x_n)."""
    count: Float[Array, ""]  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    """N."""


def inducing_basis(
    kernel: Kernel, parameters: Parameters, inducing_inputs: Float[AnyArray, "M D"]
) -> tuple[InducingBasis, float]:
    """The features of these inducing inputs.

    Args:
        kernel: The covariance function.
        parameters: Of the kernel.
        inducing_inputs: Z above.

    Returns:
        The basis, and the jitter added to Kuu relative to its mean diagonal.

    Raises:
        NotPositiveDefiniteError: If Kuu cannot be factorised; says which jitter was tried.
    """
    M = len(inducing_inputs)
    Luu, jitter = checked_cholesky(kernel.gram(parameters, inducing_inputs), f"covariance of {M} inducing inputs")
    # The inverse itself, once, and products with it: solving for every chunk costs ten times more on CPU.
    return InducingBasis(inducing_inputs, _inverse(Luu)), jitter


def features(
    kernel: Kernel, parameters: Parameters, basis: InducingBasis, X: Float[AnyArray, "N D"]
) -> Float[Array, "M N"]:
    """phi at every row of `X`. Their inner products are Q = Kfu Kuu^-1 Kuf."""
    return basis.whiten @ kernel.cross_covariance(parameters, basis.inducing_inputs, X)


def row_statistics(
    kernel: Kernel,
    parameters: Parameters,
    basis: InducingBasis,
    X: Float[AnyArray, "N D"],
    Y: Float[AnyArray, "N P"],
    mask: Float[AnyArray, " N"],
) -> SparseStatistics:
    """Statistics of few rows, in memory for N M features. Usable inside traced code.

    Args:
        kernel: The covariance function.
        parameters: Of the kernel.
        basis: From `inducing_basis`.
        X: Inputs.
        Y: Targets.
        mask: 1 for a row of data, 0 for padding, which changes nothing.
    """
    mask = jnp.asarray(mask)
    phi = features(kernel, parameters, basis, X) * mask[None, :]
    Y = Y * mask[:, None]
    trace = jnp.sum(kernel.diagonal(parameters, X) * mask)
    return SparseStatistics(phi @ phi.T, phi @ Y, jnp.sum(Y * Y), trace, jnp.sum(mask))


def client_statistics(
    kernel: Kernel,
    parameters: Parameters,
    basis: InducingBasis,
    X: Float[AnyArray, "N D"],
    Y: Float[AnyArray, "N P"],
) -> SparseStatistics:
    """Statistics of any number of rows, chunk by chunk: memory does not grow with N.

    Args:
        kernel: The covariance function.
        parameters: Of the kernel.
        basis: From `inducing_basis`.
        X: Inputs.
        Y: Targets.

    Returns:
        The sum of `row_statistics` over chunks; all zeros without rows.
    """
    X, Y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
    M = len(basis.inducing_inputs)
    zero = jnp.zeros(())
    total = SparseStatistics(jnp.zeros((M, M)), jnp.zeros((M, Y.shape[1])), zero, zero, zero)
    for mask, X_chunk, Y_chunk in chunks(_CHUNK_ROWS, X, Y):
        total = _add_rows(kernel, parameters, basis, total, X_chunk, Y_chunk, mask)
    return total


@partial(jax.jit, static_argnums=0)
def _add_rows(
    kernel: Kernel,
    parameters: Parameters,
    basis: InducingBasis,
    total: SparseStatistics,
    X: Float[Array, "N D"],
    Y: Float[Array, "N P"],
    mask: Float[Array, " N"],
) -> SparseStatistics:
    added: SparseStatistics = jax.tree.map(jnp.add, total, row_statistics(kernel, parameters, basis, X, Y, mask))
    return added


def collapsed_bound(statistics: SparseStatistics, noise_variance: Float[AnyArray, ""] | float) -> Float[Array, ""]:
    r"""Lower bound on the log marginal likelihood of a sparse GP, from summed client statistics.

    log p(Y) >= sum_p log N(y_p; 0, Q + s2 I) - P tr(K - Q) / (2 s2), with Q = Kfu Kuu^-1 Kuf.   (Titsias 2009, eq. 9)

    Args:
        statistics: Sum over clients of `client_statistics`. Any number of clients gives the same value.
        noise_variance: s2 above. Positive.

    Returns:
        The bound, in nats. Equal to the exact value when the inducing inputs are the data. NaN if the statistics are.

    Example:
        >>> from fedgauss.gp.kernels import RBF
        >>> X, Y = np.zeros((1, 1)), np.zeros((1, 1))
        >>> basis, _ = inducing_basis(RBF(), RBF().start(1), X)
        >>> bound = collapsed_bound(client_statistics(RBF(), RBF().start(1), basis, X, Y), np.ones(()))
        >>> bool(np.isclose(bound, -0.5 * np.log(2 * np.pi * 2.0)))
        True
    """
    s2 = jnp.asarray(noise_variance)
    P, zero = statistics.phi_y.shape[1], jnp.zeros(())
    # N(y; 0, Q + s2 I) is the evidence of a regression on phi with weights of unit variance
    total = -0.5 * (statistics.y_y + P * _residual(statistics)) / s2
    for p in range(P):
        b = statistics.phi_y[:, p]
        total += log_evidence(statistics.phi_phi, b, zero, statistics.count, 0.5 * jnp.log(s2), zero)
    return total


def _residual(statistics: SparseStatistics) -> Float[Array, ""]:
    """trace(K - Q)."""
    return statistics.trace - jnp.trace(statistics.phi_phi)


@dataclass(frozen=True, eq=False)
class SparsePosterior:
    """The posterior of f, given all of a large client's data, through inducing inputs. Made by `condition`.

    Args:
        kernel: The prior's covariance.
        parameters: Of the kernel, and `noise_variance`.
        notes: `num_inducing`; `residual`, trace(K - Q) / (N noise_variance); `resolved`, 1 if the residual is small
            enough for honest intervals, else 0; `jitter` added to Kuu, relative to its mean diagonal.
        basis: The inducing inputs and their features.
        weights: w above.
        contract: LB^-1, with B = LB LB^T.
    """

    kind: ClassVar[str] = "sparse"

    kernel: Kernel
    parameters: Parameters
    notes: dict[str, float | int | str]
    basis: InducingBasis
    weights: Float[Array, " M"]
    contract: Float[Array, "M M"]

    @classmethod
    def condition(
        cls,
        kernel: Kernel,
        parameters: Parameters,
        X: Float[AnyArray, "N D"],
        y: Float[AnyArray, " N"],
        *,
        num_inducing: int | None = None,
        inducing_inputs: Float[AnyArray, "M D"] | None = None,
        seed: int = 0,
    ) -> "SparsePosterior":
        """The posterior of f given `y` at `X`, in one pass over the data.

        Args:
            kernel: The prior's covariance.
            parameters: Of the kernel, and `noise_variance`.
            X: Inputs.
            y: Targets.
            num_inducing: M at most, 1,024 by default. Fewer are used where fewer suffice.
            inducing_inputs: Where they are to be; by default rows of the data, chosen greedily. Those which the
                others determine to rounding error are left out.
            seed: Draws the rows among which inducing inputs are chosen, where there are more than 20,000.

        Returns:
            The posterior. Equal to the dense one when the inducing inputs are the data.

        Raises:
            DataError: If there are no rows.
            NotPositiveDefiniteError: If a covariance cannot be factorised; says which jitter was tried.

        Example:
            >>> from fedgauss.gp.kernels import RBF
            >>> x = np.linspace(0.0, 6.0, 5000)[:, None]
            >>> parameters = RBF().start(1) | {"noise_variance": np.array(0.01)}
            >>> posterior = SparsePosterior.condition(RBF(), parameters, x, np.sin(x[:, 0]))
            >>> posterior.notes["resolved"], posterior.predict(np.array([[np.pi / 2]])).mean.round(3)
            (1, array([1.]))
        """
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if not len(X):
            raise DataError("sparse posterior: got no rows, expected one or more. Use a dense posterior.")
        s2 = float(parameters["noise_variance"])
        if inducing_inputs is None:
            rows = np.random.default_rng(seed).permutation(len(X))[:_CANDIDATES]
            tolerance, most = s2, _MOST_INDUCING if num_inducing is None else num_inducing
            candidates = X[rows]
        else:
            candidates = np.asarray(inducing_inputs, dtype=np.float64)
            tolerance, most = 0.0, len(candidates)
        Z = _select(kernel, parameters, candidates, most, lambda M: tolerance * _tolerated(M, len(X)))
        basis, jitter = inducing_basis(kernel, parameters, Z)
        statistics = client_statistics(kernel, parameters, basis, X, y[:, None])
        return cls.from_statistics(kernel, parameters, basis, statistics, jitter)

    @classmethod
    def from_statistics(
        cls, kernel: Kernel, parameters: Parameters, basis: InducingBasis, statistics: SparseStatistics, jitter: float
    ) -> "SparsePosterior":
        """The posterior of f given the rows behind the statistics, of one target.

        Args:
            kernel: The prior's covariance.
            parameters: Of the kernel, and `noise_variance`.
            basis: The inducing inputs and their features.
            statistics: In these features.
            jitter: What `inducing_basis` added.
        """
        s2, num_rows, M = float(parameters["noise_variance"]), float(statistics.count), len(basis.inducing_inputs)
        LB, _ = checked_cholesky(jnp.eye(M) + statistics.phi_phi / s2, "precision of the inducing values")
        contract = _inverse(LB)
        weights = contract.T @ (contract @ statistics.phi_y[:, 0]) / s2
        residual = max(float(_residual(statistics)), 0.0) / (max(num_rows, 1.0) * s2)
        notes: dict[str, float | int | str] = {
            "num_inducing": M,
            "residual": residual,
            "resolved": int(residual <= 2.0 * _tolerated(M, max(int(num_rows), 1))),  # chosen on a sample of the rows
            "jitter": jitter,
        }
        return cls(kernel, parameters, notes, basis, weights, contract)

    def predict(self, X_new: Float[AnyArray, "T D"]) -> Prediction:
        """Mean and variance of f, without noise.

        Args:
            X_new: Test inputs.
        """
        predict = partial(_predict, self.kernel, self.parameters, self.basis, self.weights, self.contract)
        return predict_in_chunks(predict, np.asarray(X_new, dtype=np.float64), _CHUNK_ROWS)


@partial(jax.jit, static_argnums=0)
def _predict(
    kernel: Kernel,
    parameters: Parameters,
    basis: InducingBasis,
    weights: Float[Array, " M"],
    contract: Float[Array, "M M"],
    X: Float[Array, "T D"],
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    phi = features(kernel, parameters, basis, X)
    left_out = kernel.diagonal(parameters, X) - jnp.sum(phi**2, axis=0)
    return weights @ phi, left_out + jnp.sum((contract @ phi) ** 2, axis=0)


def _select(
    kernel: Kernel,
    parameters: Parameters,
    X: Float[np.ndarray, "N D"],
    most: int,
    tolerated: Callable[[int], float],
) -> Float[np.ndarray, "M D"]:
    """Rows of `X`, each the one that those before it leave most uncertain (Burt et al. 2020, section 4.2.2).

    This is a Cholesky factorisation with pivoting. Kuu of the rows it chooses is never so badly conditioned that it
    would need jitter, whatever the kernel.

    Args:
        kernel: The covariance function.
        parameters: Of the kernel.
        X: Candidates.
        most: M at most.
        tolerated: The mean conditional variance at which M rows are enough.
    """
    variance = np.array(kernel.diagonal(parameters, X))  # of f at each candidate, given f at the chosen ones
    redundant = _REDUNDANT * variance.mean()
    L = np.empty((min(most, len(X)), len(X)))
    chosen: list[int] = []
    candidates = jnp.asarray(X)
    for m in range(len(L)):
        pivot = int(variance.argmax())
        if m and (variance.mean() <= tolerated(m) or variance[pivot] <= redundant):
            break
        covariance = np.asarray(_covariance(kernel, parameters, X[pivot : pivot + 1], candidates))[0]
        L[m] = (covariance - L[:m, pivot] @ L[:m]) / np.sqrt(variance[pivot])
        variance = np.maximum(variance - L[m] ** 2, 0.0)
        variance[pivot] = 0.0
        chosen.append(pivot)
    return X[chosen]


@partial(jax.jit, static_argnums=0)
def _covariance(
    kernel: Kernel, parameters: Parameters, X: Float[Array, "N D"], Z: Float[Array, "M D"]
) -> Float[Array, "N M"]:
    return kernel.cross_covariance(parameters, X, Z)


def _tolerated(num_inducing: int, num_rows: int) -> float:
    """The mean of trace(K - Q), in noise variances, that leaves intervals honest.

    M weights learned from N rows leave a mean posterior variance of up to s2 M / N in f.
    """
    return min(_UNEXPLAINED_NOISE, _UNEXPLAINED_POSTERIOR * num_inducing / num_rows)


def _inverse(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """The inverse of a lower triangular matrix."""
    return solve_triangular(L, jnp.eye(len(L)), lower=True)
