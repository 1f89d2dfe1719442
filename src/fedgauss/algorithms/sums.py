r"""Exact objectives from sums: any number of clients optimise L(theta) = F(sum_k s_k(theta), theta) as if pooled.

Value and gradient take two exchanges. Clients send their sums s_k; the server broadcasts the cotangent dF/ds; clients
send the products (ds_k/dtheta)^T dF/ds, which add up to the gradient but for the part that F has of theta itself. Any
split of the rows gives the same gradient, to rounding. `GatherSums` is the first exchange alone, at parameters that are
given: FedBNR's second phase in one exchange (Yu et al., equations 20 and 21). For the collapsed bound of a sparse
Gaussian process this is the distributed inference of Gal, van der Wilk and Rasmussen (2014).
"""

import dataclasses
import functools
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedgauss.algorithm import Data, FederatedAlgorithm, Key
from fedgauss.errors import RunError
from fedgauss.gp.summed import Flat, SummedModel, sums_of
from fedgauss.messages import Tally, draw_ticket, tally

_ARMIJO = 1e-4
_SHORTEST = 1e-8
"""A line search that has halved its step this far has found no way down: the optimum, to rounding."""

_MOST_REDONE = 10
"""How often in all a step may be asked for again, since a client was lost between its two exchanges."""


class SumsRequest(NamedTuple):
    """Parameters at which sums are wanted."""

    theta: Flat
    constants: Flat


class CotangentRequest(NamedTuple):
    """What a change of each sum does to the objective; the gradient through the client's own sums is wanted."""

    theta: Flat
    constants: Flat
    cotangent: Any


class Pullback(NamedTuple):
    """A client's part of the gradient."""

    gradient: Flat


# --- one exchange --------------------------------------------------------------------------------------------------


class GatherServer(NamedTuple):
    """Parameters, and the sums of all clients there once they have been asked."""

    theta: Flat
    constants: Flat
    sums: Any
    gathered: Float[Array, ""]


class GatherInfo(NamedTuple):
    """Worth plotting."""

    objective: Float[Array, ""]


def zero_sums(model: SummedModel, num_inputs: int, num_targets: int, theta: Flat, constants: Flat) -> Any:
    """Sums over no rows."""
    X, Y = jnp.zeros((1, num_inputs)), jnp.zeros((1, num_targets))
    shapes = jax.eval_shape(lambda: sums_of(model, theta, constants, X, Y, jnp.zeros((), int)))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatherSums(FederatedAlgorithm[GatherServer, tuple[()], SumsRequest, Any]):
    """The sums of all clients at given parameters, in one exchange.

    Args:
        model: Whose sums. The run's first server state is where the parameters are put.
        num_inputs: D.
        num_targets: P.
        everyone: Whether all clients must answer; otherwise the sums are of those who did.
    """

    quorum: ClassVar[Literal["some", "every"]] = "every"

    model: SummedModel
    num_inputs: int
    num_targets: int
    everyone: bool = True

    def needs_every(self, request: SumsRequest) -> bool:
        """As set."""
        return self.everyone

    def init(self, key: Key) -> GatherServer:
        """Parameters at their start, nothing gathered."""
        theta, constants = self.model.init(key)
        zeros = zero_sums(self.model, self.num_inputs, self.num_targets, theta, constants)
        return GatherServer(theta, constants, zeros, jnp.zeros(()))

    def init_client(self, key: Key) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def request(self, server: GatherServer) -> SumsRequest | None:
        """Once."""
        return None if float(server.gathered) else SumsRequest(server.theta, server.constants)

    def client_update(self, request: SumsRequest, client: tuple[()], data: Data, key: Key) -> tuple[tuple[()], Any]:
        """Sums over the client's rows.

        Sent: for R features and P targets R^2 + R P + P + 1 sums, whatever the number of rows. A client with fewer
            rows than features can be read from them: its inputs and its targets.
        Kept: nothing.
        """
        return client, sums_of(self.model, request.theta, request.constants, data.X, data.Y, data.num_rows)

    def refusal(self, request: SumsRequest, reply: Any) -> str | None:
        """What cannot be sums over rows, such as an indefinite matrix."""
        return self.model.refusal(reply)

    def server_update(self, server: GatherServer, total: Any) -> tuple[GatherServer, GatherInfo]:
        """Keep the sum."""
        objective = self.model.objective(total, server.theta)
        return GatherServer(server.theta, server.constants, total, jnp.ones(())), GatherInfo(objective)

    def client_bytes(self, rows: int) -> int:
        """A chunk of a hundred features or so."""
        return 1000 * rows


