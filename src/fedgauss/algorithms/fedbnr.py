"""FedBNR: a global Gaussian process in feature space, its kernel a network that many clients learn together.

Yu et al., "Federated Bayesian Neural Regression". Phase 1 of Algorithm 1, kernel learning: `FeatureAveraging`,
`NetworkDistillation` and `KernelDistillation`, and `LocalFeatures` for the ablations. Phase 2, the exact last layer,
is `sums.GatherSums` in one exchange; `TwoExchangeLastLayer` is the paper's own form of it. `sums.ExactSums` learns the
kernel on the exact evidence of all rows instead.

Two misprints of Algorithm 1: sigma is averaged from the clients' sigma, not lambda, and the evidence is ascended.
"""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedgauss.algorithm import Data, FederatedAlgorithm, Key, Stacked
from fedgauss.algorithms.fgpr import LocalFit
from fedgauss.gp import minibatches
from fedgauss.gp.feature_regression import FeatureModel, FeatureSums
from fedgauss.gp.summed import Flat, sums_of
from fedgauss.messages import Weighted, mean, weighted

# --- local steps ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """A client's optimiser steps on its own evidence (equation 18), a row.

    Args:
        steps: A round.
        batch_size: Rows of a minibatch, whose own evidence is then ascended; `None` takes all rows.
        optimiser: "adam", "sgd", or an Optax transformation, which brings its own rate.
        learning_rate: zeta.
        decay: Rounds after which the rate has halved, learning_rate / (1 + round / decay); `None` keeps it.
    """

    steps: int
    batch_size: int | None
    optimiser: Literal["adam", "sgd"] | optax.GradientTransformation
    learning_rate: float
    decay: float | None

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The optimiser without its rate, where the rate is ours."""
        match self.optimiser:
            case "sgd":
                return optax.identity()
            case "adam":
                return optax.scale_by_adam()
            case _:
                return self.optimiser

    def run(
        self, model: FeatureModel, theta: Flat, constants: Flat, data: Data, round_number: Any, key: Key
    ) -> tuple[Flat, Float[Array, ""]]:
        """The parameters after the steps, and the mean objective on the way. The optimiser starts anew."""
        rows = data.X.shape[0]
        batch = rows if self.batch_size is None else min(self.batch_size, rows)
        if batch < rows:
            drawn = minibatches.uniform(key, data.num_rows, num_batches=self.steps, batch_size=batch)
        filled = jnp.minimum(batch, data.num_rows)
        rate = self.learning_rate if self.decay is None else self.learning_rate / (1.0 + round_number / self.decay)

        def objective(theta: Flat, step: Any) -> Float[Array, ""]:
            X, Y = (data.X, data.Y) if batch == rows else (data.X[drawn[step]], data.Y[drawn[step]])
            return model.objective(sums_of(model, theta, constants, X, Y, filled), theta)

        def one(step: Any, carry: tuple[Flat, Any, Any]) -> tuple[Flat, Any, Any]:
            theta, state, total = carry
            value, gradient = jax.value_and_grad(objective)(theta, step)
            change, state = self.transformation.update(gradient, state, theta)
            if self.optimiser in ("adam", "sgd"):
                change = jax.tree.map(lambda leaf: -rate * leaf, change)
            return model.bounded(optax.apply_updates(theta, change)), state, total + value

        start = theta, self.transformation.init(theta), jnp.zeros(())
        theta, _, total = jax.lax.fori_loop(0, self.steps, one, start)
        return theta, total / self.steps


class KernelInfo(NamedTuple):
    """Worth plotting."""

    objective: Float[Array, ""]
    """Mean negative log evidence of a row on the way, at the clients."""
    noise_std: Float[Array, " P"]
    weight_std: Float[Array, " P"]


class FeaturesRequest(NamedTuple):
    """The shared features, noise and prior scales, in the space in which they are averaged, and omega."""

    values: Flat
    constants: Flat
    round: Float[Array, ""]


