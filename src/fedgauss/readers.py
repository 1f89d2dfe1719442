"""CSV and Parquet files become frames. A message names the client, the file's stem: never a value, never a path."""

import csv
import glob
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import polars as pl

from fedgauss.columns import Columns, refuse_rows
from fedgauss.errors import DataError

_SUFFIXES = (".csv", ".parquet")
_TEXT_REMEDY = "text, a unit or a mark for missing values stands there; leave the column out or clean it"
_COMMA_REMEDY = (
    "they have a comma; write a decimal point and nothing between thousands, or read the file with"
    ' pandas.read_csv(..., decimal=",") or thousands="," and use Federation.from_frame'
)


def find_files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> dict[str, Path]:
    """Files by the name of their client, which is the file's stem.

    Args:
        paths: A file, a folder (its CSV and Parquet files), a glob pattern, or a list of these.

    Raises:
        DataError: If nothing is found, a file is neither CSV nor Parquet, or two have the same stem.
    """
    if not isinstance(paths, str | os.PathLike | Iterable):
        raise DataError(
            f"paths: got {type(paths).__name__}, expected a file, a folder, a glob pattern or a list of these"
        )
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: dict[str, Path] = {}
    for path in itertools.chain.from_iterable(_expand(os.fspath(item)) for item in listed):
        if path.suffix.lower() not in _SUFFIXES:
            came = f'"{path.suffix}"' if path.suffix else "no suffix"
            raise DataError(f'client "{path.stem}": the file has {came}, expected .csv or .parquet')
        if path.stem in files and path.resolve() != files[path.stem].resolve():
            raise DataError(f'two files would both be client "{path.stem}"; rename one')
        files[path.stem] = path
    if not files:
        raise DataError("no files were given")
    return files


def _expand(text: str) -> list[Path]:
    path = Path(text).expanduser()
    if path.is_dir():
        found = [p for p in path.iterdir() if p.suffix.lower() in _SUFFIXES and p.is_file() and p.name[0] != "."]
        if not found:
            raise DataError(f'folder "{path.resolve().name}" holds no CSV or Parquet file')
        return sorted(found)
    if path.exists():
        return [path]
    if not any(mark in text for mark in "*?["):
        raise DataError(f'client "{path.stem}": there is no file "{path.name}"')
    found = [p for p in map(Path, glob.glob(str(path), recursive=True)) if not p.is_dir()]
    if not found:
        raise DataError(f'no file matches "{path.name}"')
    return sorted(found)


def read_file(path: Path, who: str, choose: Callable[[Sequence[str]], Columns]) -> tuple[pl.DataFrame, Columns]:
    """Read the chosen columns of one CSV or Parquet file.

    Args:
        path: The file.
        who: What messages begin with.
        choose: Gives the columns of the header their parts.

    Returns:
        The columns asked for, targets and inputs of a CSV file as float64, and their parts.

    Raises:
        DataError: If the file cannot be read, is empty, ragged, not UTF-8, or holds text where numbers are expected.
    """
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{who}: the file is empty (0 bytes)")
        read = _read_csv if path.suffix.lower() == ".csv" else _read_parquet
        return read(path, who, choose)
    except OSError as error:
        raise DataError(f"{who}: the file cannot be read ({error.strerror or type(error).__name__})") from None


def _used(columns: Columns) -> list[str]:
    return [*columns.inputs, *columns.targets, *([columns.client] if columns.client is not None else [])]


def _read_parquet(path: Path, who: str, choose: Callable[[Sequence[str]], Columns]) -> tuple[pl.DataFrame, Columns]:
    try:
        with path.open("rb") as file:
            columns = choose(list(pl.read_parquet_schema(file)))
        return pl.read_parquet(path, columns=_used(columns), glob=False, hive_partitioning=False), columns
    except pl.exceptions.PolarsError:
        raise DataError(f"{who}: the file is not readable as Parquet; is it complete?") from None


