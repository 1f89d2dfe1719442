"""Does one shared prior serve clients whose functions are each other's negative? Figure 1 of the FGPR paper.

Paper: curves only. FGPR passes through the points of both y = sin x and y = -sin x; a neural network trained by FedAvg
returns a line near zero, as theory says: zero minimises the summed squares.

A bad answer: FGPR's error above .05; or a global function, pooled or by FedAvg, that is not as bad as predicting zero.

Protocol of the authors' code, where it is known: 4 clients, two of either sign, of 100 points on [.01, 10] without
noise, batches of 20, Adam at the rate .1, 201 rounds. Points are uniform draws. Errors are root mean squares over all
clients at 1,000 evenly spaced points, in units of y. Pooled is one GP of all 400 rows. FedAvg trains a network of two
layers (50 tanh units) for 201 rounds of 20 Adam steps on each client's whole data, at the rate .01.

    python sign.py [--repeats 30]
"""

import argparse
from typing import Any

import drawing
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rows
from functions import Matrix

import fedgauss as fg

QUESTION = "sign"
SIGNS = {"plus 1": 1.0, "plus 2": 1.0, "minus 1": -1.0, "minus 2": -1.0}
GRID = np.linspace(0.01, 10.0, 1000)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=30)
    for seed in range(arguments.parse_args().repeats):
        rows.record(QUESTION, {}, repeat(seed), seed=seed)
    rows.tidy(QUESTION)


def repeat(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng([seed, 7])
    clients = {}
    for name, sign in SIGNS.items():
        X = draw.uniform(0.01, 10.0, (100, 1))
        clients[name] = (X, sign * np.sin(X[:, 0]))
    federation = fg.Federation.from_arrays(clients)
    published = fg.FGPR.as_published(learning_rate=0.1, batch_size=20)
    exact = fg.FGPR(solver="exact", inputs="none", targets="client")
    methods = {
        "as published": published,
        "Separate, same steps": fg.Separate(method=published, budget="same"),
        "Separate, converged": fg.Separate(method=published, budget="converged"),
        "exact": exact,
        "Pooled": fg.Pooled(method=exact),
    }
    predictions = {}
    values: dict[str, Any] = {}
    for method, settings in methods.items():
        model = settings.fit(federation, seed=seed, progress=False)
        predictions[method] = {name: model.predict(name, GRID[:, None], return_std=True) for name in SIGNS}
        values[method] = {"rmse": error({name: mean for name, (mean, _) in predictions[method].items()})}
    network = fedavg(clients, seed)
    values["FedAvg, network"] = {"rmse": error(dict.fromkeys(SIGNS, network))}
    values["zero"] = {"rmse": error(dict.fromkeys(SIGNS, np.zeros(len(GRID))))}
    if seed == 0:
        draw_figure(clients, predictions, network)
    return values


def error(means: dict[str, Matrix]) -> float:
    squares = [(means[name] - sign * np.sin(GRID)) ** 2 for name, sign in SIGNS.items()]
    return float(np.sqrt(np.mean(squares)))


def fedavg(clients: dict[str, tuple[Matrix, Matrix]], seed: int, rounds: int = 201, steps: int = 20) -> Matrix:
    """One network for all on the grid: local Adam steps, then the mean of the weights."""
    X, y = (np.stack(part) for part in zip(*clients.values(), strict=True))
    optimiser = optax.adam(0.01)

    def network(weights: Any, x: Any) -> Any:
        return jnp.tanh(x / 5.0 @ weights["in"] + weights["bias"]) @ weights["out"] + weights["mean"]

    def loss(weights: Any, x: Any, t: Any) -> Any:
        return jnp.mean((network(weights, x) - t) ** 2)

    def local(weights: Any, x: Any, t: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            weights, state = carry
            change, state = optimiser.update(jax.grad(loss)(weights, x, t), state)
            return optax.apply_updates(weights, change), state

        return jax.lax.fori_loop(0, steps, step, (weights, optimiser.init(weights)))[0]

    @jax.jit
    def train(weights: Any) -> Any:
        def communicate(_: Any, weights: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf.mean(0), jax.vmap(local, in_axes=(None, 0, 0))(weights, X, y))

        return jax.lax.fori_loop(0, rounds, communicate, weights)

    draw = np.random.default_rng([seed, 8])
    weights = {
        "in": 3.0 * draw.normal(size=(1, 50)), "bias": 3.0 * draw.normal(size=50),
        "out": draw.normal(size=50) / np.sqrt(50.0), "mean": np.zeros(()),
    }  # fmt: skip
    return np.asarray(network(train(jax.tree.map(jnp.asarray, weights)), GRID[:, None]))


def draw_figure(clients: dict[str, tuple[Matrix, Matrix]], predictions: dict[str, Any], network: Matrix) -> None:
    shown = ("plus 1", "minus 1")
    figure, axes = drawing.panels(
        ["FGPR as published, y = sin x", "FGPR as published, y = -sin x", "One function for all"],
        columns=3,
        sharey=True,
    )
    for panel, name in zip(axes, shown, strict=False):
        drawing.curve(panel, GRID, SIGNS[name] * np.sin(GRID), *predictions["as published"][name], clients[name])
    for name, shade in zip(shown, drawing.SHADES[1:3], strict=False):
        axes[2].plot(*clients[name], ".", color=shade, markersize=3)
    axes[2].plot(GRID, predictions["Pooled"]["plus 1"][0], color="#222222", label="Pooled GP")
    axes[2].plot(GRID, network, color=drawing.SHADES[0], linestyle="dashed", label="network by FedAvg")
    for panel in axes:
        panel.set_xlabel("x")
    for panel in (axes[0], axes[2]):
        panel.legend(fontsize=7, loc="lower left")
    drawing.write(figure, QUESTION)


if __name__ == "__main__":
    main()
