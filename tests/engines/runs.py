"""Small runs for the tests of the engine: of the toy, whose every number is known, or of clients that misbehave."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgauss.algorithm import Data, FederatedAlgorithm, Key
from fedgauss.engines.local import Local, Network, Run
from fedgauss.federation import Federation
from fedgauss.gp import minibatches
from fedgauss.schedules import Asynchronous, Schedule, Synchronous
from protocol.toy import Natural, PosteriorRequest, ToyFactors

SICK = 1e6
"""The input of a client whose answers are not finite."""


def toy_world(rows: tuple[int, ...] = (1, 2, 5), sick: str = "") -> Federation:
    """Clients "a", "b", ...; those in `sick` answer NaN to an algorithm that `answers_nan`."""
    data = {}
    for k, n in enumerate(rows):
        name = chr(ord("a") + k)
        data[name] = (np.full((n, 1), SICK if name in sick else 0.0), np.linspace(-1.0, 2.0 + k, n))
    return Federation.from_arrays(data)


def small_world(num_inputs: int = 1) -> Federation:
    """Three clients of unequal size with a curve to learn."""
    random = np.random.default_rng(0)
    data = {}
    for name, rows in (("a", 9), ("b", 14), ("c", 20)):
        X = random.normal(size=(rows, num_inputs))
        data[name] = (X, np.sin(2 * X[:, 0]) + 0.3 * random.normal(size=rows))
    return Federation.from_arrays(data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SickToy(ToyFactors):
    """The toy, but clients marked `SICK` answer NaN."""

    def client_update(
        self, request: PosteriorRequest, client: Natural, data: Data, key: Key
    ) -> tuple[Natural, Natural]:
        kept, reply = super().client_update(request, client, data, key)
        is_sick = data.X[0, 0] == SICK
        return kept, Natural(*(jnp.where(is_sick, jnp.nan, part) for part in reply))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SickToyForAll(SickToy):
    """The same, of an algorithm that needs every client."""

    quorum = "every"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawingToy(ToyFactors):
    """The toy, but on minibatches and with noise: what a client answers hangs on its key."""

    def client_update(
        self, request: PosteriorRequest, client: Natural, data: Data, key: Key
    ) -> tuple[Natural, Natural]:
        key_rows, key_noise = jax.random.split(key)
        rows = minibatches.uniform(key_rows, data.num_rows, num_batches=1, batch_size=4)[0]
        sampled = data._replace(X=data.X[rows], Y=data.Y[rows], num_rows=jnp.minimum(4, data.num_rows))
        kept, reply = super().client_update(request, client, sampled, key)
        return kept, reply._replace(precision_mean=reply.precision_mean + jax.random.normal(key_noise))


def make_run(
    *,
    algorithm: FederatedAlgorithm[Any, Any, Any, Any] | None = None,
    updates: int = 12,
    rows: tuple[int, ...] = (1, 2, 5),
    federation: Federation | None = None,
    schedule: Schedule | None = None,
    engine: Local | None = None,
    seed: int = 0,
) -> Run:
    """A run that has not begun."""
    return Run(
        algorithm or ToyFactors(updates=updates), federation or toy_world(rows), schedule=schedule or Synchronous(),
        engine=engine or Local(), seed=seed,
    )  # fmt: skip


def bits(run: Run) -> list[bytes]:
    """Everything a run's future depends on, bit by bit, and its past but for how long it took."""
    past = [{name: value for name, value in row.items() if name != "seconds"} for row in run.history]
    arrays = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.state())]
    return [*arrays, repr(past).encode(), repr(run.ledger.to_json()).encode()]


def checkpointed_run(updates: int = 40, **changes: Any) -> Run:
    """A run with everything that a checkpoint has to keep: draws, answers on their way, a clock, client states."""
    options: dict[str, Any] = {
        "algorithm": DrawingToy(updates=updates),
        "schedule": Asynchronous(),
        "engine": Local(network=Network(loss=0.2, repeat=0.3, delay=1.0), retries=50),
    }
    return make_run(**(options | changes))
