"""What a federated algorithm is: a frozen set of choices with five pure functions. Read this page first.

Messages add. A `Schedule` decides who is asked and when; an engine carries the messages. Neither knows any
mathematics, and an algorithm knows neither of them: the same object runs in one process and across a network.
"""

import abc
import dataclasses
import hashlib
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from jaxtyping import Array, Float, Int, PRNGKeyArray

Server = TypeVar("Server")
Client = TypeVar("Client")
Request = TypeVar("Request")
Reply = TypeVar("Reply")

Key = PRNGKeyArray


class Data(NamedTuple):
    """One client's data as `client_update` sees it: padded with zeros to a common length.

    Rows from `num_rows` on are padding and must change nothing.
    """

    X: Float[Array, "N D"]
    Y: Float[Array, "N P"]
    num_rows: Int[Array, ""]
    weight: Float[Array, ""]
    """What this client weighs in a weighted mean: its number of rows, unless the user said otherwise."""


class Stacked(NamedTuple):
    """Replies that cannot be added, for an algorithm with `combine = "stack"`: one row a client."""

    clients: Int[Array, "C"]
    """Positions of the clients in the federation, ascending."""
    value: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederatedAlgorithm(abc.ABC, Generic[Server, Client, Request, Reply]):
    """What is asked of clients, what they answer, and what the server does with the sum of the answers.

    A subclass is a frozen dataclass whose fields are its settings: hashable, comparable, free of arrays. `Server`,
    `Client`, `Request` and `Reply` are named tuples with array leaves, one set per algorithm, in the algorithm's file.
    A request may be of several kinds (phases): its type says which. The engine may trace every function but `request`.
    """

    quorum: ClassVar[Literal["some", "every"]] = "some"
    """Whether the server may move on when only some of the asked clients have answered."""
    combine: ClassVar[Literal["sum", "stack"]] = "sum"
    """Whether replies add, or arrive as `Stacked` (then a channel that sums in secret refuses the algorithm)."""
    cost_exponent: ClassVar[int] = 1
    """How a client's work grows with its rows: 1 when it draws minibatches or sums, 3 when it factorises."""

    @abc.abstractmethod
    def init(self, key: Key) -> Server:
        """The server's first state."""

    @abc.abstractmethod
    def init_client(self, key: Key) -> Client:
        """A client's first state: what it keeps between rounds, `()` when nothing."""

    @abc.abstractmethod
    def request(self, server: Server) -> Request | None:
        """What to ask next; `None` when finished. Called with concrete arrays, never traced."""

    @abc.abstractmethod
    def client_update(self, request: Request, client: Client, data: Data, key: Key) -> tuple[Client, Reply]:
        """The client's proposed next state, and the reply to send. Runs where the data is.

        The proposal is kept if, and only if, the server counted the reply.
        """

    @abc.abstractmethod
    def server_update(self, server: Server, total: Reply) -> tuple[Server, Any]:
        """Take the sum of one or more replies into account; the second value is a named tuple worth plotting."""

    def client_bytes(self, rows: int) -> int:
        """About how much memory the work of one client of that many rows touches at a time.

        Engines compute several small clients in one batch and large ones one by one.
        """
        return 8 * rows


def fingerprint(algorithm: FederatedAlgorithm[Any, Any, Any, Any]) -> str:
    """Twelve letters that differ when two algorithms differ in kind or in any setting.

    Example:
        >>> from fedgauss.algorithms.moments import Moments
        >>> fingerprint(Moments(num_inputs=2, num_targets=1)) == fingerprint(Moments(num_inputs=3, num_targets=1))
        False
    """
    return hashlib.sha256(repr(algorithm).encode()).hexdigest()[:12]
