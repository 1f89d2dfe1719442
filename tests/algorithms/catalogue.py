"""The list of algorithms: one row here brings the whole conformance suite."""

from typing import Any

import numpy as np

from fedgauss.algorithm import FederatedAlgorithm
from fedgauss.algorithms.fgpr import ExactHyperparameters, HyperparameterAveraging
from fedgauss.algorithms.moments import Moments
from fedgauss.algorithms.separate import SeparateToConvergence
from fedgauss.federation import Federation
from fedgauss.gp.kernels import RBF
from fedgauss.gp.parameters import Space
from fedgauss.models import FGPR
from protocol.toy import StackedToy


def averaging(**changes: Any) -> HyperparameterAveraging:
    algorithm = FGPR(**({"rounds": 3, "batch_size": 8, "local_steps": 2} | changes))._algorithm(
        Space(kernel=RBF(), num_inputs=2), num_rows=82
    )
    assert isinstance(algorithm, HyperparameterAveraging)
    return algorithm


EXACT = ExactHyperparameters(
    space=Space(kernel=RBF(ard=True), num_inputs=2, transform="log"), rounds=6, weighting="joint", block_size=64,
    tolerance=1e-6,
)  # fmt: skip

OURS: list[FederatedAlgorithm[Any, Any, Any, Any]] = [
    Moments(num_inputs=2, num_targets=1),
    averaging(),
    averaging(local_steps="epoch", minibatch="nearest", personal=("noise_variance",), keep_optimiser=True),
    EXACT,
    SeparateToConvergence(alone=EXACT),
]
ALGORITHMS = [*OURS, StackedToy(updates=3)]
"""With one whose replies are stacked."""


def small_federation() -> Federation:
    """Three clients of unequal size."""
    random = np.random.default_rng(0)
    data = {}
    for name, rows in (("a", 30), ("b", 12), ("c", 40)):
        X = random.normal(size=(rows, 2))
        data[name] = (X, np.sin(2 * X[:, 0]) + 0.3 * random.normal(size=rows))
    return Federation.from_arrays(data)
