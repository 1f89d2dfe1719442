"""Does averaging recover the prior that the data were drawn from, at the rate O(1 / T)? Section 4 of the FGPR paper.

Paper, curves of the squared error of the averaged theta over rounds, 20 experiments each: it "follows the O(1 / T)
pattern", for RBF and Matern-3/2, with K = 20, 50, 100 clients of 250, 40, 8 rows and with sizes from 10 to 10,000;
errors fall within 20 to 40 rounds. Its theorems bound the error by O(1 / T) and a statistical error, for the signal
variance theta_1 (RBF alone) and the noise variance theta_2.

A bad answer: for RBF, a median log-log slope of theta_2's squared error shallower than -1, or a floor more than ten
times the squared error of the likelihood's own maximum. Where the paper has O(1 / T), steeper is as good.

Protocol, 20 experiments a scenario (Matern: 10, for run time): d of 1..10, theta_1 of [.1, 10], theta_2 of [.01, 1] and
every input's lengthscale of [.01, 1] are uniform draws; each client's rows are a draw of its own from that GP at
uniform points of [0, 1]^d. Both thetas are variances, as in the authors' code; section 3 writes them squared. As in the
theorems the kernel's shape is known: inputs are divided by their true lengthscales (and filled up to ten columns with
zeros, which changes no distance) and the lengthscale is held at 1. Both thetas are projected onto the boxes they were
drawn from, and start at log 2. 100 rounds of 5 SGD steps on 50 uniform rows, rates eta / (1 + t / decay), gradients
scaled by log M and M.

- The paper leaves eta and decay open. `--rates` tries `RATES` on four other experiments (RBF) of 20 clients with 250
  rows and of 100 with 8: that with the lowest training objective is `RATE`. No true value is looked at. It found 2.0779
  nats a row for (10, 10), 2.0782 (1, 100), 2.0803 (1, 10), 2.0811 (10, 1), 2.1323 (.1, 10).
- Unbalanced: 20 clients with 10 to 2,000 rows, evenly spaced in the logarithm; 10,000 would take too long.
- Floor: the mean squared error over the last 20 % of rounds. Slope: least squares of log error on log round over the
  rounds before the error first falls to twice the floor, where there are five. It is the same for steps, 5 a round.
- "maximum": the squared error at the maximum of the clients' summed likelihood, by the exact solver with rows in blocks
  of up to 250: what is left when nothing remains to be optimised.

    python recovery.py [--repeats 20] [--kernels rbf matern32] [--rates]
"""

import argparse
import itertools
import math
import time
from typing import Any

import drawing
import numpy as np
import raw
import rows
import scipy.spatial.distance
from functions import Matrix

import fedgauss as fg

