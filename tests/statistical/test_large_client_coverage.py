"""Intervals of the posteriors of large clients hold what they promise, for data drawn from the prior itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedgauss.gp.kernels import RBF, Kernel, Matern32, Matern52, Parameters
from fedgauss.gp.posterior import Posterior
from fedgauss.gp.sparse import SparsePosterior
from fedgauss.gp.state_space import StateSpacePosterior
from reference import large_gp as dense

NUM_ROWS, NUM_TESTS, NUM_DRAWS = 3000, 200, 40
NOISE_VARIANCE = 0.1
INTERVAL = 1.959963984540054  # standard deviations either side hold 95 %
STANDARD_ERRORS = 6  # of 40 independent draws: Student's t with 39 degrees of freedom exceeds it once in 2e6


def draws(kind: str, lengthscale: float, num_inputs: int) -> tuple[Any, Any]:
    """Inputs, and at each of them `NUM_DRAWS` functions of the prior with variance 1: [N, D] and [N, draws]."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (NUM_ROWS + NUM_TESTS, num_inputs))
    K = dense.covariance(kind, X, X, lengthscale, 1.0)
    L = np.linalg.cholesky(K + 1e-8 * np.eye(len(X)))  # an error of 1e-4, far below the posterior's width
    return X, L @ rng.standard_normal((len(X), NUM_DRAWS))


def state_space(kernel: Kernel, parameters: Parameters, X: Any, y: Any) -> Posterior:
    return StateSpacePosterior.condition(kernel, parameters, X[:, 0], y)


def resolved_sparse(kernel: Kernel, parameters: Parameters, X: Any, y: Any) -> Posterior:
    posterior = SparsePosterior.condition(kernel, parameters, X, y)
    assert posterior.notes["resolved"] == 1
    return posterior


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "kernel", "lengthscale", "num_inputs"),
    [
        (state_space, Matern32(), 0.5, 1),
        (state_space, Matern52(), 0.01, 1),
        (resolved_sparse, RBF(), 0.5, 1),
        (resolved_sparse, RBF(), 0.01, 1),
        (resolved_sparse, Matern52(), 0.1, 1),
        (resolved_sparse, RBF(), 0.3, 2),
    ],
    ids=["matern32-smooth", "matern52-short", "rbf-smooth", "rbf-short", "sparse-matern52", "rbf-2d"],
)
def test_coverage(
    condition: Callable[[Kernel, Parameters, Any, Any], Posterior], kernel: Kernel, lengthscale: float, num_inputs: int
) -> None:
    X, F = draws(kernel.name, lengthscale, num_inputs)
    parameters = {
        "lengthscale": np.array([lengthscale]),
        "variance": np.array(1.0),
        "noise_variance": np.array(NOISE_VARIANCE),
    }
    rng = np.random.default_rng(1)
    of_y, of_f = [], []
    for f in F.T:
        y = f + np.sqrt(NOISE_VARIANCE) * rng.standard_normal(len(f))
        prediction = condition(kernel, parameters, X[:NUM_ROWS], y[:NUM_ROWS]).predict(X[NUM_ROWS:])
        mean, variance = np.asarray(prediction.mean), np.asarray(prediction.variance)
        of_y.append(np.mean(np.abs(y[NUM_ROWS:] - mean) < INTERVAL * np.sqrt(variance + NOISE_VARIANCE)))
        of_f.append(np.mean(np.abs(f[NUM_ROWS:] - mean) < INTERVAL * np.sqrt(variance)))
    for coverage in (of_y, of_f):  # one number a draw: within a draw neighbours are off together
        standard_error = np.std(coverage, ddof=1) / np.sqrt(NUM_DRAWS)
        assert abs(np.mean(coverage) - 0.95) < STANDARD_ERRORS * standard_error
    # Sharp enough to notice intervals for y that are a tenth too narrow (coverage 0.92), and useful ones for f.
    assert STANDARD_ERRORS * np.std(of_y, ddof=1) / np.sqrt(NUM_DRAWS) < 0.025
