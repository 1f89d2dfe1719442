"""Arrays and frames become float64 columns. A message names client and column, never a value."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import narwhals as nw
import numpy as np
from jaxtyping import Float64, Int64
from narwhals.exceptions import DuplicateError

from fedgauss.errors import DataError, suggest

Table = dict[str, nw.Series[Any]]
"""A frame's columns by name, whichever library it came from."""

LARGEST = 1e150
"""Up to a hundred million values below this size have a finite sum of squares in float64."""

_KINDS = {"U": "text", "S": "text", "O": "Python objects", "c": "complex numbers", "M": "dates", "m": "durations"}


class Columns(NamedTuple):
    """Which columns of a table play which part."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    client: str | None


def quoted(names: Sequence[str], most: int = 8, mark: str = '"') -> str:
    """Names for a message, the first few of many.

    Example:
        >>> quoted(["a", "b"]), quoted(["a", "b", "c"], most=1)
        ('"a", "b"', '"a" and 2 more')
    """
    shown = ", ".join(f"{mark}{name}{mark}" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def default_names(letter: str, count: int) -> tuple[str, ...]:
    """Names for columns that came without: x0, x1, ... for inputs; y, or y0, y1, ... for targets."""
    return ("y",) if letter == "y" and count == 1 else tuple(f"{letter}{j}" for j in range(count))


def client_name(name: object, where: str = "") -> str:
    """A client's name as text; whole numbers are written out. Messages begin with `where`."""
    where = f"{where}: " if where else ""
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return str(name)
    if not isinstance(name, str):
        raise DataError(f"{where}a client's name must be text or a whole number, got {type(name).__name__}")
    if not name.strip():
        raise DataError(f"{where}a client's name is empty; give every client a name")
    return str(name)


def as_table(values: Any, who: str) -> Table | None:
    """The columns of a DataFrame or Series (pandas, polars, pyarrow) by name; None when it is neither."""
    try:
        native = nw.from_native(values, allow_series=True, pass_through=True)
    except DuplicateError:
        raise _repeated([str(name) for name in getattr(values, "columns", ())], who) from None
    if isinstance(native, nw.LazyFrame):
        raise DataError(f"{who}: got a lazy frame, expected one that holds its rows; call .collect() first")
    if isinstance(native, nw.Series):
        return {"" if native.name is None else str(native.name): native}
    if not isinstance(native, nw.DataFrame):
        return None
    columns = list(native.iter_columns())
    names = [str(column.name) for column in columns]
    if len(set(names)) < len(names):
        raise _repeated(names, who)
    return dict(zip(names, columns, strict=True))


def _repeated(names: Sequence[str], who: str) -> DataError:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    return DataError(f"{who}: two columns are named {quoted(repeated[:1])}; rename one")


def stack(table: Table, names: Sequence[str], who: str) -> Float64[np.ndarray, "N D"]:
    """The named columns side by side as float64; missing entries become NaN, what is not a number is refused."""
    num_rows = len(next(iter(table.values()))) if table else 0
    matrix = np.empty((num_rows, len(names)))
    for j, name in enumerate(names if num_rows else ()):
        column = table[name]
        is_number = column.dtype.is_numeric() or column.dtype == nw.Boolean
        if not is_number and column.null_count() < num_rows:
            came = getattr(column.to_native(), "dtype", column.dtype)
            _refuse_dtype(who, name, f"{_kind(column)} (dtype {came})")
        matrix[:, j] = (column if column.dtype == nw.Float64 else column.cast(nw.Float64)).to_numpy()
    return matrix


def _kind(column: nw.Series[Any]) -> str:
    dtype = column.dtype
    if dtype == nw.String:
        return "text"
    if isinstance(dtype, nw.Categorical | nw.Enum):
        return "categories"
    if dtype.is_temporal():
        return "dates or times"
    return "Python objects" if dtype == nw.Object else "values"


def _refuse_dtype(who: str, column: str, came: str) -> NoReturn:
    raise DataError(f'{who}, column "{column}": got {came}, expected numbers; convert the column or leave it out')


