"""What left whom: one row for every message between the server and a client, with every array in it."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from fedgauss.messages import ArraySpec

_ARRAY = pl.Struct(
    {"name": pl.String, "shape": pl.List(pl.Int64), "dtype": pl.String, "bytes": pl.Int64, "kind": pl.String}
)
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "round": pl.Int64,
    "request": pl.Int64,
    "client": pl.String,
    "direction": pl.String,
    "message": pl.String,
    "bytes": pl.Int64,
    "outcome": pl.String,
    "arrays": pl.List(_ARRAY),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """The same message to or from several clients: stored once, shown as one row a client."""

    round: int
    request: int
    direction: str
    """`up`, from the clients, or `down`, to them."""
    message: str
    arrays: tuple[ArraySpec, ...]
    clients: tuple[int, ...] | None
    """Positions in the federation; `None` stands for every client."""
    outcome: str
    """`sent` or `sent again` on the way down; on the way up `counted`, `repeated`, `late`, `lost` or `refused`."""

    @property
    def bytes(self) -> int:
        """Bytes of one such message."""
        return sum(spec.bytes for spec in self.arrays)


class Ledger:
    """Every message of a run, in order.

    Example:
        >>> ledger = Ledger(["a", "b"])
        >>> spec = ArraySpec("noise_variance", (), "float64", 8, "broadcast")
        >>> ledger.write(Entry(0, 0, "down", "Request", (spec,), None, "sent"))
        >>> ledger.to_frame()["client"].to_list()
        ['a', 'b']
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        """Add an entry; one that reached nobody is left out."""
        if entry.clients is None or entry.clients:
            self.entries.append(entry)

    def num_clients(self, entry: Entry) -> int:
        """How many rows an entry stands for."""
        return len(self.names) if entry.clients is None else len(entry.clients)

    def total_bytes(self, direction: str) -> int:
        """All bytes that went `up` or `down`."""
        return sum(e.bytes * self.num_clients(e) for e in self.entries if e.direction == direction)

    def to_frame(self) -> pl.DataFrame:
        """One row a message."""
        return pl.DataFrame(list(self._rows()), schema=SCHEMA, orient="row")

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for e in self.entries:
            arrays = [spec._asdict() | {"shape": list(spec.shape)} for spec in e.arrays]
            for position in range(len(self.names)) if e.clients is None else e.clients:
                yield (e.round, e.request, self.names[position], e.direction, e.message, e.bytes, e.outcome, arrays)

    def to_json(self, first: int = 0) -> list[Any]:
        """The entries from number `first` on, as plain lists; `read_json` takes them back."""
        return [list(dataclasses.astuple(e)) for e in self.entries[first:]]

    def read_json(self, rows: Sequence[Any]) -> None:
        """Append entries that `to_json` wrote."""
        for round_, request, direction, message, arrays, clients, outcome in rows:
            specs = tuple(ArraySpec(name, tuple(shape), *rest) for name, shape, *rest in arrays)
            positions = None if clients is None else tuple(clients)
            self.entries.append(Entry(round_, request, direction, message, specs, positions, outcome))


def positions_or_all(positions: np.ndarray[Any, Any], num_clients: int) -> tuple[int, ...] | None:
    """A cohort as an `Entry` keeps it."""
    return None if len(positions) == num_clients else tuple(int(p) for p in positions)
