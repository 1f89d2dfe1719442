"""Who is asked: drawn as the sizes say, one after the other, the same whenever asked, and never where it is wrong."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.catalogue import EXACT
from fedgauss.algorithms.moments import Moments
from fedgauss.errors import ScheduleError, SettingsError
from fedgauss.schedules import Asynchronous, Sequential, Synchronous, check_schedule
from protocol.toy import ToyFactors

SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=20).map(np.array)


@given(sizes=SIZES, cohort=st.integers(1, 25), by=st.sampled_from(["size", "uniform"]), round_number=st.integers(0, 99))
def test_a_cohort_is_a_set_of_clients_in_ascending_order(sizes: Any, cohort: int, by: Any, round_number: int) -> None:
    schedule = Synchronous(cohort=cohort, by=by)
    chosen = schedule.select(round_number, sizes, seed=1)
    assert len(chosen) == min(cohort, len(sizes))
    assert (np.diff(chosen) > 0).all()
    assert set(chosen) <= set(range(len(sizes)))
    np.testing.assert_array_equal(chosen, schedule.select(round_number, sizes, seed=1))


# (cohort, by, the probability with which each of five clients of 1, 2, 5, 20 and 72 rows is to be asked)
OFTEN: list[tuple[int, Any, list[float]]] = [
    (1, "size", [0.01, 0.02, 0.05, 0.20, 0.72]),
    (2, "size", [1 / 28, 2 / 28, 5 / 28, 20 / 28, 1.0]),
    (3, "size", [1 / 8, 2 / 8, 5 / 8, 1.0, 1.0]),
    (2, "uniform", [0.4] * 5),
]


@pytest.mark.parametrize(("cohort", "by", "expected"), OFTEN)
def test_clients_are_asked_as_often_as_their_sizes_say(cohort: int, by: Any, expected: list[float]) -> None:
    """False alarms below 1e-5: five standard errors, for each of the five clients."""
    sizes, draws = np.array([1, 2, 5, 20, 72]), 6_000
    schedule = Synchronous(cohort=cohort, by=by)
    drawn = Counter(int(k) for r in range(draws) for k in schedule.select(r, sizes, seed=0))
    found, p = np.array([drawn[k] for k in range(5)]) / draws, np.array(expected)
    np.testing.assert_allclose(schedule.inclusion(sizes), p, rtol=1e-12)
    assert (np.abs(found - p) <= 5 * np.sqrt(p * (1 - p) / draws)).all()


@given(sizes=SIZES, cohort=st.integers(1, 25), by=st.sampled_from(["size", "uniform"]))
def test_as_many_are_expected_as_the_cohort_has_and_nobody_is_asked_twice(sizes: Any, cohort: int, by: Any) -> None:
    probabilities = Synchronous(cohort=cohort, by=by).inclusion(sizes)
    np.testing.assert_allclose(probabilities.sum(), min(cohort, len(sizes)), rtol=1e-9)
    assert ((probabilities > 0) & (probabilities <= 1)).all()


@pytest.mark.parametrize("schedule", [Synchronous(cohort=2), Sequential(order="random")])
def test_another_round_or_seed_is_another_draw(schedule: Any) -> None:
    sizes = np.ones(50)
    draws = {tuple(schedule.select(r, sizes, seed=seed).tolist()) for r in (0, 1, 2) for seed in (0, 1, 2)}
    assert len(draws) > 5


def test_everybody_is_asked_by_default() -> None:
    np.testing.assert_array_equal(Synchronous().select(7, np.ones(4), seed=0), np.arange(4))


@given(num_clients=st.integers(1, 8), sweep=st.integers(0, 20), seed=st.integers(0, 99))
def test_a_sequential_sweep_asks_each_client_once(num_clients: int, sweep: int, seed: int) -> None:
    rounds = range(sweep * num_clients, (sweep + 1) * num_clients)
    sizes = np.ones(num_clients)
    given_order = [Sequential().select(r, sizes, seed=seed).tolist() for r in rounds]
    assert given_order == [[k] for k in range(num_clients)]
    random_order = [Sequential(order="random").select(r, sizes, seed=seed).tolist() for r in rounds]
    assert sorted(random_order) == given_order


def test_each_random_sweep_has_its_own_order() -> None:
    schedule, sizes = Sequential(order="random"), np.ones(6)
    orders = {tuple(int(schedule.select(6 * s + k, sizes, seed=0)[0]) for k in range(6)) for s in range(10)}
    assert len(orders) > 5


@pytest.mark.parametrize("schedule", [Synchronous(cohort=2), Sequential(), Asynchronous(), Asynchronous(in_flight=1)])
@pytest.mark.parametrize("algorithm", [EXACT, Moments(num_inputs=1, num_targets=1)], ids=lambda a: type(a).__name__)
def test_a_schedule_that_does_not_wait_for_all_is_refused_where_all_are_needed(schedule: Any, algorithm: Any) -> None:
    with pytest.raises(ScheduleError, match=rf"{type(algorithm).__name__} needs the answer of every client.*Synchron"):
        check_schedule(schedule, algorithm)
    check_schedule(Synchronous(), algorithm)
    check_schedule(schedule, ToyFactors())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Synchronous(cohort=0), r"Synchronous\(cohort=0\): expected a positive whole number"),
        (lambda: Synchronous(cohort=1.5), r"Synchronous\(cohort=1.5\)"),  # type: ignore[arg-type]
        (lambda: Synchronous(cohort=True), r"Synchronous\(cohort=True\)"),
        (lambda: Synchronous(by="sise"), 'did you mean "size"'),  # type: ignore[arg-type]
        (lambda: Sequential(order="randm"), 'did you mean "random"'),  # type: ignore[arg-type]
        (lambda: Asynchronous(in_flight=-1), r"Asynchronous\(in_flight=-1\)"),
        (lambda: Asynchronous(inflight=1), 'did you mean "in_flight"'),  # type: ignore[call-arg]
    ],
)
def test_impossible_schedules_are_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        make()
