"""Who is asked, and when: all clients or a sample at once, one after the other, or whoever is free."""

from typing import Any, Literal

import numpy as np

from fedgauss.algorithm import FederatedAlgorithm
from fedgauss.errors import ScheduleError
from fedgauss.settings import check_choice, check_positive, settings

Positions = np.ndarray[tuple[int], np.dtype[np.int64]]


@settings
class Synchronous:
    """Ask a cohort, wait for its answers, move on.

    Args:
        cohort: How many clients a round; `None` asks all of them.
        by: Draw a cohort with probabilities proportional to the clients' sizes (FGPR, Algorithm 1) or uniformly.
            Drawn without replacement: the paper's cohort is a set.

    Example:
        >>> Synchronous(cohort=2).select(0, np.array([10, 10, 10]), seed=0).size
        2
    """

    cohort: int | None = None
    by: Literal["size", "uniform"] = "size"

    def __post_init__(self) -> None:
        if self.cohort is not None:
            check_positive("Synchronous", "cohort", self.cohort, whole=True)
        check_choice("Synchronous", "by", self.by, ("size", "uniform"))

    @property
    def draws_by_size(self) -> bool:
        """Whether a client's size already decides how often it is asked, so that replies take the plain mean."""
        return self.cohort is not None and self.by == "size"

    def select(self, round_number: int, sizes: np.ndarray[Any, Any], *, seed: int) -> Positions:
        """The clients to ask in this round, by ascending position. Depends on its arguments alone."""
        if self.cohort is None or self.cohort >= len(sizes):
            return np.arange(len(sizes))
        p = sizes / sizes.sum() if self.by == "size" else None
        generator = np.random.default_rng([seed, round_number, 0x5C4ED])
        return np.sort(generator.choice(len(sizes), size=self.cohort, replace=False, p=p))


@settings
class Sequential:
    """Ask one client at a time: each sees what the one before it changed.

    Args:
        order: Through the clients as they stand, or in a new random order each sweep.

    Example:
        >>> [int(Sequential().select(r, np.ones(3), seed=0)[0]) for r in range(4)]
        [0, 1, 2, 0]
    """

    order: Literal["given", "random"] = "given"

    draws_by_size = False

    def __post_init__(self) -> None:
        check_choice("Sequential", "order", self.order, ("given", "random"))

    def select(self, round_number: int, sizes: np.ndarray[Any, Any], *, seed: int) -> Positions:
        """The one client to ask in this round."""
        sweep, place = divmod(round_number, len(sizes))
        if self.order == "random":
            place = np.random.default_rng([seed, sweep, 0x5C4ED]).permutation(len(sizes))[place]
        return np.array([place])


@settings
class Asynchronous:
    """Never wait: each answer is counted as it arrives, and a free client is asked at once.

    Args:
        in_flight: How many clients work at a time; `None` lets all of them.
    """

    in_flight: int | None = None

    draws_by_size = False

    def __post_init__(self) -> None:
        if self.in_flight is not None:
            check_positive("Asynchronous", "in_flight", self.in_flight, whole=True)


Schedule = Synchronous | Sequential | Asynchronous


def check_schedule(schedule: Schedule, algorithm: FederatedAlgorithm[Any, Any, Any, Any]) -> None:
    """Refuse a schedule under which the algorithm would be wrong, before anything starts.

    Raises:
        ScheduleError: If the algorithm needs every client's answer to one request and the schedule asks them apart.
    """
    if algorithm.quorum == "every" and not (isinstance(schedule, Synchronous) and schedule.cohort is None):
        raise ScheduleError(
            f"{type(algorithm).__name__} needs the answer of every client to each request, but {schedule} does not wait"
            " for all of them. Use Synchronous()."
        )
