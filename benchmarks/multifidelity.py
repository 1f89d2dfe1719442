"""Does a shared prior carry over from cheap simulations to scarce accurate ones? Table 3 of the FGPR paper.

Paper, error on the high fidelity in standard deviations of its training targets, FGPR / Separate:
CURRIN .148 / .301, PARK .012 / .052, BRANIN .260 / .374, Hartmann-3D .365 / .456, Borehole .604 / .633.

A bad answer: FGPR as published is not within two standard errors of the paper on CURRIN, where the authors' code says
exactly what was done; or the exact solver stops short of the optimum that SciPy finds, or needs more than 15 exchanges.
The paper's claim is FGPR below Separate. It gives Separate 200 optimiser steps, so Separate is also shown converged: a
claim that holds for one of the two budgets only is none.

CURRIN is in the authors' setting: two clients of each fidelity, uniform points and the cube's corners (44 and 204),
1,004 test points, targets standardised by client, errors of the first high-fidelity client in units of its standard
deviation. For the other functions the authors' code is absent or defective. They get the same setting: two clients of
each fidelity of the sizes in Table 3, uniform points in the unit cube onto which the domain is scaled, without corners
(2^8 corners would outnumber Borehole's 50 points), batches as large as the smallest client, 1,000 test points.

    python multifidelity.py [--repeats 30] [--functions CURRIN PARK ...]
"""

import argparse
import dataclasses
import itertools
import time
from typing import Any

import numpy as np
import optimum
import rows
from functions import TABLE_3, Matrix, MultiFidelity

import fedgauss as fg

QUESTION = "multifidelity"
OPTIMUM_CHECKS = 3
"""Repeats whose optimum SciPy searches too."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=30)
    arguments.add_argument("--functions", nargs="+", default=list(TABLE_3), choices=list(TABLE_3))
    options = arguments.parse_args()
    for name in options.functions:
        started = time.perf_counter()
        for seed in range(options.repeats):
            values = repeat(TABLE_3[name], seed, corners=name == "CURRIN", check=seed < OPTIMUM_CHECKS)
            rows.record(QUESTION, {"function": name}, values, seed=seed)
        print(f"{name}: {options.repeats} repeats in {time.perf_counter() - started:.0f} s", flush=True)
    rows.tidy(QUESTION)


def sample(function: MultiFidelity, count: int, corners: bool, draw: np.random.Generator) -> Matrix:
    points = draw.random((count, function.num_inputs))
    if not corners:
        return points
    return np.concatenate([np.array(list(itertools.product((0.0, 1.0), repeat=function.num_inputs))), points])


def make(
    function: MultiFidelity, seed: int, corners: bool
) -> tuple[dict[str, tuple[Matrix, Matrix]], tuple[Matrix, Matrix]]:
    """The clients' rows, `high 1` first, and the test points with the high fidelity's values."""
    draw = np.random.default_rng([seed, 3])
    clients = {}
    for fidelity, size in function.sizes.items():
        for number in (1, 2):
            X = sample(function, size, corners, draw)
            clients[f"{fidelity} {number}"] = (X, function(fidelity, X))
    X_test = sample(function, 1000, corners, draw)
    return clients, (X_test, function("high", X_test))


def methods(batch_size: int) -> dict[str, Any]:
    published = fg.FGPR.as_published(batch_size=batch_size)
    exact = fg.FGPR(solver="exact", inputs="none", targets="client")
    ard = dataclasses.replace(exact, kernel=fg.kernels.RBF(ard=True))
    return {
        "as published": published,
        "Separate, same steps": fg.Separate(method=published, budget="same"),
        "Separate, 200 Adam steps": fg.Separate(
            method=dataclasses.replace(published, rounds=200, keep_optimiser=True), budget="same"
        ),
        "Separate, converged": fg.Separate(method=published, budget="converged"),
        "exact": exact,
        "exact ARD": ard,
        "Separate, converged ARD": fg.Separate(method=ard, budget="converged"),
        "Pooled": fg.Pooled(method=exact),
    }


def repeat(function: MultiFidelity, seed: int, *, corners: bool, check: bool) -> dict[str, Any]:
    clients, (X_test, y_test) = make(function, seed, corners)
    federation = fg.Federation.from_arrays(clients)
    scale = clients["high 1"][1].std(ddof=1)
    values: dict[str, Any] = {}
    for name, method in methods(min(function.sizes.values())).items():
        started = time.perf_counter()
        model = method.fit(federation, seed=seed, progress=False)
        mean, std = model.predict("high 1", X_test, return_std=True)
        values[name] = {
            "rmse": fg.metrics.root_mean_squared_error(y_test, mean) / scale,
            "coverage": fg.metrics.coverage(y_test, mean, std, 0.95),
            "rounds": model.history_.height,
            "seconds": time.perf_counter() - started,
        }
        if name in ("as published", "exact"):
            values[name]["parameters"] = {key: np.ravel(value)[0] for key, value in model.parameters_.items()}
        if name in ("exact", "exact ARD") and check:
            reached = model.history_["objective"][-1]
            values[name]["nats_above_scipy"] = reached - optimum.search(clients, ard="ARD" in name, seed=seed)
    return values


if __name__ == "__main__":
    main()
