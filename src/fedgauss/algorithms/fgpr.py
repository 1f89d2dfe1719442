"""FGPR: one Gaussian process prior learned by many clients, who each condition it on their own data.

Yue and Kontar, "Federated Gaussian Process: Convergence, Automatic Personalization and Multi-fidelity Modeling".
`HyperparameterAveraging` is Algorithms 1 and 2 with their variants; `ExactHyperparameters` maximises the same objective
from exact sums of values, gradients and Hessians, in tens of times fewer exchanges. Prediction needs no federation: it
is `gp.exact.condition` with the shared parameters and a client's own rows.
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fedgauss.algorithm import Data, FederatedAlgorithm, Key
from fedgauss.errors import NotPositiveDefiniteError
from fedgauss.gp import minibatches
from fedgauss.gp.exact import negative_log_marginal_likelihood, negative_log_marginal_likelihood_derivatives
from fedgauss.gp.parameters import Flat, Space
from fedgauss.messages import Weighted, mean, weighted
from fedgauss.newton import trust_region_step

# --- Algorithms 1 and 2: averaging ---------------------------------------------------------------------------------


class ParametersRequest(NamedTuple):
    """The shared parameters, by name, in the space in which they are averaged."""

    parameters: Flat
    round: Float[Array, ""]


class LocalFit(NamedTuple):
    """What a client's local steps led to."""

    delta: Flat
    """By how much they moved the shared parameters."""
    objective: Float[Array, ""]
    """Mean negative log likelihood of a row over the local steps' minibatches."""


class AveragingServer(NamedTuple):
    """Shared parameters."""

    parameters: Flat
    round: Float[Array, ""]
    optimiser: Any


class AveragingClient(NamedTuple):
    """What stays with a client: its personal parameters, and its optimiser's state if that is kept."""

    personal: Flat
    optimiser: Any


