"""Units: from the user's to the model's and back. Pooled means and scales come from one exchange of sums."""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from fedgauss.federation import Client, Federation

Mode = Literal["pooled", "client", "none"]
Vector = Float[np.ndarray, "_"]


class Units(NamedTuple):
    """One client's units: what is subtracted, and what divided by."""

    input_mean: Vector
    input_scale: Vector
    target_mean: Vector
    target_scale: Vector

    def inputs(self, X: Any) -> Any:
        """Inputs in the model's units."""
        return (X - self.input_mean) / self.input_scale

    def targets(self, Y: Any) -> Any:
        """Targets in the model's units."""
        return (Y - self.target_mean) / self.target_scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling:
    """How a fit standardises: by pooled moments, by each client's own, or not at all.

    Args:
        inputs: "pooled" or "none"; "client" where every client fits alone.
        targets: "pooled", "client" or "none".
        pooled: Pooled means and scales; where a mode is not "pooled" its entries are 0 and 1.
        within: The spread of targets about their clients' own means: what a client is given whose own spread cannot be
            told, for want of a second row or because its targets are all the same. `None` where moments were not
            exchanged: the size of its mean has to do.
    """

    inputs: Mode
    targets: Mode
    pooled: Units
    within: Vector | None

    def units(self, X: Vector, Y: Vector) -> Units:
        """The units of a client with these rows."""
        means, scales = list(self.pooled[::2]), list(self.pooled[1::2])
        if self.inputs == "client":
            means[0], scales[0] = X.mean(0), column_spread(X, np.ones(X.shape[1]))
        if self.targets == "client":
            size = np.abs(Y.mean(0))
            otherwise = np.where(size > 0.0, size, 1.0) if self.within is None else self.within
            means[1], scales[1] = Y.mean(0), column_spread(Y, otherwise)
        return Units(means[0], scales[0], means[1], scales[1])

    def apply(self, federation: Federation) -> Federation:
        """The federation in the model's units."""

        def one(client: Client) -> Client:
            units = self.units(client.X, client.Y)
            return client.with_values(X=units.inputs(client.X), Y=units.targets(client.Y))

        return federation.map(one)


def column_spread(columns: Vector, otherwise: Vector) -> Vector:
    """Standard deviations of the columns, `otherwise` where a column is constant.

    Example:
        >>> column_spread(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([7.0, 7.0]))
        array([1., 7.])
    """
    mean = columns.mean(0)
    spread = np.sqrt(((columns - mean) ** 2).mean(0))
    return np.asarray(np.where(spread <= 1e-13 * np.abs(mean), otherwise, spread))
