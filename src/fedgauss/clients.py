"""One client's data, checked at the door; inputs to predict at, in the model's order of columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from fedgauss.columns import as_matrix, check_values, client_name, default_names, order_columns, quoted
from fedgauss.errors import DataError


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Client:
    """One client's data, checked, converted to float64 and copied. The arrays are read-only.

    Args:
        X: Inputs [N, D]: an array, nested lists or a DataFrame (pandas, polars); one dimension is one input.
        y: Targets: [N], [N, 1], or [N, P] for P targets; an array, a Series or a DataFrame.
        name: Text or a whole number. A client that took no part in training needs none.

    Raises:
        DataError: If the data is empty, not made of finite numbers, or X and y have different lengths. The message
            names client and column, never a value.

    Example:
        >>> client = Client([[0.0], [1.0], [2.0]], [5, 6, 7], name="a")
        >>> client
        Client("a": 3 rows, 1 input, 1 target)
        >>> client.X.shape, client.Y.shape, client.Y.dtype
        ((3, 1), (3, 1), dtype('float64'))
    """

    X: Float64[np.ndarray, "N D"]
    Y: Float64[np.ndarray, "N P"]
    name: str | None
    inputs: tuple[str, ...] | None
    """The inputs' column names; None if they came as an array."""
    targets: tuple[str, ...] | None
    """The targets' names; None if they came as an array."""

    def __init__(self, X: Any, y: Any, name: str | int | np.integer[Any] | None = None) -> None:
        known = None if name is None else client_name(name)
        who = who_is(known)
        matrix, inputs = as_matrix(X, who, "x")
        targets_matrix, targets = as_matrix(y, who, "y")
        self._fill(_own(matrix, X), _own(targets_matrix, y), known, inputs, targets)

    def _fill(
        self,
        X: Float64[np.ndarray, "N D"],
        Y: Float64[np.ndarray, "K P"],
        name: str | None,
        inputs: tuple[str, ...] | None,
        targets: tuple[str, ...] | None,
        rows: Int64[np.ndarray, " N"] | None = None,
    ) -> None:
        who = who_is(name)
        if X.shape[1] == 0 or Y.shape[1] == 0:
            raise DataError(f"{who}: {'y' if X.shape[1] else 'X'} has no columns")
        if len(X) != len(Y):
            raise DataError(f"{who}: X has {len(X)} rows, y has {len(Y)}; each row of X needs one target")
        if len(X) == 0:
            raise DataError(f"{who}: no rows; leave this client out")
        if both := [column for column in inputs or () if column in (targets or ())]:
            raise DataError(f'{who}: column "{both[0]}" is both an input and the target; take it out of X')
        check_values(X, inputs or default_names("x", X.shape[1]), who, rows)
        check_values(Y, targets or default_names("y", Y.shape[1]), who, rows)
        values = {"X": _read_only(X), "Y": _read_only(Y), "name": name, "inputs": inputs, "targets": targets}
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @classmethod
    def of_matrices(
        cls,
        X: Float64[np.ndarray, "N D"],
        Y: Float64[np.ndarray, "N P"],
        name: str | None,
        inputs: tuple[str, ...] | None,
        targets: tuple[str, ...] | None,
        rows: Int64[np.ndarray, " N"] | None = None,
    ) -> "Client":
        """A client of matrices that need no conversion; `rows` are their numbers in the table they came from."""
        client = object.__new__(cls)
        client._fill(X, Y, name, inputs, targets, rows)
        return client

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.X)

    def with_values(self, X: Any = None, Y: Any = None) -> "Client":
        """This client with other inputs or targets, checked again; what keeps its width keeps its column names."""
        inputs, targets = self.inputs, self.targets
        if X is not None:
            X, named = as_matrix(X, who_is(self.name), "x")
            inputs = named or (inputs if X.shape[1] == self.X.shape[1] else None)
        if Y is not None:
            Y, named = as_matrix(Y, who_is(self.name), "y")
            targets = named or (targets if Y.shape[1] == self.Y.shape[1] else None)
        return Client.of_matrices(self.X if X is None else X, self.Y if Y is None else Y, self.name, inputs, targets)

    def take(self, rows: Int64[np.ndarray, " T"]) -> "Client":
        """This client with only these rows."""
        return Client.of_matrices(self.X[rows], self.Y[rows], self.name, self.inputs, self.targets)

    def align(self, inputs: Sequence[str], targets: Sequence[str], like: str = "the model") -> "Client":
        """This client with its columns in the order of `inputs` and `targets`; columns without names are counted.

        Args:
            inputs: The inputs expected.
            targets: The targets expected.
            like: Who expects them, for messages.

        Raises:
            DataError: If a column is missing, has another name or is one too many.

        Example:
            >>> import polars as pl
            >>> client = Client(pl.DataFrame({"b": [1.0], "a": [2.0]}), [3.0])
            >>> client.align(["a", "b"], ["y"]).X
            array([[2., 1.]])
        """
        who = who_is(self.name)
        X, came = _aligned(self.X, self.inputs, inputs, f"{who}: X", like)
        Y, gave = _aligned(self.Y, self.targets, targets, f"{who}: y", like)
        if X is self.X and Y is self.Y:
            return self
        return Client.of_matrices(X, Y, self.name, came, gave)

    def __repr__(self) -> str:
        label = "without a name" if self.name is None else f'"{self.name}"'
        counts = (counted(self.num_rows, "row"), counted(self.X.shape[1], "input"), counted(self.Y.shape[1], "target"))
        return f"Client({label}: {', '.join(counts)})"


