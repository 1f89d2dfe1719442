"""Who is asked, and when: all clients or a sample at once, one after the other, or whoever is free."""

from typing import Any, Literal

import numpy as np

from fedgauss.algorithm import FederatedAlgorithm
from fedgauss.errors import ScheduleError
from fedgauss.settings import check_choice, check_positive, settings

Positions = np.ndarray[tuple[int], np.dtype[np.int64]]
Probabilities = np.ndarray[tuple[int], np.dtype[np.float64]]


@settings
class Synchronous:
    """Ask a cohort, wait for its answers, move on.

    Args:
        cohort: How many clients a round; `None` asks all of them.
        by: Draw a cohort with probabilities proportional to the clients' sizes (FGPR, Algorithm 1) or uniformly. A
            cohort is a set, and a client is in it with exactly the probability that `inclusion` says.

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

    def inclusion(self, sizes: np.ndarray[Any, Any]) -> Probabilities:
        """The probability with which each client is asked in a round: cohort * p_k, those above 1 held at 1.

        A mean over the cohort in which each client stands for size / probability rows is that over all clients. Where
        no client is so large that its probability is held at 1, those are the same for all: the plain mean.

        Example:
            >>> Synchronous(cohort=2).inclusion(np.array([900.0, 50.0, 50.0]))
            array([1. , 0.5, 0.5])
        """
        probabilities = np.ones(len(sizes))
        if self.cohort is None or self.cohort >= len(sizes):
            return probabilities
        sizes = np.asarray(sizes, dtype=np.float64) if self.by == "size" else np.ones(len(sizes))
        is_drawn = np.ones(len(sizes), dtype=bool)
        while True:
            places = self.cohort - np.sum(~is_drawn)
            share = places * sizes / sizes[is_drawn].sum()
            if not np.any(is_drawn & (share > 1.0)):
                break
            is_drawn &= share <= 1.0
        probabilities[is_drawn] = share[is_drawn]
        return probabilities

    def select(self, round_number: int, sizes: np.ndarray[Any, Any], *, seed: int) -> Positions:
        """The clients to ask in this round, by ascending position. Depends on its arguments alone.

        Systematic sampling (Madow 1949): the clients' probabilities are laid end to end in a random order, and those
        are taken in whose stretch a mark falls, the marks being 1 apart. Nobody is taken twice, since nobody's
        probability is above 1.
        """
        if self.cohort is None or self.cohort >= len(sizes):
            return np.arange(len(sizes))
        generator = np.random.default_rng([seed, round_number, 0x5C4ED])
        order = generator.permutation(len(sizes))
        ends = np.cumsum(self.inclusion(sizes)[order])
        ends *= self.cohort / ends[-1]  # rounding aside it is that already
        chosen = np.searchsorted(ends, generator.random() + np.arange(self.cohort), side="right")
        return np.sort(order[chosen])


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
