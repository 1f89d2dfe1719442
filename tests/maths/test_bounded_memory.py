"""What a client's sums and their gradient need beside the rows does not grow with the rows."""

from typing import Any

import jax
import pytest

from algorithms.catalogue import feature_model
from fedgauss.gp.features import Fourier
from fedgauss.gp.inducing import InducingModel
from fedgauss.gp.kernels import RBF
from fedgauss.gp.parameters import Space
from fedgauss.gp.summed import SummedModel, sums_of

MODELS = [
    feature_model(Fourier(), num_samples=50),
    InducingModel(space=Space(kernel=RBF(), num_inputs=2, transform="log"), num_inducing=50),
]


def beside_the_rows(model: SummedModel, rows: int, *, gradient: bool) -> int:
    """Bytes of temporary memory, as the compiler counts them."""
    theta, constants = model.init(jax.random.key(0))
    shape: Any = jax.ShapeDtypeStruct
    X, Y = shape((rows, 2), float), shape((rows, 1), float)

    def sums(theta: Any, X: Any, Y: Any) -> Any:
        return sums_of(model, theta, constants, X, Y, rows)

    def objective(theta: Any, X: Any, Y: Any) -> Any:
        return model.objective(sums(theta, X, Y), theta)

    compiled = jax.jit(jax.grad(objective) if gradient else sums).lower(theta, X, Y).compile()
    analysis: Any = compiled.memory_analysis()
    return int(analysis.temp_size_in_bytes)


@pytest.mark.parametrize("gradient", [False, True], ids=["sums", "gradient"])
@pytest.mark.parametrize("model", MODELS, ids=["features", "inducing"])
def test_memory_does_not_grow_with_the_rows(model: SummedModel, gradient: bool) -> None:
    few, many = (beside_the_rows(model, rows, gradient=gradient) for rows in (100_000, 10_000_000))
    assert many - few < 10 * 9_900_000  # the mask, 8 bytes a row, and not the features, 400 or 800
    assert few < 100e6
