"""What left each client, in words and bytes: the ledger as a person reads it. Needs no mathematics, and no JAX."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import polars as pl

_ARRAYS = {
    "MomentsRequest": {"about": "the point about which to take the sums"},
    "MomentsReply": {
        "num_rows": "the number of rows",
        "sums": "the sum of each column",
        "squares": "the sum of squares of each column",
        "within": "the target's summed squares about the client's own mean",
    },
    "ParametersRequest": {"parameters": "the shared value", "round": "the round's number"},
    "LocalFit": {
        "value.delta": "by how much its local steps moved the shared value, times its weight",
        "value.objective": "the mean negative log likelihood of a row, times the weight",
        "weight": "the client's weight: its number of rows, or 1",
    },
    "StartsRequest": {"candidates": "hyper-parameters to start from"},
    "Values": {"values": "the rows' negative log likelihood at each start", "scale": "the client's weight, or 1"},
    "DerivativesRequest": {"point": "hyper-parameters to look at"},
    "Derivatives": {
        "value": "the rows' negative log likelihood there",
        "gradient": "its gradient in the hyper-parameters",
        "hessian": "its Hessian in the hyper-parameters",
        "scale": "the client's weight, or 1",
    },
    "BeginRequest": {"round": "the word to begin"},
    "FeaturesRequest": {
        "values": "what all share of the features, the noise and the weights' prior",
        "constants": "random numbers, the same for all",
        "round": "the round's number",
    },
    "KernelRequest": {
        "values": "what all share of the features, the noise and the weights' prior",
        "constants": "random numbers, the same for all",
        "round": "the round's number",
        "inputs": "the server's own inputs, which every client sees",
    },
    "LocalNetwork": {
        "values": "the features, noise and prior after its local steps: a whole network of its own",
        "objective": "the mean negative log evidence of a row",
    },
    "LocalKernel": {
        "value.kernel": "its kernel between the server's inputs after its local steps",
        "value.objective": "the mean negative log evidence of a row",
        "weight": "the number one, to count the client",
    },
    "LocalInfo": {
        "value.objective": "the mean negative log evidence of a row, times the weight",
        "weight": "the client's weight: its number of rows, or 1",
    },
    "CollectRequest": {"round": "the word to send what was learned alone"},
    "ClientNetwork": {"theta": "the features, noise and prior that it learned alone: a whole network of its own"},
    "SumsRequest": {
        "theta": "features, noise and prior, or kernel and inducing inputs, at which sums are wanted",
        "constants": "random numbers, the same for all",
    },
    "FeatureSums": {
        "phi_phi": "the sum over rows of products of features",
        "phi_y": "the sum over rows of features times target",
        "y_y": "the sum of the targets' squares",
        "num_rows": "the number of rows",
    },
    "SparseStatistics": {
        "phi_phi": "the sum over rows of products of features",
        "phi_y": "the sum over rows of features times target",
        "y_y": "the sum of the targets' squares",
        "trace": "the sum over rows of the prior variance",
        "count": "the number of rows",
    },
    "CotangentRequest": {
        "theta": "where the gradient is wanted",
        "constants": "random numbers, the same for all",
        "cotangent": "what a change of each sum does to the objective",
    },
    "Pullback": {"gradient": "its part of the gradient in everything that is learned"},
    "ScatterRequest": {
        "theta": "features, noise and prior at which sums are wanted",
        "constants": "random numbers, the same for all",
    },
    "Scatter": {"phi_phi": "the sum over rows of products of features"},
    "WeightsRequest": {
        "theta": "features, noise and prior at which sums are wanted",
        "constants": "random numbers, the same for all",
        "inverse": "the inverse of everybody's summed products: with it and its own, a client knows the others'",
    },
    "Weights": {"weights": "its part of the last layer's weights"},
    "SeparateInfo": {
        "value.objective": "its negative log likelihood of a row, times the weight",
        "value.steps": "how many steps were taken, times the weight",
        "weight": "the client's weight: its number of rows",
    },
}
"""By message and array, or the beginning of an array's dotted name, what it is in words."""

