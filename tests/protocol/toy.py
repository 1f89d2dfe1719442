"""A small algorithm with client state, for protocol tests: conjugate partitioned inference of one mean."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedgauss.algorithm import Data, FederatedAlgorithm, Key, Stacked


class Natural(NamedTuple):
    """A Gaussian factor: precision and precision times mean."""

    precision: Float[Array, ""]
    precision_mean: Float[Array, ""]


class Posterior(NamedTuple):
    """What the server knows, and how often it was told."""

    natural: Natural
    updates: Float[Array, ""]


class PosteriorRequest(NamedTuple):
    """The posterior so far."""

    natural: Natural


class Info(NamedTuple):
    """Worth plotting."""

    precision: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyFactors(FederatedAlgorithm[Posterior, Natural, PosteriorRequest, Natural]):
    """y ~ N(mu, 1), mu ~ N(0, 1): each client keeps its factor and sends the damped change."""

    damping: float = 0.5
    updates: int = 10_000

    def init(self, key: Key) -> Posterior:
        return Posterior(Natural(jnp.ones(()), jnp.zeros(())), jnp.zeros(()))

    def init_client(self, key: Key) -> Natural:
        return Natural(jnp.zeros(()), jnp.zeros(()))

    def request(self, server: Posterior) -> PosteriorRequest | None:
        return None if server.updates >= self.updates else PosteriorRequest(server.natural)

    def client_update(
        self, request: PosteriorRequest, client: Natural, data: Data, key: Key
    ) -> tuple[Natural, Natural]:
        row = jnp.arange(data.X.shape[0]) < data.num_rows
        best = Natural(data.num_rows.astype(float), jnp.where(row, data.Y[:, 0], 0.0).sum())
        delta = Natural(*(self.damping * (b - c) for b, c in zip(best, client, strict=True)))
        return Natural(*(c + d for c, d in zip(client, delta, strict=True))), delta

    def server_update(self, server: Posterior, total: Natural) -> tuple[Posterior, Info]:
        natural = Natural(*(s + t for s, t in zip(server.natural, total, strict=True)))
        return Posterior(natural, server.updates + 1), Info(natural.precision)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackedToy(ToyFactors):
    """The toy, whose server adds up the stacked replies itself."""

    combine = "stack"

    def server_update(self, server: Posterior, total: Any) -> tuple[Posterior, Info]:
        assert isinstance(total, Stacked)
        added = jax.tree.map(lambda rows: jnp.where(total.counted, rows, jnp.nan), total.value)
        return super().server_update(server, jax.tree.map(jnp.nansum, added))
