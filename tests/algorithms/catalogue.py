"""The list of algorithms: one row here brings the whole conformance suite."""

from typing import Any

import numpy as np
import optax

from fedgauss.algorithm import FederatedAlgorithm
from fedgauss.algorithms.fedbnr import (
    CollectNetworks,
    FeatureAveraging,
    KernelDistillation,
    LocalFeatures,
    LocalSteps,
    NetworkDistillation,
    TwoExchangeLastLayer,
)
from fedgauss.algorithms.fgpr import ExactHyperparameters, HyperparameterAveraging
from fedgauss.algorithms.moments import Moments
from fedgauss.algorithms.separate import SeparateToConvergence
from fedgauss.algorithms.sums import ExactSums, GatherSums
from fedgauss.federation import Federation
from fedgauss.gp.feature_regression import FeatureModel
from fedgauss.gp.features import Features, Fourier, Network
from fedgauss.gp.inducing import InducingModel
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


def feature_model(features: Features | None = None, **changes: Any) -> FeatureModel:
    settings: dict[str, Any] = {
        "features": features or Network(widths=(6,), latent=2, shifter=3), "num_inputs": 2, "num_targets": 1,
        "num_samples": 8, "noise_floor": 1e-4, "noise_std": 0.3, "weight_std": 1.0,
    }  # fmt: skip
    return FeatureModel(**(settings | changes))


def local_steps(**changes: Any) -> LocalSteps:
    settings: dict[str, Any] = {
        "steps": 2,
        "optimiser": "adam",
        "learning_rate": 0.01,
        "batch_size": None,
        "decay": None,
    }
    return LocalSteps(**(settings | changes))


def exact_sums(model: Any = None, **changes: Any) -> ExactSums:
    settings: dict[str, Any] = {"num_inputs": 2, "num_targets": 1, "rounds": 8, "optimiser": "lbfgs", "tolerance": 1e-7}
    return ExactSums(model=model or feature_model(), **(settings | changes))


_KERNEL: dict[str, Any] = {"model": feature_model(), "local": local_steps(), "rounds": 2}
_DISTILLATION = _KERNEL | {"alpha": 1.0, "steps": 2, "learning_rate": 0.01, "num_rows": 5, "digest": ""}

FEATURES: list[FederatedAlgorithm[Any, Any, Any, Any]] = [
    FeatureAveraging(**_KERNEL),
    FeatureAveraging(**(_KERNEL | {"local": local_steps(batch_size=8, optimiser="sgd", decay=2.0)})),
    NetworkDistillation(**_DISTILLATION),
    KernelDistillation(**_DISTILLATION),
    LocalFeatures(**_KERNEL),
    CollectNetworks(model=feature_model(), num_clients=3),
    GatherSums(model=feature_model(Fourier(ard=True)), num_inputs=2, num_targets=1),
    TwoExchangeLastLayer(model=feature_model()),
    exact_sums(),
    exact_sums(optimiser=optax.adam(0.01)),
    exact_sums(InducingModel(space=Space(kernel=RBF(ard=True), num_inputs=2, transform="log"), num_inducing=6)),
]

OURS: list[FederatedAlgorithm[Any, Any, Any, Any]] = [
    Moments(num_inputs=2, num_targets=1),
    averaging(),
    averaging(local_steps="epoch", minibatch="nearest", personal=("noise_variance",), keep_optimiser=True),
    EXACT,
    SeparateToConvergence(alone=EXACT),
    *FEATURES,
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
