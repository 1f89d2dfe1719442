"""What may watch a run: a progress bar, a checkpoint after every round, and a rule for stopping early."""

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import rich.progress

from fedgauss.algorithm import fingerprint
from fedgauss.engines.local import Callback, Run
from fedgauss.errors import RunError, SettingsError
from fedgauss.files import write_atomically
from fedgauss.messages import from_bytes, to_bytes, types_in

logger = logging.getLogger("fedgauss")


class Progress(Callback):
    """A bar on stderr with the round, the objective and the seconds left.

    Args:
        label: What is being done.
        total: How many rounds there will be at most.
    """

    def __init__(self, label: str, total: int) -> None:
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
    journal, which is cut back to the last finished round on resuming. A run may be killed at any time.

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

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 1) -> None:
        if every < 1:
            raise SettingsError(f"Checkpoint(every={every}): expected a whole number of rounds, at least 1")
        self.folder = Path(folder)
        self.every = every
        self._journal: Any = None
        self._rows = self._entries = 0

    def start(self, run: Run) -> None:
        """Restore what is there, if it belongs to this run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state_file, journal_file = self.folder / "state.safetensors", self.folder / "journal.jsonl"
        length = 0
        if state_file.exists():
            saved = from_bytes(state_file.read_bytes(), types_in(run.state()) | _answer_types(run))
            if saved["identity"].tobytes().decode() != self._identity(run):
                raise RunError(
                    "the checkpoint belongs to another run: its method, settings, clients, schedule or seed differ."
                    " Choose an empty folder, or remove the checkpoint"
                )
            run.restore(saved["run"])
            length = int(saved["journal"])
            with journal_file.open("rb") as journal:
                for line in journal.read(length).splitlines():
                    page = json.loads(line)
                    run.history.extend(page["history"])
                    run.ledger.read_json(page["ledger"])
            logger.info("resumed after round %d", len(run.history))
        self._journal = journal_file.open("ab")
        self._journal.truncate(length)
        self._rows, self._entries = len(run.history), len(run.ledger.entries)

    def round_end(self, run: Run) -> None:
        """Write the round that just finished."""
        if len(run.history) % self.every == 0:
            self._write(run)

    def end(self, run: Run) -> None:
        """Write what is left, and close the journal."""
        if self._journal is not None:
            if len(run.history) > self._rows:
                self._write(run)
            self._journal.close()
            self._journal = None

    def _write(self, run: Run) -> None:
        page = {"history": run.history[self._rows :], "ledger": run.ledger.to_json(self._entries)}
        self._journal.write(json.dumps(page).encode() + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._rows, self._entries = len(run.history), len(run.ledger.entries)
        state = {
            "run": run.state(),
            "identity": np.frombuffer(self._identity(run).encode(), dtype=np.uint8),
            "journal": np.array(self._journal.tell()),
        }
        write_atomically(self.folder / "state.safetensors", to_bytes(state))

    def _identity(self, run: Run) -> str:
        sizes = [int(size) for size in run.sizes]
        return json.dumps([fingerprint(run.algorithm), run.names, sizes, repr(run.schedule), repr(run.engine), run.seed])


def _answer_types(run: Run) -> set[type]:
    return types_in(run.server) | types_in(run.clients)


class EarlyStopping(Callback):
    """Stop when the objective, or any column of the history, has not become smaller for a while.

    Args:
        column: Of the history, such as "objective" or "validation_nlpd".
        patience: How many rounds to wait for something better.
        min_delta: By how much better.
    """

    def __init__(self, column: str = "objective", *, patience: int = 10, min_delta: float = 0.0) -> None:
        self.column, self.patience, self.min_delta = column, patience, min_delta
        self._best, self._since = math.inf, 0

    def start(self, run: Run) -> None:
        """Forget earlier runs; after a resume, look through the rounds that are there."""
        self._best, self._since = math.inf, 0
        for row in run.history:
            self._see(row)

    def round_end(self, run: Run) -> bool:
        """Whether patience is at an end."""
        row = run.history[-1]
        if self.column not in row and len(run.history) == 1:
            known = sorted(name for name, value in row.items() if isinstance(value, float))
            raise SettingsError(f"EarlyStopping: the history has no column {self.column!r}, only {', '.join(known)}")
        self._see(row)
        return self._since >= self.patience

    def _see(self, row: dict[str, Any]) -> None:
        value = row.get(self.column)
        if value is None:
            return
        if value < self._best - self.min_delta:
            self._best, self._since = value, 0
        else:
            self._since += 1