class AveragingInfo(NamedTuple):
    """Worth plotting."""

    objective: Float[Array, ""]
    parameters: Flat
    """The shared parameters themselves, whatever space they are averaged in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HyperparameterAveraging(FederatedAlgorithm[AveragingServer, AveragingClient, ParametersRequest, Weighted]):
    """FGPR's Algorithm 1 with Algorithm 2 at the clients.

    Args:
        space: The parameters, their box and their change of variables.
        rounds: R.
        batch_size: M.
        local_steps: E, or "epoch" for as many as the client's rows make minibatches, at least one.
        minibatch: "uniform" draws without replacement; "nearest" takes the neighbours of a random row.
        optimiser: "sgd", "adam", or any Optax transformation, which then brings its own rate.
        learning_rate: eta.
        decay: eta_t = learning_rate / (1 + t / decay), t the steps of all rounds so far; `None` keeps it constant.
        keep_optimiser: Whether clients keep their optimiser's state between rounds.
        gradient_scale: "none"; "batch" divides by M; "paper" by s1 = tau log M for the kernel's parameters and by
            s2 = M for the noise variance (section 4.2).
        tau: Of s1.
        average: The space in which the server averages.
        personal: Names of parameters that stay with each client.
        server_optimiser: Applied to the pseudo-gradient, minus the mean change; `None` adds the change as it is.
        total_weight: Of all clients, where they are asked apart: each change then counts by its client's share of it,
            so that a sweep through all clients moves the shared parameters like one round that asks them together.
            `None` takes the mean over those who answered.
        num_rows: Of all clients, over which the log prior of a shared parameter is spread.
    """

    space: Space
    rounds: int
    batch_size: int
    local_steps: int | Literal["epoch"]
    minibatch: Literal["uniform", "nearest"]
    optimiser: Literal["sgd", "adam"] | optax.GradientTransformation
    learning_rate: float
    decay: float | None
    keep_optimiser: bool
    gradient_scale: Literal["none", "batch", "paper"]
    tau: float
    average: Literal["constrained", "unconstrained"]
    personal: tuple[str, ...]
    server_optimiser: optax.GradientTransformation | None
    total_weight: float | None
    num_rows: int

    @functools.cached_property
    def _is_personal(self) -> dict[str, bool]:
        chosen = self.space.named(self.space.select(self.personal, "personal"))
        return {name: bool(np.any(value)) for name, value in chosen.items()}

    def _transformation(self) -> optax.GradientTransformation:
        match self.optimiser:
            case "sgd":
                return optax.identity()
            case "adam":
                return optax.scale_by_adam()
            case _:
                return self.optimiser

    def _first(self) -> Flat:
        theta = jnp.asarray(self.space.first())
        return self.space.named(theta if self.average == "constrained" else self.space.unconstrain(theta))

    def _shared(self, values: Flat) -> Flat:
        return {name: value for name, value in values.items() if not self._is_personal[name]}

    def _own(self, values: Flat) -> Flat:
        return {name: value for name, value in values.items() if self._is_personal[name]}

    def init(self, key: Key) -> AveragingServer:
        """The start, the same for all."""
        shared = self._shared(self._first())
        optimiser = () if self.server_optimiser is None else self.server_optimiser.init(shared)
        return AveragingServer(shared, jnp.zeros(()), optimiser)

    def init_client(self, key: Key) -> AveragingClient:
        """Personal parameters begin where the shared ones do."""
        optimiser = self._transformation().init(jnp.zeros(self.space.size)) if self.keep_optimiser else ()
        return AveragingClient(self._own(self._first()), optimiser)

    def request(self, server: AveragingServer) -> ParametersRequest | None:
        """Broadcast theta, R times."""
        return None if int(server.round) >= self.rounds else ParametersRequest(server.parameters, server.round)

    def client_update(
        self, request: ParametersRequest, client: AveragingClient, data: Data, key: Key
    ) -> tuple[AveragingClient, Weighted]:
        """Algorithm 2: E optimiser steps on minibatches, from the shared parameters.

        Sent: the change of the shared parameters and the mean objective, times the client's weight, and the weight: a
            few numbers whatever the number of rows. A client with one row tells |y| through its gradient.
        Kept: personal parameters; the optimiser's state if it is kept.
        """
        values = request.parameters | client.personal
        vector = self.space.ravel(values)
        u = self.space.unconstrain(vector) if self.average == "constrained" else vector
        transformation = self._transformation()
        state = client.optimiser if self.keep_optimiser else transformation.init(u)
        x, y = data.X, data.Y[:, 0]
        rows = x.shape[0]
        batch = min(self.batch_size, rows)
        filled = jnp.minimum(batch, data.num_rows)
        most = max(1, rows // batch) if self.local_steps == "epoch" else self.local_steps
        steps = jnp.maximum(data.num_rows // batch, 1) if self.local_steps == "epoch" else most
        if self.minibatch == "uniform" and batch < rows:
            drawn = minibatches.uniform(key, data.num_rows, num_batches=most, batch_size=batch)

        is_personal = self.space.select(self.personal, "personal")

        def objective(u: Float[Array, " K"], e: Any) -> Float[Array, ""]:
            theta = self.space.constrain(u)
            parameters = self.space.unravel(theta)
            # a prior counts once beside the likelihood of the rows that it is a prior for
            rows_of_prior = jnp.where(is_personal, data.num_rows, self.num_rows)
            prior = -jnp.sum(filled / rows_of_prior * self.space.log_prior(theta)) if self.space.priors else 0.0
            if batch == rows:
                return negative_log_marginal_likelihood(self.space.kernel, parameters, x, y, data.num_rows) + prior
            if self.minibatch == "nearest":
                chosen = minibatches.nearest(jax.random.fold_in(key, e), x, data.num_rows, batch_size=batch)
            else:
                chosen = drawn[e]
            X, Y = x[chosen], y[chosen]
            return negative_log_marginal_likelihood(self.space.kernel, parameters, X, Y, filled) + prior

        scale = self._gradient_scale(filled.astype(u.dtype))

        def step(e: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            u, state, total = carry
            value, gradient = jax.value_and_grad(objective)(u, e)
            change, state = transformation.update(gradient / scale, state, u)
            if self.optimiser in ("sgd", "adam"):
                change = -self._rate(request.round * steps + e) * change
            return self.space.project(u + change), state, total + value / filled

        u, state, total = jax.lax.fori_loop(0, steps, step, (u, state, jnp.zeros(())))
        after = self.space.named(self.space.constrain(u) if self.average == "constrained" else u)
        delta = {name: value - request.parameters[name] for name, value in self._shared(after).items()}
        reply = weighted(LocalFit(delta, total / steps), data.weight)
        return AveragingClient(self._own(after), state if self.keep_optimiser else ()), reply

    def _rate(self, t: Any) -> Any:
        return self.learning_rate if self.decay is None else self.learning_rate / (1.0 + t / self.decay)

    def _gradient_scale(self, m: Float[Array, ""]) -> Any:
        match self.gradient_scale:
            case "none":
                return 1.0
            case "batch":
                return m
            case "paper":
                is_noise = self.space.select(("noise_variance",), "gradient_scale")
                s1 = self.tau * jnp.log(jnp.maximum(m, 2.0))  # log 1 = 0 would divide by zero
                return jnp.where(is_noise, m, s1)

    def server_update(self, server: AveragingServer, total: Weighted) -> tuple[AveragingServer, AveragingInfo]:
        """theta + sum_k p_k (theta_k - theta), which is sum_k p_k theta_k where all started from theta."""
        average = mean(total)
        share = 1.0 if self.total_weight is None else total.weight / self.total_weight
        change, optimiser = {name: share * delta for name, delta in average.delta.items()}, server.optimiser
        if self.server_optimiser is not None and change:
            gradient = jax.tree.map(jnp.negative, change)
            change, optimiser = self.server_optimiser.update(gradient, server.optimiser, server.parameters)
        new = self._into_box({name: value + change[name] for name, value in server.parameters.items()})
        info = AveragingInfo(average.objective, self.constrained(new))
        return AveragingServer(new, server.round + 1, optimiser), info

    def _into_box(self, values: Flat) -> Flat:
        """Shared values moved into the box: a mean stays inside, a server's step or a late change may not."""
        vector = self.space.ravel(self._first() | values)
        inside = jnp.clip(vector, *self.space.box()) if self.average == "constrained" else self.space.project(vector)
        return self._shared(self.space.named(inside)) if values else {}

    def constrained(self, values: Flat) -> Flat:
        """Constrained values from those of the space in which they are averaged."""
        if self.average == "constrained":
            return values
        full = self.space.named(self.space.constrain(self.space.ravel(self._first() | values)))
        return {name: full[name] for name in values}

    def result(self, server: AveragingServer, clients: AveragingClient) -> tuple[Flat, Flat]:
        """The shared parameters, and every client's personal ones, stacked."""
        own = jax.vmap(self.constrained)(clients.personal) if clients.personal else {}
        return self.constrained(server.parameters), own

    @property
    def is_uneven(self) -> bool:
        """An epoch is as many steps as a client's rows make minibatches."""
        return self.local_steps == "epoch"

    def client_bytes(self, rows: int) -> int:
        """About four matrices of a minibatch's rows by its rows."""
        return 32 * min(self.batch_size, rows) ** 2


