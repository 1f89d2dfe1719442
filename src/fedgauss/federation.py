"""The clients' data as one federation: read, checked, one schema for all. No mathematics, no JAX."""

import os
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from fedgauss import readers
from fedgauss.clients import Client as Client
from fedgauss.clients import align_inputs as align_inputs
from fedgauss.clients import counted, who_is
from fedgauss.columns import as_table, choose_columns, client_name, default_names, quoted, refuse_rows, stack
from fedgauss.errors import DataError, SettingsError, suggest
from fedgauss.settings import check_seed, number_of

_SMALLEST = 1e-150  # squares of smaller values vanish in float64


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Federation:
    """The clients that learn one model together, each with its own rows of the same columns.

    Clients are kept sorted by name, as text, so "10" comes before "2". That order is the one in which replies are
    summed: the same clients given in another order yield the same bits. Columns have one order for all, that of
    the first client; the others' are put in it by name.

    Args:
        clients: Clients with names.

    Raises:
        DataError: If there is none, a name is missing or given twice, or the clients' columns do not agree.

    Example:
        >>> federation = Federation.from_arrays({"b": ([[0.0], [1.0]], [0.0, 1.0]), "a": ([[2.0]], [3.0])})
        >>> federation
        Federation(2 clients, 3 rows, 1 input, 1 target)
        >>> federation.names, federation.sizes.tolist(), federation["b"].num_rows
        (('a', 'b'), [1, 2], 2)
    """

    clients: tuple[Client, ...]
    """Sorted by name."""
    names: tuple[str, ...]
    inputs: tuple[str, ...]
    """Column names in the order of every client's X; x0, x1, ... if the data came as arrays."""
    targets: tuple[str, ...]

    def __init__(self, clients: Iterable[Client]) -> None:
        given = list(clients)
        if not given:
            raise DataError("a federation needs at least one client, got none")
        if any(client.name is None for client in given):
            raise DataError("every client of a federation needs a name; write fg.Client(X, y, name=...)")
        given.sort(key=lambda client: str(client.name))
        names = tuple(str(client.name) for client in given)
        for name, following in pairwise(names):
            if name == following:
                raise DataError(f'two clients are named "{name}"; rename one')
        inputs, who = _agreed([client.inputs for client in given], given[0].X.shape[1], "x", names)
        targets, _ = _agreed([client.targets for client in given], given[0].Y.shape[1], "y", names)
        aligned = tuple(client.align(inputs, targets, who) for client in given)
        _refuse_vanishing([client.X for client in aligned], names, inputs)
        _refuse_vanishing([client.Y for client in aligned], names, targets)
        for field, value in {"clients": aligned, "names": names, "inputs": inputs, "targets": targets}.items():
            object.__setattr__(self, field, value)

    @classmethod
    def from_arrays(cls, data: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> "Federation":
        """A federation of `{name: (X, y)}`, or of `(name, (X, y))` pairs.

        Args:
            data: By name, the pair (X, y) that `Client` takes: arrays or frames, [N, D] and [N] or [N, P].

        Raises:
            DataError: See `Client` and `Federation`.

        Example:
            >>> import numpy as np
            >>> Federation.from_arrays({"a": (np.zeros((5, 2)), np.zeros(5)), "b": (np.zeros((3, 2)), np.zeros(3))})
            Federation(2 clients, 8 rows, 2 inputs, 1 target)
        """
        clients = []
        if not isinstance(data, Iterable):
            raise DataError(f"expected {{name: (X, y)}} for every client, got {type(data).__name__}")
        for name, pair in data.items() if isinstance(data, Mapping) else data:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise DataError(f"{who_is(client_name(name))}: expected a pair (X, y), got {type(pair).__name__}")
            X, y = pair
            clients.append(Client(X, y, name=name))
        return cls(clients)

    @classmethod
    def from_frame(
        cls, frame: Any, *, client: str, target: str | Sequence[str], inputs: str | Sequence[str] | None = None
    ) -> "Federation":
        """A federation of one DataFrame with a column that says whose each row is. Row order is kept.

        Args:
            frame: A pandas or polars DataFrame, or another that narwhals reads.
            client: The column of clients' names: text or whole numbers.
            target: The target, or a list of them.
            inputs: The inputs; every other column if not given.

        Raises:
            DataError: See `Client` and `Federation`. Rows are counted in the whole frame.

        Example:
            >>> import polars as pl
            >>> frame = pl.DataFrame({"unit": [1, 2, 1], "cycle": [1, 1, 2], "s2": [0.1, 0.2, 0.3]})
            >>> federation = Federation.from_frame(frame, client="unit", target="s2", inputs=["cycle"])
            >>> federation.names, federation["1"].Y[:, 0]
            (('1', '2'), array([0.1, 0.3]))
        """
        table = as_table(frame, "the table")
        if table is None:
            raise DataError(f"expected a pandas or polars DataFrame, got {type(frame).__name__}")
        client = str(client)  # some libraries have numbers for columns
        columns = choose_columns(list(table), "the table", client=client, target=target, inputs=inputs)
        labels = table[client]
        if not len(labels):
            raise DataError("the table has no rows")
        refuse_rows(
            f'the table, client column "{client}"', labels.is_null().to_numpy(), "without a client", "fill or drop them"
        )
        codes: dict[object, int] = {}
        code = np.fromiter((codes.setdefault(label, len(codes)) for label in labels.to_list()), np.int64, len(labels))
        rows = np.argsort(code, kind="stable")
        X = stack(table, columns.inputs, "every client")
        Y = stack(table, columns.targets, "every client")
        if (np.diff(rows) != 1).any():
            X, Y = X[rows], Y[rows]
        names = [client_name(label, f'the table, client column "{client}"') for label in codes]
        ends = np.cumsum(np.bincount(code))
        return cls(
            Client.of_matrices(X[start:end], Y[start:end], name, columns.inputs, columns.targets, rows[start:end])
            for name, start, end in zip(names, [0, *ends[:-1]], ends, strict=True)
        )

    @classmethod
    def read(
        cls,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        target: str | Sequence[str],
        inputs: str | Sequence[str] | None = None,
        client: str | None = None,
    ) -> "Federation":
        """A federation of CSV or Parquet files, one a client, named by the file's stem.

        CSV files have a header, commas or semicolons between fields, a point in numbers, and are UTF-8.

        Args:
            paths: A glob pattern, a folder, one file, or a list of these.
            target: The target, or a list of them.
            inputs: The inputs; every other column if not given.
            client: The column of clients' names, for one file that holds all clients.

        Raises:
            DataError: See `Client` and `Federation`; also for files that cannot be read. Rows are counted from 0
                after the header.

        Example:
            >>> import pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> _ = (folder / "north.csv").write_text("x,y\\n1,2\\n3,4\\n")
            >>> _ = (folder / "south.csv").write_text("y;x\\n1;2\\n")
            >>> federation = Federation.read(folder / "*.csv", target="y")
            >>> federation.names, federation.inputs, federation["south"].X
            (('north', 'south'), ('x',), array([[2.]]))
        """
        files = readers.find_files(paths)
        if client is not None and len(files) != 1:
            raise DataError(
                f'client column "{client}" needs one file with all clients, got {len(files)} files; '
                "leave it out to take each file as a client"
            )
        clients = []
        for name, path in files.items():
            who = who_is(name) if client is None else f'file "{name}"'
            choose = partial(choose_columns, who=who, client=client, target=target, inputs=inputs)
            frame, columns = readers.read_file(path, who, choose)
            if client is not None:
                return cls.from_frame(frame, client=client, target=columns.targets, inputs=columns.inputs)
            table = as_table(frame, who) or {}
            X, Y = stack(table, columns.inputs, who), stack(table, columns.targets, who)
            clients.append(Client.of_matrices(X, Y, client_name(name), columns.inputs, columns.targets))
        return cls(clients)

    @property
    def sizes(self) -> Int64[np.ndarray, " C"]:
        """Rows of each client, in the order of `names`."""
        return np.array([client.num_rows for client in self.clients], dtype=np.int64)

    @property
    def num_rows(self) -> int:
        """Rows of all clients together."""
        return int(self.sizes.sum())

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._position(name) is not None

    def __getitem__(self, name: str | int | np.integer[Any]) -> Client:
        known = client_name(name)
        position = self._position(known)
        if position is None:
            raise DataError(f'no client "{known}" among {counted(len(self), "client")}{suggest(known, self.names)}')
        return self.clients[position]

    def _position(self, name: str) -> int | None:
        position = bisect_left(self.names, name)
        return position if self.names[position : position + 1] == (name,) else None

    def items(self) -> Iterator[tuple[str, Client]]:
        """Names and clients, sorted by name."""
        return zip(self.names, self.clients, strict=True)

    def map(self, function: Callable[[Client], Client]) -> "Federation":
        """The federation of what `function` makes of each client.

        Example:
            >>> federation = Federation.from_arrays({"a": ([[1.0]], [2.0])})
            >>> federation.map(lambda client: client.with_values(Y=10 * client.Y))["a"].Y
            array([[20.]])
        """
        return Federation(function(client) for client in self.clients)

    def subset(self, names: Iterable[str | int]) -> "Federation":
        """The federation of these clients alone."""
        return Federation(self[name] for name in ([names] if isinstance(names, str) else names))

    def split(self, fraction: float, seed: int) -> tuple["Federation", "Federation"]:
        """Set a random part of every client's rows aside.

        A client's split depends on its name, its size and the seed, not on the other clients. Row order is kept.

        Args:
            fraction: The part of each client's rows that is set aside, between 0 and 1; rounded, and such that at
                least one row stays.
            seed: A whole number, not negative.

        Returns:
            What stays, with every client, and what was set aside, without clients too small to give a row.

        Raises:
            SettingsError: If the fraction is not between 0 and 1, or the seed no such number.
            DataError: If no client is large enough to give a row.

        Example:
            >>> federation = Federation.from_arrays({"a": ([[1.0], [2.0], [3.0], [4.0]], [1.0, 2.0, 3.0, 4.0])})
            >>> federation.split(0.25, seed=0)
            (Federation(1 client, 3 rows, 1 input, 1 target), Federation(1 client, 1 row, 1 input, 1 target))
        """
        if not 0 < number_of("split", "fraction", fraction) < 1:
            raise SettingsError(f"fraction: got {fraction}, expected a number between 0 and 1")
        check_seed(seed)
        train, test = [], []
        for name, client in self.items():
            num_aside = min(round(fraction * client.num_rows), client.num_rows - 1)
            order = np.random.default_rng([seed, zlib.crc32(name.encode())]).permutation(client.num_rows)
            train.append(client.take(np.sort(order[num_aside:])))
            if num_aside:
                test.append(client.take(np.sort(order[:num_aside])))
        if not test:
            raise DataError(
                f"no client has enough rows to set {fraction} of them aside; the largest has {max(self.sizes)}"
            )
        return Federation(train), Federation(test)

    def align(self, X: Any) -> Float64[np.ndarray, "T D"]:
        """Inputs to predict at, in this federation's order of columns; see `align_inputs`."""
        return align_inputs(X, self.inputs)

    def single_target(self, method_name: str) -> None:
        """Refuse several targets, for a method that learns one.

        Args:
            method_name: The method, for the message.

        Raises:
            DataError: If there is more than one target.
        """
        if len(self.targets) > 1:
            raise DataError(
                f"{method_name} learns one target, got {len(self.targets)} ({quoted(self.targets)}); "
                "choose one, or fit one model a target"
            )

    def __repr__(self) -> str:
        counts = {"client": len(self), "row": self.num_rows, "input": len(self.inputs), "target": len(self.targets)}
        return f"Federation({', '.join(counted(number, noun) for noun, number in counts.items())})"


def _agreed(
    came: Sequence[tuple[str, ...] | None], width: int, letter: str, names: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """The columns all clients are to have, and whose they are: those of the first client that has names for them."""
    named = [k for k, columns in enumerate(came) if columns is not None]
    if not named:
        return default_names(letter, width), who_is(names[0])
    columns = came[named[0]] or ()
    if len(named) < len(came) and len(columns) > 1:
        bare = next(k for k, columns in enumerate(came) if columns is None)
        label = {"x": "X", "y": "y"}[letter]
        raise DataError(
            f"{who_is(names[bare])}: {label} has no column names, that of {who_is(names[named[0]])} has; "
            "give DataFrames for all clients or arrays for all"
        )
    return columns, who_is(names[named[0]])


def _refuse_vanishing(
    matrices: Sequence[Float64[np.ndarray, "_ D"]], names: Sequence[str], columns: Sequence[str]
) -> None:
    """Refuse a column whose values are not all zero but so small at every client that their squares are."""
    is_suspect = np.ones(len(columns), dtype=bool)
    for matrix in matrices:  # the first client almost always clears every column
        is_suspect &= np.maximum(matrix.max(axis=0), -matrix.min(axis=0)) < _SMALLEST
        if not is_suspect.any():
            return
    for name, matrix in zip(names, matrices, strict=True):
        for j in np.flatnonzero(is_suspect & matrix.any(axis=0)):
            raise DataError(
                f'{who_is(name)}, column "{columns[int(j)]}": values are so small that squares vanish; '
                "rescale the column"
            )
