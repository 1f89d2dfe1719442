"""The in-process engine: a bad network, few or many devices, padding and names change nothing that they should not."""

import dataclasses
import gc
import json
import logging
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgauss as fg
from algorithms.catalogue import averaging, small_federation
from engines.runs import DrawingToy, SickToy, SickToyForAll, bits, make_run, small_world, toy_world
from fedgauss import buckets
from fedgauss.algorithm import Data, Key
from fedgauss.algorithms.moments import Moments
from fedgauss.engines.local import Callback, Local, Network, Run
from fedgauss.errors import RunError, SettingsError
from fedgauss.federation import Federation
from fedgauss.schedules import Asynchronous, Sequential, Synchronous
from protocol.toy import Natural, PosteriorRequest, ToyFactors

SCHEDULES = [
    Synchronous(),
    Synchronous(cohort=2),
    Sequential(order="random"),
    Asynchronous(),
    Asynchronous(in_flight=2),
]
BAD = Network(loss=0.4, repeat=0.4, delay=1.0, timeout=2.0)


def assert_same_server(left: Run, right: Run, rtol: float = 1e-12, atol: float = 1e-12) -> None:
    pairs = zip(jax.tree.leaves(left.server), jax.tree.leaves(right.server), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def assert_server_is_what_clients_kept(run: Run) -> None:
    server, kept = run.server.natural, run.clients
    np.testing.assert_allclose(server.precision, 1.0 + kept.precision.sum(), rtol=1e-12)
    np.testing.assert_allclose(server.precision_mean, kept.precision_mean.sum(), rtol=1e-12, atol=1e-12)


def exact_posterior(federation: Federation) -> Natural:
    y = np.concatenate([client.Y[:, 0] for client in federation.clients])
    return Natural(jnp.asarray(1.0 + len(y)), jnp.asarray(y.sum()))


# --- a bad network -------------------------------------------------------------------------------------------------


@given(
    network=st.builds(
        Network,
        loss=st.floats(0.0, 0.6),
        repeat=st.floats(0.0, 0.9),
        delay=st.sampled_from([0.0, 0.1, 1.0]),
        timeout=st.sampled_from([1.0, math.inf]),
    ),
    schedule=st.sampled_from(SCHEDULES),
    seed=st.integers(0, 1000),
)
def test_server_is_what_clients_kept_whatever_the_network_does(network: Network, schedule: Any, seed: int) -> None:
    run = make_run(engine=Local(network=network, retries=50), schedule=schedule, seed=seed)
    while run.step():
        assert_server_is_what_clients_kept(run)
        assert_answers_are_counted_once(run)


def assert_answers_are_counted_once(run: Run) -> None:
    counted = run.ledger.to_frame().filter(outcome="counted").select("client", "request")
    assert counted.is_unique().all()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_every_schedule_reaches_the_exact_posterior_through_a_bad_network(schedule: Any) -> None:
    run = make_run(engine=Local(network=BAD, retries=50), schedule=schedule, updates=300)()
    np.testing.assert_allclose(run.server.natural, exact_posterior(toy_world()), rtol=1e-8)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_bad_network_is_the_same_bad_network_twice(schedule: Any) -> None:
    engine = Local(network=BAD, retries=50)
    first, second = (make_run(engine=engine, schedule=schedule, updates=20)() for _ in range(2))
    assert bits(first) == bits(second)
    assert bits(make_run(engine=engine, schedule=schedule, updates=20, seed=1)()) != bits(first)


def test_repeated_answers_change_nothing() -> None:
    plain, repeated = (make_run(engine=Local(network=Network(repeat=p)))() for p in (0.0, 0.99))
    assert_same_server(plain, repeated, rtol=0.0, atol=0.0)
    outcomes = repeated.ledger.to_frame()["outcome"]
    assert (outcomes == "repeated").sum() > 20


def test_messages_are_lost_as_often_as_asked() -> None:
    """Five standard errors: a false alarm in a million."""
    run = make_run(schedule=Sequential(), engine=Local(network=Network(loss=0.3), retries=99), updates=400)()
    outcomes = run.ledger.to_frame().filter(direction="up")["outcome"]
    rate, draws = (outcomes == "lost").mean(), len(outcomes)
    assert isinstance(rate, float)
    assert abs(rate - 0.3) < 5 * math.sqrt(0.3 * 0.7 / draws)


def test_the_server_moves_on_with_some_and_asks_again_when_nobody_answered() -> None:
    run = make_run(engine=Local(network=Network(loss=0.7), retries=30), updates=60)()
    frame = run.ledger.to_frame()
    answered = [row["clients_answered"] for row in run.history]
    assert set(answered) == {1, 2, 3}
    again = set(frame.filter(outcome="sent again")["request"])
    assert again
    for request in set(frame["request"]):
        times = frame.filter(request=request)
        counted, lost = (times.filter(outcome=outcome).height for outcome in ("counted", "lost"))
        assert counted >= 1
        if request not in again:
            assert (counted + lost) == 3
    assert frame.filter(outcome="sent again").filter(direction="up").is_empty()


def test_retries_are_counted_and_silent_clients_named() -> None:
    engine = Local(network=Network(loss=0.999), retries=2)
    run = make_run(engine=engine)
    before = [np.array(leaf) for leaf in jax.tree.leaves((run.server, run.clients))]
    with pytest.raises(RunError) as info:
        run()
    assert str(info.value) == (
        "round 0, request 0 of ToyFactors: needs the answer of at least one client, but 'a', 'b', 'c': silent after 3"
        " requests (retries=2). No round was finished; check these clients and run again."
    )
    assert (run.ledger.to_frame()["outcome"] == "sent again").sum() == 2 * 3
    for one, other in zip(before, jax.tree.leaves((run.server, run.clients)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert run.history == []


def test_where_every_client_is_needed_just_the_silent_ones_are_named() -> None:
    """Loss is drawn per client: whoever has an answer on its way in the ledger was heard."""
    seen = set()
    for seed in range(8):
        engine = Local(network=Network(loss=0.5), retries=1)
        run = make_run(algorithm=SickToyForAll(), engine=engine, seed=seed)
        with pytest.raises(RunError, match="needs the answer of every client") as info:
            run()
        request = run.exchange.next_request - 1
        lost = run.ledger.to_frame().filter(request=request, outcome="lost")["client"].to_list()
        silent = sorted({name for name in lost if lost.count(name) == 2})
        assert f"but {', '.join(repr(name) for name in silent)}: silent after 2 requests" in str(info.value)
        seen.add(tuple(silent))
        assert run.ledger.to_frame().filter(request=request, outcome="counted").is_empty()
    assert len(seen) > 1, "the same clients every time would test nothing"


def test_a_quorum_of_every_client_waits_for_all_of_them() -> None:
    run = make_run(algorithm=SickToyForAll(updates=20), engine=Local(network=Network(loss=0.4), retries=30))()
    assert {row["clients_answered"] for row in run.history} == {3}
    assert_same_server(run, make_run(algorithm=SickToyForAll(updates=20))(), rtol=0.0, atol=0.0)


def test_many_silent_clients_are_not_all_listed() -> None:
    run = make_run(rows=(1,) * 9, engine=Local(network=Network(loss=0.999), retries=0))
    with pytest.raises(RunError, match=r"but 'a', 'b', 'c', 'd', 'e' and 4 more: silent"):
        run()


def test_a_round_takes_as_long_as_its_slowest_answer_and_never_longer_than_the_timeouts() -> None:
    slow = make_run(engine=Local(network=Network(delay=1.0)), updates=50)()
    took = np.diff([0.0, *(row["simulated_seconds"] for row in slow.history)])
    # the largest of three exponential times has mean 1 + 1/2 + 1/3 and variance 1 + 1/4 + 1/9
    assert abs(took.mean() - 11 / 6) < 5 * math.sqrt((1 + 1 / 4 + 1 / 9) / 50)
    hasty = make_run(engine=Local(network=Network(delay=1.0, timeout=0.5), retries=30), updates=50)()
    attempts = 1 + hasty.ledger.to_frame().filter(outcome="sent again").unique("request").height
    waits = np.diff([0.0, *(row["simulated_seconds"] for row in hasty.history)])
    assert (waits <= 0.5 * attempts + 1e-12).all()
    assert (waits > 0).all()
    assert hasty.ledger.to_frame().filter(outcome="lost").height > 20


# --- answers that are not finite -----------------------------------------------------------------------------------


def test_an_answer_that_is_not_finite_is_refused_by_name_and_the_rest_counted(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="fedgauss"):
        run = make_run(algorithm=SickToy(updates=9), federation=toy_world(sick="b"))()
    healthy = toy_world().subset(["a", "c"])
    assert_same_server(run, make_run(algorithm=SickToy(updates=9), federation=healthy)(), rtol=0.0, atol=0.0)
    assert [row["clients_refused"] for row in run.history] == [["b"]] * 9
    assert [row["clients_answered"] for row in run.history] == [2] * 9
    outcomes = run.ledger.to_frame().filter(direction="up", client="b")["outcome"]
    assert set(outcomes) == {"refused"}
    assert run.clients.precision[1] == 0.0, "the sick client kept a state whose reply was not counted"
    assert "refused 'b': the answer is not finite" in caplog.text


def test_where_every_client_is_needed_a_sick_one_ends_the_run_by_name() -> None:
    run = make_run(algorithm=SickToyForAll(), federation=toy_world(sick="ac"))
    start = jax.device_get(run.server)
    with pytest.raises(RunError, match=r"answer of every client, but 'a', 'c': the answer is not finite"):
        run()
    np.testing.assert_array_equal(jax.tree.leaves(run.server), jax.tree.leaves(start))
    assert set(run.ledger.to_frame().filter(outcome="refused")["client"]) == {"a", "c"}


@pytest.mark.parametrize("schedule", [Synchronous(), Sequential(), Asynchronous()], ids=str)
def test_a_run_of_sick_clients_alone_ends_by_name(schedule: Any) -> None:
    run = make_run(algorithm=SickToy(), federation=toy_world(sick="abc"), schedule=schedule)
    with pytest.raises(RunError, match=r"'a'.*(not finite|no answer counted)"):
        run()
    assert run.history == []


# --- asynchronous --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 2, None])
def test_an_asynchronous_round_counts_one_answer_and_never_waits_for_the_slow(in_flight: int | None) -> None:
    engine = Local(network=Network(delay=1.0, repeat=0.3))
    run = make_run(schedule=Asynchronous(in_flight=in_flight), engine=engine, updates=100)
    most = in_flight or 3
    while run.step():
        assert (run.exchange.newest >= 0).sum() <= most
        assert run.history[-1]["clients_answered"] == 1
    times = [row["simulated_seconds"] for row in run.history]
    assert times == sorted(times)
    # with `most` at work at a time, answers come `most` times as often as one client gives them
    assert abs(times[-1] * most / 100 - 1.0) < 5 / math.sqrt(100)
    assert set(run.ledger.to_frame().filter(outcome="counted")["client"]) == {"a", "b", "c"}


def test_one_sick_client_does_not_stop_an_asynchronous_run() -> None:
    run = make_run(algorithm=SickToy(updates=200), federation=toy_world(sick="b"), schedule=Asynchronous())()
    healthy = exact_posterior(toy_world().subset(["a", "c"]))
    np.testing.assert_allclose(run.server.natural, healthy, rtol=1e-8)


def test_an_asynchronous_run_without_any_answer_gives_up() -> None:
    engine = Local(network=Network(loss=0.999), retries=1)
    with pytest.raises(RunError, match="no answer counted in 7 attempts"):
        make_run(schedule=Asynchronous(), engine=engine)()


# --- what must change nothing --------------------------------------------------------------------------------------

ALGORITHMS = [
    Moments(num_inputs=2, num_targets=1),
    DrawingToy(updates=5),
    averaging(local_steps="epoch", personal=("noise_variance",)),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_the_number_of_devices_changes_nothing(algorithm: Any) -> None:
    assert jax.local_device_count() == 2, "one device alone would test nothing"
    runs = []
    for devices in (1, 2):
        run = make_run(algorithm=algorithm, federation=small_federation(), engine=Local(devices=devices))
        assert run.worker.devices == devices
        for _ in range(3):
            run.step()
        runs.append(run)
    assert_same_server(runs[0], runs[1], rtol=1e-10, atol=1e-10)
    pairs = zip(jax.tree.leaves(runs[0].clients), jax.tree.leaves(runs[1].clients), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_sums_have_the_same_bits_on_one_device_and_two(schedule: Any) -> None:
    one, two = (
        make_run(engine=Local(devices=devices, network=BAD, retries=50), schedule=schedule)() for devices in (1, 2)
    )
    assert bits(one) == bits(two)


@pytest.mark.parametrize("algorithm", ALGORITHMS[:2], ids=lambda algorithm: type(algorithm).__name__)
def test_buckets_change_nothing(algorithm: Any, monkeypatch: Any) -> None:
    """Each client padded to its own length, against all padded to the longest: the same draws, the same answers."""
    federation = small_federation()
    together = make_run(algorithm=algorithm, federation=federation)
    monkeypatch.setattr(buckets, "_TRIVIAL", {1: 0, 2: 0, 3: 0})
    monkeypatch.setattr(buckets, "_WASTE", 1.0)
    apart = make_run(algorithm=algorithm, federation=federation)
    assert [len(run.worker.buckets) for run in (together, apart)] == [1, 3]
    for run in (together, apart):
        for _ in range(2):
            run.step()
    assert_same_server(together, apart, rtol=1e-9, atol=1e-9)


NO_DRAWS = [ToyFactors(), Moments(num_inputs=2, num_targets=1)]


@pytest.mark.parametrize("algorithm", NO_DRAWS, ids=lambda algorithm: type(algorithm).__name__)
def test_names_change_nothing_where_no_rows_are_drawn(algorithm: Any) -> None:
    federation = small_federation()
    other = {"a": "zoe", "b": "mia", "c": "ada"}
    renamed = Federation.from_arrays({other[name]: (client.X, client.Y) for name, client in federation.items()})
    runs = []
    for data in (federation, renamed):
        run = make_run(algorithm=algorithm, federation=data)
        for _ in range(3):
            run.step()
        runs.append(run)
    assert_same_server(runs[0], runs[1], rtol=1e-11, atol=1e-11)


def test_the_order_in_which_clients_are_given_changes_no_bit() -> None:
    data = {name: (client.X, client.Y) for name, client in small_federation().items()}
    backwards = dict(reversed(data.items()))
    first, second = (
        make_run(algorithm=DrawingToy(updates=5), federation=Federation.from_arrays(one))() for one in (data, backwards)
    )
    assert bits(first) == bits(second)


def test_each_client_draws_for_itself_whoever_else_is_asked() -> None:
    same = (np.zeros((30, 1)), np.linspace(0.0, 1.0, 30))
    run = make_run(algorithm=DrawingToy(updates=5), federation=Federation.from_arrays(dict.fromkeys("abc", same)))
    request = run.algorithm.request(run.server)

    def answers(request_id: int, positions: list[int]) -> Any:
        states = jax.tree.map(lambda leaf: leaf[positions], run.clients)
        return run.worker.compute(request, request_id, np.array(positions), states)[1]

    together = answers(0, [0, 1, 2])
    assert len(np.unique(together[:, 1])) == 3, "clients with the same rows drew the same"
    np.testing.assert_array_equal(answers(0, [1])[0], together[1])
    assert (answers(1, [0, 1, 2])[:, 1] != together[:, 1]).all(), "the next request drew the same"


def test_one_client_is_the_algorithm_without_an_engine() -> None:
    """Requests handed to `client_update` by hand, replies to `server_update`: no padding, no devices, no ledger."""
    federation = small_federation().subset(["c"])
    for algorithm in (Moments(num_inputs=2, num_targets=1), ToyFactors()):
        run = make_run(algorithm=algorithm, federation=federation)
        server: Any
        client: Any
        server, client = algorithm.init(jax.random.key(0)), algorithm.init_client(jax.random.key(0))
        rows = federation["c"]
        data = Data(*map(jnp.asarray, (rows.X, rows.Y, rows.num_rows, float(rows.num_rows))))
        while (request := algorithm.request(server)) is not None and run.exchange.round < 3:
            client, reply = jax.jit(algorithm.client_update)(request, client, data, jax.random.key(0))
            server, _ = jax.jit(algorithm.server_update)(server, reply)
            assert run.step()
        pairs = zip(jax.tree.leaves(run.server), jax.tree.leaves(server), strict=True)
        for one, other in pairs:
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_one_client_is_the_pooled_fit_whatever_its_name() -> None:
    federation = small_world().subset(["c"])
    method = fg.FGPR(rounds=5, local_steps=3)
    one = method.fit(federation, progress=False)
    pooled = fg.Pooled(method=method).fit(federation, progress=False)
    for name, value in one.parameters_.items():
        np.testing.assert_allclose(value, pooled.parameters_[name], rtol=1e-12)
    at = np.linspace(-1.0, 1.0, 5)[:, None]
    np.testing.assert_allclose(one.predict("c", at), pooled.predict(None, at), rtol=1e-12)


# --- memory and compilation ----------------------------------------------------------------------------------------

TRACES: list[str] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traced(ToyFactors):
    """The toy, which notes when it is traced."""

    label: str

    def client_update(
        self, request: PosteriorRequest, client: Natural, data: Data, key: Key
    ) -> tuple[Natural, Natural]:
        if isinstance(data.X, jax.core.Tracer):
            TRACES.append(self.label)
        return super().client_update(request, client, data, key)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_all_rounds_are_compiled_once(schedule: Any) -> None:
    algorithm = Traced(label=str(schedule), updates=20)
    TRACES.clear()
    for round_number in range(20):
        if round_number == 0:
            run = make_run(algorithm=algorithm, schedule=schedule)
        run.step()
        if round_number == 0:
            first = len(TRACES)
            assert first > 0
    assert len(TRACES) == first
    make_run(algorithm=algorithm, schedule=schedule, seed=1)()
    assert len(TRACES) == first, "another run of the same algorithm was compiled again"


def live_arrays() -> list[Any]:
    found: Any = jax
    return list(found.live_arrays())


def growth(num_clients: int, schedule: Any) -> tuple[int, int, int]:
    """What 50 more rounds add: live arrays, Python objects, bytes of ledger."""
    run = make_run(rows=(2,) * num_clients, schedule=schedule, updates=200)

    def now() -> tuple[int, int, int]:
        gc.collect()
        return len(live_arrays()), len(gc.get_objects()), len(json.dumps(run.ledger.to_json()))

    for _ in range(10 if not isinstance(schedule, Asynchronous) else 100):  # until all clients work on answers
        run.step()
    before = now()
    for _ in range(50):
        run.step()
    after = now()
    return tuple(b - a for a, b in zip(before, after, strict=True))  # type: ignore[return-value]


def test_more_rounds_hold_no_more_arrays_and_a_ledger_that_does_not_grow_with_clients() -> None:
    arrays, objects, ledger = growth(3, Synchronous())
    assert arrays == 0
    assert objects < 50 * 20
    arrays_many, objects_many, ledger_many = growth(25, Synchronous())
    assert arrays_many == 0
    assert objects_many < 50 * 20
    assert ledger_many < 1.2 * ledger, "two entries a round, however many clients"
    assert growth(25, Synchronous(cohort=4))[0] == 0
    assert growth(5, Asynchronous())[0] <= 2, "a request, until the client has answered it"


def test_a_cohort_holds_its_own_rows_on_the_devices_and_not_those_of_all() -> None:
    random = np.random.default_rng(0)
    data = {f"c{k}": (random.normal(size=(1000, 4)), random.normal(size=1000)) for k in range(20)}
    federation = Federation.from_arrays(data)

    def held(schedule: Any) -> int:
        run = make_run(federation=federation, schedule=schedule)
        for _ in range(3):
            run.step()
        gc.collect()
        return int(sum(array.nbytes for array in live_arrays()) - before)

    gc.collect()
    before = sum(array.nbytes for array in live_arrays())
    everybody = 20 * 1000 * 5 * 8
    assert held(Synchronous()) >= everybody, "the rows of all should stay on the devices between rounds"
    gc.collect()
    assert held(Synchronous(cohort=2)) < everybody / 5


def test_what_is_on_its_way_is_bounded_by_the_number_of_clients() -> None:
    network = Network(delay=1.0, repeat=0.9, loss=0.2)
    run = make_run(schedule=Asynchronous(), engine=Local(network=network, retries=50), updates=300)
    most = 0
    while run.step():
        most = max(most, len(run._in_flight))
    assert most <= 3 * 10


# --- callbacks and settings ----------------------------------------------------------------------------------------


class Noisy(Callback):
    """Writes down what it is told, and stops or fails when asked to."""

    def __init__(self, name: str, log: list[str], *, stop_at: int | None = None, fail_at: int | None = None) -> None:
        self.name, self.log, self.stop_at, self.fail_at = name, log, stop_at, fail_at

    def start(self, run: Run) -> bool | None:
        self.log.append(f"{self.name} starts")
        return self.stop_at == 0

    def round_end(self, run: Run) -> bool | None:
        if len(run.history) == self.fail_at:
            raise ZeroDivisionError
        return len(run.history) == self.stop_at

    def end(self, run: Run) -> None:
        self.log.append(f"{self.name} ends")


class Restores(Noisy):
    restores = True


@pytest.mark.parametrize("stop_at", [0, 1, 4])
def test_a_callback_stops_the_run(stop_at: int) -> None:
    log: list[str] = []
    run = make_run()([Noisy("first", log), Noisy("second", log, stop_at=stop_at)])
    assert len(run.history) == stop_at
    assert log == ["first starts", "second starts", "second ends", "first ends"]
    assert not run.interrupted


def test_callbacks_that_restore_start_first_and_all_end_whatever_happens() -> None:
    log: list[str] = []
    run = make_run()
    with pytest.raises(ZeroDivisionError):
        run([Noisy("watch", log, fail_at=3), Restores("restore", log)])
    assert log == ["restore starts", "watch starts", "watch ends", "restore ends"]
    assert len(run.history) == 3
    assert_server_is_what_clients_kept(run)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Network(loss=1.0), r"Network\(loss=1.0\): expected a probability below 1"),
        (lambda: Network(repeat=-0.1), "repeat=-0.1"),
        (lambda: Network(loss=math.nan), "loss=nan"),
        (lambda: Network(loss="0.1"), "loss='0.1'"),  # type: ignore[arg-type]
        (lambda: Network(delay=math.inf), "delay=inf"),
        (lambda: Network(timeout=0.0), "timeout=0.0"),
        (lambda: Network(los=0.1), 'did you mean "loss"'),  # type: ignore[call-arg]
        (lambda: Local(devices=0), r"Local\(devices=0\): expected a positive whole number"),
        (lambda: Local(retries=-1), r"Local\(retries=-1\): expected how often"),
        (lambda: Local(retries=1.5), r"Local\(retries=1.5\)"),  # type: ignore[arg-type]
        (lambda: Local(retrys=1), 'did you mean "retries"'),  # type: ignore[call-arg]
    ],
)
def test_impossible_engines_are_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        make()


def test_drawn_cohorts_of_clients_of_all_sizes_compile_a_few_times_only() -> None:
    """Each bucket's part of the cohort varies from round to round; the arrays it is computed in must not."""
    rows = (4,) * 40 + (3000,) * 12 + (90_000,) * 4
    federation = Federation.from_arrays({f"{k:02}": (np.zeros((n, 1)), np.zeros(n)) for k, n in enumerate(rows)})
    algorithm = Traced(label="buckets", updates=10_000)
    run = make_run(algorithm=algorithm, federation=federation, schedule=Synchronous(cohort=14, by="uniform"))
    assert len(run.worker.buckets) > 1
    TRACES.clear()
    for _ in range(60):
        run.step()
    assert len(TRACES) <= 24, "shapes times buckets, not cohorts"


def test_a_client_draws_by_its_name_alone() -> None:
    """Whoever else takes part, and wherever it stands, a client's draws are the same."""
    alone = make_run(algorithm=DrawingToy(updates=1), federation=toy_world((1, 2, 5)).subset(["c"]))()
    among = make_run(algorithm=DrawingToy(updates=1))()
    assert alone.clients.precision[0] == among.clients.precision[2]
    assert alone.clients.precision_mean[0] == among.clients.precision_mean[2]
