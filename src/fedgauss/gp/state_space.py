r"""Exact posterior over one input for Matern kernels and their sums, in time and memory linear in the data.

Over sorted inputs such a covariance is quasiseparable: K_ij = p_i^T a_{i-1} ... a_{j+1} q_j below the diagonal, with
states as long as f has derivatives plus one (Foreman-Mackey 2018; tinygp factorises it). With K + s2 I = L L^T,
z = L^-1 y and k the covariance of the data with f at a test input,

    mean = v^T z,   variance = k(x, x) - v^T v,   v = L^-1 k.

A test input falls into a gap between two neighbouring data inputs, and v^T z and v^T v split there:

    v^T z = p^T f + u^T e,   v^T v = p^T F p + u^T E u,

with F, f sums over the data left of the gap, E, e over the data right of it, and p, u the test input as seen from
either side. The sums are the same for every test input in a gap. They cost two passes over the data, once; afterwards
a test input costs one binary search and a few products of small matrices. It is what one gets by merging the test
inputs into the data with infinite noise, without the merging, and in memory that does not grow with their number.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import block_diag
from jaxtyping import Float

from fedgauss.errors import NotPositiveDefiniteError, SettingsError
from fedgauss.gp.chunks import predict_in_chunks
from fedgauss.gp.kernels import AnyArray, Kernel, Matern12, Matern32, Matern52, Parameters, Sum
from fedgauss.gp.posterior import Prediction

_PREDICTION_ROWS = 8192
"""Test inputs in one call: memory stays bounded, and every call has the same shape."""


class _Gaps(NamedTuple):
    """What each of the gaps before, between and behind the sorted inputs must know of the data. S is a state's size."""

    left_input: Float[Array, " G"]
    right_input: Float[Array, " G"]
    F: Float[Array, "G S S"]
    f: Float[Array, "G S"]
    E: Float[Array, "G S S"]
    e: Float[Array, "G S"]


def supports(kernel: Kernel, num_inputs: int) -> bool:
    """Whether this posterior is exact for the kernel: Matern kernels over one input, and their sums.

    Args:
        kernel: Any kernel.
        num_inputs: D, the number of input columns.

    Example:
        >>> supports(Matern32() + Matern12(), num_inputs=1), supports(Matern32(), num_inputs=2)
        (True, False)
    """
    terms = kernel.terms if isinstance(kernel, Sum) else (kernel,)
    return num_inputs == 1 and all(isinstance(term, Matern12 | Matern32 | Matern52) for term in terms)


@dataclass(frozen=True, eq=False)
class StateSpacePosterior:
    """The exact posterior of f, given all of a large client's data, in one dimension. Made by `condition`.

    Args:
        kernel: A Matern kernel or a sum of them.
        parameters: Of the kernel, and `noise_variance`.
        notes: `num_states`, the size of the state.
        gaps: Sums over the data on either side of every gap between inputs.
    """

    kind: ClassVar[str] = "statespace"

    kernel: Kernel
    parameters: Parameters
    notes: dict[str, float | int | str]
    gaps: _Gaps

    @classmethod
    def condition(
        cls,
        kernel: Kernel,
        parameters: Parameters,
        x: Float[AnyArray, " N"],
        y: Float[AnyArray, " N"],
    ) -> "StateSpacePosterior":
        """The posterior of f given `y` at `x`, in two passes over the data.

        Args:
            kernel: One that `supports` accepts.
            parameters: Of the kernel, and `noise_variance`, which is positive.
            x: Inputs in any order; they may repeat.
            y: Targets. None at all leave the prior.

        Returns:
            The posterior, equal to the dense one.

        Raises:
            SettingsError: If the kernel has no exact state space, or tinygp is not installed.
            NotPositiveDefiniteError: If the covariance cannot be factorised, as with repeated inputs without noise.

        Example:
            >>> parameters = Matern32().start(1) | {"noise_variance": np.array(0.1)}
            >>> posterior = StateSpacePosterior.condition(Matern32(), parameters, np.array([0.0]), np.array([1.1]))
            >>> prediction = posterior.predict(np.array([[0.0], [100.0]]))
            >>> prediction.mean.round(6), prediction.variance.round(6)
            (array([1., 0.]), array([0.090909, 1.      ]))
        """
        if not supports(kernel, num_inputs=1):
            raise SettingsError(
                f"kernel {kernel.name} has no exact state space: expected matern12, matern32, matern52 or a sum of "
                f"them. Use a sparse posterior."
            )
        _import_quasisep(kernel)
        x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        order = np.argsort(x, kind="stable")
        # Data of infinite noise behind the last input changes nothing: clients of like sizes share one compilation.
        missing = _padded_length(len(x)) - len(x)
        last = x[order[-1]] if len(x) else 0.0
        x = np.concatenate([x[order], np.full(missing, last)])
        y = np.concatenate([y[order], np.zeros(missing)])
        noise = np.where(np.arange(len(x)) < len(x) - missing, parameters["noise_variance"], np.inf)
        gaps = _condition(kernel, parameters, x, y, noise)
        if not bool(jnp.all(jnp.isfinite(gaps.F[-1]))):
            raise NotPositiveDefiniteError(
                f"covariance of {len(order)} inputs under {kernel.name}: not positive definite, and no jitter is added "
                f"here. Check that the inputs are finite and the noise variance is positive."
            )
        return cls(kernel, parameters, {"num_states": gaps.f.shape[1]}, gaps)

    def predict(self, X_new: Float[AnyArray, "T 1"]) -> Prediction:
        """Mean and variance of f, without noise, at inputs in any order, inside the data's range or outside.

        Args:
            X_new: Test inputs.
        """
        x = np.asarray(X_new, dtype=np.float64)[:, 0]
        return predict_in_chunks(partial(_predict, self.kernel, self.parameters, self.gaps), x, _PREDICTION_ROWS)


