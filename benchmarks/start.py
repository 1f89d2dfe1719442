"""Does federation rescue a badly started GP? Example 3 of the FGPR paper and its curve of the error over rounds.

Paper, a curve: from theta = (1, 10, 1), a noise so large that the fitted curve is flat, FGPR "can still correct the
wrong initialization after several communication rounds", which it credits "to the stochasticity in the SGD method".

A bad answer: FGPR by the paper's text ends more than 5 % above the error at the maximum of the clients' summed
likelihood. The paper's explanation fails if a client alone recovers as well by steps on all its rows, without any
randomness.

Protocol: y = sin x + e, e of variance .2 (the paper's N(0, .2)), two clients with 100 training and 1,000 test points,
uniform on [0, 1], nothing standardised; the start has signal variance 1, noise variance 10, lengthscale 1. Errors are
root mean squares averaged over the clients: against the noisy test rows, as in the paper, where the noise alone is
.447, and against sin x. 200 rounds of five steps on batches of 20:

- as published: Adam at the rate .1, batches of nearest neighbours, as in the authors' other code for one input;
- by the text: SGD on uniform batches, at a constant rate of 1 and at 1 / (1 + t / 100);
- Adam on uniform batches: what is between;
- alone: one client by that Adam, and without randomness by Adam, gradient descent and L-BFGS on all its rows.

    python start.py [--repeats 10]
"""

import argparse
import dataclasses
import math
import time
from typing import Any

import drawing
import jax
import jax.numpy as jnp
import numpy as np
import raw
import rows
import scipy.optimize
from functions import Matrix

import fedgauss as fg
from fedgauss.gp.exact import negative_log_marginal_likelihood

QUESTION = "start"
START = {"lengthscale": 1.0, "variance": 1.0, "noise_variance": 10.0}
ROUNDS = 200
SHOWN = np.unique(np.geomspace(1, ROUNDS + 1, 25).astype(int)) - 1
"""Rounds whose parameters and errors are recorded; 0 is the start."""
DRAWN = ("as published", "SGD", "SGD as 1 / t", "Adam", "alone, Adam, all rows", "alone, gradient descent")

Rows = tuple[Matrix, Matrix]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=10)
    options = arguments.parse_args()
    started = time.perf_counter()
    for seed in range(options.repeats):
        rows.record(QUESTION, {}, repeat(seed), seed=seed)
    rows.tidy(QUESTION)
    draw_figure()
    print(f"{options.repeats} repeats in {time.perf_counter() - started:.0f} s")


def sample(count: int, draw: np.random.Generator) -> Rows:
    X = draw.random((count, 1))
    return X, np.sin(X[:, 0]) + math.sqrt(0.2) * draw.normal(size=count)


def repeat(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng([seed, 11])
    training, test = ({name: sample(count, draw) for name in "ab"} for count in (100, 1000))
    published = fg.FGPR.as_published(learning_rate=0.1, batch_size=20, rounds=ROUNDS, local_steps=5, start=START)
    adam = dataclasses.replace(published, minibatch="uniform")
    sgd = dataclasses.replace(adam, optimiser="sgd", learning_rate=1.0)
    together = {
        "as published": published,
        "SGD": sgd,
        "SGD as 1 / t": dataclasses.replace(sgd, decay=100.0),
        "Adam": adam,
        "maximum": fg.FGPR(solver="exact", start=START),
    }
    alone = {
        "alone, Adam": adam,
        "alone, Adam, all rows": dataclasses.replace(adam, batch_size=100),
        "alone, gradient descent": dataclasses.replace(sgd, batch_size=100),
    }
    paths = {name: dict.fromkeys("ab", path(method, training, seed)) for name, method in together.items()}
    for name, method in alone.items():
        paths[name] = {client: path(method, {client: training[client]}, seed) for client in "ab"}
    paths["alone, L-BFGS"] = {client: local_optimum(*training[client]) for client in "ab"}

    values: dict[str, Any] = {}
    for name, of_client in paths.items():
        # who has finished stays where he is
        shown = {client: thetas[np.minimum(SHOWN, len(thetas) - 1)] for client, thetas in of_client.items()}
        errors = np.mean([[error(theta, training[c], test[c]) for theta in thetas] for c, thetas in shown.items()], 0)
        values[name] = {
            "rmse": errors[-1, 0],
            "rmse_of_truth": errors[-1, 1],
            "parameters": dict(zip(START, np.mean([thetas[-1] for thetas in shown.values()], 0), strict=True)),
            "noise_variances": np.mean([thetas[:, 2] for thetas in shown.values()], 0),
            "rmses": errors[:, 0],
        }
    return values


def path(method: fg.FGPR, training: dict[str, Rows], seed: int) -> Matrix:
    """Lengthscale, variance and noise variance from the start on, a line a round."""
    rounds = raw.history(method, fg.Federation.from_arrays(training), seed=seed)
    thetas = [[np.ravel(row[f"parameters.{name}"])[0] for name in START] for row in rounds]
    return np.array([list(START.values()), *thetas])


def local_optimum(X: Matrix, y: Matrix) -> Matrix:
    """The same of L-BFGS on one client's whole likelihood, a line an iteration."""
    kernel = fg.kernels.RBF()

    @jax.jit
    @jax.value_and_grad
    def objective(u: Any) -> Any:
        lengthscale, variance, noise = jnp.exp(u)
        parameters = {"lengthscale": lengthscale[None], "variance": variance, "noise_variance": noise}
        return negative_log_marginal_likelihood(kernel, parameters, jnp.asarray(X), jnp.asarray(y))

    first = np.log(list(START.values()))
    visited = [first]
    scipy.optimize.minimize(
        lambda u: tuple(map(np.asarray, objective(u))), first, jac=True, method="L-BFGS-B", callback=visited.append,
        bounds=[(math.log(1e-4), math.log(1e6))] * 3,
    )  # fmt: skip
    return np.exp(visited)


def error(theta: Matrix, training: Rows, test: Rows) -> tuple[float, float]:
    """Of a client's predictions at its test inputs, against its test rows and against sin x."""
    lengthscale, variance, noise = theta
    X, y = training

    def covariance(A: Matrix) -> Matrix:
        return variance * np.exp(-0.5 * ((A - X.T) / lengthscale) ** 2)

    mean = covariance(test[0]) @ np.linalg.solve(covariance(X) + noise * np.eye(len(y)), y)
    return tuple(float(np.sqrt(np.mean((truth - mean) ** 2))) for truth in (test[1], np.sin(test[0][:, 0])))


def draw_figure() -> None:
    found = [row["values"] for row in rows.latest(QUESTION)]
    figure, axes = drawing.panels(
        ["RMSE of the test rows; dotted: at the maximum", "Noise variance (truth .2)"], columns=2
    )
    for panel, key in zip(axes, ("rmses", "noise_variances"), strict=True):
        for name, shade in zip(DRAWN, drawing.SHADES, strict=True):
            label = name if name.startswith("alone") else f"FGPR, {name}"
            panel.plot(SHOWN, np.mean([values[name][key] for values in found], 0), color=shade, label=label)
        panel.set_xlabel("round")
    axes[0].axhline(np.mean([values["maximum"]["rmse"] for values in found]), color="#222222", linestyle="dotted")
    axes[1].set_yscale("log")
    axes[1].legend(fontsize=7)
    drawing.write(figure, QUESTION)


if __name__ == "__main__":
    main()
