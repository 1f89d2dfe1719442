"""Replies of several kinds: stacked or refused, in phases that need every client or only some."""

import dataclasses
import logging
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from engines.runs import bits, make_run, toy_world
from fedgauss.algorithm import Data, FederatedAlgorithm, Key
from fedgauss.engines.local import Local, Network
from fedgauss.errors import RunError
from fedgauss.schedules import Asynchronous, Sequential, Synchronous
from protocol.toy import Info, Natural, Posterior, PosteriorRequest, StackedToy, ToyFactors

BAD = Local(network=Network(loss=0.3, repeat=0.3, delay=1.0), retries=50)


# --- stacks --------------------------------------------------------------------------------------------------------


def test_stacked_replies_of_lost_clients_are_zeros_that_do_not_count() -> None:
    run = make_run(algorithm=StackedToy(updates=40), engine=BAD)()
    assert {row["clients_answered"] for row in run.history} == {1, 2, 3}
    np.testing.assert_allclose(run.server.natural.precision, 1.0 + run.clients.precision.sum(), rtol=1e-12)
    sent = run.ledger.to_frame().filter(direction="up")["arrays"].to_list()
    assert {array["kind"] for arrays in sent for array in arrays} == {"stack"}


def test_the_number_of_stacked_replies_that_count_compiles_nothing_again() -> None:
    run = make_run(algorithm=StackedToy(updates=41), engine=BAD)
    run.step()
    request = run.algorithm.request(run.server)
    update = run.exchange.ask(request, np.arange(3)).shape.update
    compiled = update._cache_size()
    while run.step():
        pass
    assert update._cache_size() == compiled


# --- phases --------------------------------------------------------------------------------------------------------


class SumRequest(NamedTuple):
    """The second phase: one number from everybody."""

    round: Float[Array, ""]


class Total(NamedTuple):
    """Rows, to be added."""

    rows: Float[Array, ""]


class Phased(NamedTuple):
    """The posterior of the first phase, and the sum of the second."""

    first: Posterior
    rows: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhasedToy(FederatedAlgorithm[Phased, Natural, Any, Any]):
    """The toy with whoever answers; then one sum over all clients; then the toy again."""

    before: int = 8
    more: int = 4

    @property
    def toy(self) -> ToyFactors:
        return ToyFactors()

    def init(self, key: Key) -> Phased:
        return Phased(self.toy.init(key), jnp.zeros(()))

    def init_client(self, key: Key) -> Natural:
        return self.toy.init_client(key)

    def request(self, server: Phased) -> PosteriorRequest | SumRequest | None:
        if server.first.updates < self.before:
            return PosteriorRequest(server.first.natural)
        if server.rows == 0:
            return SumRequest(server.rows)
        return PosteriorRequest(server.first.natural) if server.first.updates < self.before + self.more else None

    def needs_every(self, request: Any) -> bool:
        return isinstance(request, SumRequest)

    def client_update(self, request: Any, client: Natural, data: Data, key: Key) -> tuple[Natural, Any]:
        if isinstance(request, SumRequest):
            return client, Total(data.num_rows.astype(float))
        return self.toy.client_update(request, client, data, key)

    def server_update(self, server: Phased, total: Any) -> tuple[Phased, Info]:
        if isinstance(total, Total):
            return server._replace(rows=total.rows), Info(server.first.natural.precision)
        first, info = self.toy.server_update(server.first, total)
        return server._replace(first=first), info


@pytest.mark.parametrize("schedule", [Synchronous(cohort=1), Sequential(), Asynchronous(), Synchronous()], ids=str)
def test_a_request_that_needs_everybody_waits_for_everybody_whatever_the_schedule(schedule: Any) -> None:
    run = make_run(algorithm=PhasedToy(), schedule=schedule, engine=BAD, rows=(1, 2, 5))()
    assert run.server.rows == 8.0
    frame = run.ledger.to_frame().filter(direction="up", outcome="counted")
    assert sorted(frame.filter(message="Total")["client"]) == ["a", "b", "c"]
    natural = run.server.first.natural
    np.testing.assert_allclose(natural.precision, 1.0 + run.clients.precision.sum(), rtol=1e-12)


def test_an_answer_of_an_earlier_phase_comes_too_late() -> None:
    engine = Local(network=Network(delay=1.0))
    runs = [make_run(algorithm=PhasedToy(), schedule=Asynchronous(), engine=engine, rows=(1,) * 6) for _ in range(2)]
    frame = runs[0]().ledger.to_frame()
    asked = frame.filter(message="PosteriorRequest")["request"].max()
    summed = frame.filter(message="SumRequest")["request"].item(0)
    assert isinstance(asked, int)
    assert asked > summed, "the first phase's question came again after the sum"
    late = frame.filter(outcome="late")
    assert len(late) > 0
    assert (late["request"] < summed).all()
    assert bits(runs[0]) == bits(runs[1]())


# --- refusals ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticularToy(ToyFactors):
    """The toy, which takes no change of precision above one and a half."""

    def refusal(self, request: PosteriorRequest, reply: Natural) -> str | None:
        return "the change is too large" if reply.precision > 1.5 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticularToyForAll(ParticularToy):
    """The same, of an algorithm that needs every client."""

    quorum = "every"


def test_a_reply_that_the_algorithm_refuses_is_named_and_the_rest_counted(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="fedgauss"):
        run = make_run(algorithm=ParticularToy(updates=3))()  # the client of five rows changes by 2.5
    assert "round 0: refused 'c': the change is too large" in caplog.text
    assert [row["clients_refused"] for row in run.history] == [["c"]] * 3
    assert run.clients.precision[2] == 0.0, "it kept a state whose reply was not counted"
    alone = make_run(algorithm=ParticularToy(updates=3), federation=toy_world().subset(["a", "b"]))()
    assert run.server == alone.server


def test_a_refused_reply_ends_a_round_that_needs_every_client() -> None:
    run = make_run(algorithm=ParticularToyForAll(updates=3))
    with pytest.raises(
        RunError, match=r"answer of every client, but 'c': the change is too large\. No round was finished"
    ):
        run()
    assert run.server.updates == 0
    assert run.ledger.to_frame().filter(outcome="refused")["client"].to_list() == ["c"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BreakingToy(ToyFactors):
    """The toy, whose server makes NaN of finite answers in its third round."""

    def server_update(self, server: Posterior, total: Natural) -> tuple[Posterior, Info]:
        after, info = super().server_update(server, total)
        return after._replace(updates=jnp.where(after.updates == 3, jnp.nan, after.updates)), info


def test_a_server_that_would_become_nan_stops_and_nothing_of_the_round_is_kept() -> None:
    run = make_run(algorithm=BreakingToy())
    with pytest.raises(RunError, match=r"round 2: what BreakingToy made of 3 finite answers is not a number"):
        run()
    assert run.server.updates == 2
    np.testing.assert_allclose(run.server.natural.precision, 1.0 + run.clients.precision.sum(), rtol=1e-12)