@partial(jax.jit, static_argnums=0)
def _condition(
    kernel: Kernel,
    parameters: Parameters,
    x: Float[Array, " N"],
    y: Float[Array, " N"],
    noise: Float[Array, " N"],
) -> _Gaps:
    from tinygp.noise import Diagonal

    process = _process(kernel, parameters)
    L = (process.to_symm_qsm(x) + Diagonal(noise).to_qsm()).cholesky()
    z = L.solve(y)
    c, (_, w, a) = L.diag.d, L.lower
    a = jax.vmap(_dense)(a)
    g = _dense(process.stationary_covariance()) @ process.observation_model(x[0])  # p_i = a_i^T g
    empty = (jnp.zeros_like(a[0]), jnp.zeros_like(w[0]))

    def from_left(left: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[Any, Any]:
        (F, f), (a, w, z) = left, row
        left = _product(_product(a, F), a.T) + _outer(w, w), _apply(a, f) + w * z
        return left, left

    def from_right(right: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[Any, Any]:
        (E, e), (a_next, w, z, h) = right, row  # h = g / c
        step = a_next - _outer(_apply(a_next, w), h)  # u in the next gap, from u in this one
        right = _product(_product(step.T, E), step) + _outer(h, h), _apply(step.T, e) + h * z
        return right, right

    _, (F, f) = jax.lax.scan(from_left, empty, (a, w, z))
    a_next = jnp.concatenate([a[1:], jnp.zeros_like(a[:1])])
    _, (E, e) = jax.lax.scan(from_right, empty, (a_next, w, z, g[None, :] / c[:, None]), reverse=True)
    return _Gaps(_lead(x, x[0]), _trail(x, x[-1]), _lead(F, 0.0), _lead(f, 0.0), _trail(E, 0.0), _trail(e, 0.0))


@partial(jax.jit, static_argnums=0)
def _predict(
    kernel: Kernel, parameters: Parameters, gaps: _Gaps, x: Float[Array, " T"]
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    process = _process(kernel, parameters)
    P = _dense(process.stationary_covariance())

    def at(x: Float[Array, ""], gap: _Gaps) -> tuple[Array, Array]:
        q = process.observation_model(x)
        a_left = _dense(process.transition_matrix(jnp.minimum(gap.left_input, x), x))
        a_right = _dense(process.transition_matrix(x, jnp.maximum(gap.right_input, x)))
        p = _apply(a_left.T, _apply(P, q))
        Fp = _apply(gap.F, p)
        u = _apply(a_right, q - _apply(a_left, Fp))
        mean = jnp.sum(p * gap.f) + jnp.sum(u * gap.e)
        return mean, jnp.sum(q * _apply(P, q)) - jnp.sum(p * Fp) - jnp.sum(u * _apply(gap.E, u))

    index = jnp.searchsorted(gaps.right_input[:-1], x, side="right")  # data equal to x is on its left
    return jax.vmap(at)(x, _Gaps(*(values[index] for values in gaps)))


def _process(kernel: Kernel, parameters: Parameters) -> Any:
    """The kernel as tinygp's stochastic process: stationary covariance, transition matrix, observation model."""
    quasisep = _import_quasisep(kernel)
    processes: dict[type[Kernel], Any] = {
        Matern12: quasisep.Exp,
        Matern32: quasisep.Matern32,
        Matern52: quasisep.Matern52,
    }
    parts = kernel._parts(parameters) if isinstance(kernel, Sum) else [(kernel, parameters)]
    return sum(
        processes[type(term)](scale=jnp.reshape(part["lengthscale"], ()), sigma=jnp.sqrt(part["variance"]))
        for term, part in parts
    )


def _import_quasisep(kernel: Kernel) -> Any:
    try:
        from tinygp.kernels import quasisep
    except ImportError as error:
        raise SettingsError(
            f"kernel {kernel.name}: the exact state-space posterior needs tinygp, which is not installed. "
            f"Run: pip install 'fedgauss[statespace]'"
        ) from error
    return quasisep


def _padded_length(num_rows: int) -> int:
    """The next of a few lengths at most an eighth apart."""
    step = 1 << max(num_rows.bit_length() - 4, 10)
    return step * max(-(-num_rows // step), 1)


def _dense(matrix: Any) -> Float[Array, "S S"]:
    """A sum of processes has block-diagonal matrices of tinygp's own type, one within the other."""
    return matrix if isinstance(matrix, Array) else block_diag(*map(_dense, matrix.blocks))


# Products of matrices of one to nine rows: a call to a matrix product costs more than the product, these are fused.


def _product(A: Float[Array, "S S"], B: Float[Array, "S S"]) -> Float[Array, "S S"]:
    return jnp.sum(A[:, :, None] * B[None, :, :], axis=1)


def _apply(A: Float[Array, "S S"], b: Float[Array, " S"]) -> Float[Array, " S"]:
    return jnp.sum(A * b[None, :], axis=1)


def _outer(a: Float[Array, " S"], b: Float[Array, " S"]) -> Float[Array, "S S"]:
    return a[:, None] * b[None, :]


def _lead(rows: Float[Array, "N ..."], value: Any) -> Float[Array, "G ..."]:
    return jnp.concatenate([jnp.full_like(rows[:1], value), rows])


def _trail(rows: Float[Array, "N ..."], value: Any) -> Float[Array, "G ..."]:
    return jnp.concatenate([rows, jnp.full_like(rows[:1], value)])