def who_is(name: str | None) -> str:
    """What messages about a client begin with."""
    return "the client without a name" if name is None else f'client "{name}"'


def counted(number: int, noun: str) -> str:
    """'1 row', '2 rows'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _own(matrix: Float64[np.ndarray, "N D"], given: Any) -> Float64[np.ndarray, "N D"]:
    """The matrix, copied where the caller still holds its memory and may change it."""
    is_shared = not isinstance(given, np.ndarray) or np.may_share_memory(matrix, given)
    return matrix.copy() if is_shared else matrix


def _read_only(matrix: Float64[np.ndarray, "N D"]) -> Float64[np.ndarray, "N D"]:
    """A view, so that the array of the caller stays writable."""
    view = np.ascontiguousarray(matrix).view()
    view.flags.writeable = False
    return view


def _aligned(
    matrix: Float64[np.ndarray, "N D"], came: tuple[str, ...] | None, expected: Sequence[str], who: str, like: str
) -> tuple[Float64[np.ndarray, "N D"], tuple[str, ...] | None]:
    """The same matrix if its columns are in order, else a copy that is."""
    if came is None:
        if matrix.shape[1] != len(expected):
            raise DataError(
                f"{who} has {counted(matrix.shape[1], 'column')}, {like} has {len(expected)} ({quoted(expected)})"
            )
        return matrix, None
    if came == tuple(expected):
        return matrix, came
    order = order_columns(came, expected, who, like)
    return matrix[:, order], tuple(expected)


def align_inputs(X: Any, inputs: Sequence[str], who: str = "the new inputs") -> Float64[np.ndarray, "T D"]:
    """Inputs to predict at, as float64 with columns in the model's order.

    Args:
        X: A DataFrame, whose columns are ordered by name, or an array, whose columns are counted. An array of one
            dimension is one input at T places, so it needs a model of one input. No rows are fine.
        inputs: The model's inputs.
        who: What messages begin with.

    Raises:
        DataError: If a column is missing, unknown or not made of finite numbers.

    Example:
        >>> import polars as pl
        >>> align_inputs(pl.DataFrame({"b": [1, 2], "a": [3, 4]}), ["a", "b"])
        array([[3., 1.],
               [4., 2.]])
    """
    matrix, came = as_matrix(X, who, "x")
    if came is None and np.ndim(X) == 1 and len(inputs) > 1:
        raise DataError(f"{who} have one dimension, expected rows by {len(inputs)} columns; for one row write X[None]")
    matrix, _ = _aligned(matrix, came, inputs, f"{who}: X", "the model")
    check_values(matrix, inputs, who)
    return np.ascontiguousarray(matrix)
