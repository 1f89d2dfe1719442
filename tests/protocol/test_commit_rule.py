"""After every event, whatever was lost, repeated, late or reordered: server = start + what every client has kept."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgauss.engines.local import LocalWorker
from fedgauss.exchange import Answers, Exchange
from fedgauss.federation import Federation
from fedgauss.ledger import Ledger
from fedgauss.schedules import Positions
from protocol.toy import ToyFactors

NAMES = ("a", "b", "c")
FEDERATION = Federation.from_arrays(
    {name: (np.zeros((n, 1)), np.linspace(-1.0, 2.0, n)) for name, n in zip(NAMES, (1, 2, 5), strict=True)}
)

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sets(st.integers(0, 2), min_size=1).map(sorted)),
        st.tuples(st.just("deliver"), st.integers(0, 9)),
        st.tuples(st.just("deliver part"), st.integers(0, 9)),
        st.tuples(st.just("lose"), st.integers(0, 9)),
    ),
    max_size=30,
)


class World:
    """An exchange whose messages are delivered, lost and repeated by the events of a test."""

    def __init__(self, exchange_class: type[Exchange]) -> None:
        algorithm = ToyFactors()
        worker = LocalWorker(algorithm, FEDERATION, FEDERATION.sizes, seed=0, devices=1)
        self.exchange = exchange_class(algorithm, NAMES, worker, 0, Ledger(NAMES))
        self.on_the_way: list[Answers] = []

    def apply(self, event: tuple[str, Any]) -> None:
        kind, what = event
        if kind == "ask":
            request = self.exchange.algorithm.request(self.exchange.server)
            self.on_the_way.append(self.exchange.ask(request, np.array(what)))
        elif self.on_the_way:
            answers = self.on_the_way[what % len(self.on_the_way)]
            if kind == "deliver":  # it stays on the way: the network may deliver it again
                self.exchange.deliver(answers, answers.positions)
            elif kind == "deliver part":
                self.exchange.deliver(answers, answers.positions[:1])
            else:
                self.on_the_way.remove(answers)

    def check(self) -> None:
        server, kept = self.exchange.server.natural, self.exchange.clients
        np.testing.assert_allclose(server.precision, 1.0 + kept.precision.sum(), atol=1e-12)
        np.testing.assert_allclose(server.precision_mean, kept.precision_mean.sum(), atol=1e-12)


def run_events(exchange_class: type[Exchange], events: list[tuple[str, Any]]) -> None:
    world = World(exchange_class)
    for event in events:
        world.apply(event)
        world.check()


@given(events=EVENTS)
def test_server_is_start_plus_what_clients_kept(events: list[tuple[str, Any]]) -> None:
    run_events(Exchange, events)


class CommitsOnSending(Exchange):
    """The mistake: a client keeps its new state as soon as it has computed it."""

    def ask(self, request: Any, positions: Positions) -> Answers:
        answers = super().ask(request, positions)
        self.commit(answers, positions)
        return answers


class CountsRepeats(Exchange):
    """The mistake: an answer is counted as often as it arrives."""

    def is_awaited(self, answers: Answers, clients: Positions) -> Any:
        return np.ones(len(clients), dtype=bool)


class CountsLateAnswers(Exchange):
    """The mistake: an answer to an earlier request than the newest is counted."""

    def is_awaited(self, answers: Answers, clients: Positions) -> Any:
        return self.newest[clients] >= answers.request


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="the rule is broken on purpose")
@pytest.mark.parametrize("mutant", [CommitsOnSending, CountsRepeats, CountsLateAnswers])
def test_broken_rule_is_noticed(mutant: type[Exchange]) -> None:
    @given(events=EVENTS)
    def check(events: list[tuple[str, Any]]) -> None:
        run_events(mutant, events)

    check()


def test_everything_delivered_reaches_the_exact_posterior() -> None:
    world = World(Exchange)
    for _ in range(60):
        world.apply(("ask", [0, 1, 2]))
        world.apply(("deliver", 0))
        world.apply(("lose", 0))
    y = np.concatenate([client.Y[:, 0] for client in FEDERATION.clients])
    np.testing.assert_allclose(jax.tree.leaves(world.exchange.server.natural), [1.0 + len(y), y.sum()], rtol=1e-12)
