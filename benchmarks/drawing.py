"""What the figures share: axes in the style of `fedgauss.figures`, a predictive band, and where PNGs go."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import rows
from functions import Matrix
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedgauss.figures import BLACK, BLUE, save

SHADES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito (2008): told apart with every kind of colour vision."""


def panels(titles: list[str], *, columns: int, height: float = 3.2, **grid: Any) -> tuple[Figure, list[Axes]]:
    """An empty figure with a panel for each title, nine inches wide, each row of panels `height` inches tall."""
    num_rows = -(-len(titles) // columns)
    figure = Figure(figsize=(9.0, height * num_rows), layout="constrained")
    all_axes = list(np.ravel(figure.subplots(num_rows, columns, squeeze=False, **grid)))
    for axes, title in zip(all_axes, titles, strict=False):
        axes.set_title(title, loc="left", fontsize=10, color=BLACK)
        axes.grid(color="#E4E4E4", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in all_axes[len(titles) :]:
        axes.set_visible(False)
    return figure, all_axes


def curve(axes: Axes, x: Matrix, truth: Matrix, mean: Matrix, std: Matrix, data: tuple[Matrix, Matrix]) -> None:
    """A prediction over one input with its 95 % band, the true function and the data conditioned on."""
    axes.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color="#D0D0D0", linewidth=0, label="95 % interval")
    axes.plot(x, truth, color=BLUE, linewidth=1.0, linestyle="dotted", label="truth")
    axes.plot(x, mean, color=BLACK, linewidth=1.2, label="mean")
    axes.plot(data[0][:, 0], data[1], ".", color=SHADES[1], markersize=4, label="data")


def write(figure: Figure, name: str) -> Path:
    """Write `results/figures/<name>.png`, in 64 colours: a third of the bytes."""
    path = save(figure, rows.FIGURES / f"{name}.png")
    PIL.Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
    return path
