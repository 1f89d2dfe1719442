"""What a federated algorithm is: a frozen set of choices with five pure functions. Read this page first.

Messages add. A `Schedule` decides who is asked and when; an engine carries the messages. Neither knows any
mathematics, and an algorithm knows neither of them: the same object runs in one process and across a network.
"""

import abc
import dataclasses
import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

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
    """Replies that cannot be added, for an algorithm with `combine = "stack"`: one row for each client asked."""

    clients: Int[Array, "C"]
    """Positions of the clients in the federation, ascending."""
    counted: Bool[Array, "C"]
    """Whose replies count. The rows of the others are zeros."""
    value: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederatedAlgorithm(abc.ABC, Generic[Server, Client, Request, Reply]):
    """What is asked of clients, what they answer, and what the server does with the sum of the answers.

    A subclass is a frozen dataclass whose fields are its settings: hashable, comparable, free of arrays. `Server`,
    `Client`, `Request` and `Reply` are named tuples with array leaves, one set per algorithm, in the algorithm's file.
    A request may be of several kinds (phases): its type says which. The engine may trace every function but `request`.
    """

    quorum: ClassVar[Literal["some", "every"]] = "some"
    """Whether the server may move on when only some of the asked clients have answered. See `needs_every`."""
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

    def needs_every(self, request: Request) -> bool:
        """Whether this request needs the answer of every client: for all of them by default, or none, as `quorum` says.

        An algorithm whose last phase takes exact sums has `quorum = "some"` and says so of that phase's requests alone.
        Whatever the schedule, such a request goes to all clients and waits for all of them.
        """
        return self.quorum == "every"

    def refusal(self, request: Request, reply: Reply) -> str | None:
        """Why a client's finite reply must not be counted ("the matrix is indefinite"), or `None` where it may be.

        Called with concrete arrays, one client at a time, before anything is added. The words go to the log and the
        error, after the client's name: no numbers in them.
        """
        return None

    @property
    def is_uneven(self) -> bool:
        """Whether clients of like size may take very different times. In a batch all would wait for the longest."""
        return False

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
    return hashlib.sha256(repr(_described(algorithm)).encode()).hexdigest()[:12]


def _described(setting: Any, above: tuple[Any, ...] = ()) -> Any:
    """A setting as nested tuples of words and numbers that mean the same in every process.

    Functions, such as those an Optax transformation is made of, are their names with what they close over; `above` are
    those it is part of, which may hold themselves.
    """
    if any(setting is one for one in above):
        return "itself"
    kind = type(setting)
    name = kind.__module__, kind.__qualname__
    describe = functools.partial(_described, above=(*above, setting))
    match setting:
        case None | bool() | int() | float() | str() | bytes():
            return setting
        case np.ndarray() | np.generic() | jax.Array():
            array = np.asarray(setting)
            return array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()
        case tuple() | list():
            return *name, *map(describe, setting)
        case Mapping():
            return *name, *((describe(key), describe(value)) for key, value in setting.items())
        case types.FunctionType():
            closed = [cell.cell_contents for cell in setting.__closure__ or () if cell != types.CellType()]  # empty
            constants = [one for one in setting.__code__.co_consts if isinstance(one, int | float | str)]
            return setting.__module__, setting.__qualname__, *map(describe, (closed, constants, setting.__defaults__))
        case type() | types.BuiltinFunctionType():
            return setting.__module__, setting.__qualname__
        case functools.partial():
            return *name, *map(describe, (setting.func, setting.args, setting.keywords))
    if dataclasses.is_dataclass(setting):
        fields = {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)}
    else:
        fields = getattr(setting, "__dict__", None) or {"name": getattr(setting, "__name__", None)}
    return *name, describe(fields)
