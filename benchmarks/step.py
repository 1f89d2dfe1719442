"""Does a random kernel that sees randomly multiplied copies of x fit a step better? Fig. A.2 of the FedBNR paper.

Paper, curves only: "The replicate policy, although introduces no additional parameters, further increases the model
capacity, and its prediction is more reasonable than just using a DNN and a stationary kernel."

A bad answer: less than 90 % or all of the noisy test rows within their 95 % intervals. The paper's claim is a lower
NLPD with the replicate policy than with the network before a stationary kernel.

Protocol, 10 times: 20 points uniform in [-3, 3] of a step from 0 to 1 at 0, noise of standard deviation .05 (the paper
gives neither); the network has one hidden layer of 10 and two outputs. All learn by training="exact", that is, on the
evidence, with 100 draws. Errors are on 600 even points of [-3, 3]: RMSE against the step itself, NLPD and coverage of
new noisy rows; "near" are the points within .5 of the step, "beyond" those of [-5, -3] and [3, 5], without data.

- network: a network before a stationary kernel, the middle diagram of Fig. A.1.
- shifter: its frequencies' distribution is learned too, the rightmost diagram of Fig. A.1.
- replicate: each draw sees x times 1 + s e with a normal e of its own, the leftmost diagram of Fig. A.2. In the paper
  this has no parameters; here the spread s is learned, from .1 on.

    python step.py [--repeats 10]
"""

import argparse
import time
from typing import Any

import drawing
import numpy as np
import rows
from functions import Matrix

import fedgauss as fg
from fedgauss.fitted import FittedSums

QUESTION = "step"
NOISE = 0.05
ROWS = 20
SHIFTER = {"network": None, "shifter": 10, "replicate": None}
"""By architecture, the width of the shifter."""
GRID = np.linspace(-3.0, 3.0, 600)[:, None]
BEYOND = np.concatenate([np.linspace(-5.0, -3.0, 200), np.linspace(3.0, 5.0, 200)])[:, None]
WIDE = np.linspace(-5.0, 5.0, 500)[:, None]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=10)
    options = arguments.parse_args()
    for name in SHIFTER:
        started = time.perf_counter()
        for seed in range(options.repeats):
            rows.record(QUESTION, {"architecture": name}, repeat(name, seed), seed=seed)
        print(f"{name}: {options.repeats} repeats in {time.perf_counter() - started:.0f} s", flush=True)
    rows.tidy(QUESTION)
    draw_figure()


def step(X: Matrix) -> Matrix:
    return (X[:, 0] > 0.0).astype(float)


def sample(seed: int) -> tuple[Matrix, Matrix]:
    draw = np.random.default_rng([seed, 15])
    X = draw.uniform(-3.0, 3.0, (ROWS, 1))
    return X, step(X) + NOISE * draw.normal(size=ROWS)


def fitted(name: str, seed: int) -> FittedSums:
    features = fg.features.Network(widths=(10,), latent=2, shifter=SHIFTER[name], replicate=name == "replicate")
    method = fg.FedBNR(features=features, num_samples=100, training="exact")
    return method.fit(fg.Federation.from_arrays({"1": sample(seed)}), seed=seed, progress=False)


def repeat(name: str, seed: int) -> dict[str, Any]:
    model = fitted(name, seed)
    draw = np.random.default_rng([seed, 16])

    def scores(X: Matrix) -> dict[str, float]:
        mean, std = model.predict(None, X, return_std=True)
        new = step(X) + NOISE * draw.normal(size=len(X))
        return {
            "rmse": fg.metrics.root_mean_squared_error(step(X), mean),
            "nlpd": fg.metrics.negative_log_predictive_density(new, mean, std),
            "coverage": fg.metrics.coverage(new, mean, std, 0.95),
        }

    return {
        "inside": scores(GRID),
        "near": scores(GRID[np.abs(GRID[:, 0]) < 0.5]),
        "beyond": scores(BEYOND),
        "noise std": float(np.sqrt(model.parameters_["noise_variance"])),
        "evidence a row": model.log_evidence_ / ROWS,
        "exchanges": model.history_.height,
    }


def draw_figure() -> None:
    titles = {
        "network": "Network, stationary kernel",
        "shifter": "With a distribution shifter",
        "replicate": "Replicate",
    }
    figure, axes = drawing.panels([titles[name] for name in SHIFTER], columns=3, sharey=True)
    for panel, name in zip(axes, SHIFTER, strict=True):
        mean, std = fitted(name, 0).predict(None, WIDE, return_std=True)
        drawing.curve(panel, WIDE[:, 0], step(WIDE), mean, std, sample(0))
    axes[0].set_ylim(-1.0, 2.0)
    axes[0].legend(fontsize=7, loc="lower right")
    drawing.write(figure, QUESTION)


if __name__ == "__main__":
    main()
