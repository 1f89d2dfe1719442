"""Metrics against brute force: counting point by point, integrating numerically, and what calibration promises."""

import math

import numpy as np
import polars as pl
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedgauss import metrics
from fedgauss.errors import DataError, SettingsError

FIVE_SIGMA = 5.0  # two-sided false alarm 6e-7
KOLMOGOROV = 2.7  # P(sqrt(T) sup_p |c(p) - p| > 2.7) = 2 exp(-2 * 2.7^2) = 9e-7

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture
def predictions() -> Arrays:
    """A handful of predictions, neither calibrated nor wild."""
    rng = np.random.default_rng(3)
    mean, std = rng.normal(size=40), rng.uniform(0.2, 2.0, size=40)
    return mean + 1.3 * std * rng.normal(size=40) + 0.2, mean, std


def drawn(num: int, claimed: float = 1.0, seed: int = 0) -> Arrays:
    """Observations drawn from N(mean, std^2), and `claimed * std` reported for them."""
    rng = np.random.default_rng(seed)
    mean, std = 5 * rng.normal(size=num), np.exp(rng.normal(size=num))
    return mean + std * rng.normal(size=num), mean, claimed * std


# Reference implementations: one point at a time, nothing from the package.


def reference_crps(y: float, mean: float, std: float) -> float:
    below = quad(lambda u: norm.cdf(u, mean, std) ** 2, -np.inf, y, epsabs=1e-13)[0]
    above = quad(lambda u: norm.sf(u, mean, std) ** 2, y, np.inf, epsabs=1e-13)[0]
    return float(below + above)


def reference_inside(y: float, mean: float, std: float, level: float) -> bool:
    low, high = norm.interval(level, loc=mean, scale=std)
    return bool(low <= y <= high)


def reference_calibration(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> tuple[float, float, float]:
    """ECE, MCE and Brier score as FedBNR's appendix C has them, by counting."""
    differences, squares = [], []
    for percent in range(1, 100):
        p = percent / 100
        inside = [reference_inside(*point, p) for point in zip(y, mean, std, strict=True)]
        differences.append(abs(sum(inside) / len(inside) - p))
        squares += [(p - (1.0 if o else 0.0)) ** 2 for o in inside]
    return sum(differences) / len(differences), max(differences), sum(squares) / len(squares)


def test_errors_are_those_of_the_definition(predictions: Arrays) -> None:
    y, mean, _ = predictions
    residuals = [a - b for a, b in zip(y, mean, strict=True)]
    mae = math.fsum(abs(r) for r in residuals) / len(residuals)
    rmse = math.sqrt(math.fsum(r * r for r in residuals) / len(residuals))
    assert metrics.mean_absolute_error(y, mean) == pytest.approx(mae, rel=1e-12)
    assert metrics.root_mean_squared_error(y, mean) == pytest.approx(rmse, rel=1e-12)


def test_nlpd_is_the_density_of_scipy(predictions: Arrays) -> None:
    y, mean, std = predictions
    expected = -np.mean(norm.logpdf(y, mean, std))
    assert metrics.negative_log_predictive_density(y, mean, std) == pytest.approx(expected, rel=1e-12)


def test_crps_is_the_integral(predictions: Arrays) -> None:
    for y, mean, std in zip(*(column[:10] for column in predictions), strict=True):
        score = metrics.continuous_ranked_probability_score([y], [mean], [std])
        assert score == pytest.approx(reference_crps(y, mean, std), rel=1e-7)  # what quadrature gives


def test_crps_tends_to_the_absolute_error(predictions: Arrays) -> None:
    y, mean, std = predictions
    score = metrics.continuous_ranked_probability_score(y, mean, 1e-12 * std)
    assert score == pytest.approx(metrics.mean_absolute_error(y, mean), rel=1e-10)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.8, 0.95, 0.999])
def test_coverage_and_sharpness_are_those_of_scipy_intervals(predictions: Arrays, level: float) -> None:
    y, mean, std = predictions
    inside = [reference_inside(*point, level) for point in zip(y, mean, std, strict=True)]
    low, high = norm.interval(level, loc=mean, scale=std)
    assert metrics.coverage(y, mean, std, level) == sum(inside) / len(inside)
    assert metrics.sharpness(std, level) == pytest.approx(np.mean(high - low), rel=1e-12)