# --- The same objective from exact sums ----------------------------------------------------------------------------

_IMPOSSIBLE = 1e100
"""What a client answers where its covariance cannot be factorised with any jitter: the server steps back."""

HOPELESS = 1e90
"""No likelihood of data is so bad: a sum or weighted mean above this holds what is impossible."""

NO_START = "its covariance cannot be factorised at any start, with any jitter"


class StartsRequest(NamedTuple):
    """Places to start from: each client says how likely its data are there."""

    candidates: Float[Array, "S K"]


class DerivativesRequest(NamedTuple):
    """Where value, gradient and Hessian are wanted."""

    point: Float[Array, " K"]


class Values(NamedTuple):
    """Negative log likelihoods at each candidate."""

    values: Float[Array, " S"]
    scale: Float[Array, ""]


class Derivatives(NamedTuple):
    """Value, gradient and observed Hessian of the negative log likelihood in the logarithms of the parameters."""

    value: Float[Array, ""]
    gradient: Float[Array, " K"]
    hessian: Float[Array, "K K"]
    scale: Float[Array, ""]


class ExactServer(NamedTuple):
    """The best point so far with its derivatives, and the trust region around it."""

    point: Float[Array, " K"]
    value: Float[Array, ""]
    gradient: Float[Array, " K"]
    hessian: Float[Array, "K K"]
    radius: Float[Array, ""]
    candidate: Float[Array, " K"]
    predicted: Float[Array, ""]
    """By how much the quadratic model says the candidate is better."""
    round: Float[Array, ""]
    done: Float[Array, ""]