class KernelServer(NamedTuple):
    """What is shared, in the space in which it is averaged."""

    values: Flat
    constants: Flat
    round: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _KernelLearning(FederatedAlgorithm[Any, Any, Any, Any]):
    """What the ways to learn the kernel have in common.

    Args:
        model: The features, and their start.
        local: What a client does in a round.
        rounds: How many.
    """

    model: FeatureModel
    local: LocalSteps
    rounds: int

    def init(self, key: Key) -> Any:
        """The start, the same for all."""
        theta, constants = self.model.init(key)
        return KernelServer(self.model.constrained(theta), constants, jnp.zeros(()))

    def init_client(self, key: Key) -> Any:
        """Clients keep nothing."""
        return ()

    def request(self, server: Any) -> Any:
        """Broadcast, as often as there are rounds."""
        return None if int(server.round) >= self.rounds else self._request(server)

    def _request(self, server: Any) -> Any:
        return FeaturesRequest(server.values, server.constants, server.round)

    def _fit(self, request: Any, data: Data, key: Key) -> tuple[Flat, Float[Array, ""]]:
        theta = self.model.unconstrained(request.values)
        return self.local.run(self.model, theta, request.constants, data, request.round, key)

    def _info(self, objective: Any, values: Flat) -> KernelInfo:
        return KernelInfo(objective, values["noise_std"], values["weight_std"])

    def result(self, server: Any) -> tuple[Flat, Flat]:
        """The shared parameters in the space in which they are learned, and the constants."""
        return self.model.unconstrained(server.values), server.constants

    def client_bytes(self, rows: int) -> int:
        """Features and hidden layers of all rows, forwards and back."""
        return 3000 * rows


# --- averaging -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureAveraging(_KernelLearning):
    """Phase 1 with federated averaging: local evidence steps, then the mean of (theta, sigma, lambda)."""

    def client_update(self, request: FeaturesRequest, client: tuple[()], data: Data, key: Key) -> Any:
        """Local steps from the shared parameters.

        Sent: the change of every shared parameter and the mean objective, times the client's weight, and the weight.
        Kept: nothing.
        """
        theta, objective = self._fit(request, data, key)
        after = self.model.constrained(theta)
        delta = {name: after[name] - value for name, value in request.values.items()}
        return client, weighted(LocalFit(delta, objective), data.weight)

    def server_update(self, server: KernelServer, total: Weighted) -> tuple[KernelServer, KernelInfo]:
        """theta + mean of (theta_c - theta)."""
        average = mean(total)
        values = {name: value + average.delta[name] for name, value in server.values.items()}
        return KernelServer(values, server.constants, server.round + 1), self._info(average.objective, values)


# --- distillation --------------------------------------------------------------------------------------------------


class DistillationServer(NamedTuple):
    """What is shared, and the server's own small data set, in the model's units."""

    values: Flat
    constants: Flat
    round: Float[Array, ""]
    X: Float[Array, "S D"]
    Y: Float[Array, "S P"]


