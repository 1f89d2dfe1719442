"""Clients padded into few fat arrays for the compute engine, bucketed by size when sizes differ widely."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from fedgauss.errors import SettingsError
from fedgauss.federation import Federation

_WASTE = 1.5  # computing on padding may cost half of what the data costs
_TRIVIAL = {1: 2e5, 2: 6e6, 3: 2e8}  # by exponent: below this padded cost a second compilation costs more than it saves
_MOST_SIZES = 256  # sizes told apart; at worst 6 % between neighbours up to a million rows


class Bucket(NamedTuple):
    """Clients of like size, padded with zeros to the longest of them."""

    indices: Int64[np.ndarray, " C"]
    """Their positions in the federation, ascending."""
    X: Float64[np.ndarray, "C N D"]
    Y: Float64[np.ndarray, "C N P"]
    num_rows: Int64[np.ndarray, " C"]
    """How many rows of each are data."""


def bucket(federation: Federation, *, cost_exponent: int) -> list[Bucket]:
    """Pad clients into as few buckets as cost allows: each bucket is one array and one compilation.

    A bucket of C clients padded to N rows costs C N^e. Of all ways to cut the clients, sorted by size, into buckets,
    this is the cheapest of those with the fewest buckets that cost at most half more than without padding, or that
    cost next to nothing.

    Args:
        federation: The clients.
        cost_exponent: e, of the work a client's N rows make: 1 for sums over rows, 2 for a gram matrix, 3 for its
            factorisation.

    Returns:
        Buckets, that of the largest clients first. Every row of every client is in one of them.

    Raises:
        SettingsError: If the exponent is not 1, 2 or 3.

    Example:
        >>> federation = Federation.from_arrays({"a": ([[1.0], [2.0]], [1.0, 2.0]), "b": ([[3.0]], [4.0])})
        >>> [small] = bucket(federation, cost_exponent=3)
        >>> small.X[:, :, 0], small.num_rows
        (array([[1., 2.],
               [3., 0.]]), array([2, 1]))
    """
    if cost_exponent not in _TRIVIAL:
        raise SettingsError(f"cost_exponent: got {cost_exponent}, expected 1, 2 or 3")
    sizes = federation.sizes
    tops = _bucket_tops(sizes, cost_exponent)
    member = np.searchsorted(tops, sizes)
    return [_pad(federation, np.flatnonzero(member == b), int(tops[b])) for b in reversed(range(len(tops)))]


def _bucket_tops(sizes: Int64[np.ndarray, " C"], exponent: int) -> Int64[np.ndarray, " B"]:
    """The padded length of each bucket, ascending."""
    distinct, counts = np.unique(sizes, return_counts=True)
    if len(distinct) > _MOST_SIZES:  # sizes within one step of a geometric grid share the largest of them
        step = np.floor(_MOST_SIZES * np.log(distinct / distinct[0]) / np.log(distinct[-1] / distinct[0]))
        last = np.flatnonzero(np.diff(step, append=np.inf))
        distinct, counts = distinct[last], np.diff(np.cumsum(counts)[last], prepend=0)
    below = np.concatenate([[0], np.cumsum(counts)])  # clients among the i smallest sizes
    # cost[i, j]: of one bucket of sizes i to j - 1, padded to the largest of them
    top = np.concatenate([[0.0], distinct.astype(np.float64)]) ** exponent
    cost = np.where(np.tri(len(top), dtype=bool), np.inf, (below[None, :] - below[:, None]) * top[None, :])
    allowed = max(_WASTE * float((sizes.astype(np.float64) ** exponent).sum()), _TRIVIAL[exponent])
    cheapest, cuts = cost[0], [np.zeros(len(top), dtype=np.int64)]
    while cheapest[-1] > allowed:  # best[j] with one bucket more = min_i best[i] + cost[i, j]
        total = cheapest[:, None] + cost
        cuts.append(total.argmin(axis=0))
        cheapest = total.min(axis=0)
    j, tops = len(distinct), []
    for cut in reversed(cuts):
        tops.append(distinct[j - 1])
        j = int(cut[j])
    return np.array(tops[::-1], dtype=np.int64)


def _pad(federation: Federation, indices: Int64[np.ndarray, " C"], num_rows: int) -> Bucket:
    X = np.zeros((len(indices), num_rows, len(federation.inputs)))
    Y = np.zeros((len(indices), num_rows, len(federation.targets)))
    for c, index in enumerate(indices):
        client = federation.clients[index]
        X[c, : client.num_rows] = client.X
        Y[c, : client.num_rows] = client.Y
    return Bucket(indices, X, Y, federation.sizes[indices])