QUESTION = "recovery"
SCENARIOS = {
    "20 x 250": [250] * 20,
    "50 x 40": [40] * 50,
    "100 x 8": [8] * 100,
    "unbalanced": [int(size) for size in np.geomspace(10, 2000, 20)],
}
"""Rows of each client."""
KERNELS = ("rbf", "matern32")
BOX = {"variance": (0.1, 10.0), "noise_variance": (0.01, 1.0)}
RATES = ((0.1, 10.0), (1.0, 10.0), (1.0, 100.0), (10.0, 1.0), (10.0, 10.0))
RATE = (10.0, 10.0)
ROUNDS, COLUMNS = 100, 10
SHOWN = np.unique(np.geomspace(1, ROUNDS, 30).astype(int))
"""Rounds whose errors are recorded."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=20)
    arguments.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=list(KERNELS))
    arguments.add_argument("--rates", action="store_true")
    options = arguments.parse_args()
    if options.rates:
        compare_rates()
        return
    for kernel, scenario in itertools.product(options.kernels, SCENARIOS):
        started = time.perf_counter()
        for seed in range(options.repeats):
            rows.record(QUESTION, {"kernel": kernel, "scenario": scenario}, repeat(kernel, scenario, seed), seed=seed)
        print(f"{kernel}, {scenario}: {options.repeats} repeats in {time.perf_counter() - started:.0f} s", flush=True)
    rows.tidy(QUESTION)
    for kernel in options.kernels:
        draw_figure(kernel)


def experiment(kernel: str, scenario: str, seed: int) -> tuple[fg.Federation, dict[str, Any]]:
    """Clients with data of one GP, inputs in units of its lengthscales; and the GP."""
    draw = np.random.default_rng([seed, 10, list(SCENARIOS).index(scenario)])
    truth: dict[str, Any] = {name: draw.uniform(*bounds) for name, bounds in BOX.items()}
    lengths = draw.uniform(0.01, 1.0, draw.integers(1, 11))
    clients = {}
    for c, count in enumerate(SCENARIOS[scenario]):
        X = np.zeros((count, COLUMNS))
        X[:, : len(lengths)] = draw.random((count, len(lengths))) / lengths
        K = truth["variance"] * correlation(kernel, X) + truth["noise_variance"] * np.eye(count)
        clients[f"{c:03}"] = (X, np.linalg.cholesky(K) @ draw.normal(size=count))
    return fg.Federation.from_arrays(clients), truth | {"d": len(lengths)}


def correlation(kernel: str, X: Matrix) -> Matrix:
    if kernel == "rbf":
        return np.exp(-0.5 * scipy.spatial.distance.squareform(scipy.spatial.distance.pdist(X, "sqeuclidean")))
    r = math.sqrt(3.0) * scipy.spatial.distance.squareform(scipy.spatial.distance.pdist(X))
    return (1.0 + r) * np.exp(-r)


def settings(kernel: str, **others: Any) -> fg.FGPR:
    return fg.FGPR(
        kernel=kernel,
        start=dict.fromkeys(BOX, math.log(2.0)) | {"lengthscale": 1.0},
        lower={name: low for name, (low, _) in BOX.items()} | {"lengthscale": 1.0},
        upper={name: high for name, (_, high) in BOX.items()} | {"lengthscale": 1.0},
        **others,
    )


def averaging(kernel: str, rate: float, decay: float) -> fg.FGPR:
    return settings(
        kernel, rounds=ROUNDS, batch_size=50, local_steps=5, optimiser="sgd", learning_rate=rate, decay=decay,
        gradient_scale="paper", transform="none",
    )  # fmt: skip


def repeat(kernel: str, scenario: str, seed: int) -> dict[str, Any]:
    federation, truth = experiment(kernel, scenario, seed)
    rounds = raw.history(averaging(kernel, *RATE), federation, seed=seed)
    best = raw.history(settings(kernel, solver="exact", block_size=250), federation, seed=seed)[-1]
    values: dict[str, Any] = {"truth": truth}
    for name in BOX:
        errors = np.array([(np.ravel(row[f"parameters.{name}"])[0] - truth[name]) ** 2 for row in rounds])
        floor = errors[-ROUNDS // 5 :].mean()
        values[name] = {
            "slope": slope(errors, 2.0 * floor),
            "floor": floor,
            "maximum": (np.ravel(best[f"parameters.{name}"])[0] - truth[name]) ** 2,
            "errors": errors[SHOWN - 1],
        }
    return values


def slope(errors: Matrix, least: float) -> float | None:
    """Of log error on log round, before the error first falls to `least`."""
    before = int(np.argmax(errors <= least))
    if before < 5:
        return None
    return float(np.polyfit(np.log(np.arange(1, before + 1)), np.log(errors[:before]), 1)[0])


def compare_rates() -> None:
    total = dict.fromkeys(RATES, 0.0)
    for scenario, seed in itertools.product(("20 x 250", "100 x 8"), range(1000, 1004)):
        federation, _ = experiment("rbf", scenario, seed)
        for rate in RATES:
            rounds = raw.history(averaging("rbf", *rate), federation, seed=seed)
            total[rate] += np.mean([row["objective"] for row in rounds[-20:]])
    for (rate, decay), objective in sorted(total.items(), key=lambda item: item[1]):
        print(f"eta {rate:g}, decay {decay:g}: {objective / 8:.4f} nats a row")


def draw_figure(kernel: str) -> None:
    figure, axes = drawing.panels(list(SCENARIOS), columns=4, height=2.8, sharey=True)
    for panel, scenario in zip(axes, SCENARIOS, strict=True):
        case = {"kernel": kernel, "scenario": scenario}
        found = [row["values"] for row in rows.latest(QUESTION) if row["case"] == case]
        errors = np.array([np.sum([values[name]["errors"] for name in BOX], 0) for values in found])
        for run, error in enumerate(errors):
            panel.loglog(SHOWN, error, color=drawing.SHADES[run % 6], linewidth=0.7, alpha=0.7)
        panel.loglog(SHOWN, np.median(errors, 0), color="#222222", linewidth=2.0, label="median")
        panel.loglog(SHOWN, 10.0 / SHOWN, color="#222222", linestyle="dashed", label="1 / T")
        panel.set_xlabel("round")
    axes[0].set_ylabel("|theta - theta*|$^2$")
    axes[0].legend(fontsize=7)
    drawing.write(figure, f"{QUESTION}_{kernel}")


if __name__ == "__main__":
    main()
