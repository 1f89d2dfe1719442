"""Each client alone: the other end of the scale from pooling. Nothing is shared, one round, no two clients agree."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedgauss.algorithm import Data, FederatedAlgorithm, Key
from fedgauss.algorithms.fgpr import (
    HOPELESS,
    NO_START,
    DerivativesRequest,
    ExactHyperparameters,
    ExactServer,
    StartsRequest,
)
from fedgauss.gp.parameters import Flat
from fedgauss.messages import Weighted, mean, weighted


class BeginRequest(NamedTuple):
    """Nothing but the word to begin."""

    round: Float[Array, ""]


class SeparateInfo(NamedTuple):
    """Worth plotting."""

    objective: Float[Array, ""]
    steps: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeparateToConvergence(FederatedAlgorithm[Any, Any, BeginRequest, Weighted]):
    """Every client maximises its own exact likelihood to convergence, by the Newton method of `ExactHyperparameters`.

    Args:
        alone: What each client runs with itself as the only client.
    """

    quorum = "every"
    cost_exponent = 3

    alone: ExactHyperparameters

    def init(self, key: Key) -> Float[Array, ""]:
        """No round done."""
        return jnp.zeros(())

    def init_client(self, key: Key) -> Float[Array, " K"]:
        """The logarithms of the start."""
        return jnp.log(self.alone.space.first())

    def request(self, server: Float[Array, ""]) -> BeginRequest | None:
        """Once."""
        return None if int(server) >= 1 else BeginRequest(server)

    def client_update(
        self, request: BeginRequest, client: Float[Array, " K"], data: Data, key: Key
    ) -> tuple[Float[Array, " K"], Weighted]:
        """The exact method's server and client, both here.

        Sent: the objective a row and the number of steps, for the history alone.
        Kept: the logarithms of the client's own parameters.
        """
        exact = self.alone

        def exchange(server: ExactServer, request: Any) -> ExactServer:
            return exact.server_update(server, exact.client_update(request, (), data, key)[1])[0]

        server = exchange(exact.init(key), StartsRequest(exact.candidates()))
        server = jax.lax.while_loop(
            lambda s: (s.done == 0) & (s.round < exact.rounds), lambda s: exchange(s, DerivativesRequest(s.candidate)),
            server,
        )  # fmt: skip
        rows = jnp.maximum(data.num_rows, 1)
        return server.point, weighted(SeparateInfo(server.value / rows, server.round), data.weight)

    def refusal(self, request: BeginRequest, reply: Weighted) -> str | None:
        """A client without any start that is possible has learned nothing."""
        return NO_START if reply.value.objective >= HOPELESS else None

    def server_update(self, server: Float[Array, ""], total: Weighted) -> tuple[Float[Array, ""], SeparateInfo]:
        """Nothing to agree on."""
        return server + 1, SeparateInfo(*mean(total))

    def result(self, server: Float[Array, ""], clients: Float[Array, "C K"]) -> tuple[Flat, Flat]:
        """Nothing is shared; every client's own parameters, stacked."""
        return {}, jax.vmap(self.alone.space.named)(jnp.exp(clients))

    def client_bytes(self, rows: int) -> int:
        """As the exact method."""
        return self.alone.client_bytes(rows)