def as_matrix(values: Any, who: str, letter: str) -> tuple[Float64[np.ndarray, "N D"], tuple[str, ...] | None]:
    """Anything tabular as a C-contiguous float64 matrix, with column names where it has them; copies only if needed.

    Args:
        values: A DataFrame, a Series, an array or nested lists. One dimension is one column.
        who: What messages begin with.
        letter: "x" for inputs, "y" for targets.

    Raises:
        DataError: If it is sparse, not two-dimensional or not made of numbers.
    """
    label = {"x": "X", "y": "y"}[letter]
    table = as_table(values, who)
    if table is not None:
        names = tuple(table)
        return stack(table, names, who), (None if names == ("",) else names)
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise DataError(f"{who}: {label} is a sparse matrix, expected a dense array; call .toarray() first")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise DataError(f"{who}: {label} is not a table of numbers; its rows must all have the same length") from None
    if array.ndim not in (1, 2):
        raise DataError(f"{who}: {label} has shape {array.shape}, expected rows by columns")
    array = array[:, None] if array.ndim == 1 else array
    if array.dtype.kind not in "biuf":
        is_bad = [
            any(not isinstance(value, int | float | np.number) for value in column.tolist()) for column in array.T
        ]
        bad = is_bad.index(True) if True in is_bad else 0
        came = _KINDS.get(array.dtype.kind, "values")
        names = default_names(letter, array.shape[1]) or (label,)
        _refuse_dtype(who, names[bad], f"{came} (dtype {array.dtype})")
    with np.errstate(over="ignore"):  # a long double may become infinite here; `check_values` then names its column
        matrix = np.ascontiguousarray(array, dtype=np.float64)
    if np.ma.is_masked(values):
        matrix = np.where(np.ma.getmaskarray(values).reshape(matrix.shape), np.nan, matrix)
    return matrix, None


def check_values(
    matrix: Float64[np.ndarray, "N D"], names: Sequence[str], who: str, rows: Int64[np.ndarray, " N"] | None = None
) -> None:
    """Refuse NaN, infinities and values whose squares overflow, naming the column, how many rows and the first.

    Args:
        matrix: The values.
        names: One name a column.
        who: What the message begins with.
        rows: The rows' numbers in the table they came from; 0, 1, ... if not given.

    Raises:
        DataError: For the first column with such a value.
    """
    if matrix.size == 0:
        return
    # Two passes without a temporary; NaN is kept by min and max, and compares as false.
    is_fine = (matrix.min(axis=0) > -LARGEST) & (matrix.max(axis=0) < LARGEST)
    if is_fine.all():
        return
    j = int(np.argmin(is_fine))
    column = matrix[:, j]
    where = f'{who}, column "{names[j]}"'
    refuse_rows(where, np.isnan(column), "missing or NaN", "fill or drop them", rows)
    refuse_rows(where, np.isinf(column), "infinite", "correct or drop them", rows)
    refuse_rows(where, np.abs(column) >= LARGEST, "so large that squares overflow", "rescale the column", rows)


def refuse_rows(
    where: str,
    is_bad: np.ndarray[Any, np.dtype[np.bool_]],
    what: str,
    remedy: str,
    rows: Int64[np.ndarray, " N"] | None = None,
) -> None:
    """Raise if any row is bad: how many they are and the number of the first, never its value."""
    if is_bad.any():
        first = int(np.argmax(is_bad))
        row = first if rows is None else int(rows[first])
        raise DataError(
            f"{where}: {int(is_bad.sum())} of {len(is_bad)} rows are {what}, the first is row {row} "
            f"(counting from 0); {remedy}"
        )


def order_columns(came: Sequence[str], expected: Sequence[str], who: str, like: str) -> list[int]:
    """Where each expected column stands among those that came; missing, renamed and extra ones are refused by name."""
    position = {name: j for j, name in enumerate(came)}
    extra = [name for name in came if name not in set(expected)]
    for name in expected:
        if name not in position:
            hint = suggest(name, extra)
            if tuple(expected) == default_names("x", len(expected)):
                hint += "; names like x0 stand for arrays without names: give an array"
            raise DataError(f'{who}: column "{name}" is missing, {like} has it; got {quoted(came)}{hint}')
    if extra:
        raise DataError(f'{who}: column "{extra[0]}" was not expected, {like} has {quoted(expected)}; leave it out')
    return [position[name] for name in expected]


def choose_columns(
    came: Sequence[str],
    who: str,
    *,
    client: str | None,
    target: str | Iterable[str],
    inputs: str | Iterable[str] | None,
) -> Columns:
    """Give every column its part: each asked for is there, none twice; inputs are the others unless listed."""
    targets = _listed(target)
    others = [name for name in came if name != client and name not in targets]
    chosen = tuple(others) if inputs is None else _listed(inputs)
    asked = [(name, "target") for name in targets] + [(name, "input") for name in chosen]
    asked += [(client, "client column")] if client is not None else []
    for name, part in asked:
        if name not in came:
            raise DataError(f'{who}: no column "{name}" ({part}); got {quoted(came)}{suggest(name, came)}')
        if not name.strip():
            raise DataError(f"{who}: a column has no name (an index?); name it, or list the inputs")
        if came.count(name) > 1:
            raise DataError(f'{who}: two columns are named "{name}"; rename one')
    for name, times in Counter(name for name, _ in asked).items():
        if times > 1:
            parts = " and ".join(part for asked_name, part in asked if asked_name == name)
            raise DataError(f'{who}: column "{name}" is listed {times} times ({parts}); list it once')
    if not targets:
        raise DataError(f"{who}: no target column was named")
    if not chosen:
        raise DataError(f"{who}: no input column is left beside {quoted(targets)}; at least one is needed")
    return Columns(chosen, targets, client)


def _listed(names: str | int | Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        return (str(names),)
    return tuple(str(name) for name in names)
