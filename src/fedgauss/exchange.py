"""The book of an exchange: who was asked, which answers count, and when a client's new state is kept.

The commit rule. `client_update` proposes a client's next state; it is kept when, and only when, the server counted the
reply. A reply counts once, and only if it answers the newest request to that client. Then after every event, whatever
was lost, repeated, late or reordered, `server == start + what every client has kept`.
"""

import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedgauss.algorithm import FederatedAlgorithm, Stacked
from fedgauss.errors import ReplyError
from fedgauss.ledger import Entry, Ledger, positions_or_all
from fedgauss.messages import ArraySpec, describe, message_name, reply_kind
from fedgauss.schedules import Positions

Rows = np.ndarray[tuple[int, int], np.dtype[np.float64]]


class Answers(NamedTuple):
    """What a cohort computed for one request, not yet delivered."""

    request: int
    asked: Any
    """The request itself."""
    shape: "ReplyShape"
    positions: Positions
    proposals: Any
    """The clients' proposed states, stacked."""
    replies: Rows
    """One flattened reply a client."""


class Worker(Protocol):
    """The part of an engine that has clients compute: `engines.local.LocalWorker`."""

    columns: tuple[int, int]
    """How many inputs and targets the clients' data have."""

    def compute(self, request: Any, request_id: int, positions: Positions, states: Any) -> tuple[Any, Rows]:
        """Proposed states and flattened replies of the clients at `positions`, in that order."""
        ...

    def abstract_reply(self, request: Any) -> Any:
        """The reply to a request of this kind, as shapes and dtypes alone."""
        ...


class Exchange:
    """One run of an algorithm, event by event: `ask` a cohort, `deliver` some of its answers.

    Args:
        algorithm: What is exchanged.
        names: The clients, in the order in which replies are summed.
        worker: Where the clients compute.
        seed: Every draw of server and clients follows from it.
        ledger: Where each message is written down.
    """

    def __init__(
        self, algorithm: FederatedAlgorithm[Any, Any, Any, Any], names: tuple[str, ...], worker: Worker, seed: int,
        ledger: Ledger,
    ) -> None:  # fmt: skip
        self.algorithm = algorithm
        self.names = names
        self.worker = worker
        self.ledger = ledger
        self.round = 0
        self.next_request = 0
        self.newest = np.full(len(names), -1, dtype=np.int64)
        """The request each client may still answer, -1 for none."""
        self.answered = np.full(len(names), -1, dtype=np.int64)
        """The request each client's last counted answer was to, -1 for none."""
        key_server, key_clients = jax.random.split(jax.random.key(seed))
        self.server: Any = algorithm.init(key_server)
        keys = jax.random.split(key_clients, len(names))
        self.clients: Any = jax.tree.map(np.array, jax.vmap(algorithm.init_client)(keys))

    def ask(self, request: Any, positions: Positions) -> Answers:
        """Send the request to these clients and have them compute; an earlier request to them no longer counts."""
        request_id, self.next_request = self.next_request, self.next_request + 1
        self.newest[positions] = request_id
        states = jax.tree.map(lambda leaf: leaf[positions], self.clients)
        shape = reply_shape(self.algorithm, request, self.worker)
        proposals, replies = self.worker.compute(request, request_id, positions, states)
        who = positions_or_all(positions, len(self.names))
        message = message_name(request)
        self.ledger.write(Entry(self.round, request_id, "down", message, shape.request_arrays, who, "sent"))
        return Answers(request_id, request, shape, positions, proposals, replies)

    def deliver(self, answers: Answers, arrived: Positions) -> Any | None:
        """Count the answers of the clients in `arrived`; the server's info, or `None` when nothing counted.

        `arrived` may name a client twice (a repeated message) or one that has been asked again since (a late one).
        """
        clients, times = np.unique(arrived, return_counts=True)
        fine = self.is_fine(answers, clients)
        counts = fine & self.is_awaited(answers, clients)
        again = fine & ~counts & (self.answered[clients] == answers.request)
        counted = clients[counts]
        self.write(answers, counted, "counted")
        self.write(answers, clients[~fine], "refused")
        self.write(answers, clients[fine & ~counts & ~again], "late")
        self.write(answers, clients[again], "repeated")
        for time in range(1, times.max(initial=1)):
            self.write(answers, clients[times > time], "repeated")
        if not len(counted):
            return None
        rows = answers.replies[np.searchsorted(answers.positions, counted)]
        if self.algorithm.combine == "stack":
            self.server, info = answers.shape.update(self.server, rows, counted)
        else:
            self.server, info = answers.shape.update(self.server, sum_in_order(rows))
        self.newest[counted], self.answered[counted] = -1, answers.request
        self.commit(answers, counted)
        self.round += 1
        return info

    def is_awaited(self, answers: Answers, clients: Positions) -> Any:
        """Whether each client's answer is to the newest request it was sent, and has not been counted yet."""
        return self.newest[clients] == answers.request

    def is_fine(self, answers: Answers, clients: Positions) -> Any:
        """Whether each client's answer is finite."""
        return np.isfinite(answers.replies[np.searchsorted(answers.positions, clients)]).all(axis=1)

    def commit(self, answers: Answers, counted: Positions) -> None:
        """Keep the proposed states of the clients whose replies were counted."""
        chosen = np.searchsorted(answers.positions, counted)

        def keep(kept: Any, proposed: Any) -> None:
            kept[counted] = proposed[chosen]

        jax.tree.map(keep, self.clients, answers.proposals)

    def close(self, answers: Answers) -> None:
        """Stop waiting: whoever has not answered this request is late from now on."""
        self.newest[self.newest == answers.request] = -1

    def write(self, answers: Answers, clients: Positions, outcome: str) -> None:
        """Put answers in the ledger."""
        who = positions_or_all(clients, len(self.names))
        message, arrays = answers.shape.message, answers.shape.arrays
        self.ledger.write(Entry(self.round, answers.request, "up", message, arrays, who, outcome))