def test_calibration_errors_and_brier_score_by_counting(predictions: Arrays) -> None:
    ece, mce, brier = reference_calibration(*predictions)
    assert metrics.expected_calibration_error(*predictions) == pytest.approx(ece, rel=1e-12)
    assert metrics.maximum_calibration_error(*predictions) == pytest.approx(mce, rel=1e-12)
    assert metrics.brier_score(*predictions) == pytest.approx(brier, rel=1e-12)


def test_calibration_errors_at_the_two_ends() -> None:
    nothing_held = [100.0], [0.0], [1.0]
    all_held = [0.0], [0.0], [1.0]
    for result in (nothing_held, all_held):
        assert metrics.expected_calibration_error(*result) == pytest.approx(0.5)
        assert metrics.maximum_calibration_error(*result) == pytest.approx(0.99)
        assert metrics.brier_score(*result) == pytest.approx(np.mean((np.arange(1, 100) / 100) ** 2))


def test_calibrated_predictions_are_found_calibrated() -> None:
    num = 20_000
    result = drawn(num)
    for level in (0.5, 0.8, 0.95):
        standard_error = math.sqrt(level * (1 - level) / num)
        assert abs(metrics.coverage(*result, level) - level) < FIVE_SIGMA * standard_error
    assert metrics.maximum_calibration_error(*result) < KOLMOGOROV / math.sqrt(num)
    assert metrics.expected_calibration_error(*result) < KOLMOGOROV / math.sqrt(num)
    expected_brier = np.mean([p / 100 * (1 - p / 100) for p in range(1, 100)])
    assert abs(metrics.brier_score(*result) - expected_brier) < KOLMOGOROV / math.sqrt(num)


@pytest.mark.parametrize("claimed", [0.5, 2.0])
def test_miscalibrated_predictions_are_flagged_by_as_much_as_they_are_wrong(claimed: float) -> None:
    num, levels = 20_000, np.arange(1, 100) / 100
    result = drawn(num, claimed)
    covered = 2 * norm.cdf(claimed * norm.ppf((1 + levels) / 2)) - 1
    noise = KOLMOGOROV / math.sqrt(num)
    assert np.all((metrics.calibration_curve(*result) < levels) == (claimed < 1))
    assert abs(metrics.expected_calibration_error(*result) - np.mean(np.abs(covered - levels))) < noise
    assert abs(metrics.maximum_calibration_error(*result) - np.max(np.abs(covered - levels))) < noise
    assert metrics.expected_calibration_error(*result) > 10 * metrics.expected_calibration_error(*drawn(num))


@pytest.mark.parametrize("claimed", [0.5, 0.8, 1.25, 2.0])
def test_proper_scores_prefer_the_true_width(claimed: float) -> None:
    for score in (metrics.negative_log_predictive_density, metrics.continuous_ranked_probability_score):
        assert score(*drawn(20_000)) < score(*drawn(20_000, claimed))


def test_a_change_of_unit_moves_only_what_has_a_unit(predictions: Arrays) -> None:
    before = metrics.summarise(*predictions)
    y, mean, std = predictions
    after = metrics.summarise(1000 * y, 1000 * mean, 1000 * std)
    for name, value in before.items():
        if name in {"rmse", "mae", "crps"} or name.startswith("sharpness"):
            assert after[name] == pytest.approx(1000 * value, rel=1e-10)
        elif name == "nlpd":
            assert after[name] == pytest.approx(value + math.log(1000), rel=1e-10)
        else:
            assert after[name] == pytest.approx(value, rel=1e-10)


def test_summary_holds_every_metric_by_name(predictions: Arrays) -> None:
    y, mean, std = predictions
    summary = metrics.summarise(y, mean, std)
    assert list(summary) == [
        *("rmse", "mae", "nlpd", "crps"),
        *("coverage_50", "coverage_80", "coverage_95", "sharpness_50", "sharpness_80", "sharpness_95"),
        *("ece", "mce", "brier"),
    ]
    assert summary["coverage_80"] == metrics.coverage(y, mean, std, 0.8)
    assert summary["sharpness_95"] == metrics.sharpness(std, 0.95)
    assert summary["mce"] == metrics.maximum_calibration_error(y, mean, std)
    assert all(type(value) is float for value in summary.values())
    assert "coverage_29" in metrics.summarise(y, mean, std, levels=[0.29])  # 100 * 0.29 is 28.999999999999996


