"""Does one global model of clients with unlike data come near the one that sees all of it? FedBNR's Tables 1 and 2.

Five UCI sets, cut at random 8:1:1 into training, test and validation rows. Training rows are sorted by the feature most
correlated with the target and cut into chunks; each of 10 or 100 clients takes two. A bad answer: an RMSE above the
paper's FedBNR (10 / 100 clients: Skillcraft .98 / .97, SML .25 / .44, Parkinsons 3.10 / 5.42, Bike .39 / .42, CCPP
4.40 / 4.51) for averaging or distillation, "exact" more than 2 % above our own pooled fit, or an ECE above the paper's.

As in the paper: 50 draws of omega ~ N(0, I_5), a small distribution shifter, full batches, at most 100 rounds, plain
means, early stopping by validation RMSE; distillation takes 80 % of the validation rows and stops by the rest. What
differs: the model is that of the round with the best *validation* RMSE (the paper reports the smallest *test* error
over rounds); it stops after 20 rounds without a better one (the paper: 5, at which it often ends by chance); the
networks have two hidden layers of 200 (the paper: layers of 200, for Skillcraft, to 5,000); 20 local steps a round of
Adam with rate .003, with 100 clients 5 with rate .005 (the paper: 50; it gives neither optimiser nor rate),
distillation 50 steps a round with alpha 1; inputs and targets are standardised by pooled moments; noise and prior
scale are tuned by the evidence of the sums ("before tuning" shows them as averaged). "exact" and "pooled" stop by the
validation NLPD after 20 values taken every 10 exchanges. "averaging, 100 draws" has twice the paper's features, in
place of its wider layers; it was added where averaging with 50 had missed the paper's figure, so it is no prior
choice. Settings were chosen by validation rows of another split (seed 100), the 5 steps with 100 clients after a first
row of seed 0 had been seen; splits of one data set share rows, so the table is not fully blind to these choices. Local
+ global is not stopped early: 10 rounds. Columns with fewer seeds than "averaging" had no more time; the paper has 10
seeds.

Targets and features. Skillcraft: LeagueIndex from all complete columns but GameID. SML: the bedroom temperature (the
paper does not name its target; with this one Weather_Temperature has its correlation of .783) from all columns but the
two other room temperatures, which correlate more than that, and constant ones; date and time are day of year and hour.
Parkinsons: total_UPDRS without motor_UPDRS and the subject's number; the paper's correlation of .410 is in no column,
so rows are sorted by age (.310). Bike: the count in units of its standard deviation, as the paper's figures must be;
hour, weather, season, holiday, functioning day and, from the date, month and day of week. CCPP: PE.

    python uci.py [--seeds 3] [--sets ccpp ...] [--clients 10 100] [--methods averaging ...]
"""

import argparse
import dataclasses
import time
from typing import Any

import data
import jax
import numpy as np
import polars as pl
import rows
from functions import Matrix

import fedgauss as fg

QUESTION = "uci"
ROUNDS, PATIENCE = 100, 20
EXACT_EXCHANGES = 1000
UNWATCHED_ROUNDS = 10
"""Of local + global, which is not stopped early."""
METHODS = (
    "averaging",
    "averaging, 100 draws",
    "distillation",
    "exact",
    "pooled",
    "local+local",
    "local+global",
    "avg+local",
    "kd+local",
)
SETS = ("skillcraft", "sml", "parkinsons", "bike", "ccpp")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    arguments.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    arguments.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    options = arguments.parse_args()
    for seed in options.seeds:
        for name in options.sets:
            X, y = load(name)
            for clients in options.clients:
                for method in options.methods:
                    if method == "pooled" and clients != options.clients[0]:
                        continue  # one place has no clients
                    started = time.perf_counter()
                    values = run(X, y, clients, method, seed)
                    case = {"set": name, "clients": 1 if method == "pooled" else clients, "method": method}
                    jax.clear_caches()  # else the compilations of all cases stay in memory
                    rows.record(QUESTION, case, values | {"seconds": time.perf_counter() - started}, seed=seed)
                    shown = {key: round(values[key], 3) for key in ("rmse", "ece", "validation_rmse")}
                    print(case, shown, values["rounds"], f"{time.perf_counter() - started:.0f} s", flush=True)