def _read_csv(path: Path, who: str, choose: Callable[[Sequence[str]], Columns]) -> tuple[pl.DataFrame, Columns]:
    header, separator, num_lines = _csv_header(path, who)
    try:
        columns = choose(header)
    except DataError:
        if any(_is_number(name) for name in header):  # the names would be values: the usual message would show them
            raise DataError(
                f"{who}: the first line holds numbers, expected a header with column names. If it is one, it has not"
                " all of the target, inputs and client column asked for"
            ) from None
        raise
    numeric = [header.index(name) for name in (*columns.inputs, *columns.targets)]

    def read(numeric: Sequence[int]) -> pl.DataFrame | None:  # columns go by position: names may be empty or repeated
        schema = {str(j): pl.Float64 if j in numeric else pl.String for j in range(len(header))}
        try:
            return pl.read_csv(
                path, has_header=False, skip_lines=num_lines, separator=separator, schema=schema, glob=False
            )
        except pl.exceptions.PolarsError:  # says what is wrong with a value by showing it: it must not be chained
            return None

    frame = read(numeric)
    if frame is None:  # find out by a slower way
        _check_records(path, who, separator, num_lines, len(header))
        frame = read([])
        if frame is None:
            raise _not_csv(who)
        frame = frame.with_columns(_numbers(frame[str(j)], f'{who}, column "{header[j]}"') for j in numeric)
    if frame.height and all(value is None for value in frame.row(-1)):  # blank lines at the end
        filled = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series().arg_true()
        frame = frame.head(filled[-1] + 1 if len(filled) else 0)
    if frame.height and frame[:, -1].null_count():  # an empty field, or a row that ends early
        _check_records(path, who, separator, num_lines, len(header))
    used = _used(columns)
    return frame.select(pl.col(str(header.index(name))).alias(name) for name in used), columns


def _csv_header(path: Path, who: str) -> tuple[list[str], str, int]:
    """Column names, the separator (comma or semicolon, quotes respected) and the number of lines up to the data."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
            outside = re.sub(r'"[^"]*"?', "", first)
            separator = ";" if outside.count(";") > outside.count(",") else ","
            file.seek(0)
            records = csv.reader(file, delimiter=separator)
            header = [name.strip() for name in next((record for record in records if record), [])]
            num_lines = records.line_num
            while (record := next(records, None)) == []:  # blank lines below the header
                num_lines = records.line_num
    except UnicodeDecodeError:
        raise _not_utf8(who) from None
    except csv.Error:
        raise _not_csv(who) from None
    if first.endswith("\r"):
        raise DataError(f"{who}: its lines end with a carriage return alone; save it with ordinary line ends")
    if not any(header):
        raise DataError(f"{who}: the file has no header line")
    if record is None:
        raise DataError(f"{who}: the file has a header but no rows")
    if len(header) == 1 and "\t" in header[0]:
        raise DataError(f"{who}: columns are separated by tabs, expected commas or semicolons")
    return header, separator, num_lines


def _check_records(path: Path, who: str, separator: str, num_lines: int, width: int) -> None:
    """Refuse what is not UTF-8 and rows that are shorter or longer than the header."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = itertools.islice(file, num_lines, None)
            for row, record in enumerate(csv.reader(lines, delimiter=separator)):
                if record and len(record) != width:
                    raise DataError(
                        f"{who}: row {row} (counting from 0) has {len(record)} fields, the header has {width}"
                    )
    except UnicodeDecodeError:
        raise _not_utf8(who) from None
    except csv.Error:
        raise _not_csv(who) from None


def _not_csv(who: str) -> DataError:
    return DataError(f"{who}: the file is not readable as CSV; is a quote left open?")


def _not_utf8(who: str) -> DataError:
    return DataError(f"{who}: the file is not UTF-8 text; save it as UTF-8")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(text: pl.Series, where: str) -> pl.Series:
    """Numbers, or true and false, written as text."""
    text = text.str.strip_chars()
    words = text.str.to_lowercase()
    if words.drop_nulls().is_in(["true", "false"]).all():
        return (words == "true").cast(pl.Float64)
    numbers = text.cast(pl.Float64, strict=False)
    is_text = (numbers.is_null() & (text != "")).fill_null(False)
    has_comma = is_text.any() and text.filter(is_text).str.contains(r"^[+-]?\d*,\d+$").all()
    refuse_rows(where, is_text.to_numpy(), "not numbers", _COMMA_REMEDY if has_comma else _TEXT_REMEDY)
    return numbers
