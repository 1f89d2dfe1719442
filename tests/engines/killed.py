"""A process that is meant to die: a run with a checkpoint, killed by itself at a file operation, or from outside.

`python -m engines.killed FOLDER STAGE`, where STAGE is "replace:N" or "write:N", which kills at the N-th rename or in
the middle of the N-th write, or "wait", which says each finished round on stdout and takes its time.
"""

import os
import signal
import stat
import sys
import time
from typing import Any

from engines.runs import checkpointed_run
from fedgauss.callbacks import Checkpoint
from fedgauss.engines.local import Callback, Run
from fedgauss.runtime import prepare


class Speaks(Callback):
    """Says each finished round, then waits a moment."""

    def round_end(self, run: Run) -> None:
        print(len(run.history), flush=True)
        time.sleep(0.01)


def die_at(stage: str) -> None:
    """Have the process killed at a file operation."""
    operation, number = stage.split(":")
    left = int(number)
    replace, fsync = os.replace, os.fsync

    def dying_replace(*places: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*places)

    def dying_fsync(handle: int) -> None:
        nonlocal left
        left -= stat.S_ISREG(os.fstat(handle).st_mode)
        if not left:
            os.ftruncate(handle, os.fstat(handle).st_size - 7)  # the last bytes never came
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    if operation == "replace":
        os.replace = dying_replace  # type: ignore[assignment]
    else:
        os.fsync = dying_fsync  # type: ignore[assignment]


def main(folder: str, stage: str) -> None:
    """Run until killed."""
    prepare()
    if stage != "wait":
        die_at(stage)
    checkpointed_run()([Checkpoint(folder), *([Speaks()] if stage == "wait" else [])])


if __name__ == "__main__":
    main(*sys.argv[1:])
