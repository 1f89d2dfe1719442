"""Models whose objective is a function of sums over rows: F(sum_n s(x_n, y_n, theta), theta).

Bayesian regression in feature space is one, the collapsed bound of a sparse Gaussian process another. Sums over
disjoint rows add, so any split of the data over chunks or clients gives the same objective; and with the cotangent
dF/ds its gradient is a sum over rows too,

    dF/dtheta = sum_n (ds_n/dtheta)^T dF/ds + partial F / partial theta.

Memory does not grow with the number of rows: both sums run over chunks.
"""

import abc
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedgauss.gp.posterior import Posterior

Flat = dict[str, Any]

CHUNK = 1024
"""Rows summed at a time: their features stay in a core's cache."""


class SummedModel(abc.ABC):
    """A frozen, hashable model: what its sums are, and what they say about its parameters.

    `theta` holds the parameters by name, in the unconstrained space in which they are learned; `constants` what is
    drawn or chosen once and never learned.
    """

    scales: ClassVar[tuple[str, ...]]
    """Names in `theta` of logarithms of standard deviations: what a server averages is their exponential."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray) -> tuple[Flat, Flat]:
        """Where parameters start, and the constants."""

    @abc.abstractmethod
    def prepare(self, theta: Flat, constants: Flat) -> Any:
        """Whatever the sums need of the parameters that is not done row by row."""

    @abc.abstractmethod
    def row_sums(self, prepared: Any, X: Float[Array, "N D"], Y: Float[Array, "N P"], mask: Float[Array, " N"]) -> Any:
        """The sums over few rows, a named tuple of arrays; where the mask is 0, a row changes nothing."""

    @abc.abstractmethod
    def objective(self, sums: Any, theta: Flat) -> Float[Array, ""]:
        """F: a negative log evidence, or a bound on it, in nats a row. What is minimised."""

    @abc.abstractmethod
    def tuned(self, sums: Any, theta: Flat) -> Flat:
        """The parameters that the sums alone determine, at their optimum; called on the host."""

    @abc.abstractmethod
    def posterior(self, sums: Any, theta: Flat, constants: Flat) -> Posterior:
        """What is known of f after the rows behind the sums."""

    @abc.abstractmethod
    def refusal(self, sums: Any) -> str | None:
        """Why these cannot be a client's sums, in words without numbers; `None` where they can."""

    @abc.abstractmethod
    def parameters(self, theta: Flat, input_scale: Any, target_scale: Any) -> Flat:
        """Learned values by dotted name, in the target's own units and the inputs' own scale."""

    @abc.abstractmethod
    def to_config(self) -> dict[str, Any]:
        """The model as plain values, for JSON."""

    @abc.abstractmethod
    def noise_variance(self, theta: Flat) -> Float[Array, " P"]:
        """Of an observation, in the model's units."""

    def bounded(self, theta: Flat) -> Flat:
        """The nearest parameters that are allowed."""
        return theta

    def constrained(self, theta: Flat) -> Flat:
        """Logarithms of scales as scales: the space in which parameters are averaged (paper, Algorithm 1)."""
        return {name: jnp.exp(leaf) if name in self.scales else leaf for name, leaf in theta.items()}

    def unconstrained(self, values: Flat) -> Flat:
        """The way back."""
        return {name: jnp.log(leaf) if name in self.scales else leaf for name, leaf in values.items()}


def sums_of(model: SummedModel, theta: Flat, constants: Flat, X: Any, Y: Any, num_rows: Any) -> Any:
    """The sums over one client's padded rows. Differentiable in `theta`; memory for one chunk of rows at a time.

    Args:
        model: Whose sums.
        theta: Parameters.
        constants: Of the model.
        X: Inputs, padded.
        Y: Targets, padded.
        num_rows: How many rows are data.
    """
    prepared = model.prepare(theta, constants)
    mask = (jnp.arange(X.shape[0]) < num_rows).astype(X.dtype)
    if X.shape[0] <= 2 * CHUNK:
        return model.row_sums(prepared, X, Y, mask)
    return _chunked(model, prepared, X, Y, mask)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(model: SummedModel, prepared: Any, X: Any, Y: Any, mask: Any) -> Any:
    """The sums, chunk by chunk. Differentiated chunk by chunk again, so nothing is kept from the way forward."""

    def add(total: Any, chunk: Any) -> Any:
        return jax.tree.map(jnp.add, total, model.row_sums(prepared, *chunk))

    return _over_chunks(add, _zeros(lambda *rows: model.row_sums(prepared, *rows), X, Y, mask), X, Y, mask)


def _zeros(function: Any, X: Any, Y: Any, mask: Any) -> Any:
    shapes = jax.eval_shape(function, X[:1], Y[:1], mask[:1])
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _over_chunks(add: Any, total: Any, X: Any, Y: Any, mask: Any) -> Any:
    """Loop over whole chunks where they lie, without a copy of the rows; then over what is left."""
    whole = X.shape[0] // CHUNK

    def one(i: Any, total: Any) -> Any:
        rows = [jax.lax.dynamic_slice_in_dim(part, i * CHUNK, CHUNK) for part in (X, Y, mask)]
        return add(total, rows)

    total = jax.lax.fori_loop(0, whole, one, total)
    rest = [part[whole * CHUNK :] for part in (X, Y, mask)]
    return add(total, rest) if len(rest[0]) else total


def _chunked_forward(model: SummedModel, prepared: Any, X: Any, Y: Any, mask: Any) -> Any:
    return _chunked(model, prepared, X, Y, mask), (prepared, X, Y, mask)


def _chunked_backward(model: SummedModel, kept: Any, cotangent: Any) -> Any:
    prepared, X, Y, mask = kept
    learned = jax.tree.map(lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jnp.inexact), prepared)
    assert all(jax.tree.leaves(learned))

    def add(total: Any, chunk: Any) -> Any:
        _, pull = jax.vjp(lambda prepared: model.row_sums(prepared, *chunk), prepared)
        return jax.tree.map(jnp.add, total, pull(cotangent)[0])

    zeros = jax.tree.map(jnp.zeros_like, prepared)
    return _over_chunks(add, zeros, X, Y, mask), None, None, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
