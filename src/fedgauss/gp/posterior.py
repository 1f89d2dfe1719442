"""What every posterior over a latent function can do, whichever way it was computed."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

from fedgauss.gp.kernels import AnyArray


class Prediction(NamedTuple):
    """The posterior of f at new inputs, without observation noise."""

    mean: Float[Array | np.ndarray, "T *P"]
    """A column a target, where the posterior is of several."""
    variance: Float[Array | np.ndarray, "T *P"]
    clamped: int
    """How many variances rounded below zero and were set to zero."""


@runtime_checkable
class Posterior(Protocol):
    """A posterior over f. `kind` says how it was computed; `notes` what is worth knowing, such as the jitter used."""

    @property
    def kind(self) -> str:
        """Which computation this is, in a word."""

    @property
    def notes(self) -> dict[str, float | int | str]:
        """Plain values about the computation."""

    def predict(self, X_new: Float[AnyArray, "T D"]) -> Prediction:
        """Mean and variance of f at `X_new`."""
