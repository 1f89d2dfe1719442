"""How good predictions are: errors, densities and calibration of Gaussian predictions `mean`, `std` against `y`.

`std` is the standard deviation of a new *observation* (noise included), as `predict(..., return_std=True)` gives it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from fedgauss.errors import DataError, SettingsError

Result = tuple[ArrayLike, ArrayLike, ArrayLike]
"""`(y, mean, std)` of one client: what was observed, and what was predicted for it."""

CONFIDENCE_LEVELS: tuple[float, ...] = tuple(percent / 100 for percent in range(1, 100))
"""Levels over which calibration is judged: 1 %, 2 %, ..., 99 %."""

POOLED, MEAN = "pooled", "mean"


def root_mean_squared_error(y: ArrayLike, mean: ArrayLike) -> float:
    """Root mean squared error, in the unit of `y`.

    RMSE = sqrt( 1/T sum_t (y_t - mean_t)^2 )

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.

    Returns:
        The error; 0 when every mean is what was observed.

    Raises:
        DataError: If shapes differ, nothing is there, or a value is not finite.

    Example:
        >>> root_mean_squared_error([0.0, 0.0], [3.0, 4.0])
        3.5355339059327378
    """
    y, mean = checked(y=y, mean=mean)
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def mean_absolute_error(y: ArrayLike, mean: ArrayLike) -> float:
    """Mean absolute error, in the unit of `y`.

    MAE = 1/T sum_t |y_t - mean_t|

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.

    Returns:
        The error; never above the root mean squared error.

    Raises:
        DataError: If shapes differ, nothing is there, or a value is not finite.

    Example:
        >>> mean_absolute_error([0.0, 0.0], [3.0, 4.0])
        3.5
    """
    y, mean = checked(y=y, mean=mean)
    return float(np.mean(np.abs(y - mean)))


def negative_log_predictive_density(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Negative log predictive density, averaged over predictions, in nats. Lower is better; it may be negative.

    NLPD = 1/T sum_t [ log(2 pi std_t^2) / 2 + (y_t - mean_t)^2 / (2 std_t^2) ]

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.
        std: Predicted standard deviations of an observation, of the same shape; positive.

    Returns:
        The density's mean negative logarithm; rises by log(a) when all three are given in a unit a times smaller.

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.

    Example:
        >>> round(negative_log_predictive_density([1.0], [1.0], [1.0]), 6)
        0.918939
    """
    y, mean, std = checked(y=y, mean=mean, std=std)
    return float(np.mean(0.5 * np.log(2 * np.pi) + np.log(std) + 0.5 * ((y - mean) / std) ** 2))


