"""Which rows make a minibatch: a keyed shuffle that touches only the rows it draws, or a centre and its neighbours."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

_MIXES = 4


def shuffled(key: PRNGKeyArray, places: Int[Array, "K"], count: Int[Array, ""]) -> Int[Array, "K"]:
    """The rows that stand at these places of a random order of `count` rows. Different places give different rows.

    Not all orders of few rows are quite equally likely: below 17 rows a row stands at a given place up to 10 % too
    often or too seldom, and is in a first batch of four up to 2 %.

    Sorting a million keys to draw 32 rows would cost more than the rows are worth. Instead each place is mixed by a
    keyed bijection of the integers below the next power of two (multiply by an odd number, fold the high bits down),
    again and again until it falls below `count`.

    Args:
        key: Another key, another order.
        places: Each below `count`.
        count: Number of rows, at least 1.

    Returns:
        Row numbers below `count`.

    Example:
        >>> rows = shuffled(jax.random.key(0), jnp.arange(5), jnp.array(5))
        >>> sorted(int(row) for row in rows)
        [0, 1, 2, 3, 4]
    """
    top = (count - 1).astype(jnp.uint32)
    bits = 32 - jax.lax.clz(top)
    mask = jnp.where(bits == 0, 0, (jnp.uint32(1) << bits) - 1).astype(jnp.uint32)
    half = jnp.maximum((bits + 1) // 2, 1)
    draws = jax.random.bits(key, (2, _MIXES), dtype=jnp.uint32)

    def mix(x: Int[Array, "K"]) -> Int[Array, "K"]:
        for i in range(_MIXES):
            x = (x * (draws[0, i] | 1) + draws[1, i]) & mask
            x = x ^ (x >> half)
        return x

    def step(x: Int[Array, "K"]) -> Int[Array, "K"]:
        return jnp.where(x > top, mix(x), x)

    start = mix(places.astype(jnp.uint32))
    return jax.lax.while_loop(lambda x: jnp.any(x > top), step, start).astype(places.dtype)


def uniform(key: PRNGKeyArray, count: Int[Array, ""], *, num_batches: int, batch_size: int) -> Int[Array, "B M"]:
    """Rows of successive minibatches: epoch after epoch, each in a new random order, none cut short.

    Where a client has fewer rows than a batch, the first `count` places of every batch hold all of them.
    """
    filled = jnp.minimum(batch_size, count)
    batches = jnp.arange(num_batches)
    an_epoch = jnp.maximum(count // filled, 1)
    places = (batches % an_epoch)[:, None] * filled + jnp.arange(batch_size)[None, :]
    keys = jax.vmap(lambda epoch: jax.random.fold_in(key, epoch))(batches // an_epoch)
    rows = jax.vmap(shuffled, in_axes=(0, 0, None))(keys, jnp.minimum(places, count - 1), count)
    return rows


def nearest(key: PRNGKeyArray, X: Float[Array, "N D"], count: Int[Array, ""], *, batch_size: int) -> Int[Array, "M"]:
    """The rows nearest to one drawn at random, as the authors of FGPR batch."""
    centre = X[jax.random.randint(key, (), 0, count)]
    distance = ((X - centre[None, :]) ** 2).sum(1)
    distance = jnp.where(jnp.arange(X.shape[0]) < count, distance, jnp.inf)
    return jax.lax.top_k(-distance, batch_size)[1]
