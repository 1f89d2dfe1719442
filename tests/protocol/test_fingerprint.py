"""Fingerprints: the same in every process, another for another setting, whatever the setting is made of."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

from algorithms.catalogue import averaging
from fedgauss.algorithm import fingerprint
from protocol.toy import ToyFactors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holding(ToyFactors):
    """The toy with a setting of any kind."""

    held: Any = None


DIFFERENT: list[Any] = [
    None, 0.1, 0.2, "0.1", (0.1, 0.2), [0.1, 0.2], {"a": 0.1}, {"a": 0.2}, np.zeros(5000), np.eye(1, 5000, 2500)[0],
    np.zeros(5000, dtype=np.float32), optax.sgd(0.1), optax.sgd(0.2), optax.sgd(0.1, momentum=0.9), optax.adam(0.1),
    optax.chain(optax.clip(1.0), optax.adam(0.1)), optax.chain(optax.clip(2.0), optax.adam(0.1)),
    optax.adam(optax.exponential_decay(0.1, 10, 0.5)), optax.adam(optax.exponential_decay(0.1, 20, 0.5)),
    lambda t: 0.1, lambda t: 0.2, np.sin, np.cos, ToyFactors(), ToyFactors(damping=0.1), ToyFactors,
]  # fmt: skip


def test_different_settings_have_different_fingerprints() -> None:
    found = [fingerprint(Holding(held=held)) for held in DIFFERENT]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("held", [np.arange(3.0), optax.adam(0.1)], ids=["array", "optax"])
def test_equal_settings_have_equal_fingerprints(held: Any) -> None:
    again = np.arange(3.0) if isinstance(held, np.ndarray) else optax.adam(0.1)
    assert fingerprint(Holding(held=held)) == fingerprint(Holding(held=again))


def test_an_optimiser_of_optax_has_the_same_fingerprint_in_another_process() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import optax; from algorithms.catalogue import averaging;"
        " from fedgauss.algorithm import fingerprint;"
        " print(fingerprint(averaging(optimiser=optax.chain(optax.clip(1.0), optax.adamw(0.1)))))"
    )
    tests = str(Path(__file__).parents[1])
    there = subprocess.run([sys.executable, "-c", code, tests], capture_output=True, text=True, check=True)
    here = fingerprint(averaging(optimiser=optax.chain(optax.clip(1.0), optax.adamw(0.1))))
    assert there.stdout.strip() == here