_FEW_ROWS = 5
"""Below this many rows sums say much about each row."""


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a message."""

    name: str
    shape: tuple[int, ...]
    kind: str
    """`mean`, `sum` or `stack` on the way up, `broadcast` on the way down."""
    bytes: int
    words: str


@dataclasses.dataclass(frozen=True)
class Message:
    """Messages of one kind to or from one client."""

    direction: str
    name: str
    count: int
    bytes: int
    """Of one of them."""
    arrays: tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class Told:
    """What one client was sent and what it sent."""

    client: str
    rows: int | None
    messages: tuple[Message, ...]
    warnings: tuple[str, ...]

    def total(self, direction: str) -> tuple[int, int]:
        """How many messages went `up` or `down`, and their bytes."""
        chosen = [message for message in self.messages if message.direction == direction]
        return sum(message.count for message in chosen), sum(message.count * message.bytes for message in chosen)

    @property
    def numbers(self) -> int:
        """How many numbers the client sent."""
        return self.total("up")[1] // 8


def disclosed(ledger: pl.DataFrame, rows: Mapping[str, int]) -> list[Told]:
    """What every client of a ledger was sent and sent, whether or not it was counted in the end.

    Args:
        ledger: One row a message, as a fitted model's `ledger_`.
        rows: Each client's number of rows, as far as known.

    Example:
        >>> from fedgauss.ledger import Entry, Ledger
        >>> from fedgauss.messages import ArraySpec
        >>> book = Ledger(["a", "b"])
        >>> spec = ArraySpec("count", (), "float64", 8, "sum")
        >>> book.write(Entry(-1, 0, "up", "MomentsReply", (spec,), None, "counted"))
        >>> [told.total("up") for told in disclosed(book.to_frame(), {"a": 1, "b": 30})]
        [(1, 8), (1, 8)]
        >>> disclosed(book.to_frame(), {"a": 1, "b": 30})[0].warnings[0]
        'a has 1 row: sums over one row are the row itself, so its inputs and its target left.'
    """
    kinds = ledger.group_by("client", "direction", "message", "bytes", maintain_order=True).agg(
        pl.len().alias("count"), pl.col("arrays").first()
    )
    messages: dict[str, list[Message]] = {name: [] for name in sorted(ledger["client"].unique())}
    for kind in kinds.iter_rows(named=True):
        arrays = tuple(_array(kind["message"], array) for array in kind["arrays"])
        message = Message(kind["direction"], kind["message"], kind["count"], kind["bytes"], arrays)
        messages[kind["client"]].append(message)
    return [
        Told(name, rows.get(name), tuple(of_client), tuple(_warnings(name, rows.get(name), of_client)))
        for name, of_client in messages.items()
    ]


_TALLY = {"members": "that it is counted, and its ticket, a random number", "failed": "whether it could not compute"}
"""What comes beside a sum that must be over the same clients as another."""


def _array(message: str, array: Mapping[str, Any]) -> Array:
    known = _TALLY | _ARRAYS.get(message, {})
    name = str(array["name"])
    inner = name.removeprefix("value.") if name.removeprefix("value.").split(".")[0] in known else name
    words = next((known[start] for start in known if inner == start or inner.startswith(f"{start}.")), "")
    return Array(name, tuple(array["shape"]), array["kind"], array["bytes"], words)


def _warnings(client: str, rows: int | None, messages: list[Message]) -> list[str]:
    """What a client with few rows gave away."""
    if rows is None:
        return []
    who = f"{client} has {rows} row{'' if rows == 1 else 's'}"
    features = max(
        (a.shape[-1] for m in messages if m.direction == "up" for a in m.arrays if _is_scatter(a)), default=0
    )
    recoverable = (
        f"{who}, fewer than the {features} features whose products it sent: its records, inputs and targets, can be"
        " reconstructed from them."
    )
    found = [recoverable] if rows < features else []
    if rows >= _FEW_ROWS:
        return found
    sent = [message for message in messages if message.direction == "up"]
    has_moments = any(message.name == "MomentsReply" for message in sent)
    has_likelihood = any(message.name in ("LocalFit", "Values", "Derivatives") for message in sent)
    warnings = []
    if rows == 1 and has_moments:
        warnings.append("sums over one row are the row itself, so its inputs and its target left")
    if rows == 1 and has_likelihood:
        warnings.append("how its likelihood changes with the variances tells how far its target lies from the mean")
    if rows == 2 and has_moments:
        warnings.append("the sums and sums of squares of two rows give both values of every column")
    if rows > 1 and has_likelihood:
        warnings.append("so few rows that what it sent about its likelihood says much about each of them")
    return [*(f"{who}: {warning}." for warning in warnings), *found]


def _is_scatter(array: Array) -> bool:
    return array.name.rsplit(".", 1)[-1] == "phi_phi"


def in_bytes(number: int) -> str:
    """Bytes as a person reads them.

    Example:
        >>> in_bytes(512), in_bytes(12_345)
        ('512 B', '12.3 kB')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def in_words(shape: tuple[int, ...]) -> str:
    """A shape as a person reads it.

    Example:
        >>> in_words(()), in_words((3,)), in_words((3, 3))
        ('1 number', '3 numbers', '3 x 3 numbers')
    """
    sizes = " x ".join(str(size) for size in shape) or "1"
    return f"{sizes} number{'' if sizes == '1' else 's'}"
