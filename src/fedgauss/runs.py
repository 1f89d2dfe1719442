"""The folder of a run: begun under rules that protect what is there, written file by file, each whole or not at all."""

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from fedgauss import figures, metrics
from fedgauss.errors import RunError, SettingsError
from fedgauss.federation import Federation
from fedgauss.files import parquet_bytes, write_atomically
from fedgauss.fitted import Fitted, Results

MARK = "# Written by fedgauss"
HEADLINE = f"{MARK}: everything this run was asked to do."
RUN_FILE, MODEL, CHECKPOINT, METRICS, FIGURES = "run.toml", "model", "checkpoint", "metrics.json", "figures"

_GRID = 200
"""Places at which the figure of a prediction over one input is drawn."""


@contextlib.contextmanager
def started(folder: Path, text: str, *, resume: bool = False) -> Iterator[None]:
    """The folder of a run, from its first file on. If the run fails before anything was kept, nothing of it stays.

    Args:
        folder: A new name or an empty folder; with `resume` also the folder of the same run.
        text: The run file in full. It is written first, and marks the folder as a run.
        resume: Whether a run that is there is gone on with.

    Raises:
        SettingsError: If the folder holds something else, another run, or a run and `resume` was not asked for.
        RunError: If it cannot be written; or if Ctrl-C was pressed, when a finished round was kept.
    """
    was_fresh = not _check_folder(folder, text, resume=resume)
    existed = folder.exists()
    try:
        write_atomically(folder / RUN_FILE, text.encode())
        yield
    except BaseException as error:
        is_kept = (folder / CHECKPOINT / "state.safetensors").exists() or (folder / MODEL).exists()
        if was_fresh and not is_kept:
            _empty(folder, keep=existed)
        if isinstance(error, KeyboardInterrupt) and is_kept:
            raise RunError(
                f"stopped at once. The last finished round is kept in '{folder.name}'; --resume goes on from there"
            ) from None
        raise


def is_finished(folder: Path, text: str) -> bool:
    """Whether the folder holds this run, and nothing is left to do."""
    return (
        _text(folder) == text
        and (folder / METRICS).exists()
        and not json.loads((folder / METRICS).read_text())["stopped"]
    )


def _check_folder(folder: Path, text: str, *, resume: bool) -> bool:
    """Whether there is a run to go on with; refuses a folder that must not be touched."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    came = _text(folder)
    if came is None:
        raise SettingsError(f"output folder '{folder.name}': exists and holds something else; choose another name")
    if not resume:
        raise SettingsError(
            f"output folder '{folder.name}': holds a run already; choose another name, or go on with it by --resume"
        )
    if came != text:
        ours, theirs = (dict(_settings(one)) for one in (text, came))
        differ = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
        raise SettingsError(
            f"output folder '{folder.name}': holds another run, which differs in {', '.join(differ) or RUN_FILE};"
            " choose another name, or put the settings back"
        )
    return True


def _text(folder: Path) -> str | None:
    """The run file in a folder, if we wrote it."""
    try:
        text = (folder / RUN_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if text.startswith(MARK) else None


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Dotted keys and values of a run file that we wrote, one a line."""
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif " = " in line:
            key, value = line.split(" = ", 1)
            yield section + key, value


def _empty(folder: Path, *, keep: bool) -> None:
    for item in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(item) if item.is_dir() else item.unlink()
    if not keep and folder.is_dir():
        folder.rmdir()