class ExactInfo(NamedTuple):
    """Worth plotting."""

    objective: Float[Array, ""]
    parameters: Flat
    predicted: Float[Array, ""]
    radius: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactHyperparameters(FederatedAlgorithm[ExactServer, tuple[()], Any, Any]):
    """Trust-region Newton on the exact objective: one exchange a step.

    The joint objective, sum_k -log p(y_k | X_k, theta), is the likelihood of independent clients who share a prior.
    Each reply is its exact value, gradient and observed Hessian over the few logarithms of hyper-parameters, and they
    add: in whatever order clients answer, the step is the same. Steps stay inside the box; where a bound holds a
    parameter back, the step is taken in the others.

    Args:
        space: With transform "log".
        rounds: The most exchanges.
        weighting: "joint", or "size" for equation 3, sum_k p_k L_k with p_k = N_k / N.
        block_size: Clients up to this many rows are taken whole; larger ones as a product over blocks of at most
            this many, each a comb through all rows.
        tolerance: Stop when the quadratic model promises less than this, in nats.
    """

    quorum = "every"
    cost_exponent = 3

    space: Space
    rounds: int
    weighting: Literal["joint", "size"]
    block_size: int
    tolerance: float

    def _bounds(self) -> tuple[Any, Any]:
        """The box in logarithms, never wider than a factor of 1e6 either way: beyond, the data say nothing."""
        low, high = self.space.box()
        return np.log(low), np.log(np.minimum(high, self.space.ceilings()))

    def candidates(self) -> Float[Array, "S K"]:
        """Starts: the user's, and short or long lengthscales with little or much noise."""
        first = self.space.first()
        low, high = self._bounds()
        rows = [first]
        is_noise = self.space.select(("noise_variance",), "start")
        is_length = np.array(["lengthscale" in name for name in self.space.element_names])
        for length in (0.15, 0.5, 1.5, 5.0):
            for noise in np.array([1e-3, 1e-1]) * self.space.target_scale**2:
                rows.append(np.where(is_noise, noise, np.where(is_length, length * first, first)))
        return jnp.asarray(np.clip(np.log(np.array(rows)), low, high))

    def init(self, key: Key) -> ExactServer:
        """Nothing known but where to look first."""
        k, zero = self.space.size, jnp.zeros(())
        point = jnp.log(self.space.first())
        return ExactServer(point, zero, jnp.zeros(k), jnp.zeros((k, k)), zero + 1.0, point, zero, zero, zero)

    def init_client(self, key: Key) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def request(self, server: ExactServer) -> StartsRequest | DerivativesRequest | None:
        """Starts first, then one point after the other."""
        if float(server.value) >= HOPELESS:
            raise NotPositiveDefiniteError(
                "at every start some client's covariance cannot be factorised, with any jitter. Standardise the inputs,"
                " raise noise_floor, or take another kernel"
            )
        if bool(server.done) or int(server.round) >= self.rounds:
            return None
        if int(server.round) == 0:
            return StartsRequest(self.candidates())
        return DerivativesRequest(server.candidate)

    def client_update(self, request: Any, client: tuple[()], data: Data, key: Key) -> tuple[tuple[()], Any]:
        """The exact likelihood at each candidate, or its derivatives at one point.

        Sent: 1 + K + K^2 sums (K hyper-parameters) whatever the number of rows. A client with one row tells |y|.
        Kept: nothing.
        """
        blocks = self._blocks(data)
        scale = data.weight if self.weighting == "size" else jnp.ones(())
        match request:
            case StartsRequest(candidates):

                def value_at(u: Float[Array, " K"]) -> Float[Array, ""]:
                    parameters = self.space.unravel(jnp.exp(u))
                    return jnp.sum(
                        jax.lax.map(
                            lambda b: negative_log_marginal_likelihood(self.space.kernel, parameters, *b), blocks
                        )
                    )

                values = jax.lax.map(value_at, candidates)
                return client, Values(scale * jnp.where(jnp.isfinite(values), values, _IMPOSSIBLE), scale)
            case DerivativesRequest(point):

                def derivatives(block: Any) -> Any:
                    return negative_log_marginal_likelihood_derivatives(
                        self.space.kernel, lambda u: self.space.unravel(jnp.exp(u)), point, *block
                    )

                sums = jax.tree.map(lambda s: s.sum(0), jax.lax.map(derivatives, blocks))
                failed = ~jnp.isfinite(ravel_pytree(sums)[0]).all()
                value, gradient, hessian = (
                    scale * jnp.where(failed, instead, s)
                    for s, instead in zip(sums, (_IMPOSSIBLE, 0.0, 0.0), strict=True)
                )
                return client, Derivatives(value, gradient, hessian, scale)
            case _:
                raise TypeError(type(request).__name__)

    def refusal(self, request: Any, reply: Any) -> str | None:
        """A client for which no start is possible: the sum over clients would not tell whose covariance it was."""
        return NO_START if isinstance(reply, Values) and np.all(reply.values >= HOPELESS) else None

    def _blocks(self, data: Data) -> tuple[Any, Any, Any]:
        """Rows b, b + B, b + 2 B, ... for each block b of B; empty blocks count nothing."""
        rows = data.X.shape[0]
        most = -(-rows // self.block_size)
        if most == 1:
            return data.X[None], data.Y[None, :, 0], data.num_rows[None]
        needed = jnp.maximum(-(-data.num_rows // self.block_size), 1)
        block = jnp.arange(most)
        sizes = jnp.where(block < needed, (data.num_rows - block + needed - 1) // needed, 0)
        chosen = jnp.minimum(block[:, None] + needed * jnp.arange(self.block_size)[None, :], rows - 1)
        return data.X[chosen], data.Y[chosen, 0], sizes

    def server_update(self, server: ExactServer, total: Any) -> tuple[ExactServer, ExactInfo]:
        """Accept or refuse the candidate, then the next trust-region step."""
        if isinstance(total, Values):
            candidates = self.candidates()
            best = jnp.argmin(total.values)
            start = candidates[best]
            value = total.values[best] / self._normaliser(total.scale)
            server = server._replace(point=start, candidate=start, value=value, round=server.round + 1)
            return server, self._info(server, value)
        normaliser = self._normaliser(total.scale)
        u = server.candidate
        value, gradient, hessian = (part / normaliser for part in (total.value, total.gradient, total.hessian))
        if self.space.priors:
            value, gradient, hessian = (
                part + extra for part, extra in zip((value, gradient, hessian), self._prior_derivatives(u), strict=True)
            )
        promised = jnp.maximum(server.predicted, 1e-300)
        ratio = jnp.where(server.round == 1, 1.0, (server.value - value) / promised)
        # what rounding leaves of a difference of likelihoods is not evidence against a step
        rounding = 1e-12 * jnp.abs(value)
        accept = (ratio > 1e-3) | (jnp.abs(server.value - value) <= rounding)
        at_edge = jnp.linalg.norm(server.candidate - server.point) > 0.8 * server.radius
        radius = jnp.where(
            ratio < 0.25, 0.25 * server.radius, jnp.where((ratio > 0.5) & at_edge, 2.5 * server.radius, server.radius)
        )
        radius = jnp.minimum(radius, 4.0)

        def choose(new: Any, old: Any) -> Any:
            return jnp.where(accept, new, old)

        point, value = choose(u, server.point), choose(value, server.value)
        gradient, hessian = choose(gradient, server.gradient), choose(hessian, server.hessian)
        low, high = self._bounds()
        step, predicted = trust_region_step(gradient, hessian, radius, low - point, high - point)
        done = (predicted < self.tolerance) | (radius < 1e-10)
        server = ExactServer(
            point, value, gradient, hessian, radius, point + step, predicted, server.round + 1, done.astype(float)
        )
        return server, self._info(server, value)

    def _normaliser(self, scale: Any) -> Any:
        return scale if self.weighting == "size" else jnp.ones(())

    def _prior_derivatives(self, u: Float[Array, " K"]) -> tuple[Any, Any, Any]:
        def penalty(u: Float[Array, " K"]) -> Float[Array, ""]:
            return -jnp.sum(self.space.log_prior(jnp.exp(u)))

        return penalty(u), jax.grad(penalty)(u), jax.hessian(penalty)(u)

    def _info(self, server: ExactServer, value: Any) -> ExactInfo:
        return ExactInfo(value, self.space.named(jnp.exp(server.point)), server.predicted, server.radius)

    def result(self, server: ExactServer, clients: tuple[()]) -> tuple[Flat, Flat]:
        """The shared parameters; nothing is personal."""
        return self.space.named(jnp.exp(server.point)), {}

    def client_bytes(self, rows: int) -> int:
        """K + 4 matrices of the rows by the rows."""
        return 8 * (self.space.size + 4) * min(rows, self.block_size) ** 2
