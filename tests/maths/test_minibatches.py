"""Minibatches: shuffles are permutations and fair, batches of an epoch are disjoint, neighbours are the nearest."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedgauss.gp.minibatches import nearest, shuffled, uniform

FALSE_ALARM = 1e-6
"""The chance that a test of randomness would have had of failing, before its keys were fixed."""


def keys(number: int, seed: int = 0) -> Any:
    return jax.random.split(jax.random.key(seed), number)


@jax.jit
def many_shuffles(keys: Any, places: Any, count: Any) -> Any:
    return jax.vmap(shuffled, in_axes=(0, None, None))(keys, places, count)


PLACES = 33
"""Of one number, so that one compilation does."""


def first_places(count: int) -> Any:
    """20,000 shuffles of `count` rows: what stands at up to 33 places, consecutive where that is all of them."""
    places = np.arange(min(PLACES, count)) if count <= PLACES else np.linspace(0, count - 1, PLACES).astype(int)
    padded = jnp.asarray(np.pad(places, (0, PLACES - len(places))))
    return np.asarray(many_shuffles(keys(20_000), padded, jnp.array(count)))[:, : len(places)]


@functools.partial(jax.jit, static_argnames=("num_batches", "batch_size"))
def batches(key: Any, count: Any, *, num_batches: int, batch_size: int) -> Any:
    return uniform(key, count, num_batches=num_batches, batch_size=batch_size)


def assert_equally_often(counts: Any, bias: float = 0.0) -> None:
    """The counts of one cell in each entry: chi-square, for shares `bias` of themselves off (rms)."""
    expected = counts.sum() / counts.size
    statistic = np.sum((counts - expected) ** 2) / expected
    freedom = counts.size - 1
    noncentrality = counts.sum() * bias**2
    law = scipy.stats.ncx2(freedom, noncentrality) if bias else scipy.stats.chi2(freedom)
    assert law.sf(statistic) > FALSE_ALARM


# Shuffles ----------------------------------------------------------------------------------------------------------


def test_all_places_give_all_rows_once() -> None:
    for count in range(1, 71):
        places = jnp.minimum(jnp.arange(70), count - 1)  # 70 always: one compilation
        for rows in np.asarray(many_shuffles(keys(5, seed=count), places, jnp.array(count))):
            assert sorted(rows[:count]) == list(range(count))
            assert np.all(rows[count:] == rows[count - 1])


@pytest.mark.parametrize("count", [1_000_000, 2**20 + 1, 2**31 - 1])
def test_places_among_many_rows_give_different_rows(count: int) -> None:
    drawn = np.unique(np.random.default_rng(0).integers(5, count - 5, 30_000))[:20_000]
    places = np.concatenate([drawn, np.arange(5), np.arange(count - 5, count)])  # of one number: one compilation
    rows = np.asarray(many_shuffles(keys(1), jnp.asarray(places), jnp.array(count)))[0]
    assert len(np.unique(rows)) == len(places)
    assert rows.min() >= 0
    assert rows.max() < count
    assert_equally_often(np.bincount(rows // (count // 16 + 1), minlength=16))


def test_a_place_holds_the_same_row_whichever_others_are_asked_for() -> None:
    every = shuffled(jax.random.key(0), jnp.arange(100), jnp.array(100))
    some = jnp.array([99, 3, 3, 50])
    np.testing.assert_array_equal(shuffled(jax.random.key(0), some, jnp.array(100)), every[some])


def test_other_keys_give_other_orders() -> None:
    orders = np.asarray(many_shuffles(keys(1000), jnp.arange(40), jnp.array(40)))
    assert len(np.unique(orders, axis=0)) == 1000


@pytest.mark.parametrize("count", [2, 4, 8, 32, 100, 1000])
def test_every_row_is_equally_often_at_every_place(count: int) -> None:
    for drawn in first_places(count).T:
        assert_equally_often(np.bincount(drawn, minlength=count))


@pytest.mark.parametrize("count", [3, 5, 7, 9, 11, 13, 20])
def test_every_row_is_about_equally_often_at_every_place(count: int) -> None:
    """A few rows are mixed less well: within 6 in 100 at each place, root mean square over rows."""
    for drawn in first_places(count).T:
        assert_equally_often(np.bincount(drawn, minlength=count), bias=0.06)


@pytest.mark.parametrize("count", [3, 4, 6, 9, 14, 16, 20, 33])
def test_every_pair_of_rows_is_about_equally_often_next_to_each_other(count: int) -> None:
    """Within 15 in 100 of each other, root mean square over pairs, at every two consecutive places."""
    rows = first_places(count)
    pairs = ~np.eye(count, dtype=bool)
    for one, other in zip(rows.T[:-1], rows.T[1:], strict=True):
        together = np.bincount(one * count + other, minlength=count**2).reshape(count, count)
        assert np.all(np.diag(together) == 0)
        assert_equally_often(together[pairs], bias=0.15)


# Epochs ------------------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 60), batch_size=st.sampled_from([7, 32]), seed=st.integers(0, 1000))
def test_batches_of_an_epoch_are_disjoint(count: int, batch_size: int, seed: int) -> None:
    rows = np.asarray(batches(jax.random.key(seed), jnp.array(count), num_batches=20, batch_size=batch_size))
    assert rows.shape == (20, batch_size)
    assert rows.min() >= 0
    assert rows.max() < count
    filled = min(batch_size, count)
    an_epoch = count // filled
    for start in range(0, 20, an_epoch):
        epoch = rows[start : start + an_epoch, :filled].ravel()
        assert len(np.unique(epoch)) == len(epoch)
        if count < batch_size:
            assert sorted(epoch) == list(range(count))


def test_epochs_have_orders_of_their_own() -> None:
    rows = np.asarray(batches(jax.random.key(0), jnp.array(100), num_batches=50, batch_size=20)).reshape(10, 100)
    assert len(np.unique(rows, axis=0)) == 10
    assert all(len(np.unique(epoch)) == 100 for epoch in rows)


@pytest.mark.parametrize("count", [7, 11, 23, 100])
def test_every_row_is_drawn_about_equally_often(count: int) -> None:
    """The rows left over at the end of an epoch are other ones in each: within 3 in 100, root mean square over rows."""
    draw = jax.vmap(functools.partial(batches, num_batches=4, batch_size=5), in_axes=(0, None))
    rows = np.asarray(draw(keys(10_000), jnp.array(count)))
    assert_equally_often(np.bincount(rows.ravel(), minlength=count), bias=0.03)


def test_batches_of_clients() -> None:
    counts = jnp.array([3, 8, 50, 1])
    draw = functools.partial(batches, num_batches=20, batch_size=7)
    for key, count, rows in zip(keys(4), counts, jax.vmap(draw)(keys(4), counts), strict=True):
        np.testing.assert_array_equal(rows, draw(key, count))


# Neighbours --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "batch_size"), [(30, 1), (9, 9), (40, 12)])
def test_neighbours_are_the_nearest_rows_and_the_centre(count: int, batch_size: int) -> None:
    X = np.random.default_rng(0).normal(size=(count, 3))
    # padding in the midst of the data would be the nearest
    padded = jnp.asarray(np.concatenate([X, np.tile(X.mean(0), (10, 1)), X[:3]]))
    draw = jax.jit(jax.vmap(lambda key: nearest(key, padded, jnp.array(count), batch_size=batch_size)))
    for rows in np.asarray(draw(keys(100))):
        centre = rows[0]  # at distance zero
        distance = np.linalg.norm(X - X[centre], axis=1)
        assert rows.tolist() == np.argsort(distance)[:batch_size].tolist()


def test_every_row_is_the_centre_equally_often() -> None:
    X = jnp.asarray(np.random.default_rng(0).normal(size=(20, 2)))
    draw = jax.jit(jax.vmap(lambda key: nearest(key, X, jnp.array(12), batch_size=3)))
    assert_equally_often(np.bincount(np.asarray(draw(keys(20_000)))[:, 0], minlength=12))


def test_equal_rows_are_neighbours() -> None:
    X = jnp.asarray(np.repeat([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0]], 4, axis=0))
    draw = jax.jit(jax.vmap(lambda key: nearest(key, X, jnp.array(12), batch_size=4)))
    for rows in np.asarray(draw(keys(10))):
        assert sorted(rows // 4) == [rows[0] // 4] * 4
