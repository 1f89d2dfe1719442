"""A sparse Gaussian process whose hyper-parameters and inducing inputs are learned on Titsias's collapsed bound.

The bound is a function of sums over rows (Gal, van der Wilk and Rasmussen 2014), so clients can maximise it together:
see `gp.summed`. The sums are those of `gp.sparse`.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from fedgauss.gp.evidence import why_not_sums
from fedgauss.gp.kernels import scale_parameters
from fedgauss.gp.parameters import Space, flatten, unflatten
from fedgauss.gp.sparse import (
    InducingBasis,
    SparsePosterior,
    SparseStatistics,
    collapsed_bound,
    inducing_basis,
    row_statistics,
)
from fedgauss.gp.summed import Flat, SummedModel
from fedgauss.linalg import whitening

_UNEXPLAINED = 1e-6
"""By how much jitter and rounding may let features exceed the prior's own variance."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InducingModel(SummedModel):
    """M inducing inputs with a kernel; one target.

    Args:
        space: The kernel's hyper-parameters and the noise variance, with transform "log".
        num_inducing: M.
    """

    scales: ClassVar[tuple[str, ...]] = ()

    space: Space
    num_inducing: int

    def init(self, key: PRNGKeyArray) -> tuple[Flat, Flat]:
        """Inducing inputs drawn from N(0, I): no client's data are needed where inputs are standardised."""
        Z = jax.random.normal(key, (self.num_inducing, self.space.num_inputs))
        start = self.space.named(jnp.log(self.space.first()))
        return {"inducing_inputs": Z} | {f"log.{name}": leaf for name, leaf in start.items()}, {}

    def values(self, theta: Flat) -> Flat:
        """Hyper-parameters by dotted name, `noise_variance` among them."""
        return {name: jnp.exp(theta[f"log.{name}"]) for name in self.space.names}

    def prepare(self, theta: Flat, constants: Flat) -> tuple[Flat, InducingBasis]:
        """Hyper-parameters, and the features of the inducing inputs."""
        parameters, Z = self.values(theta), theta["inducing_inputs"]
        return parameters, InducingBasis(Z, whitening(self.space.kernel.gram(unflatten(parameters), Z)))

    def row_sums(
        self,
        prepared: tuple[Flat, InducingBasis],
        X: Float[Array, "N D"],
        Y: Float[Array, "N P"],
        mask: Float[Array, " N"],
    ) -> SparseStatistics:
        """Titsias's sums, in whitened features."""
        parameters, basis = prepared
        return row_statistics(self.space.kernel, unflatten(parameters), basis, X, Y, mask)

    def objective(self, sums: SparseStatistics, theta: Flat) -> Float[Array, ""]:
        """Minus the collapsed bound, a row."""
        noise = jnp.exp(theta["log.noise_variance"])
        return -collapsed_bound(sums, noise) / jnp.maximum(sums.count, 1.0)

    def tuned(self, sums: SparseStatistics, theta: Flat) -> Flat:
        """As it is: the bound depends on all parameters through the sums."""
        return theta

    def posterior(self, sums: SparseStatistics, theta: Flat, constants: Flat) -> SparsePosterior:
        """Titsias's equation 10."""
        kernel, parameters = self.space.kernel, unflatten(self.values(theta))
        basis, jitter = inducing_basis(kernel, parameters, theta["inducing_inputs"])
        return SparsePosterior.from_statistics(kernel, parameters, basis, sums, jitter)

    def refusal(self, sums: SparseStatistics) -> str | None:
        """See `why_not_sums`."""
        G, b, y_y = (np.asarray(part) for part in sums[:3])
        if np.trace(G) > float(sums.trace) * (1.0 + _UNEXPLAINED):
            return "its features are larger than the prior allows"
        return why_not_sums(G, b, y_y[None], float(sums.count))

    def parameters(self, theta: Flat, input_scale: Any, target_scale: Any) -> Flat:
        """The hyper-parameters; inducing inputs in multiples of the inputs' scale, about their mean."""
        values = unflatten({name: np.asarray(value) for name, value in self.values(theta).items()})
        scaled = scale_parameters(self.space.kernel, values, input_scale, float(target_scale[0]))
        return flatten(scaled) | {"inducing_inputs": np.asarray(theta["inducing_inputs"]) * input_scale}

    def to_config(self) -> dict[str, Any]:
        """See `SummedModel.to_config`."""
        return {"space": self.space.to_config(), "num_inducing": self.num_inducing}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "InducingModel":
        """What `to_config` wrote."""
        return cls(space=Space.from_config(config["space"]), num_inducing=config["num_inducing"])

    def bounded(self, theta: Flat) -> Flat:
        """Hyper-parameters in their box."""
        low, high = self.space.box()
        ends = self.space.named(np.log(low)), self.space.named(np.log(np.minimum(high, self.space.ceilings())))
        inside = {f"log.{n}": jnp.clip(theta[f"log.{n}"], ends[0][n], ends[1][n]) for n in self.space.names}
        return theta | inside

    def noise_variance(self, theta: Flat) -> Float[Array, " P"]:
        """Of an observation."""
        return jnp.exp(theta["log.noise_variance"])[None]
