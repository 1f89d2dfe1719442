"""The test functions of the papers' experiments, each with its domain, fidelities from high to low.

Definitions: section 11 of the preprint of Yue and Kontar, "Federated Gaussian Process" (arXiv 2111.14008), as printed,
except PARK, whose first term is written so that x1 = 0 gives its limit instead of 0 / 0. Other collections define some
of these functions differently (PARK with x3 for x3^2, BRANIN / 100, Borehole with 5 for 5 pi): their errors cannot be
compared with the paper's.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Function = Callable[[Matrix], Matrix]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiFidelity:
    """One function at two or three fidelities, over a box.

    Args:
        low: The box's lower corner.
        high: Its upper corner.
        fidelities: y(x) by name, "high" first.
        sizes: Rows of a client of each fidelity, as in the paper's Table 3.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    fidelities: dict[str, Function]
    sizes: dict[str, int]

    @property
    def num_inputs(self) -> int:
        return len(self.low)

    def __call__(self, fidelity: str, unit: Matrix) -> Matrix:
        """y at points of the unit cube, [N, D] to [N]."""
        low, high = np.array(self.low), np.array(self.high)
        return self.fidelities[fidelity](low + unit * (high - low))


def currin_high(x: Matrix) -> Matrix:
    x1, x2 = x.T
    with np.errstate(divide="ignore"):  # exp(-1 / 0) = 0, as it should be
        damping = 1.0 - np.exp(-1.0 / (2.0 * x2))
    return damping * (2300 * x1**3 + 1900 * x1**2 + 2092 * x1 + 60) / (100 * x1**3 + 500 * x1**2 + 4 * x1 + 20)


def currin_low(x: Matrix) -> Matrix:
    x1, x2 = x.T
    below = np.maximum(0.0, x2 - 0.05)
    places = [(x1 + 0.05, x2 + 0.05), (x1 + 0.05, below), (x1 - 0.05, x2 + 0.05), (x1 - 0.05, below)]
    return sum((0.25 * currin_high(np.stack(place, axis=1)) for place in places), np.zeros(len(x)))


def park_high(x: Matrix) -> Matrix:
    x1, x2, x3, x4 = x.T
    # x1/2 [sqrt(1 + (x2 + x3^2) x4 / x1^2) - 1], with x1 taken under the root
    first = 0.5 * (np.sqrt(x1**2 + (x2 + x3**2) * x4) - x1)
    return first + (x1 + 3.0 * x4) * np.exp(1.0 + np.sin(x3))


def park_low(x: Matrix) -> Matrix:
    x1, x2, x3, _ = x.T
    return (1.0 + np.sin(x1) / 10.0) * park_high(x) - 2.0 * x1 + x2**2 + x3**2 + 0.5


def branin_high(x: Matrix) -> Matrix:
    x1, x2 = x.T
    square = (-1.275 * x1**2 / np.pi**2 + 5.0 * x1 / np.pi + x2 - 6.0) ** 2
    return square + (10.0 - 5.0 / (4.0 * np.pi)) * np.cos(x1) + 10.0


def branin_medium(x: Matrix) -> Matrix:
    x1, x2 = x.T
    return 10.0 * np.sqrt(branin_high(x - 2.0)) + 2.0 * (x1 - 0.5) - 3.0 * (3.0 * x2 - 1.0) - 1.0


def branin_low(x: Matrix) -> Matrix:
    return branin_medium(1.2 * (x + 2.0)) - 3.0 * x[:, 1] + 1.0


def hartmann(t: int) -> Function:
    """Fidelity t: 3 is the highest."""
    A = np.array([[3.0, 10.0, 30.0], [0.1, 10.0, 35.0], [3.0, 10.0, 30.0], [0.1, 10.0, 35.0]])
    P = np.array(
        [[0.3689, 0.1170, 0.2673], [0.4699, 0.4387, 0.7470], [0.1091, 0.8732, 0.5547], [0.0381, 0.5743, 0.8828]]
    )
    alpha = np.array([1.0, 1.2, 3.0, 3.2]) + (3 - t) * np.array([0.01, -0.01, -0.1, 0.1])
    return lambda x: np.exp(-((x[:, None, :] - P[None]) ** 2 * A[None]).sum(2)) @ alpha


def borehole(factor: float, offset: float) -> Function:
    def y(x: Matrix) -> Matrix:
        x1, x2, x3, x4, x5, x6, x7, x8 = x.T
        log = np.log(x2 / x1)
        return factor * np.pi * x3 * (x4 - x6) / (log * (offset + 2.0 * x7 * x3 / (log * x1**2 * x8) + x3 / x5))

    return y


CURRIN = MultiFidelity(
    low=(0.0, 0.0), high=(1.0, 1.0), fidelities={"high": currin_high, "low": currin_low}, sizes={"high": 40, "low": 200}
)
PARK = MultiFidelity(
    low=(0.0,) * 4, high=(1.0,) * 4, fidelities={"high": park_high, "low": park_low}, sizes={"high": 50, "low": 300}
)
BRANIN = MultiFidelity(
    low=(-5.0, 0.0),
    high=(10.0, 15.0),
    fidelities={"high": branin_high, "medium": branin_medium, "low": branin_low},
    sizes={"high": 20, "medium": 40, "low": 200},
)
HARTMANN = MultiFidelity(
    low=(0.0,) * 3,
    high=(1.0,) * 3,
    fidelities={"high": hartmann(3), "medium": hartmann(2), "low": hartmann(1)},
    sizes={"high": 50, "medium": 100, "low": 200},
)
BOREHOLE = MultiFidelity(
    low=(0.05, 100.0, 63070.0, 990.0, 63.1, 700.0, 1120.0, 9855.0),
    high=(0.15, 50000.0, 115600.0, 1110.0, 115.0, 820.0, 1680.0, 12045.0),
    fidelities={"high": borehole(2.0, 1.0), "low": borehole(5.0, 1.5)},
    sizes={"high": 50, "low": 200},
)
TABLE_3 = {"CURRIN": CURRIN, "PARK": PARK, "BRANIN": BRANIN, "Hartmann-3D": HARTMANN, "Borehole": BOREHOLE}


# --- one input -------------------------------------------------------------------------------------------------------


def linear_high(x: Matrix) -> Matrix:
    return (6.0 * x - 2.0) ** 2 * np.sin(12.0 * x - 4.0)


def linear_low(x: Matrix) -> Matrix:
    return 0.5 * linear_high(x) + 10.0 * (x - 0.5) + 5.0


def nonlinear_low(x: Matrix) -> Matrix:
    return np.cos(15.0 * x)


def nonlinear_high(x: Matrix) -> Matrix:
    return x * np.exp(nonlinear_low(2.0 * x - 0.2)) - 1.0


def modular(x: Matrix) -> Matrix:
    """Example 4's signal, over [0, 5.5]; the noise has variance 2."""
    return 4.5 * np.cos(2.0 * np.pi * x + 1.5 * np.pi) - 3.0 * np.sin(4.3 * np.pi * x + 0.3 * np.pi)
