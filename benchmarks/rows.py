"""Results are rows: one JSON line a case, with what is needed to have it again. Rendering reads them; running writes.

A row is `{"case": {...}, "values": {...}, "seed": ..., "commit": ..., "machine": {...}, "date": ..., "fedgauss": ...}`.
Of two rows of the same case and seed the later one counts.
"""

import datetime
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
FIGURES = RESULTS / "figures"


def record(question: str, case: dict[str, Any], values: dict[str, Any], *, seed: int) -> None:
    """Append one row to `results/<question>.jsonl`."""
    row = {"case": case, "values": _plain(values), "seed": seed} | _circumstances()
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{question}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def latest(question: str) -> list[dict[str, Any]]:
    """The rows that count, in the order of their first appearance."""
    path = RESULTS / f"{question}.jsonl"
    if not path.exists():
        return []
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        found[json.dumps([row["case"], row["seed"]])] = row
    return list(found.values())


def tidy(question: str) -> None:
    """Leave out the rows that later ones replaced."""
    lines = [json.dumps(row) for row in latest(question)]
    (RESULTS / f"{question}.jsonl").write_text("\n".join(lines) + "\n")


@functools.lru_cache
def _circumstances() -> dict[str, Any]:
    return {
        "commit": _commit(),
        "machine": {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0))},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "fedgauss": _version(),
    }


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()

    changed = "+changes" if git("status", "--porcelain", "--", "../src") else ""
    return git("rev-parse", "--short=12", "HEAD") + changed


def _version() -> str:
    try:
        return importlib.metadata.version("fedgauss")
    except importlib.metadata.PackageNotFoundError:
        return "source tree"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.8g}")
    return value.item() if isinstance(value, np.integer) else value
