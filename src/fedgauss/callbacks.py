"""What may watch a run: a progress bar, a checkpoint after every round, and a rule for stopping early."""

import hashlib
import json
import logging
import math
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rich.progress

from fedgauss.algorithm import fingerprint
from fedgauss.engines.local import Callback, Run
from fedgauss.errors import RunError, SettingsError
from fedgauss.files import append, write_atomically
from fedgauss.messages import from_bytes, to_bytes, types_in
from fedgauss.settings import check_positive

logger = logging.getLogger("fedgauss")

_DIGEST = hashlib.sha256().digest_size


class Progress(Callback):
    """A bar on stderr with the round, the objective and the seconds left.

    Args:
        label: What is being done.
        total: How many rounds there will be; `None` where the method stops by itself, after much fewer than its most.
    """

    def __init__(self, label: str, total: int | None) -> None:
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[objective]}"),
            rich.progress.TimeRemainingColumn(),
            console=rich.console.Console(stderr=True),
            transient=True,
        )
        self.task = self.bar.add_task(label, total=total, objective="")

    def start(self, run: Run) -> None:
        """Show the bar."""
        self.bar.start()

    def round_end(self, run: Run) -> None:
        """Move it."""
        row = run.history[-1]
        objective = f"objective {row['objective']:.4f}" if "objective" in row else ""
        self.bar.update(self.task, completed=len(run.history), objective=objective)

    def end(self, run: Run) -> None:
        """Take it away."""
        self.bar.stop()


class Checkpoint(Callback):
    """Keeps the last finished round on disk; a run that finds one there goes on from it, bit for bit.

    The state is written to a new file, synced, and renamed over the old one; history and ledger are appended to a
    journal, which is cut back to the last finished round on resuming. A run may be killed at any time. Callbacks that
    add columns to the history stand before this one.

    Args:
        folder: Where to keep it. It must belong to this run alone.
        every: Write after every so many rounds.

    Example:
        >>> import fedgauss as fg, numpy as np, tempfile
        >>> x = np.linspace(0.0, 1.0, 20)[:, None]
        >>> federation = fg.Federation.from_arrays({"a": (x, np.sin(9 * x[:, 0])), "b": (x, np.cos(9 * x[:, 0]))})
        >>> folder = tempfile.mkdtemp()
        >>> _ = fg.FGPR(rounds=2).fit(federation, callbacks=[fg.Checkpoint(folder)], progress=False)
        >>> model = fg.FGPR(rounds=2).fit(federation, callbacks=[fg.Checkpoint(folder)], progress=False)
        >>> len(model.history_)  # nothing was left to do
        2
    """

    restores = True

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 1) -> None:
        check_positive("Checkpoint", "every", every, whole=True)
        self.every = every
        self.state_file = Path(folder) / "state.safetensors"
        self.journal_file = Path(folder) / "journal.jsonl"

    def start(self, run: Run) -> None:
        """Restore what is there, if it belongs to this run."""
        self._identity = _identity(run)
        self._seen = hashlib.sha256()
        self._length = self._rows = self._entries = 0  # what the files hold: bytes of journal, rows, ledger entries
        self._next: _Page | None = None
        try:
            if self.state_file.exists():
                self._restore(run)
        except OSError as error:
            raise RunError(f"the checkpoint cannot be read: {error.strerror or type(error).__name__}") from error
        append(self.journal_file, self._length, b"")

    def round_end(self, run: Run) -> None:
        """Keep the round that just finished in mind, and write it if its turn has come."""
        self._next = self._page(run)
        if len(run.history) % self.every == 0:
            self._write(self._next)

    def end(self, run: Run) -> None:
        """Write the last finished round if it is not there yet."""
        if self._next is not None:
            self._write(self._next)

    def _page(self, run: Run) -> "_Page":
        page = {"history": run.history[self._rows :], "ledger": run.ledger.to_json(self._entries)}
        journal = json.dumps(page).encode() + b"\n"
        whole = self._seen.copy()
        whole.update(journal)
        state = {
            "run": run.state(),
            "identity": np.frombuffer(self._identity, dtype=np.uint8),
            "journal": np.array(self._length + len(journal)),
            "journal_digest": np.frombuffer(whole.digest(), dtype=np.uint8),
        }
        content = to_bytes(state)
        content = hashlib.sha256(content).digest() + content
        return _Page(journal, content, whole, len(run.history), len(run.ledger.entries))

    def _write(self, page: "_Page") -> None:
        self._next = None
        length = append(self.journal_file, self._length, page.journal)
        write_atomically(self.state_file, page.state)
        self._length, self._seen, self._rows, self._entries = length, page.seen, page.rows, page.entries

    def _restore(self, run: Run) -> None:
        try:
            digest, content = (whole := self.state_file.read_bytes())[:_DIGEST], whole[_DIGEST:]
            if hashlib.sha256(content).digest() != digest:
                raise ValueError("the state is not what was written")
            saved = from_bytes(content, _types(run))
            identity, self._length = saved["identity"].tobytes(), int(saved["journal"])
            journal = self.journal_file.read_bytes()[: self._length]
            self._seen = hashlib.sha256(journal)
            if self._seen.digest() != saved["journal_digest"].tobytes():
                raise ValueError("the journal is not what was written")
            pages = [json.loads(line) for line in journal.splitlines()]
            if identity == self._identity:
                run.restore(saved["run"])
                for page in pages:
                    run.history.extend(page["history"])
                    run.ledger.read_json(page["ledger"])
        except (ValueError, KeyError, TypeError, IndexError, FileNotFoundError) as error:
            raise RunError(
                "the checkpoint is damaged: a file is missing, cut short or not ours. Choose an empty folder, or remove"
                " the checkpoint, to begin again"
            ) from error
        if identity != self._identity:
            raise RunError(
                "the checkpoint belongs to another run: its method, settings, clients, data, schedule, engine or seed"
                " differ. Choose an empty folder, or remove the checkpoint"
            )
        self._rows, self._entries = len(run.history), len(run.ledger.entries)
        logger.info("resumed after round %d", len(run.history))