def load(name: str) -> tuple[Matrix, Matrix]:
    """Features and target in their own units; Bike's target in units of its standard deviation."""
    if name == "skillcraft":
        table = data.table("skillcraft/skillcraft1.csv.gz").drop("GameID").drop_nulls()
        return split_off(table, "LeagueIndex")
    if name == "sml":
        table = data.table("sml2010/sml2010.csv.gz")
        hour = pl.col("Time").str.slice(0, 2).cast(float) + pl.col("Time").str.slice(3, 2).cast(float) / 60
        day = pl.col("Date").str.to_date("%d/%m/%Y").dt.ordinal_day()
        dropped = ["source_file", "Date", "Time", "Temperature_Comedor_Sensor", "Temperature_Exterior_Sensor"]
        return split_off(table.with_columns(hour=hour, day=day).drop(dropped), "Temperature_Habitacion_Sensor")
    if name == "parkinsons":
        return split_off(
            data.table("parkinsons/parkinsons_updrs.csv.gz").drop("subject#", "motor_UPDRS"), "total_UPDRS"
        )
    if name == "bike":
        table = data.table("seoul_bike/seoul_bike.csv.gz")
        day = pl.col("date").str.to_date("%d/%m/%Y")
        table = table.with_columns(month=day.dt.month(), weekday=day.dt.weekday()).drop("date")
        X, y = split_off(
            table.to_dummies(["season", "holiday", "functioning_day"], drop_first=True), "rented_bike_count"
        )
        return X, y / y.std()
    return split_off(data.table("ccpp/ccpp.csv.gz"), "PE")


def split_off(table: pl.DataFrame, target: str) -> tuple[Matrix, Matrix]:
    X = table.drop(target).to_numpy().astype(float)
    return X[:, X.std(axis=0) > 0], table[target].to_numpy().astype(float)


