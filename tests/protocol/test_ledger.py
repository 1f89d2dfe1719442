"""The ledger: every message once, with its bytes, and the same book after a trip through JSON."""

import json

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from algorithms.catalogue import EXACT, OURS, small_federation
from engines.runs import make_run
from fedgauss.algorithms.fgpr import DerivativesRequest, StartsRequest
from fedgauss.algorithms.moments import Moments
from fedgauss.disclosure import disclosed
from fedgauss.engines.local import Local, Network
from fedgauss.ledger import SCHEMA, Entry, Ledger, positions_or_all
from fedgauss.messages import ArraySpec, describe, message_name
from fedgauss.schedules import Sequential

NAMES = ("a", "b", "c")
SPECS = st.builds(
    ArraySpec,
    name=st.text(max_size=8),
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    dtype=st.just("float64"),
    bytes=st.integers(0, 10**12),
    kind=st.sampled_from(["mean", "sum", "stack", "broadcast"]),
)
ENTRIES = st.builds(
    Entry,
    round=st.integers(-1, 10**6),
    request=st.integers(0, 10**6),
    direction=st.sampled_from(["up", "down"]),
    message=st.text(max_size=8),
    arrays=st.lists(SPECS, max_size=3).map(tuple),
    clients=st.one_of(st.none(), st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True).map(tuple)),
    outcome=st.sampled_from(["sent", "sent again", "counted", "repeated", "late", "lost", "refused"]),
)


def ledger_of(entries: list[Entry]) -> Ledger:
    ledger = Ledger(NAMES)
    for entry in entries:
        ledger.write(entry)
    return ledger


@given(entries=st.lists(ENTRIES, max_size=8), first=st.integers(0, 8))
def test_a_ledger_comes_back_from_json_in_pieces(entries: list[Entry], first: int) -> None:
    ledger, back = ledger_of(entries), Ledger(NAMES)
    for piece in (ledger.to_json()[:first], ledger.to_json(first)):
        back.read_json(json.loads(json.dumps(piece)))
    assert back.entries == ledger.entries
    assert back.to_frame().equals(ledger.to_frame())


@given(entries=st.lists(ENTRIES, max_size=8))
def test_there_is_one_row_a_message_and_its_bytes_are_those_of_its_arrays(entries: list[Entry]) -> None:
    ledger = ledger_of(entries)
    frame = ledger.to_frame()
    assert dict(frame.schema) == SCHEMA
    assert frame.height == sum(len(NAMES) if e.clients is None else len(e.clients) for e in entries)
    assert [sum(array["bytes"] for array in arrays) for arrays in frame["arrays"]] == frame["bytes"].to_list()
    for direction in ("up", "down"):
        assert ledger.total_bytes(direction) == frame.filter(direction=direction)["bytes"].sum()


def test_a_message_to_nobody_is_not_written() -> None:
    ledger = Ledger(NAMES)
    ledger.write(Entry(0, 0, "up", "Reply", (), (), "late"))
    assert not ledger.entries
    assert ledger.to_frame().is_empty()


def test_a_whole_cohort_is_one_word_and_a_part_is_listed() -> None:
    assert positions_or_all(np.arange(3), 3) is None
    assert positions_or_all(np.array([0, 2]), 3) == (0, 2)
    assert positions_or_all(np.array([], dtype=np.int64), 3) == ()


def test_a_run_through_a_bad_network_writes_every_message_down() -> None:
    engine = Local(network=Network(loss=0.3, repeat=0.3), retries=9)
    run = make_run(engine=engine, schedule=Sequential(), updates=20)()
    frame, rows = run.ledger.to_frame(), run.history
    assert set(frame["outcome"]) == {"sent", "sent again", "counted", "lost", "repeated"}
    for row in rows:
        of_round = frame.filter(round=row["round"])
        assert row["bytes_up"] == of_round.filter(direction="up")["bytes"].sum()
        assert row["bytes_down"] == of_round.filter(direction="down")["bytes"].sum()
        assert row["clients_answered"] == of_round.filter(outcome="counted").height
    assert set(frame.filter(direction="up")["bytes"]) == {16}, "a Gaussian factor of the toy is two numbers"


def test_every_array_of_a_message_is_said_in_words() -> None:
    """Whoever adds a message, or renames a field, says in `disclosure` what it tells."""
    for algorithm in OURS:
        run = make_run(algorithm=algorithm, federation=small_federation())
        requests = [algorithm.request(run.server)]
        if isinstance(requests[0], StartsRequest):
            requests.append(DerivativesRequest(jnp.zeros(EXACT.space.size)))
        for request in requests:
            reply = run.worker.abstract_reply(request)
            run.ledger.write(Entry(0, 0, "down", message_name(request), describe(request, "broadcast"), None, "sent"))
            run.ledger.write(Entry(0, 0, "up", message_name(reply), describe(reply, "sum"), None, "counted"))
        for message in disclosed(run.ledger.to_frame(), {})[0].messages:
            for array in message.arrays:
                assert array.words, f"{message.name}, {array.name}"


def test_moments_send_a_number_of_rows_and_sums_whatever_the_number_of_rows() -> None:
    for rows in (3, 300):
        run = make_run(algorithm=Moments(num_inputs=1, num_targets=1), rows=(rows, rows))()
        assert set(run.ledger.to_frame().filter(direction="up")["bytes"]) == {8 * (1 + 2 + 2 + 1)}