class _Page(NamedTuple):
    """A finished round on its way to disk, with what came before it and is not there yet."""

    journal: bytes
    state: bytes
    seen: Any
    """The digest of the whole journal with this."""
    rows: int
    entries: int


def _identity(run: Run) -> bytes:
    """What a run must share with the one that wrote a checkpoint."""
    data = [_projection(part) for one in run.worker.buckets for part in (one.X, one.Y)]
    numbers = [run.sizes.tolist(), run.worker.weights.tolist(), data, run.seed]
    return json.dumps([fingerprint(run.algorithm), run.names, repr(run.schedule), repr(run.engine), numbers]).encode()


def _projection(part: Any) -> list[str]:
    """The data of a bucket [C, N, D] in two numbers that change with its values, their order and their signs.

    To nine digits of their usual size: on another number of cores the last bits of standardised data may differ.
    """
    draw = np.random.default_rng(0)
    weights = [draw.standard_normal(length) for length in part.shape]
    usual = float(np.sqrt(np.mean(part**2) * part.size)) or 1.0
    return [f"{np.einsum('cnd,c,n,d->', part, *weights, optimize=True) / usual:.9f}", f"{usual:.9g}"]


def _types(run: Run) -> set[type]:
    """The named tuples a state may be made of: those it has at the start, and those beside the algorithm."""
    beside = vars(sys.modules[type(run.algorithm).__module__]).values()
    return types_in(run.state()) | {kind for kind in beside if isinstance(kind, type) and hasattr(kind, "_fields")}


class EarlyStopping(Callback):
    """Stop when the objective, or any column of the history, has not become smaller for a while.

    Args:
        column: Of the history, such as "objective" or "validation_nlpd".
        patience: How many rounds with a value in that column to wait for something better.
        min_delta: By how much better.
        keep_best: Whether to go back, at the end, to what the server knew after the best round. What clients keep
            for themselves stays as it is. With `fg.Checkpoint`, this callback stands before it.
    """

    def __init__(
        self, column: str = "objective", *, patience: int = 10, min_delta: float = 0.0, keep_best: bool = False
    ) -> None:
        check_positive("EarlyStopping", "patience", patience, whole=True)
        self.column, self.patience, self.min_delta, self.keep_best = column, patience, min_delta, keep_best
        self._best, self._since = math.inf, 0

    def start(self, run: Run) -> bool:
        """Forget earlier runs; after a resume, look through the rounds that are there."""
        self._best, self._since = math.inf, 0
        for row in run.history:
            self._see(row)
        return self._since >= self.patience

    def round_end(self, run: Run) -> bool:
        """Whether patience is at an end."""
        row = run.history[-1]
        if self.column not in row and len(run.history) == 1:
            known = sorted(name for name, value in row.items() if isinstance(value, float))
            raise SettingsError(f"EarlyStopping: the history has no column {self.column!r}, only {', '.join(known)}")
        if self._see(row) and self.keep_best:
            run.kept = run.server
        return self._since >= self.patience

    def end(self, run: Run) -> None:
        """Go back to the best round, if asked to."""
        if self.keep_best and len(run.kept):
            run.exchange.server = run.kept

    def _see(self, row: dict[str, Any]) -> bool:
        """Whether this round is the best so far."""
        value = row.get(self.column)
        if value is None:
            return False
        is_best = bool(value < self._best - self.min_delta)
        if is_best:
            self._best, self._since = value, 0
        else:
            self._since += 1
        return is_best
