"""Does CURRIN's high fidelity fare worse when its clients weigh more in the mean? The ablation of the FGPR paper.

Paper, a curve: N_1 = 40, N_2 = 200, the weight p_1 of the high fidelity raised from .17 = 40 / 240 to 1 while p_2 falls
from .83 to 0. The error "remains consistent" for moderate p_1 and "increases sharply" past a threshold (its axis goes
from .10 to .28): "the increased weight to HF can be misleading due to the scarcity of HF data".

A bad answer: no rise from .17 to 1 in the authors' setting.

Two budgets, since weight and work go together there: a local epoch is one step for a high-fidelity client and five for
a low-fidelity one, so at p_1 = 1 the prior has been moved by 201 steps in place of up to 1,005. With five steps a round
for every client scarcity alone is left. Everything else as in `multifidelity.py`: two clients of each fidelity, who
share p_1 and p_2 evenly.

    python ablation.py [--repeats 20]
"""

import argparse
import time
from typing import Any

import drawing
import multifidelity
import numpy as np
import rows
from functions import CURRIN

import fedgauss as fg

QUESTION = "ablation"
SHARES = (0.17, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
BUDGETS = {"one epoch": "epoch", "five steps": 5}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=20)
    options = arguments.parse_args()
    started = time.perf_counter()
    for seed in range(options.repeats):
        rows.record(QUESTION, {"function": "CURRIN"}, repeat(seed), seed=seed)
    rows.tidy(QUESTION)
    draw_figure()
    print(f"{options.repeats} repeats in {time.perf_counter() - started:.0f} s")


def repeat(seed: int) -> dict[str, Any]:
    clients, (X_test, y_test) = multifidelity.make(CURRIN, seed, corners=True)
    federation = fg.Federation.from_arrays(clients)
    scale = clients["high 1"][1].std(ddof=1)
    values: dict[str, Any] = {}
    for budget, local_steps in BUDGETS.items():
        for share in SHARES:
            weights = {name: (share if name.startswith("high") else 1.0 - share) / 2.0 for name in clients}
            method = fg.FGPR.as_published(client_weights=weights, local_steps=local_steps)
            model = method.fit(federation, seed=seed, progress=False)
            mean = model.predict("high 1", X_test)
            values.setdefault(budget, {})[str(share)] = {
                "rmse": fg.metrics.root_mean_squared_error(y_test, mean) / scale,
                "lengthscale": np.ravel(model.parameters_["lengthscale"])[0],
            }
    return values


def draw_figure() -> None:
    found = rows.latest(QUESTION)
    figure, (axes, *_) = drawing.panels(
        ["CURRIN: error against the weight of the high fidelity"], columns=1, height=4.0
    )
    for budget, shade in zip(BUDGETS, drawing.SHADES, strict=False):
        errors = np.array([[row["values"][budget][str(share)]["rmse"] for share in SHARES] for row in found])
        spread = errors.std(0, ddof=1) / np.sqrt(len(errors))
        axes.errorbar(SHARES, errors.mean(0), yerr=spread, marker="o", color=shade, label=f"{budget} a round")
    axes.set(xlabel="p$_1$", ylabel="RMSE / sd, with standard errors", ylim=(0, None))
    axes.legend()
    drawing.write(figure, QUESTION)


if __name__ == "__main__":
    main()