class DistillationInfo(NamedTuple):
    """Worth plotting."""

    objective: Float[Array, ""]
    """Mean negative log evidence of a row on the way, at the clients."""
    noise_std: Float[Array, " P"]
    weight_std: Float[Array, " P"]
    loss: Float[Array, ""]
    """Equation 19 after the server's steps."""
    mismatch: Float[Array, ""]
    """Its second part: the mean squared difference from the clients' mean kernel."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Distillation(_KernelLearning):
    """Phase 1 with distillation: the server moves the shared kernel towards the mean of the clients' (equation 19).

    The first part of equation 19 is the server's negative log evidence *a row* here, so that `alpha` does not depend on
    the size of its data set; the kernels are Phi^T Phi with the features' 1 / sqrt(m).

    Args:
        alpha: Weight of the mean squared difference of the kernels.
        steps: Adam steps of the server a round.
        learning_rate: zeta'.
        num_rows: S, of the server's data set, which is put in the run's first server state.
        digest: Of that data set, so that a checkpoint knows it.
    """

    alpha: float
    steps: int
    learning_rate: float
    num_rows: int
    digest: str

    def init(self, key: Key) -> DistillationServer:
        """The start; the data set is zeros until it is put in."""
        start: KernelServer = super().init(key)
        X, Y = jnp.zeros((self.num_rows, self.model.num_inputs)), jnp.zeros((self.num_rows, self.model.num_targets))
        return DistillationServer(start.values, start.constants, start.round, X, Y)

    def _kernel(self, theta: Flat, constants: Flat, X: Any) -> Float[Array, "S S"]:
        phi = self.model.phi(self.model.prepare(theta, constants), X)
        return phi @ phi.T

    def _distil(self, server: DistillationServer, target: Any, objective: Any) -> tuple[Any, DistillationInfo]:
        """Equation 19, from the shared parameters, by Adam."""

        def loss(theta: Flat) -> tuple[Any, Any]:
            rows = jnp.asarray(self.num_rows)
            evidence = self.model.objective(
                sums_of(self.model, theta, server.constants, server.X, server.Y, rows), theta
            )
            mismatch = jnp.mean((self._kernel(theta, server.constants, server.X) - target) ** 2)
            return evidence + self.alpha * mismatch, mismatch

        adam = optax.adam(self.learning_rate)

        def one(_: Any, carry: Any) -> Any:
            theta, state = carry
            gradient, _ = jax.grad(loss, has_aux=True)(theta)
            change, state = adam.update(gradient, state)
            return self.model.bounded(optax.apply_updates(theta, change)), state

        theta = self.model.unconstrained(server.values)
        theta, _ = jax.lax.fori_loop(0, self.steps, one, (theta, adam.init(theta)))
        value, mismatch = loss(theta)
        values = self.model.constrained(theta)
        server = server._replace(values=values, round=server.round + 1)
        info = DistillationInfo(objective, values["noise_std"], values["weight_std"], value, mismatch)
        return server, info


class LocalNetwork(NamedTuple):
    """A client's own features after its local steps."""

    values: Flat
    objective: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkDistillation(_Distillation):
    """Clients send their networks; the server works out their kernels on its own data set."""

    combine: ClassVar[Literal["sum", "stack"]] = "stack"

    def client_update(self, request: FeaturesRequest, client: tuple[()], data: Data, key: Key) -> Any:
        """Local steps from the shared parameters.

        Sent: every parameter after the steps, one network a client (they cannot be added), and the mean objective.
        Kept: nothing.
        """
        theta, objective = self._fit(request, data, key)
        return client, LocalNetwork(self.model.constrained(theta), objective)

    def server_update(self, server: DistillationServer, total: Stacked) -> tuple[Any, Any]:
        """The mean of the clients' kernels on the server's inputs, then equation 19."""
        counted = total.counted.astype(server.X.dtype)
        share = counted / jnp.sum(counted)

        def add(target: Any, one: Any) -> tuple[Any, None]:
            values, own = one
            # a client that does not count has zeros in its place, whose logarithm is no number
            kernel = self._kernel(self.model.unconstrained(values), server.constants, server.X)
            return target + jnp.where(own > 0.0, own * kernel, 0.0), None

        zeros = jnp.zeros((self.num_rows, self.num_rows))
        target, _ = jax.lax.scan(add, zeros, (total.value.values, share))
        return self._distil(server, target, share @ total.value.objective)


class KernelRequest(NamedTuple):
    """The shared parameters, and the inputs at which the clients' kernels are wanted: these become public."""

    values: Flat
    constants: Flat
    round: Float[Array, ""]
    inputs: Float[Array, "S D"]