# --- two exchanges a step ------------------------------------------------------------------------------------------


class ExactSumsServer(NamedTuple):
    """The best point so far with its sums, and the next one to look at."""

    theta: Flat
    constants: Flat
    value: Float[Array, ""]
    """F at `theta`."""
    sums: Any
    """At `theta`."""
    members: Float[Array, "2"]
    """Whose sums these are."""
    cotangent: Any
    """dF/ds at `theta`."""
    explicit: Flat
    """The gradient of F in theta with the sums held, at `theta`."""
    optimiser: Any
    direction: Flat
    slope: Float[Array, ""]
    """Of F along the direction."""
    step: Float[Array, ""]
    candidate: Flat
    wants_gradient: Float[Array, ""]
    """1 between the two exchanges of a step."""
    exchanges: Float[Array, ""]
    redone: Float[Array, ""]
    """How often a step was asked for again."""
    done: Float[Array, ""]


class ExactSumsInfo(NamedTuple):
    """Worth plotting."""

    objective: Float[Array, ""]
    """F at the best point so far, in nats a row."""
    step: Float[Array, ""]
    redone: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactSums(FederatedAlgorithm[ExactSumsServer, Any, Any, Tally]):
    """Minimise F(sum_k s_k(theta), theta) by the server's optimiser on the exact gradient.

    Sums and gradient of a step are over the same clients: each reply carries a ticket, and where the tickets of the two
    exchanges differ, the step is asked for again.

    Args:
        model: What is minimised.
        num_inputs: D.
        num_targets: P.
        rounds: The most exchanges.
        optimiser: "lbfgs" with a line search that costs one exchange a trial; any Optax transformation takes its steps
            as they come.
        tolerance: L-BFGS stops when a step gains less than this many nats a row.
        everyone: Whether all clients must answer each request.
    """

    quorum: ClassVar[Literal["some", "every"]] = "every"

    model: SummedModel
    num_inputs: int
    num_targets: int
    rounds: int
    optimiser: Literal["lbfgs"] | optax.GradientTransformation
    tolerance: float
    everyone: bool = True

    def needs_every(self, request: Any) -> bool:
        """As set."""
        return self.everyone

    @functools.cached_property
    def _transformation(self) -> Any:
        return optax.scale_by_lbfgs(memory_size=20) if self.optimiser == "lbfgs" else self.optimiser

    def init(self, key: Key) -> ExactSumsServer:
        """Nothing known but where to look first."""
        theta, constants = self.model.init(key)
        zeros, zero = jax.tree.map(jnp.zeros_like, theta), jnp.zeros(())
        sums = zero_sums(self.model, self.num_inputs, self.num_targets, theta, constants)
        return ExactSumsServer(
            theta, constants, zero, sums, jnp.zeros(2), sums, zeros, self._transformation.init(theta), zeros, zero,
            zero + 1.0, theta, zero, zero, zero, zero,
        )  # fmt: skip

    def init_client(self, key: Key) -> Float[Array, ""]:
        """A ticket, drawn once."""
        return draw_ticket(key)

    def request(self, server: ExactSumsServer) -> SumsRequest | CotangentRequest | None:
        """Sums at the candidate; where it was accepted, the gradient there."""
        if int(server.redone) > _MOST_REDONE:
            raise RunError(
                f"clients that had sent their sums were missing when the gradient was asked for, {_MOST_REDONE} times."
                ' Leave unreliable clients out, or let every request wait for all: quorum="every"'
            )
        if bool(server.done) or int(server.exchanges) >= self.rounds:
            if not float(server.members[0]):
                raise RunError(
                    "at the start the objective is not a number: some client's sums are not finite there. Standardise"
                    " inputs and targets, or look at features of your own"
                )
            return None
        if float(server.wants_gradient):
            return CotangentRequest(server.theta, server.constants, server.cotangent)
        return SumsRequest(server.candidate, server.constants)

    def client_update(self, request: Any, client: Any, data: Data, key: Key) -> tuple[Any, Tally]:
        """Sums at a point, or the gradient through them.

        Sent: R^2 + R P + P + 1 sums (R features, P targets), or as many numbers as there are parameters; the client's
            ticket. A client with fewer rows than features can be read from its sums.
        Kept: the ticket.
        """

        def sums(theta: Flat) -> Any:
            return sums_of(self.model, theta, request.constants, data.X, data.Y, data.num_rows)

        match request:
            case SumsRequest():
                return client, tally(sums(request.theta), client)
            case CotangentRequest():
                _, pull = jax.vjp(sums, request.theta)
                return client, tally(Pullback(pull(request.cotangent)[0]), client)
            case _:
                raise TypeError(type(request).__name__)

    def refusal(self, request: Any, reply: Tally) -> str | None:
        """What cannot be sums over rows, such as an indefinite matrix."""
        return self.model.refusal(reply.value) if isinstance(request, SumsRequest) else None

    def server_update(self, server: ExactSumsServer, total: Tally) -> tuple[ExactSumsServer, ExactSumsInfo]:
        """Judge the candidate by its sums, or take the next step from its gradient."""
        server = server._replace(exchanges=server.exchanges + 1)
        server = self._advance(server, total) if isinstance(total.value, Pullback) else self._judge(server, total)
        return server, ExactSumsInfo(server.value, server.step, server.redone)

    def _judge(self, server: ExactSumsServer, total: Tally) -> ExactSumsServer:
        both = jax.value_and_grad(self.model.objective, argnums=(0, 1))
        value, (cotangent, explicit) = both(total.value, server.candidate)
        fine = jnp.isfinite(value) & (total.failed == 0)
        accept = fine
        if self.optimiser == "lbfgs":
            enough = value <= server.value + _ARMIJO * server.step * server.slope
            accept = fine & (enough | (server.exchanges == 1))
        # after a loss between exchanges the same point is judged again, by the sums of those who are left
        accept = accept | (fine & (server.step == 0.0))
        halved = 0.5 * server.step
        shorter = self.model.bounded(jax.tree.map(lambda at, d: at + halved * d, server.theta, server.direction))
        refused = server._replace(step=halved, candidate=shorter, done=(halved < _SHORTEST).astype(float))
        gained = jnp.where((server.exchanges > 1) & (server.step > 0.0), server.value - value, jnp.inf)
        is_small = (gained < self.tolerance) if self.optimiser == "lbfgs" else jnp.zeros((), bool)
        accepted = server._replace(
            theta=server.candidate, value=value, sums=total.value, members=total.members, cotangent=cotangent,
            explicit=explicit, wants_gradient=jnp.ones(()), done=is_small.astype(float),
        )  # fmt: skip
        return _choose(accept, accepted, refused)

    def _advance(self, server: ExactSumsServer, total: Tally) -> ExactSumsServer:
        same = jnp.all(total.members == server.members) & (total.failed == 0)
        gradient = self._projected(jax.tree.map(jnp.add, total.value.gradient, server.explicit), server.theta)
        direction, optimiser = self._transformation.update(gradient, server.optimiser, server.theta)
        if self.optimiser == "lbfgs":
            direction = jax.tree.map(jnp.negative, direction)
            slope = optax.tree.vdot(gradient, direction)
            length = jnp.maximum(optax.tree.norm(gradient), 1e-300)
            downhill = jax.tree.map(lambda g: -g / jnp.maximum(length, 1.0), gradient)
            is_down = slope < 0.0
            direction = jax.tree.map(lambda d, g: jnp.where(is_down, d, g), direction, downhill)
            fresh = self._transformation.init(server.theta)
            optimiser = jax.tree.map(lambda kept, new: jnp.where(is_down, kept, new), optimiser, fresh)
        slope = optax.tree.vdot(gradient, direction)
        candidate = self.model.bounded(jax.tree.map(jnp.add, server.theta, direction))
        zero = jnp.zeros(())
        moved = server._replace(
            optimiser=optimiser, direction=direction, slope=slope, step=zero + 1.0, candidate=candidate,
            wants_gradient=zero,
        )  # fmt: skip
        again = server._replace(candidate=server.theta, step=zero, wants_gradient=zero, redone=server.redone + 1)
        return _choose(same, moved, again)

    def _projected(self, gradient: Flat, theta: Flat) -> Flat:
        """The gradient without what would push a parameter over its bound."""
        moved = self.model.bounded(jax.tree.map(jnp.subtract, theta, gradient))
        return {n: jnp.where((moved[n] == theta[n]) & (g != 0.0), 0.0, g) for n, g in gradient.items()}

    def client_bytes(self, rows: int) -> int:
        """A chunk of a hundred features or so, forwards and back."""
        return 3000 * rows


def _choose(is_first: Any, first: ExactSumsServer, second: ExactSumsServer) -> ExactSumsServer:
    chosen: ExactSumsServer = jax.tree.map(lambda yes, no: jnp.where(is_first, yes, no), first, second)
    return chosen