def write(
    folder: Path,
    model: Fitted[Any],
    train: Federation,
    test: Federation | None,
    *,
    seed: int,
    stopped: bool = False,
    include_data: bool = False,
    figures: bool = True,
    more: dict[str, Any] | None = None,
) -> pl.DataFrame | None:
    """Everything that is worth keeping of a run: model, history, ledger, figures and, last of all, metrics.

    Args:
        folder: A folder that `started` made.
        model: What was fitted.
        train: What it was fitted to.
        test: Held-out rows of the same clients, if there are any.
        seed: The run's seed.
        stopped: Whether the run ended before its time; its checkpoint then stays.
        include_data: Whether the model is saved with its training data.
        figures: Whether to draw.
        more: Further entries of the metrics.

    Returns:
        Metrics by client, "pooled" and "mean", as `Fitted.evaluate` gives them; `None` without held-out rows.

    Raises:
        RunError: If something cannot be written. What was written before is whole.
    """
    model.save(folder / MODEL, include_data=include_data)
    history = model.history_
    write_table(folder / "history.parquet", history)
    write_table(folder / "ledger.parquet", model.ledger_)
    results = None if test is None else model.results(test)
    table = None if results is None else metrics.per_client(results)
    if figures:
        draw(folder / FIGURES, model, train, results)
    found = {
        "method": model.learned.method,
        "seed": seed,
        "rounds": len(history),
        "stopped": stopped,
        "rows": {name: client.num_rows for name, client in train.items()},
        "test_rows": {} if test is None else {name: client.num_rows for name, client in test.items()},
        "metrics": {} if table is None else by_client(table),
    }
    write_atomically(folder / METRICS, json.dumps(found | (more or {}), indent=2, ensure_ascii=False).encode())
    if not stopped:
        shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)
    return table


def by_client(table: pl.DataFrame) -> dict[str, dict[str, float]]:
    """A table of metrics as a dict of dicts, for JSON.

    Example:
        >>> by_client(metrics.per_client({"a": ([1.0], [0.0], [1.0])}))["pooled"]["mae"]
        1.0
    """
    return {row.pop("client"): row for row in table.iter_rows(named=True)}


def write_table(path: Path, table: pl.DataFrame) -> None:
    """A table as CSV or Parquet, as the name ends.

    Raises:
        RunError: If it cannot be written; nothing half-written is left.
    """
    is_csv = path.suffix.lower() == ".csv"
    write_atomically(path, table.write_csv().encode() if is_csv else parquet_bytes(table))


def draw(folder: Path, model: Fitted[Any], train: Federation, results: Results | None) -> None:
    """The figures of a run: convergence, calibration, and a client's prediction or predicted against observed."""
    history, targets = model.history_, model.learned.targets
    if len(history) > 1 and "objective" in history.columns:
        save_figure(folder / "convergence.png", figures.convergence(history))
    if results is not None:
        save_figure(folder / "calibration.png", figures.calibration(results, title="Calibration on held-out rows"))
    if len(train.inputs) == 1 and len(targets) == 1:
        few = min(train.clients, key=lambda client: client.num_rows)
        save_figure(folder / "prediction.png", prediction(model, str(few.name), train))
    elif results is not None:
        y, mean, std = metrics.pooled(results)
        title = "Held-out rows: predicted against observed"
        figure = figures.predicted_against_observed(y, mean, std, title=title, target_name=" and ".join(targets))
        save_figure(folder / "predicted.png", figure)


def prediction(model: Fitted[Any], name: str, train: Federation) -> Figure:
    """One client's prediction over the range of all clients' input."""
    client, (input_name,) = train[name], train.inputs
    ends = [end(one.X) for end in (np.min, np.max) for one in train.clients]
    grid = np.linspace(min(ends), max(ends), _GRID)[:, None]
    mean, std = model.predict(name, grid, return_std=True)
    rows = f"{client.num_rows} row{'' if client.num_rows == 1 else 's'}"
    whose = f"{name}, {rows}"
    if model.is_global:
        whose = f"One model for all; the rows are those of {name}"
    return figures.prediction(
        client.X, client.Y[:, 0], grid, mean, std,
        title=f"{model.learned.method}: {whose}", input_name=input_name, target_name=model.learned.targets[0],
    )  # fmt: skip


def save_figure(path: Path, figure: Figure) -> None:
    """A figure as PNG.

    Raises:
        RunError: If it cannot be written; nothing half-written is left.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomically(path, buffer.getvalue())
