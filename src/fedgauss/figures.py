"""Figures to read a run by: convergence, predictions, calibration, and methods side by side.

Every function returns a Matplotlib `Figure` of its own; nothing here touches pyplot, so drawing changes no global
state and needs no display. `save` writes one to disk.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fedgauss.errors import DataError, SettingsError, suggest
from fedgauss.metrics import (
    CONFIDENCE_LEVELS,
    Result,
    calibration_curve,
    checked,
    expected_calibration_error,
    half_widths,
    pooled,
)

# Okabe and Ito (2008): told apart with every kind of colour vision.
BLUE, VERMILLION, BLACK, GREY = "#0072B2", "#D55E00", "#222222", "#767676"
DASHED = (0, (4, 2))


def convergence(history: pl.DataFrame, *, objective_name: str = "Objective", title: str = "Convergence") -> Figure:
    """The objective by round, above the bytes sent so far.

    Args:
        history: One row a round, with columns `round`, `objective`, `bytes_up`, `bytes_down`. A round without an
            objective (null or NaN) leaves a gap.
        objective_name: Written above the upper panel.
        title: Written above.

    Returns:
        The figure.

    Raises:
        DataError: If a column or every row is missing.

    Example:
        >>> history = pl.DataFrame({"round": [1, 2], "objective": [3.0, 1.0], "bytes_up": 80, "bytes_down": 80})
        >>> [axes.get_title(loc="left") for axes in convergence(history).axes]
        ['Objective', 'Sent so far (B)']
    """
    _require(history, ["round", "objective", "bytes_up", "bytes_down"], what="history")
    figure, (objective, traffic) = _figure(title, width=7, height=5, nrows=2, height_ratios=(2.6, 1), sharex=True)
    rounds = history["round"].to_numpy()
    style: dict[str, Any] = {"linewidth": 1.6, "marker": "o" if len(rounds) <= 30 else None, "markersize": 4}

    objective.plot(rounds, history["objective"].cast(pl.Float64).to_numpy(), color=BLUE, **style)
    objective.set_title(objective_name, loc="left", fontsize=11, color=BLACK)

    up, down = (history[column].cum_sum().to_numpy() for column in ("bytes_up", "bytes_down"))
    most = max(up[-1], down[-1])
    unit, scale = _bytes_unit(most)
    traffic.plot(rounds, up / scale, color=BLUE, label="clients to server", **style)
    traffic.plot(rounds, down / scale, color=VERMILLION, linestyle=DASHED, label="server to clients", **style)
    traffic.set_title(f"Sent so far ({unit})", loc="left", fontsize=11, color=BLACK)
    traffic.set_xlabel("Round")
    traffic.set_ylim(0, 1.1 * most / scale or 1.0)
    room = max(0.02 * (rounds[-1] - rounds[0]), 0.5)
    traffic.set_xlim(rounds[0] - room, rounds[-1] + room)
    traffic.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    _legend(traffic, corner="lower right")
    return figure


def prediction(
    X_train: ArrayLike,
    y_train: ArrayLike,
    X_new: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    levels: Sequence[float] = (0.5, 0.95),
    title: str = "Prediction",
    input_name: str = "x",
    target_name: str = "y",
) -> Figure:
    """Predictions over one input column: the mean, central intervals as bands, and the data learned from.

    Args:
        X_train: Inputs of the data, `[N]` or `[N, 1]`.
        y_train: Targets of the data, `[N]`.
        X_new: Inputs of the predictions in any order, `[T]` or `[T, 1]`.
        mean: Predicted means, `[T]`.
        std: Predicted standard deviations, `[T]`; of an observation if the bands are to hold observations.
        levels: Central intervals to draw, each between 0 and 1.
        title: Written above.
        input_name: Name of the input column with its unit.
        target_name: Name of the target column with its unit.

    Returns:
        The figure.

    Raises:
        DataError: If inputs have several columns, or lengths differ.
        SettingsError: If a level is not between 0 and 1.

    Example:
        >>> figure = prediction([0.0], [1.0], [0.0, 1.0], [0.9, 0.1], [0.1, 1.0], input_name="time (s)")
        >>> figure.axes[0].get_xlabel()
        'time (s)'
    """
    x_train, x_new = _one_column(X_train, "X_train"), _one_column(X_new, "X_new")
    (y,) = _columns(len(x_train), "X_train", y_train=y_train)
    mu, sigma = _columns(len(x_new), "X_new", mean=mean, std=std)
    order = np.argsort(x_new, kind="stable")
    x_new, mu, sigma = x_new[order], mu[order], sigma[order]

    figure, (axes,) = _figure(title, width=7, height=4.2)
    for shade, level in zip(np.linspace(0.18, 0.42, len(levels)), sorted(levels, reverse=True), strict=True):
        reach = half_widths([level])[0] * sigma
        tint = 1 - shade * (1 - np.array(to_rgb(BLUE)))  # opaque, so that bands look as they do in the legend
        axes.fill_between(x_new, mu - reach, mu + reach, color=tint, linewidth=0, label=f"{100 * level:g} % interval")
    axes.plot(x_new, mu, color=BLUE, linewidth=1.8, label="mean", zorder=4)
    axes.plot(x_train, y, **_dots(len(y)), color=BLACK, label="data", zorder=3)
    axes.set(xlabel=input_name, ylabel=target_name)
    axes.margins(x=0.01)
    _legend(axes)
    return figure


def predicted_against_observed(
    y: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    level: float = 0.95,
    title: str = "Predicted against observed",
    target_name: str = "y",
) -> Figure:
    """Predictions against what was observed: for any number of input columns.

    Each point bears its central interval as long as there is room (300 points); those whose interval misses the
    observation are told apart and counted.

    Args:
        y: Observations, `[T]`.
        mean: Predicted means, `[T]`.
        std: Predicted standard deviations of an observation, `[T]`.
        level: Of the central interval, between 0 and 1.
        title: Written above.
        target_name: Name of the target column with its unit.

    Returns:
        The figure.

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.
        SettingsError: If `level` is not between 0 and 1.

    Example:
        >>> figure = predicted_against_observed([0.0, 9.0], [0.1, 0.0], [1.0, 1.0])
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['inside the 95 % interval (1)', 'outside (1)', 'perfect']
    """
    observed, mu, sigma = checked(y=y, mean=mean, std=std)
    reach = half_widths([level])[0] * sigma
    inside = np.abs(observed - mu) <= reach

    figure, (axes,) = _figure(title, width=5.6, height=6)
    for chosen, color, label in (
        (inside, BLUE, f"inside the {100 * level:g} % interval ({inside.sum()})"),
        (~inside, VERMILLION, f"outside ({(~inside).sum()})"),
    ):
        if len(observed) <= 300:
            low, high = (mu - reach)[chosen], (mu + reach)[chosen]
            axes.vlines(observed[chosen], low, high, color=color, alpha=0.35, linewidth=1)
        axes.plot(observed[chosen], mu[chosen], **_dots(len(observed)), color=color, label=label, zorder=3)
    ends = np.array([min(observed.min(), mu.min()), max(observed.max(), mu.max())])
    ends += np.array([-0.04, 0.04]) * ((ends[1] - ends[0]) or 1.0)
    axes.plot(ends, ends, color=BLACK, linewidth=1.2, linestyle=DASHED, label="perfect", zorder=4)
    axes.set(xlabel=f"Observed {target_name}", ylabel=f"Predicted {target_name}", xlim=ends, ylim=ends, aspect="equal")
    _legend(axes, columns=2)
    return figure


def calibration(results: Mapping[str, Result], *, title: str = "Calibration") -> Figure:
    """How many observations central intervals hold, against how many they should: all clients pooled, and each alone.

    Below the diagonal, intervals are too narrow. The band reaches from the lowest client to the highest: an average
    hides an unlucky client. Clients with little data scatter even when calibrated.

    Args:
        results: `(y, mean, std)` by client's name.
        title: Written above.

    Returns:
        The figure.

    Raises:
        DataError: If there is no client, or a client's arrays are unusable; names the client.

    Example:
        >>> figure = calibration({"a": ([0.0], [0.0], [1.0]), "b": ([1.0], [0.0], [1.0])})
        >>> figure.axes[0].get_ylabel()
        'Observations inside (%)'
    """
    together = pooled(results)
    nominal = 100 * np.array(CONFIDENCE_LEVELS)
    error = 100 * expected_calibration_error(*together)

    figure, (axes,) = _figure(title, width=5.6, height=6)
    axes.plot(nominal, 100 * calibration_curve(*together), color=BLUE, linewidth=2, label=f"pooled (ECE {error:.1f} %)")
    if len(results) > 1:
        clients = 100 * np.stack([calibration_curve(*result) for result in results.values()])
        label = f"{len(results)} clients, lowest to highest"
        axes.fill_between(nominal, clients.min(0), clients.max(0), color=BLUE, alpha=0.18, linewidth=0, label=label)
    axes.plot([0, 100], [0, 100], color=GREY, linewidth=1.2, linestyle=DASHED, label="calibrated")
    axes.text(3, 96, "intervals too wide", color=GREY, fontsize=10, va="top")
    axes.text(97, 4, "intervals too narrow", color=GREY, fontsize=10, ha="right")
    axes.set(xlabel="Level of the central interval (%)", ylabel="Observations inside (%)", aspect="equal")
    axes.set(xlim=(0, 100), ylim=(0, 100), xticks=range(0, 101, 20), yticks=range(0, 101, 20))
    _legend(axes, columns=2)
    return figure


def comparison(
    table: pl.DataFrame, *, level: float = 0.95, target_name: str = "y", title: str = "Methods compared"
) -> Figure:
    """RMSE and coverage of several methods, with standard errors, side by side.

    Args:
        table: One row a method, as `metrics.compare` gives it: columns `method`, `rmse`, `coverage_95` (for the level
            asked) and for each of the two `..._standard_error`, null where unknown.
        level: Interval whose coverage is shown.
        target_name: Name of the target column with its unit.
        title: Written above.

    Returns:
        The figure; methods from top to bottom in the table's order.

    Raises:
        DataError: If a column or every row is missing.

    Example:
        >>> from fedgauss.metrics import compare
        >>> figure = comparison(compare({"FGPR": {"a": ([0.0], [0.1], [1.0])}}), target_name="s2 (K)")
        >>> figure.axes[0].get_xlabel()
        'RMSE of s2 (K)'
    """
    percent = f"{100 * level:g}"
    covered = f"coverage_{percent}"
    needed = ["method", "rmse", "rmse_standard_error", covered, f"{covered}_standard_error"]
    _require(table, needed, what="table")
    methods = table["method"].to_list()
    height = 1.9 + 0.42 * len(methods)
    figure, (error, inside) = _figure(title, width=8, height=height, ncols=2, sharey=True)
    position = np.arange(len(methods))
    for axes, column, scale in ((error, "rmse", 1.0), (inside, covered, 100.0)):
        value = scale * table[column].cast(pl.Float64).to_numpy()
        spread = scale * table[f"{column}_standard_error"].cast(pl.Float64).fill_null(0).to_numpy()
        axes.errorbar(value, position, xerr=spread, fmt="o", color=BLUE, markersize=8, elinewidth=2)
        axes.margins(x=0.12, y=0.6 / len(methods))
        axes.grid(visible=False, axis="y")
    error.set_title("mean ± one standard error", loc="left", fontsize=10, color=GREY)
    error.set(xlabel=f"RMSE of {target_name}", yticks=position)
    error.set_yticklabels(methods, fontsize=11, color=BLACK)
    error.invert_yaxis()
    inside.axvline(100 * level, color=GREY, linewidth=1.2, linestyle=DASHED, zorder=1)
    inside.text(100 * level, 1.02, f"{percent} %", transform=inside.get_xaxis_transform(), color=GREY, ha="center")
    inside.set_xlabel(f"Coverage of {percent} % intervals (%)")
    inside.tick_params(axis="y", length=0)
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as PNG. Whoever reads the file sees the old one or the new one, never a part.

    Args:
        figure: What to write.
        path: Where to; ends in `.png`. Missing folders are made.

    Returns:
        The path written.

    Raises:
        SettingsError: If the name does not end in `.png`.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> save(predicted_against_observed([0.0, 1.0], [0.1, 0.9], [1.0, 1.0]), f"{folder.name}/fit.png").name
        'fit.png'
        >>> folder.cleanup()
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        wanted = path.with_suffix(".png").name
        raise SettingsError(f"figure {path.name!r}: figures are written as PNG; name it {wanted!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # the same folder: a rename there is one step
    try:
        figure.savefig(part, format="png", dpi=150)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _figure(title: str, width: float, height: float, **grid: Any) -> tuple[Figure, list[Axes]]:
    """An empty figure, `width` by `height` inches, and its axes in the house style."""
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.05)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", color=BLACK)
    all_axes = list(figure.subplots(squeeze=False, **grid).ravel())
    for axes in all_axes:
        axes.set_axisbelow(True)
        axes.grid(color="#E4E4E4", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#B0B0B0")
        axes.tick_params(color="#B0B0B0", labelcolor=BLACK, labelsize=10)
        axes.xaxis.label.set(fontsize=11, color=BLACK)
        axes.yaxis.label.set(fontsize=11, color=BLACK)
    return figure, all_axes


def _legend(axes: Axes, *, columns: int = 5, corner: Literal["lower left", "lower right"] = "lower left") -> None:
    """Keys above the axes, where no data can be under them."""
    legend = axes.legend(
        loc=corner,
        bbox_to_anchor=(0 if corner == "lower left" else 1, 1),
        ncols=columns,
        borderaxespad=0.2,
        borderpad=0.2,
        frameon=False,
        fontsize=10,
        labelcolor=BLACK,
        handlelength=1.6,
        handletextpad=0.6,
        columnspacing=1.3,
    )
    for handle in legend.legend_handles:
        if isinstance(handle, Line2D) and handle.get_linestyle() == "None":
            handle.set(markersize=6, alpha=1)  # readable also when the dots themselves are tiny


def _dots(num: int) -> dict[str, Any]:
    """Markers that stay apart: smaller and fainter when there are many."""
    size, alpha = (5.0, 0.9) if num <= 100 else (3.5, 0.7) if num <= 1000 else (1.5, 0.4)
    return {"linestyle": "none", "marker": "o", "markersize": size, "alpha": alpha, "markeredgewidth": 0}


def _bytes_unit(largest: float) -> tuple[str, int]:
    """The unit in which `largest` bytes read best, and its size."""
    units = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
    return next(((name, size) for name, size in units if largest >= size), ("B", 1))


def _one_column(X: ArrayLike, name: str) -> Float[np.ndarray, " N"]:
    inputs = np.asarray(X, dtype=np.float64)
    if inputs.ndim > 2 or (inputs.ndim == 2 and inputs.shape[1] != 1):
        raise DataError(
            f"{name} has shape {inputs.shape}, expected one input column. Use predicted_against_observed for several"
        )
    return inputs.ravel()


def _columns(length: int, beside: str, **arrays: ArrayLike) -> list[Float[np.ndarray, " T"]]:
    """The named arrays, flat, when each has `length` values like `beside`."""
    values = {name: np.asarray(array, dtype=np.float64).ravel() for name, array in arrays.items()}
    for name, value in values.items():
        if len(value) != length:
            raise DataError(f"{name} has {len(value)} values, expected {length}, one for each row of {beside}")
    return list(values.values())


def _require(table: pl.DataFrame, columns: Iterable[str], what: str) -> None:
    if missing := [column for column in columns if column not in table.columns]:
        raise DataError(f"{what}: no column {missing[0]!r}{suggest(missing[0], table.columns)}; it has {table.columns}")
    if table.is_empty():
        raise DataError(f"{what} has no rows; expected at least one")