class LocalKernel(NamedTuple):
    """A client's kernel at the public inputs after its local steps."""

    kernel: Float[Array, "S S"]
    objective: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelDistillation(_Distillation):
    """Clients send their kernels at the server's inputs, which they are shown; kernels add, networks do not."""

    def _request(self, server: DistillationServer) -> KernelRequest:
        return KernelRequest(server.values, server.constants, server.round, server.X)

    def client_update(self, request: KernelRequest, client: tuple[()], data: Data, key: Key) -> Any:
        """Local steps from the shared parameters, then the kernel at the public inputs.

        Sent: S^2 numbers and the mean objective, and the number one to count the client.
        Kept: nothing.
        """
        theta, objective = self._fit(request, data, key)
        kernel = self._kernel(theta, request.constants, request.inputs)
        return client, weighted(LocalKernel(kernel, objective), jnp.ones(()))

    def server_update(self, server: DistillationServer, total: Weighted) -> tuple[Any, Any]:
        """Equation 19 from the mean of the kernels."""
        average = mean(total)
        return self._distil(server, average.kernel, average.objective)


# --- each client alone: for the ablations ---------------------------------------------------------------------------


class LocalInfo(NamedTuple):
    """Worth plotting."""

    objective: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalFeatures(_KernelLearning):
    """Every client learns a kernel of its own, all from the same start."""

    def init_client(self, key: Key) -> Any:
        """Whatever it is, the first request brings the start."""
        return self.model.init(key)[0]

    def client_update(self, request: FeaturesRequest, client: Flat, data: Data, key: Key) -> Any:
        """Go on from the client's own parameters.

        Sent: the mean objective, times the client's weight, and the weight.
        Kept: the client's own parameters.
        """
        first = self.model.unconstrained(request.values)
        theta = jax.tree.map(lambda start, own: jnp.where(request.round == 0, start, own), first, client)
        theta, objective = self.local.run(self.model, theta, request.constants, data, request.round, key)
        return theta, weighted(LocalInfo(objective), data.weight)

    def server_update(self, server: KernelServer, total: Weighted) -> tuple[KernelServer, LocalInfo]:
        """Nothing to agree on."""
        return server._replace(round=server.round + 1), mean(total)


class CollectRequest(NamedTuple):
    """The word to send one's network."""

    round: Float[Array, ""]


class CollectServer(NamedTuple):
    """All clients' networks, stacked, once they have been asked for."""

    networks: Flat
    collected: Float[Array, ""]


class ClientNetwork(NamedTuple):
    """A client's own network."""

    theta: Flat


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectNetworks(FederatedAlgorithm[CollectServer, Flat, CollectRequest, Any]):
    """Every client sends the network that it learned alone, so that all can compute sums in it (local + global).

    Args:
        model: The features.
        num_clients: How many.
    """

    quorum: ClassVar[Literal["some", "every"]] = "every"
    combine: ClassVar[Literal["sum", "stack"]] = "stack"

    model: FeatureModel
    num_clients: int

    def init(self, key: Key) -> CollectServer:
        """Nothing yet."""
        theta, _ = self.model.init(key)
        stacked = {name: jnp.zeros((self.num_clients, *leaf.shape)) for name, leaf in theta.items()}
        return CollectServer(stacked, jnp.zeros(()))

    def init_client(self, key: Key) -> Flat:
        """Replaced by what the client learned, in the run's first state."""
        return self.model.init(key)[0]

    def request(self, server: CollectServer) -> CollectRequest | None:
        """Once."""
        return None if float(server.collected) else CollectRequest(server.collected)

    def client_update(self, request: CollectRequest, client: Flat, data: Data, key: Key) -> Any:
        """Sent: the client's whole network, noise and prior scales. Kept: the same."""
        return client, ClientNetwork(client)

    def server_update(self, server: CollectServer, total: Stacked) -> tuple[CollectServer, tuple[()]]:
        """Keep them."""
        return CollectServer(total.value.theta, jnp.ones(())), ()


# --- phase 2 as printed ----------------------------------------------------------------------------------------------


class ScatterRequest(NamedTuple):
    """The parameters at which scatter matrices are wanted."""

    theta: Flat
    constants: Flat