class ReplyShape(NamedTuple):
    """How the replies to one kind of request are read, written down and counted."""

    message: str
    arrays: tuple[ArraySpec, ...]
    request_arrays: tuple[ArraySpec, ...]
    update: Any
    """The compiled server update: `(server, flat total)`, or `(server, rows, clients)` where replies are stacked."""


@functools.lru_cache(maxsize=64)
def _shapes(algorithm: FederatedAlgorithm[Any, Any, Any, Any]) -> dict[Any, ReplyShape]:
    return {}


def reply_shape(algorithm: FederatedAlgorithm[Any, Any, Any, Any], request: Any, worker: Worker) -> ReplyShape:
    """How to read the replies to this kind of request from clients with so many columns; found once for a kind."""
    leaves, structure = jax.tree.flatten(request)
    kind = (structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), worker.columns)
    known = _shapes(algorithm)
    if kind not in known:
        reply = worker.abstract_reply(request)
        arrays = describe(reply, reply_kind(reply, algorithm.combine))
        for spec in arrays:
            if spec.dtype != "float64":
                raise ReplyError(
                    f"{type(algorithm).__name__}: the reply's array {spec.name!r} has dtype {spec.dtype}, expected"
                    " float64: replies add, and integers or 32-bit floats lose what they add"
                )
        unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), reply))[1]
        if algorithm.combine == "stack":
            update = jax.jit(
                lambda server, rows, clients: algorithm.server_update(server, Stacked(clients, jax.vmap(unravel)(rows)))
            )
        else:
            update = jax.jit(lambda server, total: algorithm.server_update(server, unravel(total)))
        known[kind] = ReplyShape(message_name(reply), arrays, describe(request, "broadcast"), update)
    return known[kind]


def sum_in_order(rows: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The sum over clients, one after the other: the same bits on every engine and machine."""
    if rows.shape[1] <= 64 < rows.shape[0]:
        return np.asarray(np.add.accumulate(rows, axis=0)[-1])
    total: np.ndarray[Any, np.dtype[np.float64]] = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total