def test_inputs_are_left_unchanged(predictions: Arrays) -> None:
    before = [column.copy() for column in predictions]
    metrics.summarise(*predictions)
    for was, now in zip(before, predictions, strict=True):
        np.testing.assert_array_equal(was, now)


def test_table_of_clients_pools_predictions_and_averages_clients() -> None:
    large, small = drawn(300, seed=1), drawn(20, claimed=0.3, seed=2)
    table = metrics.per_client({"large": large, "small": small})
    assert table["client"].to_list() == ["large", "small", "pooled", "mean"]
    rows = {row.pop("client"): row for row in table.to_dicts()}
    y, mean, std = (np.concatenate(pair) for pair in zip(large, small, strict=True))
    together = metrics.summarise(y, mean, std)
    for name, value in metrics.summarise(*large).items():
        assert rows["large"][name] == value
        assert rows["pooled"][name] == together[name]
        assert rows["mean"][name] == pytest.approx((value + metrics.summarise(*small)[name]) / 2, rel=1e-12)
    assert rows["mean"]["coverage_95"] != pytest.approx(rows["pooled"]["coverage_95"], abs=0.05)


def test_comparison_gives_the_standard_error_over_clients() -> None:
    clients = {str(seed): drawn(30, seed=seed) for seed in range(7)}
    table = metrics.compare({"FGPR": clients, "Separate": dict(list(clients.items())[:1])})
    rmse = np.array([metrics.root_mean_squared_error(y, mean) for y, mean, _ in clients.values()])
    assert table["method"].to_list() == ["FGPR", "Separate"]
    assert table["rmse"][0] == pytest.approx(rmse.mean(), rel=1e-12)
    assert table["rmse_standard_error"][0] == pytest.approx(rmse.std(ddof=1) / math.sqrt(7), rel=1e-12)
    assert table["rmse_standard_error"].dtype == pl.Float64
    assert table["rmse_standard_error"][1] is None


def test_several_outputs_count_alike(predictions: Arrays) -> None:
    y, mean, std = (column.reshape(20, 2) for column in predictions)
    assert metrics.summarise(y, mean, std) == metrics.summarise(*predictions)


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(DataError, match=r"y has shape \(3, 1\), mean has shape \(3,\)"):
        metrics.root_mean_squared_error(np.zeros((3, 1)), np.zeros(3))
    with pytest.raises(DataError, match=r"std has shape \(2,\); expected one shape"):
        metrics.brier_score(np.zeros(3), np.zeros(3), np.ones(2))


@pytest.mark.parametrize("spread", [0.0, -1.0])
def test_a_width_of_zero_is_refused_with_what_to_do(spread: float) -> None:
    with pytest.raises(DataError, match=r"std: 1 of 2 values .* include_noise=True"):
        metrics.summarise([0.0, 0.0], [0.0, 0.0], [1.0, spread])


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_by_client_and_array(predictions: Arrays, position: int, bad: float) -> None:
    broken = [column.copy() for column in predictions]
    broken[position][5] = bad
    y, mean, std = broken
    name = ("y", "mean", "std")[position]
    with pytest.raises(DataError, match=f"client 'b': {name}: 1 of 40 values are not finite"):
        metrics.per_client({"a": predictions, "b": (y, mean, std)})


def test_nothing_to_judge_is_refused() -> None:
    with pytest.raises(DataError, match="y is empty"):
        metrics.mean_absolute_error([], [])
    with pytest.raises(DataError, match="no client"):
        metrics.per_client({})


@pytest.mark.parametrize("name", ["pooled", "mean"])
def test_a_client_named_like_a_row_of_the_table_is_refused(predictions: Arrays, name: str) -> None:
    with pytest.raises(DataError, match=f"client '{name}': .* rename"):
        metrics.per_client({name: predictions})


@pytest.mark.parametrize("level", [0.0, 1.0, 95, math.nan])
def test_a_level_outside_zero_and_one_is_refused(predictions: Arrays, level: float) -> None:
    with pytest.raises(SettingsError, match=r"such as 0\.95"):
        metrics.coverage(*predictions, level)
