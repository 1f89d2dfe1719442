"""The book of an exchange: who was asked, which answers count, and when a client's new state is kept.

The commit rule. `client_update` proposes a client's next state; it is kept when, and only when, the server counted the
reply. A reply counts once, and only if it answers the newest request to that client. Then after every event, whatever
was lost, repeated, late or reordered, `server == start + what every client has kept`.
"""

import functools
import hashlib
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedgauss.algorithm import FederatedAlgorithm, Stacked
from fedgauss.columns import quoted
from fedgauss.errors import ReplyError, RunError
from fedgauss.ledger import Entry, Ledger, positions_or_all
from fedgauss.messages import ArraySpec, describe, message_name, reply_kind
from fedgauss.schedules import Positions

logger = logging.getLogger("fedgauss")

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
    judged: dict[int, str | None]
    """By position, what the algorithm had against a client's reply; filled as replies arrive."""


class Worker(Protocol):
    """The part of an engine that has clients compute: `engines.local.LocalWorker`."""

    columns: tuple[int, int]
    """How many inputs and targets the clients' data have."""

    def compute(
        self, request: Any, request_id: int, positions: Positions, states: Any
    ) -> tuple[Any, Rows | Sequence[np.ndarray[Any, Any]]]:
        """Proposed states and flattened replies of the clients at `positions`, in that order.

        A reply of another length than expected, as from a client with other software, is refused by name.
        """
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
        init: Any = jax.vmap(lambda ident: algorithm.init_client(client_key(key_clients, ident)))
        self.clients: Any = jax.tree.map(np.array, init(client_idents(names)))

    def ask(self, request: Any, positions: Positions) -> Answers:
        """Send the request to these clients and have them compute; an earlier request to them no longer counts."""
        request_id, self.next_request = self.next_request, self.next_request + 1
        self.newest[positions] = request_id
        states = jax.tree.map(lambda leaf: leaf[positions], self.clients)
        shape = reply_shape(self.algorithm, request, self.worker)
        proposals, came = self.worker.compute(request, request_id, positions, states)
        replies, judged = _as_rows(came, positions, sum(spec.bytes for spec in shape.arrays) // 8)
        who = positions_or_all(positions, len(self.names))
        message = message_name(request)
        self.ledger.write(Entry(self.round, request_id, "down", message, shape.request_arrays, who, "sent"))
        return Answers(request_id, request, shape, positions, proposals, replies, judged)

    def deliver(self, answers: Answers, arrived: Positions) -> Any | None:
        """Count the answers of the clients in `arrived`; the server's info, or `None` when nothing counted.

        `arrived` may name a client twice (a repeated message) or one that has been asked again since (a late one).
        """
        clients, times = np.unique(arrived, return_counts=True)
        refused = self.refusals(answers, clients)
        if refused:
            logger.warning("round %d: refused %s", self.round, self.in_words(refused))
        fine = ~np.isin(clients, list(refused)) if refused else np.ones(len(clients), dtype=bool)
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
        is_counted = np.zeros(len(answers.positions), dtype=bool)
        is_counted[np.searchsorted(answers.positions, counted)] = True
        if self.algorithm.combine == "stack":
            rows = np.where(is_counted[:, None], answers.replies, 0.0)
            server, info, is_nan = answers.shape.update(self.server, rows, answers.positions, is_counted)
        else:
            server, info, is_nan = answers.shape.update(self.server, sum_in_order(answers.replies[is_counted]))
        if is_nan:
            raise RunError(
                f"round {self.round}: what {type(self.algorithm).__name__} made of {len(counted)} finite answers is not"
                " a number. Nothing of this round is kept; check the settings, such as rates, floors and weights"
            )
        self.server = server
        self.newest[counted], self.answered[counted] = -1, answers.request
        self.commit(answers, counted)
        self.round += 1
        return info

    def in_words(self, clients: dict[int, str]) -> str:
        """Clients, by position, with what is the matter with them: those with the same trouble together."""
        troubles = dict.fromkeys(clients.values())
        whose = {what: [self.names[c] for c in clients if clients[c] == what] for what in troubles}
        return "; ".join(quoted(names, most=5, mark="'") + f": {what}" for what, names in whose.items())

    def is_awaited(self, answers: Answers, clients: Positions) -> Any:
        """Whether each client's answer is to the newest request it was sent, and has not been counted yet."""
        return self.newest[clients] == answers.request

    def refusals(self, answers: Answers, clients: Positions) -> dict[int, str]:
        """By position, those of these clients whose answers must not be counted, and why."""
        rows = answers.replies[np.searchsorted(answers.positions, clients)]
        finite = np.isfinite(rows).all(axis=1)
        found = dict.fromkeys(clients[~finite].tolist(), "the answer is not finite")
        found |= {c: why for c in found if (why := answers.judged.get(c)) is not None}
        if type(self.algorithm).refusal is FederatedAlgorithm.refusal:
            return found
        for client, row in zip(clients[finite].tolist(), rows[finite], strict=True):
            if client not in answers.judged:
                reply = jax.tree.map(np.asarray, answers.shape.unravel(row))
                answers.judged[client] = self.algorithm.refusal(answers.asked, reply)
        return found | {c: why for c in clients.tolist() if (why := answers.judged.get(c)) is not None}

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
    unravel: Any
    """From a flattened reply to the reply."""
    update: Any
    """The compiled server update: `(server, flat total)`, or `(server, rows, clients, counted)` where replies are
    stacked; gives the server, the info, and whether the server has become NaN."""


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

        def checked(server: Any, total: Any) -> tuple[Any, Any, Any]:
            server, info = algorithm.server_update(server, total)
            nan = [jnp.isnan(leaf).any() for leaf in jax.tree.leaves(server) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
            return server, info, jnp.any(jnp.array(nan))

        def stacked(server: Any, rows: Any, clients: Any, counted: Any) -> tuple[Any, Any, Any]:
            return checked(server, Stacked(clients, counted, jax.vmap(unravel)(rows)))

        def summed(server: Any, total: Any) -> tuple[Any, Any, Any]:
            return checked(server, unravel(total))

        update = jax.jit(stacked if algorithm.combine == "stack" else summed)
        known[kind] = ReplyShape(message_name(reply), arrays, describe(request, "broadcast"), unravel, update)
    return known[kind]


def _as_rows(
    replies: Rows | Sequence[np.ndarray[Any, Any]], positions: Positions, length: int
) -> tuple[Rows, dict[int, str | None]]:
    """Replies as rows of one length, and by position who answered with another number of values."""
    if isinstance(replies, np.ndarray) and replies.ndim == 2 and replies.shape[1] == length:
        return replies, {}
    rows: Rows = np.full((len(positions), length), np.nan)
    judged: dict[int, str | None] = {}
    for place, (position, reply) in enumerate(zip(positions.tolist(), replies, strict=True)):
        if reply.shape == (length,):
            rows[place] = reply
        else:
            judged[position] = "the answer has another number of values than was asked for"
    return rows, judged


def client_idents(names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Two words that tell a client's draws from all others', made of its name alone: [C, 2]."""
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    return np.frombuffer(b"".join(digests), dtype="<u4").reshape(-1, 2).astype(np.uint32)


def client_key(key: Any, ident: Any) -> Any:
    """The key of the client with these two words."""
    return jax.random.fold_in(jax.random.fold_in(key, ident[0]), ident[1])


def sum_in_order(rows: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The sum over clients, one after the other: the same bits on every engine and machine."""
    if rows.shape[1] <= 64 < rows.shape[0]:
        return np.asarray(np.add.accumulate(rows, axis=0)[-1])
    total: np.ndarray[Any, np.dtype[np.float64]] = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total
