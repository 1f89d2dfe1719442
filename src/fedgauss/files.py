"""Files that are whole or not there: written beside their place, synced, and renamed into it."""

import contextlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from fedgauss.errors import DataError, RunError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a crash, or a full disk, leaves the old one or none.

    Raises:
        RunError: If it cannot be written; says why, and that what was there is still there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # tempfile would hide it from others for good
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise _could_not_write(path, error) from error


def append(path: Path, length: int, content: bytes) -> int:
    """Cut a file back to `length` bytes and add to it; the new length, once it is safe on disk.

    Raises:
        RunError: If it cannot be written; the first `length` bytes stay as they are.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(length)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _could_not_write(path, error) from error
    return length + len(content)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself last, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON file of ours.

    Raises:
        DataError: If it is not there or not JSON; says what was expected.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except OSError as error:
        raise DataError(f"'{path.parent.name}' holds no {path.name}: expected {what}") from error
    except ValueError as error:
        raise DataError(f"'{path.parent.name}/{path.name}' is not JSON: expected {what}") from error
    return found


def parquet_bytes(table: pl.DataFrame) -> bytes:
    """A table as a Parquet file's content. Polars reports a full disk in words of its own; `write_bytes` does not."""
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


@contextlib.contextmanager
def replace_folder(folder: Path, *, marker: str) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `folder` when it is whole.

    Args:
        folder: A new name, an empty folder, or one that holds a file named `marker` and may be replaced.
        marker: A file that every such folder has.

    Raises:
        RunError: If `folder` holds something else, or writing fails; what was there is still there.
    """
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / marker).exists())):
        raise RunError(f"'{folder.name}' exists and holds something else (no {marker}); choose another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        place.mkdir()  # not by tempfile, which hides it from others whatever the user's umask says
    except OSError as error:
        raise _could_not_write(folder, error) from error
    try:
        yield place
        for file in place.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        _sync_folder(place)
        if folder.exists():
            old = place.with_name(f"{place.name}.old")
            os.replace(folder, old)
            try:
                os.replace(place, folder)
            except OSError:
                os.replace(old, folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(place, folder)
        _sync_folder(folder.parent)
    except OSError as error:
        raise _could_not_write(folder, error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _could_not_write(path: Path, error: OSError) -> RunError:
    return RunError(
        f"could not write '{path.name}': {error.strerror or type(error).__name__}. What was there before is untouched;"
        " free some space or choose another folder, then try again"
    )