class Scatter(NamedTuple):
    """A client's scatter matrix."""

    phi_phi: Float[Array, "R R"]


class WeightsRequest(NamedTuple):
    """The same parameters, and A^-1 of every target, which lets each client work out the others' scatter matrix."""

    theta: Flat
    constants: Flat
    inverse: Float[Array, "P R R"]


class Weights(NamedTuple):
    """A client's part of the weights."""

    weights: Float[Array, "R P"]


class TwoExchangeServer(NamedTuple):
    """What has been gathered so far."""

    theta: Flat
    constants: Flat
    phi_phi: Float[Array, "R R"]
    weights: Float[Array, "R P"]
    exchanges: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoExchangeLastLayer(FederatedAlgorithm[TwoExchangeServer, tuple[()], Any, Any]):
    """Phase 2 as Algorithm 1 prints it: scatter matrices up, A^-1 down, weights up. For comparison with `GatherSums`.

    Args:
        model: The features, whose sigma and lambda are taken as they were learned: these sums cannot tune them.
    """

    quorum: ClassVar[Literal["some", "every"]] = "every"

    model: FeatureModel

    def init(self, key: Key) -> TwoExchangeServer:
        """Nothing yet."""
        theta, constants = self.model.init(key)
        D, P = self.model.num_inputs, self.model.num_targets
        shape = jax.eval_shape(lambda: self.model.phi(self.model.prepare(theta, constants), jnp.zeros((1, D))))
        R = shape.shape[1]
        return TwoExchangeServer(theta, constants, jnp.zeros((R, R)), jnp.zeros((R, P)), jnp.zeros(()))

    def init_client(self, key: Key) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def request(self, server: TwoExchangeServer) -> Any:
        """Scatter matrices, then weights."""
        if int(server.exchanges) >= 2:
            return None
        if int(server.exchanges) == 0:
            return ScatterRequest(server.theta, server.constants)
        return WeightsRequest(server.theta, server.constants, self._inverse(server))

    def _inverse(self, server: TwoExchangeServer) -> Float[Array, "P R R"]:
        """A^-1 = (G / sigma^2 + I / lambda^2)^-1 of every target: equation 20."""
        noise, prior = (jnp.exp(-2.0 * server.theta[name])[:, None, None] for name in ("noise_std", "weight_std"))
        R = server.phi_phi.shape[0]
        return jnp.asarray(jnp.linalg.inv(noise * server.phi_phi[None] + prior * jnp.eye(R)[None]))

    def client_update(self, request: Any, client: tuple[()], data: Data, key: Key) -> Any:
        """Equations 20 and 21.

        Sent: R^2 numbers, then R for each target. A client with fewer rows than features can be read from them.
        Kept: nothing.
        """
        sums = sums_of(self.model, request.theta, request.constants, data.X, data.Y, data.num_rows)
        if isinstance(request, ScatterRequest):
            return client, Scatter(sums.phi_phi)
        noise = jnp.exp(-2.0 * request.theta["noise_std"])
        return client, Weights(jnp.einsum("p,prs,sp->rp", noise, request.inverse, sums.phi_y))

    def server_update(self, server: TwoExchangeServer, total: Any) -> tuple[TwoExchangeServer, tuple[()]]:
        """Add up."""
        if isinstance(total, Scatter):
            return server._replace(phi_phi=total.phi_phi, exchanges=server.exchanges + 1), ()
        return server._replace(weights=total.weights, exchanges=server.exchanges + 1), ()

    def sums(self, server: TwoExchangeServer) -> FeatureSums:
        """The sums behind the two exchanges; y^T y and N never left a client, so they are not a number."""
        rho = jnp.exp(2.0 * (server.theta["noise_std"] - server.theta["weight_std"]))
        phi_y = server.phi_phi @ server.weights + rho[None, :] * server.weights
        unknown = jnp.full(rho.shape, jnp.nan)
        return FeatureSums(server.phi_phi, phi_y, unknown, unknown[0])
