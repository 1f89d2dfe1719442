"""Figures draw what they are given, stay readable, and are written whole or not at all."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import Collection, FillBetweenPolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import norm

from fedgauss import figures, metrics
from fedgauss.errors import DataError, SettingsError


def drawn(num: int, claimed: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mean, std = 20 + 3 * rng.normal(size=num), np.exp(0.4 * rng.normal(size=num))
    return mean + std * rng.normal(size=num), mean, claimed * std


def history(num: int) -> pl.DataFrame:
    rounds = np.arange(1, num + 1)
    traffic = {"seconds": 0.1, "bytes_up": 960, "bytes_down": 1600, "clients_answered": 20}
    return pl.DataFrame({"round": rounds, "objective": 1 / rounds, **traffic})


def methods(num_clients: int) -> pl.DataFrame:
    first_seed = {"Separate": 0, "FGPR": 50, "Pooled": 90}
    return metrics.compare(
        {name: {str(k): drawn(40, seed=seed + k) for k in range(num_clients)} for name, seed in first_seed.items()}
    )


def band_figure(num_train: int = 30, levels: tuple[float, ...] = (0.5, 0.95)) -> Figure:
    x, x_new = np.linspace(0, 9, num_train), np.linspace(-1, 11, 50)
    return figures.prediction(x, np.sin(x), x_new, np.sin(x_new), 0.1 + 0 * x_new, levels=levels)


EVERY_FIGURE: dict[str, Callable[[], Figure]] = {
    "convergence": lambda: figures.convergence(history(100), objective_name="Negative log likelihood per point"),
    "convergence of one round": lambda: figures.convergence(history(1)),
    "prediction": band_figure,
    "prediction, three bands": lambda: band_figure(5000, (0.5, 0.8, 0.95)),
    "predicted against observed": lambda: figures.predicted_against_observed(*drawn(80)),
    "predicted against observed, many": lambda: figures.predicted_against_observed(*drawn(20_000)),
    "predicted against observed, one": lambda: figures.predicted_against_observed([1.0], [1.0], [0.5]),
    "calibration": lambda: figures.calibration({str(seed): drawn(40, seed=seed) for seed in range(100)}),
    "calibration of one client": lambda: figures.calibration({"a": drawn(40)}),
    "comparison": lambda: figures.comparison(methods(9)),
    "comparison of one client": lambda: figures.comparison(methods(1)),
    "comparison of one method": lambda: figures.comparison(methods(9).head(1)),
}


def line(axes: Axes, label: str) -> Line2D:
    return next(each for each in axes.get_lines() if str(each.get_label()).startswith(label))


def points(drawn_line: Line2D) -> np.ndarray:
    return np.asarray(drawn_line.get_xydata(), dtype=np.float64)


def bands(axes: Axes) -> list[FillBetweenPolyCollection]:
    return [each for each in axes.collections if isinstance(each, FillBetweenPolyCollection)]


def outline(shape: Collection, index: int = 0) -> np.ndarray:
    return np.asarray(shape.get_paths()[index].vertices, dtype=np.float64)


@pytest.mark.parametrize("name", EVERY_FIGURE)
def test_no_text_is_cut_off_and_no_legend_lies_over_data(name: str) -> None:
    figure = EVERY_FIGURE[name]()
    figure.canvas.draw()
    taken = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert taken.x0 >= 0
    assert taken.y0 >= 0
    assert taken.x1 <= width
    assert taken.y1 <= height
    title = next(text for text in figure.texts if text.get_text() == figure.get_suptitle()).get_window_extent()
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is not None:
            for text in legend.get_texts():
                assert text.get_window_extent().y0 >= axes.bbox.y1
                assert not text.get_window_extent().overlaps(title)


@pytest.mark.parametrize("name", EVERY_FIGURE)
def test_every_axis_says_what_it_shows(name: str) -> None:
    figure = EVERY_FIGURE[name]()
    assert figure.axes[-1].get_xlabel()
    for axes in figure.axes[:1]:
        assert axes.get_ylabel() or axes.get_title(loc="left")


def test_convergence_draws_the_objective_and_the_running_total_of_bytes() -> None:
    table = history(7).with_columns(objective=pl.when(pl.col("round") == 3).then(None).otherwise(pl.col("objective")))
    objective, traffic = figures.convergence(table).axes
    np.testing.assert_array_equal(
        points(objective.get_lines()[0])[:, 1], [1, 1 / 2, np.nan, 1 / 4, 1 / 5, 1 / 6, 1 / 7]
    )
    np.testing.assert_allclose(points(line(traffic, "clients"))[:, 1], 0.96 * np.arange(1, 8))
    np.testing.assert_allclose(points(line(traffic, "server"))[:, 1], 1.6 * np.arange(1, 8))
    assert traffic.get_title(loc="left") == "Sent so far (kB)"


@pytest.mark.parametrize(("total", "unit"), [(999, "B"), (1000, "kB"), (2 * 10**6, "MB"), (3 * 10**9, "GB")])
def test_bytes_are_given_in_the_unit_that_reads_best(total: int, unit: str) -> None:
    table = history(1).with_columns(bytes_up=pl.lit(total), bytes_down=pl.lit(1))
    assert figures.convergence(table).axes[1].get_title(loc="left") == f"Sent so far ({unit})"


def test_prediction_sorts_inputs_and_draws_the_intervals_asked_for() -> None:
    x_new, mean, std = np.array([2.0, 0.0, 1.0]), np.array([20.0, 0.0, 10.0]), np.array([3.0, 1.0, 2.0])
    names = {"input_name": "time (h)", "target_name": "load (kW)"}
    (axes,) = figures.prediction([[0.5]], [4.0], x_new[:, None], mean, std, levels=(0.5, 0.9), **names).axes
    np.testing.assert_array_equal(points(line(axes, "mean")), [[0, 0], [1, 10], [2, 20]])
    np.testing.assert_array_equal(points(line(axes, "data")), [[0.5, 4]])
    assert [band.get_label() for band in bands(axes)] == ["90 % interval", "50 % interval"]
    for band, level in zip(bands(axes), (0.9, 0.5), strict=True):
        low, high = norm.interval(level, loc=[0, 10, 20], scale=[1, 2, 3])
        corners = np.unique(np.round(outline(band), 9), axis=0)
        expected = np.concatenate([np.stack([[0, 1, 2], side], axis=1) for side in (low, high)])
        np.testing.assert_allclose(corners, np.unique(np.round(expected, 9), axis=0))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (h)", "load (kW)")


def test_predictions_outside_their_interval_are_told_apart() -> None:
    y, mean, std = drawn(200, claimed=0.5)
    (axes,) = figures.predicted_against_observed(y, mean, std, level=0.8, target_name="s2 (K)").axes
    outside = round((1 - metrics.coverage(y, mean, std, 0.8)) * 200)
    assert len(points(line(axes, "outside"))) == outside
    assert line(axes, "outside").get_label() == f"outside ({outside})"
    assert line(axes, "inside").get_color() != line(axes, "outside").get_color()
    assert axes.get_xlim() == axes.get_ylim()
    assert axes.get_xlabel() == "Observed s2 (K)"


def test_calibration_draws_pooled_coverage_inside_the_band_of_clients() -> None:
    results = {"narrow": drawn(300, 0.5, seed=1), "right": drawn(100, seed=2), "wide": drawn(50, 2.0, seed=3)}
    (axes,) = figures.calibration(results).axes
    y, mean, std = (np.concatenate(column) for column in zip(*results.values(), strict=True))
    level, inside = points(line(axes, "pooled")).T
    np.testing.assert_allclose(inside, [100 * metrics.coverage(y, mean, std, p / 100) for p in level])
    (band,) = (outline(each) for each in bands(axes))
    at_80 = band[np.isclose(band[:, 0], 80), 1]
    covered = [100 * metrics.coverage(*result, 0.8) for result in results.values()]
    np.testing.assert_allclose([at_80.min(), at_80.max()], [min(covered), max(covered)])
    np.testing.assert_array_equal(points(line(axes, "calibrated")), [[0, 0], [100, 100]])


def test_comparison_draws_means_and_standard_errors_from_top_to_bottom() -> None:
    table = methods(9)
    error, inside = figures.comparison(table, target_name="s2 (K)").axes
    assert [label.get_text() for label in error.get_yticklabels()] == ["Separate", "FGPR", "Pooled"]
    assert error.yaxis_inverted()
    for axes, column, scale in ((error, "rmse", 1), (inside, "coverage_95", 100)):
        np.testing.assert_allclose(points(axes.get_lines()[0])[:, 0], scale * table[column])
        bars = [outline(axes.collections[0], row)[:, 0] for row in range(3)]
        widths = [bar.max() - bar.min() for bar in bars]
        np.testing.assert_allclose(widths, 2 * scale * table[f"{column}_standard_error"])
    np.testing.assert_allclose(points(inside.get_lines()[1])[:, 0], [95, 95])


def test_several_input_columns_are_sent_to_the_other_figure() -> None:
    with pytest.raises(DataError, match=r"X_new has shape \(4, 2\).*predicted_against_observed"):
        figures.prediction(np.zeros(3), np.zeros(3), np.zeros((4, 2)), np.zeros(4), np.ones(4))


def test_lengths_that_differ_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="std has 1 values, expected 4, one for each row of X_new"):
        figures.prediction(np.zeros(3), np.zeros(3), np.zeros(4), np.zeros(4), np.ones(1))
    with pytest.raises(DataError, match="std has shape"):
        figures.predicted_against_observed(np.zeros(3), np.zeros(3), np.ones(1))


def test_a_missing_column_is_named_and_the_nearest_suggested() -> None:
    with pytest.raises(DataError, match="history: no column 'objective'; did you mean \"objectiv\""):
        figures.convergence(history(3).rename({"objective": "objectiv"}))
    with pytest.raises(DataError, match="history has no rows"):
        figures.convergence(history(3).clear())
    with pytest.raises(DataError, match="table: no column 'coverage_80'"):
        figures.comparison(methods(2).drop("coverage_80"), level=0.8)


def test_a_level_in_percent_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"such as 0\.95"):
        band_figure(levels=(50, 95))
    with pytest.raises(SettingsError, match=r"such as 0\.95"):
        figures.predicted_against_observed([0.0], [0.0], [1.0], level=95)


def test_saving_makes_folders_and_leaves_only_the_figure(tmp_path: Path) -> None:
    path = figures.save(band_figure(), tmp_path / "run" / "figures" / "fit.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [each.name for each in path.parent.iterdir()] == ["fit.png"]


def test_a_failed_save_keeps_the_old_file_and_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fit.png"
    path.write_bytes(b"old")
    figure = band_figure()

    def half(target: Path, **_: object) -> None:
        Path(target).write_bytes(b"half a fig")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", half)
    with pytest.raises(OSError, match="disk full"):
        figures.save(figure, path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["fit.png"]


def test_other_formats_are_refused_without_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'fit\.pdf'.*'fit\.png'") as caught:
        figures.save(band_figure(), tmp_path / "fit.pdf")
    assert str(tmp_path) not in str(caught.value)


def test_drawing_changes_no_settings_and_never_meets_pyplot(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    for make in EVERY_FIGURE.values():
        figure = make()
    figures.save(figure, tmp_path / "last.png")
    assert dict(mpl.rcParams) == before
    program = (
        "import sys; from fedgauss import figures;"
        "figures.predicted_against_observed([0.0, 1.0], [0.0, 1.0], [1.0, 1.0]).canvas.draw();"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