def continuous_ranked_probability_score(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Continuous ranked probability score, averaged over predictions, in the unit of `y`. Lower is better.

    CRPS(F, y) = ∫ (F(u) - 1[u >= y])^2 du, for a Gaussian in closed form, with z = (y - mean) / std:

    CRPS = std [ z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi) ]            (Gneiting and Raftery 2007, section 4.2)

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.
        std: Predicted standard deviations of an observation, of the same shape; positive.

    Returns:
        The mean score. It tends to the mean absolute error as `std` tends to zero.

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.

    Example:
        >>> round(continuous_ranked_probability_score([0.0], [0.0], [1.0]), 6)
        0.233695
    """
    y, mean, std = checked(y=y, mean=mean, std=std)
    z = (y - mean) / std
    phi = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return float(np.mean(std * (z * (2 * ndtr(z) - 1) + 2 * phi - 1 / np.sqrt(np.pi))))


def coverage(y: ArrayLike, mean: ArrayLike, std: ArrayLike, level: float) -> float:
    """Share of observations inside the central interval that should hold a share `level` of them.

    coverage(p) = 1/T sum_t 1[ |y_t - mean_t| <= Phi^-1((1 + p) / 2) std_t ]

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.
        std: Predicted standard deviations of an observation, of the same shape; positive.
        level: p above, between 0 and 1.

    Returns:
        A share between 0 and 1. Calibrated predictions give `level`, up to sqrt(p (1 - p) / T).

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.
        SettingsError: If `level` is not between 0 and 1.

    Example:
        >>> coverage([0.0, 1.0, 3.0, -1.0], mean=[0.0] * 4, std=[1.0] * 4, level=0.95)
        0.75
    """
    return float(calibration_curve(y, mean, std, [level])[0])


def sharpness(std: ArrayLike, level: float) -> float:
    """Mean width of the central interval at `level`, in the unit of `y`. Among covering predictions lower is better.

    sharpness(p) = 1/T sum_t 2 Phi^-1((1 + p) / 2) std_t

    Args:
        std: Predicted standard deviations of an observation, `[T]` or `[T, P]`; positive.
        level: p above, between 0 and 1.

    Returns:
        The mean width.

    Raises:
        DataError: If nothing is there, a value is not finite, or `std` is not positive.
        SettingsError: If `level` is not between 0 and 1.

    Example:
        >>> round(sharpness([1.0, 3.0], level=0.95), 3)
        7.84
    """
    (std,) = checked(std=std)
    return float(2 * half_widths([level])[0] * np.mean(std))


def calibration_curve(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, levels: Sequence[float] = CONFIDENCE_LEVELS
) -> Float[np.ndarray, " L"]:
    """Coverage at each of many levels: c(p) below, in one pass over the data.

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.
        std: Predicted standard deviations of an observation, of the same shape; positive.
        levels: The levels p, each between 0 and 1.

    Returns:
        `coverage(y, mean, std, p)` for each p. Calibrated predictions give `levels`.

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.
        SettingsError: If a level is not between 0 and 1.

    Example:
        >>> calibration_curve([0.0, 1.0], mean=[0.0, 0.0], std=[1.0, 1.0], levels=[0.5, 0.95])
        array([0.5, 1. ])
    """
    y, mean, std = checked(y=y, mean=mean, std=std)
    distance = np.sort(np.abs(y - mean) / std)
    return np.searchsorted(distance, half_widths(levels), side="right") / distance.size


def expected_calibration_error(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, levels: Sequence[float] = CONFIDENCE_LEVELS
) -> float:
    """Mean difference between confidence and coverage, as in FedBNR (Yu et al., Table 2).

    ECE = 1/L sum_p |c(p) - p|, with c(p) the share of test points inside the central p interval.

    The paper gives no formula. Its appendix C calls MCE the worst difference between p % confidence intervals and p %
    test points falling into these intervals; ECE is taken as the mean of the same differences, each level counting
    alike. It does not name the levels either: 1 %, 2 %, ..., 99 % are taken. Of the grids tried (steps of 1, 5 and
    10 %, with and without 0 and 100 %) this one agrees best with the paper's ECE, MCE and Brier scores read together.

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.
        std: Predicted standard deviations of an observation, of the same shape; positive.
        levels: The levels p.

    Returns:
        0 when calibrated, 0.5 when no interval holds anything.

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.
        SettingsError: If a level is not between 0 and 1.

    Example:
        >>> round(expected_calibration_error([9.0], [0.0], [1.0]), 6)
        0.5
    """
    return float(np.mean(np.abs(calibration_curve(y, mean, std, levels) - np.asarray(levels))))


def maximum_calibration_error(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, levels: Sequence[float] = CONFIDENCE_LEVELS
) -> float:
    """Largest difference between confidence and coverage, as in FedBNR (Yu et al., appendix C and Table A.2).

    MCE = max_p |c(p) - p|, with c(p) the share of test points inside the central p interval.

    In the paper's words, "the (estimated) worst difference between p% confidence intervals and p% test points falling
    into these intervals". Levels: see `expected_calibration_error`.

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.
        std: Predicted standard deviations of an observation, of the same shape; positive.
        levels: The levels p.

    Returns:
        0 when calibrated, 0.99 when no interval holds anything; never below the expected calibration error.

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.
        SettingsError: If a level is not between 0 and 1.

    Example:
        >>> maximum_calibration_error([9.0], [0.0], [1.0])
        0.99
    """
    return float(np.max(np.abs(calibration_curve(y, mean, std, levels) - np.asarray(levels))))


def brier_score(y: ArrayLike, mean: ArrayLike, std: ArrayLike, levels: Sequence[float] = CONFIDENCE_LEVELS) -> float:
    """Mean squared difference between confidence and observation, as in FedBNR (Yu et al., appendix C and Table A.3).

    BRI = 1/(T L) sum_t sum_p (p - o_tp)^2, with o_tp = 1 if y_t lies inside its central p interval, else 0.

    In the paper's words, "the mean squared difference between the confidence and observations, where a test point
    falling in the CI counts as 1, otherwise 0". The mean is taken over points and levels; levels: see
    `expected_calibration_error`. As o is 0 or 1, it is also 1/L sum_p [ (c(p) - p)^2 + c(p) (1 - c(p)) ].

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.
        std: Predicted standard deviations of an observation, of the same shape; positive.
        levels: The levels p.

    Returns:
        About 1/6 when calibrated, about 1/3 when no interval holds anything. 1/6 is no lower bound.

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.
        SettingsError: If a level is not between 0 and 1.

    Example:
        >>> round(brier_score([9.0], [0.0], [1.0]), 4)
        0.3317
    """
    c, p = calibration_curve(y, mean, std, levels), np.asarray(levels)
    return float(np.mean((c - p) ** 2 + c * (1 - c)))


def summarise(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, levels: Sequence[float] = (0.5, 0.8, 0.95)
) -> dict[str, float]:
    """Every metric of this file, by short name.

    Args:
        y: Observations, `[T]` or `[T, P]`; all values count alike.
        mean: Predicted means, of the same shape.
        std: Predicted standard deviations of an observation, of the same shape; positive.
        levels: Levels at which coverage and sharpness are given. Calibration errors keep their own levels.

    Returns:
        `rmse`, `mae`, `nlpd`, `crps`, `coverage_50` ..., `sharpness_50` ... (the level in %), `ece`, `mce`, `brier`.

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.
        SettingsError: If a level is not between 0 and 1.

    Example:
        >>> list(summarise([0.0], [0.0], [1.0], levels=[0.95]))
        ['rmse', 'mae', 'nlpd', 'crps', 'coverage_95', 'sharpness_95', 'ece', 'mce', 'brier']
    """
    return {
        "rmse": root_mean_squared_error(y, mean),
        "mae": mean_absolute_error(y, mean),
        "nlpd": negative_log_predictive_density(y, mean, std),
        "crps": continuous_ranked_probability_score(y, mean, std),
        **{f"coverage_{100 * level:g}": coverage(y, mean, std, level) for level in levels},
        **{f"sharpness_{100 * level:g}": sharpness(std, level) for level in levels},
        "ece": expected_calibration_error(y, mean, std),
        "mce": maximum_calibration_error(y, mean, std),
        "brier": brier_score(y, mean, std),
    }


def pooled(
    results: Mapping[str, Result],
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
    """All clients' predictions in one row, as if one client had made them.

    Args:
        results: `(y, mean, std)` by client's name.

    Returns:
        `y, mean, std`, client after client.

    Raises:
        DataError: If there is no client, or a client's arrays are unusable; names the client.

    Example:
        >>> y, mean, std = pooled({"a": ([1.0], [0.0], [1.0]), "b": ([2.0], [0.0], [1.0])})
        >>> y
        array([1., 2.])
    """
    if not results:
        raise DataError("no client has predictions: expected (y, mean, std) of at least one")
    columns = []
    for name, (y, mean, std) in results.items():
        try:
            columns.append(checked(y=y, mean=mean, std=std))
        except DataError as error:
            raise DataError(f"client {name!r}: {error}") from None
    y, mean, std = (np.concatenate(column) for column in zip(*columns, strict=True))
    return y, mean, std


def per_client(results: Mapping[str, Result]) -> pl.DataFrame:
    """`summarise` of each client, of all predictions together, and averaged over clients.

    The two last rows answer two questions. "pooled" weighs every prediction alike; "mean" weighs every client alike
    (its `rmse` is the averaged RMSE of the FGPR paper). Averages hide an unlucky client: read the other rows too.

    Args:
        results: `(y, mean, std)` by client's name.

    Returns:
        Column `client` and one column a metric; one row a client in the given order, then "pooled", then "mean".

    Raises:
        DataError: If there is no client, a client's arrays are unusable (names the client), or a client bears the name
            of one of the two last rows.

    Example:
        >>> table = per_client({"a": ([1.0], [0.0], [1.0]), "b": ([3.0], [0.0], [1.0])})
        >>> table.select("client", "mae").rows()
        [('a', 1.0), ('b', 3.0), ('pooled', 2.0), ('mean', 2.0)]
    """
    for reserved in (POOLED, MEAN):
        if reserved in results:
            raise DataError(f"client {reserved!r}: this is the name of a row of the table; rename the client")
    together = summarise(*pooled(results))
    rows = [{"client": name, **summarise(*result)} for name, result in results.items()]
    table = pl.DataFrame([*rows, {"client": POOLED, **together}])
    average = table.head(len(rows)).mean().with_columns(client=pl.lit(MEAN))
    return pl.concat([table, average])


def compare(methods: Mapping[str, Mapping[str, Result]]) -> pl.DataFrame:
    """Several methods side by side: each metric's mean over clients, and the standard error of that mean.

    Args:
        methods: Results by method, each as for `per_client`.

    Returns:
        One row a method: column `method`, then every metric followed by `<metric>_standard_error`, which is null when
        there is a single client.

    Raises:
        DataError: As `per_client`.

    Example:
        >>> alone = {"a": ([1.0], [0.0], [1.0]), "b": ([3.0], [0.0], [1.0])}
        >>> compare({"Separate": alone}).select("method", "mae", "mae_standard_error").rows()
        [('Separate', 2.0, 1.0)]
    """
    rows: list[dict[str, object]] = []
    for method, results in methods.items():
        clients = per_client(results).head(len(results)).drop("client")
        row: dict[str, object] = {"method": method}
        for column in clients.columns:
            spread = clients[column].std()
            row[column] = clients[column].mean()
            row[f"{column}_standard_error"] = None if spread is None else spread / np.sqrt(len(results))
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def checked(**arrays: ArrayLike) -> tuple[Float[np.ndarray, " T"], ...]:
    """The named arrays, flat and in float64, when they can be judged together.

    Args:
        arrays: Any of `y`, `mean`, `std`.

    Returns:
        The arrays in the given order, `[T]` each.

    Raises:
        DataError: If shapes differ, nothing is there, a value is not finite, or `std` is not positive.

    Example:
        >>> checked(y=[1, 2], mean=[0, 0])
        (array([1., 2.]), array([0., 0.]))
    """
    values = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}
    shapes = {name: value.shape for name, value in values.items()}
    if len(set(shapes.values())) > 1:
        came = ", ".join(f"{name} has shape {shape}" for name, shape in shapes.items())
        raise DataError(f"{came}; expected one shape for all. Give one prediction for each observation")
    for name, value in values.items():
        if value.size == 0:
            raise DataError(f"{name} is empty; expected at least one prediction")
        if bad := np.count_nonzero(~np.isfinite(value)):
            raise DataError(
                f"{name}: {bad} of {value.size} values are not finite; leave these rows out, from every array alike"
            )
    if "std" in values and (bad := np.count_nonzero(values["std"] <= 0)):
        raise DataError(
            f"std: {bad} of {values['std'].size} values are zero or negative, expected positive ones: a Gaussian of no "
            "width has no density. Predict with include_noise=True, or leave these rows out"
        )
    return tuple(value.ravel() for value in values.values())


def half_widths(levels: Sequence[float]) -> Float[np.ndarray, " L"]:
    """Half the width of the central intervals at `levels`, in standard deviations: Phi^-1((1 + p) / 2).

    Args:
        levels: The levels p, each between 0 and 1.

    Returns:
        One half-width a level.

    Raises:
        SettingsError: If a level is not between 0 and 1.

    Example:
        >>> half_widths([0.5, 0.95]).round(2)
        array([0.67, 1.96])
    """
    p = np.asarray(levels, dtype=np.float64)
    if p.size == 0 or not np.all((p > 0) & (p < 1)):
        raise SettingsError(f"level(s) {list(levels)}: expected numbers between 0 and 1, such as 0.95 for 95 %")
    return np.asarray(ndtri((1 + p) / 2))
