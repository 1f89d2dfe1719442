"""The pieces that pages of results are made of: rows by case, means with their errors, tables, verdicts."""

import collections
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import rows
import scipy.stats
from functions import Matrix

Found = list[dict[str, Any]]

LEVEL = 0.05
"""A difference counts when the paired t test's p is below this."""
FEWEST, TOO_FEW = 5, "too few repeats"
"""On fewer repeats nothing is decided."""


def described(text: str) -> str:
    """A docstring's text as Markdown; how to call the script as code."""
    *paragraphs, last = text.split("\n\n")
    call = textwrap.dedent(last).strip()
    return "\n\n".join([*paragraphs, f"    {call}"] if call.startswith("python") else [*paragraphs, last])


def figures(question: str) -> list[str]:
    found = sorted(rows.FIGURES.glob(f"{question}*.png"))
    return [f"![{path.stem.replace('_', ' ')}](../{path.relative_to(rows.HERE.parent)})" for path in found]


def origin(question: str, found: Found) -> str:
    commits = ", ".join(sorted({row["commit"] for row in found}))
    machines = ", ".join(sorted({f"{row['machine']['cpu']} ({row['machine']['cores']} cores)" for row in found}))
    dates = sorted({row["date"] for row in found})
    return (
        f"*{len(found)} rows in `results/{question}.jsonl`, {dates[0]} to {dates[-1]}, commits {commits}; {machines}."
        ' "+changes": the source differed from that commit.*'
    )


def groups(found: Found, key: str) -> dict[Any, Found]:
    """Rows by one entry of their case."""
    parts: dict[Any, Found] = collections.defaultdict(list)
    for row in found:
        parts[row["case"][key]].append(row)
    return dict(parts)


def take(found: Found, *path: str) -> Matrix:
    """One value of every row; NaN where a row has none."""

    def one(value: Any) -> float:
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return np.nan if value is None else float(value)

    return np.array([one(row["values"]) for row in found])


def mean(values: Matrix, digits: int = 3) -> str:
    kept = values[~np.isnan(values)]
    if not len(kept):
        return "-"
    text = f"{kept.mean():.{digits}f}"
    if len(kept) > 1:
        text += f" ± {kept.std(ddof=1) / np.sqrt(len(kept)):.{digits}f}"
    return text if len(kept) == len(values) else f"{text} ({len(kept)})"


def table(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    written = [list(map(str, head)), ["---"] * len(head), *(list(map(str, line)) for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in written)


def difference(ours: Matrix, other: Matrix, digits: int = 3) -> tuple[str, str]:
    """The paired difference in words, and whether ours is lower, higher, undecided or rests on too few repeats."""
    paired = (ours - other)[~np.isnan(ours - other)]
    if len(paired) < FEWEST:
        return f"{mean(paired, digits)}: {TOO_FEW}", TOO_FEW
    t = scipy.stats.ttest_1samp(paired, 0.0).pvalue
    wilcoxon = scipy.stats.wilcoxon(paired).pvalue
    word = "undecided" if t >= LEVEL else "lower" if paired.mean() < 0.0 else "higher"
    return f"{mean(paired, digits)} (p {t:.1g}, {wilcoxon:.1g}): {word}", word


def verdict(claim: str, words: dict[str, str], yes: str = "reproduces", no: str = "does not reproduce") -> str:
    """Whether ours is lower than each of the named rivals."""
    if TOO_FEW in words.values():
        return f"**{claim}: open**, {TOO_FEW}."
    holds = [name for name, word in words.items() if word == "lower"]
    if len(holds) == len(words):
        return f"**{claim}: {yes}** ({'; '.join(words)})."
    where = f"it holds against {'; '.join(holds)} only" if holds else "it holds against none"
    rest = "; ".join(f"{name}: {word}" for name, word in words.items() if word != "lower")
    return f"**{claim}: {no}**, {where} ({rest})."


def check(what: str, value: float, good: bool, wanted: str, digits: int = 3) -> str:
    return f"- {what}: {value:.{digits}f}, wanted {wanted}: {'met' if good else '**not met**'}."
