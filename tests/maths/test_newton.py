"""The trust region step solves its problem: the conditions of optimality, the hard case, bounds and brute force."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgauss.newton import trust_region_step

compiled = jax.jit(trust_region_step)


def solve(gradient: Any, hessian: Any, radius: float, low: Any = -np.inf, high: Any = np.inf) -> tuple[Any, float]:
    """The step and the decrease; bounds may be one for all."""
    size = len(gradient)
    bounds = (jnp.asarray(np.broadcast_to(bound, size), dtype=jnp.float64) for bound in (low, high))
    step, decrease = compiled(
        jnp.asarray(gradient, dtype=jnp.float64), jnp.asarray(hessian), jnp.asarray(radius), *bounds
    )
    return np.asarray(step), float(decrease)


def rotation(size: int, seed: int) -> Any:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def problem(size: int, seed: int, least: float, most: float = 3.0) -> tuple[Any, Any]:
    """A gradient and a Hessian with eigenvalues from `least` to `most`, those of the middle between."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([[least], rng.uniform(least, most, size - 1)])
    Q = rotation(size, seed)
    H = (Q * values) @ Q.T
    return rng.normal(size=size), (H + H.T) / 2


def model_decrease(gradient: Any, hessian: Any, step: Any) -> Any:
    """Of one step, or of many in rows."""
    return -(step @ gradient + 0.5 * np.einsum("...i,ij,...j->...", step, hessian, step))


sizes_and_seeds = pytest.mark.parametrize(("size", "seed"), [(1, 0), (2, 1), (3, 2), (6, 3)])


@sizes_and_seeds
def test_the_newton_step_is_taken_where_it_fits(size: int, seed: int) -> None:
    g, H = problem(size, seed, least=0.5)
    newton = -np.linalg.solve(H, g)
    step, decrease = solve(g, H, 1.001 * float(np.linalg.norm(newton)))
    np.testing.assert_allclose(step, newton, rtol=1e-10, atol=1e-12)
    assert decrease == pytest.approx(0.5 * g @ np.linalg.solve(H, g), rel=1e-10)


@sizes_and_seeds
@pytest.mark.parametrize("least", [0.5, 0.0, -0.1, -4.0])
@pytest.mark.parametrize("radius", [1e-3, 0.3, 30.0])
def test_on_the_edge_the_conditions_of_optimality_hold(size: int, seed: int, least: float, radius: float) -> None:
    """(H + lambda I) s = -g for a lambda that leaves no negative curvature: s is then the global minimiser."""
    g, H = problem(size, seed, least)
    if least > 0:
        radius = min(radius, 0.9 * float(np.linalg.norm(np.linalg.solve(H, g))))
    step, _ = solve(g, H, radius)
    assert np.linalg.norm(step) == pytest.approx(radius, rel=1e-9)
    shift = -step @ (g + H @ step) / (step @ step)
    assert shift >= -1e-12
    assert np.linalg.eigvalsh(H)[0] + shift >= -1e-9
    np.testing.assert_allclose(H @ step + shift * step, -g, atol=1e-9 * (1 + radius))


HARD = np.array([-2.0, -0.5, 1.0, 3.0])
"""Curvatures."""


def hard_case(along: float) -> tuple[Any, Any]:
    """Slopes along the eigenvectors, none along the lowest; and a best step within a ball of radius 2."""
    slopes = np.array([0.0, 0.3, -along, 0.2])
    inner = -slopes[1:] / (HARD[1:] + 2.0)
    return slopes, np.concatenate([[np.sqrt(4.0 - inner @ inner)], inner])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1]])