def cut(X: Matrix, y: Matrix, clients: int, seed: int) -> tuple[Any, Any, Any]:
    """Clients' training rows by name, test rows and validation rows: the paper's heterogeneous split."""
    draw = np.random.default_rng([seed, 11])
    order = draw.permutation(len(y))
    test, validation, train = np.split(order, [len(y) // 10, 2 * (len(y) // 10)])
    correlations = [abs(np.corrcoef(column, y[train])[0, 1]) if column.std() else 0.0 for column in X[train].T]
    ordered = train[np.argsort(X[train][:, int(np.argmax(correlations))], kind="stable")]
    chunks = [ordered[part] for part in np.array_split(np.arange(len(train)), 2 * clients)]
    hands = draw.permutation(2 * clients).reshape(clients, 2)
    named = {f"client-{i:03d}": np.concatenate([chunks[a], chunks[b]]) for i, (a, b) in enumerate(hands)}
    federation = {name: (X[chosen], y[chosen]) for name, chosen in named.items()}
    return federation, (X[test], y[test]), (X[validation], y[validation])


def method_of(kind: str, settings: dict[str, Any], distillation: Any) -> Any:
    if kind in ("exact", "pooled"):
        method = fg.FedBNR(training="exact", rounds=EXACT_EXCHANGES, **settings)
        return fg.Pooled(method) if kind == "pooled" else method
    choices: dict[str, dict[str, Any]] = {
        "averaging": {},
        "averaging, 100 draws": {"num_samples": 100},
        "distillation": {"training": "distillation", "distillation": distillation},
        "local+local": {"training": "local", "last_layer": "local"},
        "local+global": {"training": "local", "last_layer": "global"},
        "avg+local": {"last_layer": "local"},
        "kd+local": {"training": "distillation", "distillation": distillation, "last_layer": "local"},
    }
    return fg.FedBNR(rounds=ROUNDS, average="uniform", **(settings | choices[kind]))


FEW_ROWS: dict[str, Any] = {"local_steps": 5, "learning_rate": 0.005}
"""With 100 clients, which have fewer rows than features and soon fit them; chosen likewise, on Parkinsons."""
SETTINGS: dict[str, Any] = {
    "features": fg.features.Network(widths=(200, 200)), "local_steps": 20, "learning_rate": 0.003,
    "distillation_steps": 50, "distillation_rate": 0.003, "alpha": 1.0,
}  # fmt: skip
"""Chosen by averaging's validation RMSE on SML and Parkinsons, ten clients, on a split (seed 100) not used below."""


def run(
    X: Matrix, y: Matrix, clients: int, kind: str, seed: int, settings: dict[str, Any] = SETTINGS
) -> dict[str, Any]:
    """One fit and its errors on the test rows."""
    parts, test, validation = cut(X, y, clients, seed)
    federation = fg.Federation.from_arrays(parts)
    distillation = None
    if kind in ("distillation", "kd+local"):
        kept = int(0.8 * len(validation[1]))
        distillation = fg.Client(validation[0][:kept], validation[1][:kept])
        validation = (validation[0][kept:], validation[1][kept:])
    method = method_of(kind, settings | (FEW_ROWS if clients == 100 else {}), distillation)
    local = kind.endswith("+local") or kind.startswith("local")
    # a client's own model is judged on all validation rows, so they are given to each client
    held = {name: validation for name in parts} if local else {"held out": validation}
    if local and clients > 20:
        held = dict(list(held.items())[:20])
    # thousands of weights on the exact evidence of all rows: calibration is lost before the error rises
    column = "validation_nlpd" if kind in ("exact", "pooled") else "validation_rmse"
    stop = fg.EarlyStopping(column, patience=PATIENCE, keep_best=True)
    watched: dict[str, Any] = {"validation": fg.Federation.from_arrays(held), "callbacks": [stop]}
    if kind == "local+global":  # a look at it takes as many exchanges as there are clients
        method, watched = dataclasses.replace(method, rounds=UNWATCHED_ROUNDS), {}
    model = method.fit(federation, seed=seed, progress=False, **watched)
    history = model.history_
    best = history["validation_rmse"].min() if watched else float("nan")
    values: dict[str, Any] = {"rounds": history.height, "validation_rmse": best}
    if local:
        errors = [judge(model, name, test) for name in model.learned.names]
        values |= {key: float(np.mean([one[key] for one in errors])) for key in errors[0]}
    else:
        values |= judge(model, None, test)
        if kind in ("averaging", "exact", "distillation"):
            values |= before_tuning(model, history, test)
    up = model.ledger_.filter(pl.col("direction") == "up").group_by("message").agg(pl.col("bytes").sum())
    return values | {"bytes_up": dict(up.iter_rows())}


def judge(model: Any, client: str | None, test: tuple[Matrix, Matrix]) -> dict[str, float]:
    mean, std = model.predict(client, test[0], return_std=True)
    y = test[1]
    return {
        "rmse": fg.metrics.root_mean_squared_error(y, mean),
        "nlpd": fg.metrics.negative_log_predictive_density(y, mean, std),
        "ece": fg.metrics.expected_calibration_error(y, mean, std),
        "mce": fg.metrics.maximum_calibration_error(y, mean, std),
        "brier": fg.metrics.brier_score(y, mean, std),
        "coverage_95": fg.metrics.coverage(y, mean, std, 0.95),
    }


def before_tuning(model: Any, history: pl.DataFrame, test: tuple[Matrix, Matrix]) -> dict[str, float]:
    """The same with noise and prior scale as phase 1 left them."""
    untuned = type(model)(dataclasses.replace(model.learned, tune=False), history, model.ledger_, None)
    return {f"untuned_{key}": value for key, value in judge(untuned, None, test).items()}


if __name__ == "__main__":
    main()
