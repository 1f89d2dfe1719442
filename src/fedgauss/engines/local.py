"""The default engine: all clients in this process, a cohort computed together over all cores, a network that may fail.

A round is one `Run.step`. Losses, delays and repetitions are drawn from the run's seed on a simulated clock, so a run
with a bad network can be repeated exactly.
"""

import dataclasses
import functools
import heapq
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import jax
import numpy as np
import threadpoolctl
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from fedgauss.algorithm import Data, FederatedAlgorithm
from fedgauss.buckets import Bucket, bucket
from fedgauss.errors import RunError, SettingsError
from fedgauss.exchange import Answers, Exchange, Rows, client_idents, client_key, reply_shape
from fedgauss.federation import Federation
from fedgauss.ledger import Entry, Ledger
from fedgauss.messages import message_name, named_leaves
from fedgauss.schedules import Asynchronous, Positions, Schedule, check_schedule
from fedgauss.settings import check_positive, check_seed, settings

logger = logging.getLogger("fedgauss")

_TOGETHER = 2**19
"""Clients are computed in one batch while what they touch fits in this many bytes, a core's second-level cache."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@settings
class Network:
    """A network that loses, delays and repeats messages. The default one is perfect.

    Args:
        loss: Probability that a client's answer to a request never arrives.
        repeat: Probability that an answer arrives twice.
        delay: Mean of the exponential time an answer takes, in simulated seconds.
        timeout: Simulated seconds after which the server stops waiting.
    """

    loss: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    timeout: float = math.inf

    def __post_init__(self) -> None:
        for name in ("loss", "repeat"):
            if not _is_number(getattr(self, name)) or not 0.0 <= getattr(self, name) < 1.0:
                raise SettingsError(f"Network({name}={getattr(self, name)!r}): expected a probability below 1")
        if not _is_number(self.delay) or not 0.0 <= self.delay < math.inf:
            raise SettingsError(f"Network(delay={self.delay!r}): expected a mean time in seconds, zero or more")
        if not _is_number(self.timeout) or not self.timeout > 0.0:
            raise SettingsError(f"Network(timeout={self.timeout!r}): expected a time in seconds, more than zero")


@settings
class Local:
    """Settings of the in-process engine.

    Args:
        devices: How many cores to use; `None` uses every host device that JAX has.
        network: What the simulated network does to messages.
        retries: How often silent clients are asked again before the run gives up.
    """

    devices: int | None = None
    network: Network = Network()
    retries: int = 10

    def __post_init__(self) -> None:
        if self.devices is not None:
            check_positive("Local", "devices", self.devices, whole=True)
        if not isinstance(self.retries, int) or isinstance(self.retries, bool) or self.retries < 0:
            raise SettingsError(f"Local(retries={self.retries!r}): expected how often to ask again, zero or more")


class Callback:
    """Something that watches a run. Its methods do nothing unless overridden."""

    restores: ClassVar[bool] = False
    """Whether `start` may take the run to a later round. Such callbacks start first: the others see the rounds."""

    def start(self, run: "Run") -> bool | None:
        """Called before the first round; `True` says that nothing is left to do."""

    def round_end(self, run: "Run") -> bool | None:
        """Called after each finished round; `True` stops the run."""

    def end(self, run: "Run") -> None:
        """Called once when the run is over, however it ended, in the opposite order."""


class Run:
    """One run in progress: the exchange, its history, and the simulated network between server and clients.

    Args:
        algorithm: What is exchanged.
        federation: The clients' data, already standardised.
        schedule: Who is asked, and when.
        engine: How the clients are computed.
        seed: Every draw follows from it.
        weights: What each client weighs in a weighted mean; its number of rows by default.
    """

    def __init__(
        self,
        algorithm: FederatedAlgorithm[Any, Any, Any, Any],
        federation: Federation,
        *,
        schedule: Schedule,
        engine: Local,
        seed: int,
        weights: np.ndarray[Any, Any] | None = None,
    ) -> None:
        check_seed(seed)
        if not isinstance(engine, Local):
            raise SettingsError(f"engine: got {type(engine).__name__}, expected fg.Local(...)")
        check_schedule(schedule, algorithm)
        self.algorithm, self.schedule, self.engine, self.seed = algorithm, schedule, engine, seed
        self.sizes = np.asarray(federation.sizes, dtype=np.float64)
        self.names = tuple(federation.names)
        self.ledger = Ledger(self.names)
        self.worker = LocalWorker(
            algorithm, federation, self.sizes if weights is None else weights, seed=seed, devices=engine.devices
        )
        self.exchange = Exchange(algorithm, self.names, self.worker, seed, self.ledger)
        self.history: list[dict[str, Any]] = []
        self.clock = 0.0
        self.interrupted = False
        self.kept: Any = ()
        """A state of the server that a callback wants to go back to; part of a checkpoint."""
        self._in_flight: list[tuple[float, int, bool, Answers]] = []
        self._events = 0

    @property
    def server(self) -> Any:
        """The server's state after the last finished round."""
        return self.exchange.server

    @property
    def clients(self) -> Any:
        """What every client has kept, stacked by position."""
        return self.exchange.clients

    def __call__(self, callbacks: Sequence[Callback] = ()) -> "Run":
        """Go on until the algorithm has nothing more to ask, a callback says stop, or Ctrl-C is pressed."""
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise SettingsError(
                    f"callbacks: got {type(callback).__name__}, expected objects like fg.Checkpoint(...)"
                )
        self.interrupted = False
        with ExitStack() as stack:
            stops = []
            for callback in sorted(callbacks, key=lambda callback: not callback.restores):
                stack.callback(callback.end, self)
                stops.append(callback.start(self))
            is_interrupted = stack.enter_context(_first_interrupt_waits())
            stack.enter_context(threadpoolctl.threadpool_limits(1, user_api="blas"))
            while not (any(stops) or self.interrupted) and self.step():
                stops = [callback.round_end(self) for callback in callbacks]
                self.interrupted = is_interrupted()
        return self

    def step(self) -> bool:
        """One round; `False` when the algorithm has nothing more to ask."""
        started, first_entry, round_number = time.perf_counter(), len(self.ledger.entries), self.exchange.round
        request = self.algorithm.request(self.server)
        if request is None:
            return False
        needs_every = self.algorithm.needs_every(request)
        if needs_every:
            answers, info, asked = self._ask_and_wait(request, np.arange(len(self.names)), needs_every)
        elif isinstance(self.schedule, Asynchronous):
            answers, info, asked = self._absorb_next(self.schedule, request)
        else:
            cohort = self.schedule.select(self.exchange.round, self.sizes, seed=self.seed)
            answers, info, asked = self._ask_and_wait(request, cohort, needs_every)
        entries = self.ledger.entries[first_entry:]

        def total(direction: str) -> int:
            return sum(e.bytes * self.ledger.num_clients(e) for e in entries if e.direction == direction)

        def clients(outcome: str) -> list[str]:
            found = [e for e in entries if e.outcome == outcome]
            return [n for e in found for n in ([self.names[c] for c in e.clients] if e.clients else self.names)]

        refused = clients("refused")
        row = {
            "round": round_number,
            "request": answers.request,
            "seconds": 0.0,
            "simulated_seconds": self.clock,
            "bytes_up": total("up"),
            "bytes_down": total("down"),
            "clients_asked": asked,
            "clients_answered": sum(self.ledger.num_clients(e) for e in entries if e.outcome == "counted"),
            "clients_refused": refused,
        }
        for name, leaf in named_leaves(jax.tree.map(np.asarray, info)):
            row[name] = leaf.item() if leaf.ndim == 0 else leaf.tolist()
        row["seconds"] = time.perf_counter() - started
        self.history.append(row)
        return True

    def _ask_and_wait(self, request: Any, cohort: Positions, needs_every: bool) -> tuple[Answers, Any, int]:
        exchange, network = self.exchange, self.engine.network
        answers = exchange.ask(request, cohort)
        arrived = np.zeros(len(cohort), dtype=bool)
        twice = np.zeros(len(cohort), dtype=bool)
        for attempt in range(self.engine.retries + 1):
            draw = np.random.default_rng([self.seed, answers.request, attempt, 0x2E7])
            delay = draw.exponential(network.delay, len(cohort)) if network.delay else np.zeros(len(cohort))
            silent = ~arrived
            came = silent & (draw.random(len(cohort)) >= network.loss) & (delay <= network.timeout)
            twice |= came & (draw.random(len(cohort)) < network.repeat)
            arrived |= came
            if attempt:
                self._asked_again(answers, cohort[silent])
            exchange.write(answers, cohort[silent & ~came], "lost")
            all_came = bool(came[silent].all())
            slowest = float(delay[came].max(initial=0.0))
            self.clock += slowest if all_came or math.isinf(network.timeout) else network.timeout
            if arrived.all() or (arrived.any() and not needs_every):
                break
        else:
            silent_for = f"silent after {self.engine.retries + 1} requests (retries={self.engine.retries})"
            self._give_up(answers, dict.fromkeys(cohort[~arrived].tolist(), silent_for))
        if needs_every and (refused := exchange.refusals(answers, cohort)):
            exchange.write(answers, np.array(list(refused)), "refused")
            self._give_up(answers, refused)
        info = exchange.deliver(answers, np.concatenate([cohort[arrived], cohort[twice]]))
        if info is None:
            self._give_up(answers, exchange.refusals(answers, cohort[arrived]))
        exchange.close(answers)
        return answers, info, len(cohort)

    def _asked_again(self, answers: Answers, silent: Positions) -> None:
        who = tuple(int(p) for p in silent)
        message, arrays = message_name(answers.asked), answers.shape.request_arrays
        self.ledger.write(Entry(self.exchange.round, answers.request, "down", message, arrays, who, "sent again"))

    def _give_up(self, answers: Answers, clients: dict[int, str]) -> None:
        """End the run: these clients, by position, were needed and did not answer, each for its reason."""
        exchange = self.exchange
        needed = "every client" if self.algorithm.needs_every(answers.asked) else "at least one client"
        raise RunError(
            f"round {exchange.round}, request {answers.request} of {type(self.algorithm).__name__}: needs the"
            f" answer of {needed}, but {exchange.in_words(clients)}."
            f" {'The last finished round is kept' if exchange.round else 'No round was finished'}; check these clients"
            " and run again."
        )

    def _absorb_next(self, schedule: Asynchronous, request: Any) -> tuple[Answers, Any, int]:
        exchange, num_clients, asked, misses = self.exchange, len(self.names), 0, 0
        while True:
            idle = np.flatnonzero(exchange.newest < 0)
            room = min(schedule.in_flight or num_clients, num_clients) - (num_clients - len(idle))
            if room > 0:
                draw = np.random.default_rng([self.seed, exchange.next_request, 0xA5C])
                for client in draw.choice(idle, size=room, replace=False):
                    self._send(request, np.array([client]))
                    asked += 1
            self.clock, _, is_lost, answers = heapq.heappop(self._in_flight)
            misses += bool(exchange.is_awaited(answers, answers.positions).all())
            if is_lost:
                exchange.write(answers, answers.positions, "lost")
            elif type(answers.asked) is not type(request):  # to a question of an earlier phase
                exchange.write(answers, answers.positions, "late")
            elif (info := exchange.deliver(answers, answers.positions)) is not None:
                return answers, info, asked
            exchange.close(answers)
            if misses > (self.engine.retries + 1) * num_clients:
                self._give_up(answers, dict.fromkeys(range(num_clients), f"no answer counted in {misses} attempts"))

    def _send(self, request: Any, client: Positions) -> None:
        network = self.engine.network
        answers = self.exchange.ask(request, client)
        draw = np.random.default_rng([self.seed, answers.request, 0, 0x2E7])
        delay = draw.exponential(network.delay) if network.delay else 1.0
        is_lost = bool(draw.random() < network.loss or delay > network.timeout)
        self._push(self.clock + min(delay, network.timeout), is_lost, answers)
        if not is_lost and draw.random() < network.repeat:
            self._push(self.clock + delay * (1.0 + draw.random()), False, answers)

    def _push(self, arrival: float, is_lost: bool, answers: Answers) -> None:
        self._events += 1
        heapq.heappush(self._in_flight, (arrival, self._events, is_lost, answers))

    # --- what a checkpoint holds ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that the next rounds depend on, as a tree of arrays."""
        exchange = self.exchange
        return {
            "server": jax.device_get(exchange.server),
            "clients": exchange.clients,
            "kept": jax.device_get(self.kept),
            "newest": exchange.newest,
            "answered": exchange.answered,
            "numbers": np.array([exchange.round, exchange.next_request, self._events]),
            "clock": np.array(self.clock),
            "in_flight": [
                (np.array(arrival), np.array([event, is_lost, answers.request]), jax.device_get(answers.asked),
                 answers.positions, answers.proposals, answers.replies)
                for arrival, event, is_lost, answers in self._in_flight
            ],
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` held."""
        exchange = self.exchange
        exchange.server, exchange.clients = state["server"], state["clients"]
        self.kept = state["kept"]
        exchange.newest, exchange.answered = state["newest"], state["answered"]
        exchange.round, exchange.next_request, self._events = (int(n) for n in state["numbers"])
        self.clock = float(state["clock"])
        self._in_flight = []
        for arrival, numbers, asked, positions, proposals, replies in state["in_flight"]:
            event, is_lost, request_id = (int(n) for n in numbers)
            shape = reply_shape(self.algorithm, asked, self.worker)
            answers = Answers(request_id, asked, shape, positions, proposals, replies, {})
            self._in_flight.append((float(arrival), event, bool(is_lost), answers))


@contextmanager
def _first_interrupt_waits() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C wait for the round to finish; a second one stops at once."""
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        logger.warning("stopping after this round; press Ctrl-C again to stop at once")

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


class LocalWorker:
    """Computes clients in this process: a cohort padded, put over the host's devices, in one compiled call a bucket."""

    def __init__(
        self,
        algorithm: FederatedAlgorithm[Any, Any, Any, Any],
        federation: Federation,
        weights: np.ndarray[Any, Any],
        *,
        seed: int,
        devices: int | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.devices = min(devices or jax.local_device_count(), jax.local_device_count(), len(federation))
        self.key = jax.random.fold_in(jax.random.key(seed), 1)
        self.weights = np.asarray(weights, dtype=np.float64)
        self.idents = client_idents(federation.names)
        self.buckets = bucket(federation, cost_exponent=algorithm.cost_exponent)
        self.columns = len(federation.inputs), len(federation.targets)
        self.bucket_of = np.empty(len(federation), dtype=np.int64)
        self.row_of = np.empty(len(federation), dtype=np.int64)
        for number, one in enumerate(self.buckets):
            self.bucket_of[one.indices] = number
            self.row_of[one.indices] = np.arange(len(one.indices))
        self._resident: dict[int, tuple[Data, Any]] = {}
        self._layouts: dict[int, _Layout] = {}

    def abstract_reply(self, request: Any) -> Any:
        """The reply to a request of this kind, as shapes and dtypes alone."""
        data = jax.tree.map(lambda leaf: leaf[0], self._take(self.buckets[0], np.zeros(1, dtype=np.int64)))
        key = jax.random.key(0)
        update = self.algorithm.client_update
        return jax.eval_shape(lambda r, d: update(r, self.algorithm.init_client(key), d, key)[1], request, data)

    def compute(self, request: Any, request_id: int, positions: Positions, states: Any) -> tuple[Any, Rows]:
        """Proposed states and flattened replies of the clients at `positions`."""
        request = jax.tree.map(np.asarray, request)
        replies: Rows | None = None
        proposals = jax.tree.map(np.empty_like, states)
        for number in np.unique(self.bucket_of[positions]):
            where = np.flatnonzero(self.bucket_of[positions] == number)
            whole = len(where) == len(self.buckets[number].indices)
            if whole and number in self._layouts:
                layout = self._layouts[number]
            else:
                layout = self._layout(number, self.row_of[positions[where]], whole)
            if whole:
                self._layouts[number] = layout
            data, idents = self._data(number, layout, whole)
            cohort = _compiled_cohort(self.algorithm, layout.devices, layout.together)
            places = where[layout.order]
            mine = jax.tree.map(lambda leaf, places=places: leaf[places], states)
            out, rows = jax.tree.map(np.asarray, cohort(request, np.int32(request_id), self.key, mine, data, idents))
            if replies is None:
                replies = np.empty((len(positions), rows.shape[1]))
            replies[places] = rows
            jax.tree.map(lambda kept, new, places=places: kept.__setitem__(places, new), proposals, out)
        assert replies is not None
        return proposals, replies

    def _layout(self, number: int, rows: Positions, whole: bool) -> "_Layout":
        """Deal the clients to the devices, largest first, so that each has about the same work.

        How many of a drawn cohort fall into a bucket changes from round to round; rounding their number up, to one of
        two between powers of two, keeps the compilations few.
        """
        one = self.buckets[number]
        devices = min(self.devices, len(rows))
        largest_first = np.argsort(-one.num_rows[rows], kind="stable")
        share = -(-len(rows) // devices)
        if not whole and len(self.buckets) > 1:
            share = min(_rounded_up(share), -(-len(one.indices) // devices))
        fits = max(1, _TOGETHER // max(1, self.algorithm.client_bytes(one.X.shape[1])))
        fits = 1 if self.algorithm.is_uneven else fits
        together = -(-share // -(-share // fits))
        share = -(-share // together) * together
        hands = [np.resize(largest_first[d::devices], share) for d in range(devices)]
        order = np.concatenate(hands)
        return _Layout(order, rows[order], together, devices)

    def _data(self, number: int, layout: "_Layout", whole: bool) -> tuple[Data, Any]:
        if number in self._resident and whole:
            return self._resident[number]
        one = self.buckets[number]
        data, idents = self._take(one, layout.rows), self.idents[one.indices[layout.rows]]
        if whole:
            sharding = NamedSharding(_mesh(layout.devices), _partition("clients"))
            data, idents = jax.device_put((data, idents), sharding if layout.devices > 1 else None)
            self._resident[number] = data, idents
        return data, idents

    def _take(self, one: Bucket, rows: Positions) -> Data:
        parts: tuple[Any, ...] = one.X[rows], one.Y[rows], one.num_rows[rows], self.weights[one.indices[rows]]
        return Data(*parts)


def _rounded_up(number: int) -> int:
    """1, 2, 3, 4, 6, 8, 12, 16, ...: the next of these."""
    power = 1 << (number - 1).bit_length()
    return 3 * power // 4 if number <= 3 * power // 4 else power


@dataclasses.dataclass(frozen=True)
class _Layout:
    order: Positions
    """Places in the cohort, device after device; short hands are filled up by repeating."""
    rows: Positions
    together: int
    """How many clients a device computes in one batch."""
    devices: int


def _partition(*axes: str) -> Any:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=8)
def _mesh(devices: int) -> Any:
    return jax.sharding.Mesh(np.array(jax.local_devices()[:devices]), ("clients",))


@functools.lru_cache(maxsize=64)
def _compiled_cohort(algorithm: FederatedAlgorithm[Any, Any, Any, Any], devices: int, together: int) -> Any:
    def one(request: Any, request_id: Any, key: Any, args: Any) -> tuple[Any, Any]:
        state, data, ident = args
        own = client_key(jax.random.fold_in(key, request_id), ident)
        proposal, reply = algorithm.client_update(request, state, data, own)
        return proposal, ravel_pytree(reply)[0]

    def cohort(request: Any, request_id: Any, key: Any, states: Any, data: Data, idents: Any) -> Any:
        update = functools.partial(one, request, request_id, key)
        if together >= data.num_rows.shape[0]:
            return jax.vmap(update)((states, data, idents))
        return jax.lax.map(update, (states, data, idents), batch_size=together if together > 1 else None)

    if devices > 1:
        each, all_ = _partition("clients"), _partition()
        cohort = jax.shard_map(
            cohort, mesh=_mesh(devices), in_specs=(all_, all_, all_, each, each, each), out_specs=each, check_vma=False
        )
    return jax.jit(cohort)
