"""Buckets: every row once, zeros elsewhere, few of them, and never much dearer than no padding."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedgauss import buckets
from fedgauss.buckets import bucket
from fedgauss.errors import SettingsError
from fedgauss.federation import Federation


def federation_of(sizes: list[int]) -> Federation:
    rng = np.random.default_rng(0)
    return Federation.from_arrays(
        {f"c{k:05d}": (1 + rng.random((n, 2)), 1 + rng.random((n, 1))) for k, n in enumerate(sizes)}
    )


def padded_cost(sizes: list[int], tops: list[int], exponent: int) -> float:
    return float(sum(min(top for top in tops if top >= n) ** exponent for n in sizes))


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12), exponent=st.sampled_from([1, 2, 3]))
@example(sizes=[1] * 30 + [2], exponent=3)  # neighbouring sizes in different buckets
def test_every_row_lands_once_and_the_rest_is_zero(sizes: list[int], exponent: int) -> None:
    federation = federation_of(sizes)
    with pytest.MonkeyPatch.context() as patch:  # so that small examples have several buckets
        patch.setattr(buckets, "_TRIVIAL", {1: 0, 2: 0, 3: 0})
        made = bucket(federation, cost_exponent=exponent)
    assert sorted(np.concatenate([b.indices for b in made])) == list(range(len(sizes)))
    for b in made:
        assert b.X.shape == (len(b.indices), b.num_rows.max(), 2)
        assert b.Y.shape == (len(b.indices), b.num_rows.max(), 1)
        assert b.num_rows.dtype == b.indices.dtype == np.int64
        assert (np.diff(b.indices) > 0).all()
        for X, Y, index, count in zip(b.X, b.Y, b.indices, b.num_rows, strict=True):
            client = federation.clients[index]
            assert count == client.num_rows
            np.testing.assert_array_equal(X[:count], client.X)
            np.testing.assert_array_equal(Y[:count], client.Y)
            assert not X[count:].any()
            assert not Y[count:].any()
    lengths = [b.X.shape[1] for b in made]
    assert lengths == sorted(lengths, reverse=True)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30), exponent=st.sampled_from([1, 2, 3]))
def test_the_fewest_buckets_within_the_bound_and_the_cheapest_of_these(sizes: list[int], exponent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "_TRIVIAL", {1: 0, 2: 0, 3: 0})
        tops = buckets._bucket_tops(np.array(sizes), exponent).tolist()
    allowed = 1.5 * sum(n**exponent for n in sizes)
    *smaller, largest = sorted(set(sizes))

    def cheapest(number: int) -> float:
        return min(
            padded_cost(sizes, [*some, largest], exponent) for some in itertools.combinations(smaller, number - 1)
        )

    if len(tops) <= 3:  # trying all ways to cut
        assert padded_cost(sizes, tops, exponent) == pytest.approx(cheapest(len(tops)), rel=1e-12)
    assert padded_cost(sizes, tops, exponent) <= allowed
    if 1 < len(tops) <= 4:
        assert cheapest(len(tops) - 1) > allowed


@pytest.mark.parametrize("exponent", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_wild_sizes_need_few_buckets(exponent: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(np.log(10), np.log(10_000), size=2_000)).astype(np.int64)
    tops = buckets._bucket_tops(sizes, exponent)
    assert len(set(sizes.tolist())) > 256
    assert len(tops) <= 6
    assert tops[-1] == sizes.max()
    cost = (tops[np.searchsorted(tops, sizes)].astype(float) ** exponent).sum()
    assert cost <= 1.5 * (sizes.astype(float) ** exponent).sum()


def test_a_few_wild_clients() -> None:
    federation = federation_of([10, 30, 100, 1_000, 3_000, 10_000])
    made = bucket(federation, cost_exponent=3)
    assert [b.indices.tolist() for b in made] == [[5], [0, 1, 2, 3, 4]]


def test_ten_thousand_small_clients_are_one_bucket() -> None:
    federation = federation_of([20] * 10_000)
    for exponent in (1, 2, 3):
        [one] = bucket(federation, cost_exponent=exponent)
        assert one.X.shape == (10_000, 20, 2)


def test_what_costs_next_to_nothing_is_one_bucket() -> None:
    sizes = [1] * 19 + [10_000]
    assert len(bucket(federation_of(sizes), cost_exponent=1)) == 1
    assert len(bucket(federation_of([*sizes, 1]), cost_exponent=1)) == 2
    assert len(bucket(federation_of([1] * 199 + [100]), cost_exponent=3)) == 1
    assert len(bucket(federation_of([1] * 200 + [100]), cost_exponent=3)) == 2


def test_an_exponent_without_a_meaning() -> None:
    with pytest.raises(SettingsError, match="cost_exponent: got 4, expected 1, 2 or 3"):
        bucket(federation_of([1]), cost_exponent=4)
