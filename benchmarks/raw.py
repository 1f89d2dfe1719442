"""A fit in the data's own units by its rounds. One compilation serves all data sets of a shape, as `fit` with
`targets="none"` does not: there floors follow from the targets' variance."""

from typing import Any

import fedgauss as fg
from fedgauss.engines.local import Run


def history(method: fg.FGPR, federation: fg.Federation, *, seed: int) -> list[dict[str, Any]]:
    """A line a round. `method.noise_floor` is the noise floor itself, and `start` has to name every parameter."""
    fg.prepare()
    algorithm = method._algorithm(method._space(len(federation.inputs), 1.0), num_rows=federation.num_rows)
    return Run(algorithm, federation, schedule=fg.Synchronous(), engine=fg.Local(), seed=seed)().history