@pytest.mark.parametrize("along", [0.0, 0.7])
def test_no_slope_along_the_most_negative_curvature(along: float, order: list[int]) -> None:
    """The hard case: the lowest eigenvector fills what is left of the ball."""
    slopes, expected = hard_case(along)
    step, decrease = solve(slopes[order], np.diag(HARD[order]), 2.0)
    lowest = order.index(0)
    assert abs(step[lowest]) == pytest.approx(expected[0], rel=1e-12)
    inner = [order.index(i) for i in (1, 2, 3)]
    np.testing.assert_allclose(step[inner], expected[1:], rtol=1e-12)
    assert decrease == pytest.approx(model_decrease(slopes, np.diag(HARD), expected), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_hardly_any_slope_along_the_most_negative_curvature(seed: int) -> None:
    """The hard case up to rounding."""
    slopes, expected = hard_case(0.7)
    Q = rotation(4, seed)
    H = (Q * HARD) @ Q.T
    step, decrease = solve(Q @ slopes, (H + H.T) / 2, 2.0)
    assert np.linalg.norm(step) <= 2.0 * (1 + 1e-9)
    assert decrease >= (1 - 1e-9) * model_decrease(slopes, np.diag(HARD), expected)


def test_a_saddle_and_a_maximum_are_left() -> None:
    for values in ([-1.0, 2.0], [-3.0, -1.0], [-3.0, -3.0]):
        step, decrease = solve(np.zeros(2), np.diag(values), 0.5)
        np.testing.assert_allclose(np.abs(step) @ np.abs(step), 0.25, rtol=1e-12)
        assert decrease == pytest.approx(-0.5 * min(values) * 0.25, rel=1e-12)


def test_nothing_is_left_to_do_at_a_minimum() -> None:
    for values in ([1.0, 2.0], [0.0, 1.0], [0.0, 0.0]):
        step, decrease = solve(np.zeros(2), np.diag(values), 0.5)
        assert step.tolist() == [0.0, 0.0]
        assert decrease == 0.0


def test_a_flat_slope_is_followed_to_the_edge() -> None:
    step, decrease = solve([3.0, -4.0], np.zeros((2, 2)), 0.5)
    np.testing.assert_allclose(step, [-0.3, 0.4], rtol=1e-9)
    assert decrease == pytest.approx(2.5, rel=1e-9)


@given(
    size=st.sampled_from([1, 2, 3, 6]),
    seed=st.integers(0, 10_000),
    least=st.floats(-3.0, 1.0),
    radius=st.floats(1e-3, 1e2),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_no_point_of_the_ball_is_better(size: int, seed: int, least: float, radius: float, scale: float) -> None:
    """Of 2,000 random points, half of them on the edge, none decreases the model by more than 1e-9 of it more."""
    g, H = problem(size, seed, least)
    g, H = scale * g, scale * H
    step, decrease = solve(g, H, radius)
    assert np.linalg.norm(step) <= radius * (1 + 1e-9)
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(2000, size))
    points *= radius / np.linalg.norm(points, axis=1, keepdims=True)
    points[1000:] *= rng.uniform(0, 1, (1000, 1))
    assert decrease >= (1 - 1e-9) * model_decrease(g, H, points).max()
    nearby = step + 1e-3 * np.linalg.norm(step) * points / radius
    nearby *= np.minimum(1.0, radius / np.linalg.norm(nearby, axis=1, keepdims=True))
    assert decrease >= (1 - 1e-9) * model_decrease(g, H, nearby).max()


# Bounds ------------------------------------------------------------------------------------------------------------


def box(size: int, seed: int, zeros: float = 0.3) -> tuple[Any, Any]:
    """Lower and upper bounds around the start, of which that share has no room."""
    rng = np.random.default_rng(seed)
    room = rng.exponential(0.5, (2, size)) * (rng.random((2, size)) >= zeros)
    return -room[0], room[1]


@given(
    size=st.sampled_from([1, 2, 3, 6]),
    seed=st.integers(0, 10_000),
    least=st.floats(-3.0, 1.0),
    radius=st.floats(1e-3, 1e2),
)
def test_the_box_is_never_left(size: int, seed: int, least: float, radius: float) -> None:
    (g, H), (low, high) = problem(size, seed, least), box(size, seed)
    step, decrease = solve(g, H, radius, low, high)
    assert np.all(low <= step)
    assert np.all(step <= high)
    assert np.linalg.norm(step) <= radius * (1 + 1e-9)
    assert decrease >= 0.0
    assert decrease == pytest.approx(max(model_decrease(g, H, step), 0.0), rel=1e-9, abs=1e-12)
    pushed = ((low == 0) & (g > 0)) | ((high == 0) & (g < 0))
    assert np.all(step[pushed] == 0.0)


@sizes_and_seeds
def test_variables_held_at_their_bounds_leave_the_problem(size: int, seed: int) -> None:
    g, H = problem(size, seed, least=-1.0)
    held = np.arange(size) % 2 == 0
    low, high = np.where(held & (g > 0), 0.0, -np.inf), np.where(held & (g < 0), 0.0, np.inf)
    step, decrease = solve(g, H, 0.7, low, high)
    assert np.all(step[held] == 0.0)
    if size > 1:
        alone, expected = solve(g[~held], H[np.ix_(~held, ~held)], 0.7)
        np.testing.assert_allclose(step[~held], alone, rtol=1e-9, atol=1e-12)
        assert decrease == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_variable_pushed_against_its_bound_stays_though_the_newton_step_leads_inwards(sign: float) -> None:
    g, H = sign * np.array([0.1, -1.0]), np.array([[1.0, -0.9], [-0.9, 1.0]])
    low, high = ([0.0, -np.inf], np.inf) if sign > 0 else (-np.inf, [0.0, np.inf])
    step, decrease = solve(g, H, 20.0, low, high)
    assert step[0] == 0.0
    assert step[1] == pytest.approx(sign, rel=1e-9)
    assert decrease == pytest.approx(0.5, rel=1e-9)


def test_a_variable_that_meets_its_bound_is_held_there_and_the_rest_solved_again() -> None:
    g, H = np.array([-4.0, 1.0]), np.array([[2.0, 0.5], [0.5, 1.0]])
    step, decrease = solve(g, H, 10.0, [-10.0, -10.0], [0.5, 10.0])
    np.testing.assert_allclose(step, [0.5, -1.25], rtol=1e-9)  # -(1 + 0.5 * 0.5) / 1
    assert decrease == pytest.approx(float(model_decrease(g, H, np.array([0.5, -1.25]))), rel=1e-9)
    # with a ball that the held variable takes a part of
    step, _ = solve(g, H, 1.0, [-10.0, -10.0], [0.5, 10.0])
    np.testing.assert_allclose(step, [0.5, -np.sqrt(0.75)], rtol=1e-9)


@given(
    size=st.sampled_from([2, 3, 6]), seed=st.integers(0, 10_000), least=st.floats(-3.0, 1.0), radius=st.floats(0.1, 10)
)
def test_wherever_the_box_leaves_a_way_down_it_is_taken(size: int, seed: int, least: float, radius: float) -> None:
    (g, H), (low, high) = problem(size, seed, least), box(size, seed)
    free = ~((low == 0) & (g > 0) | (high == 0) & (g < 0))
    _, decrease = solve(g, H, radius, low, high)
    down = np.clip(-1e-4 * g, low, high)
    if np.any(free):
        assert decrease >= 0.5 * float(model_decrease(g, H, down)) > 0.0


def test_a_way_down_is_found_where_holding_variables_leads_up() -> None:
    g, H = np.array([0.2097107, 0.59322027]), np.array([[0.39102533, -0.37447795], [-0.37447795, 0.75227799]])
    low, high = np.array([-1.5963721, -0.0704448]), np.array([0.68353583, 0.59677477])
    _, decrease = solve(g, H, 2.5596, low, high)
    assert decrease > 0.05


def test_a_bound_in_the_way_of_nobody_changes_nothing() -> None:
    g, H = problem(4, 0, least=-1.0)
    step, decrease = solve(g, H, 0.5)
    bounded, other = solve(g, H, 0.5, -0.5001, 0.5001)
    np.testing.assert_array_equal(step, bounded)
    assert decrease == other


def test_a_corner_is_stayed_in() -> None:
    step, decrease = solve([1.0, -1.0], np.diag([-1.0, 2.0]), 1.0, [0.0, -1.0], [1.0, 0.0])
    assert step.tolist() == [0.0, 0.0]
    assert decrease == 0.0


def test_many_problems_at_once() -> None:
    problems = [(*problem(6, seed, least=seed - 2.0), 0.5 * seed + 0.1, *box(6, seed)) for seed in range(5)]
    steps, decreases = jax.jit(jax.vmap(trust_region_step))(*(jnp.stack(part) for part in zip(*problems, strict=True)))
    for one, step, decrease in zip(problems, steps, decreases, strict=True):
        expected_step, expected_decrease = solve(*one)
        np.testing.assert_allclose(step, expected_step, rtol=1e-10, atol=1e-12)
        assert float(decrease) == pytest.approx(expected_decrease, rel=1e-10)
