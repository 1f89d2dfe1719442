"""Every algorithm passes the shared list."""

from collections.abc import Callable
from typing import Any

import pytest

from algorithms.catalogue import ALGORITHMS, small_federation
from fedgauss.algorithm import FederatedAlgorithm
from fedgauss.testing import checks


@pytest.mark.parametrize(("name", "check"), list(checks()), ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_algorithm(algorithm: FederatedAlgorithm[Any, Any, Any, Any], name: str, check: Callable[..., None]) -> None:
    check(algorithm, small_federation())
