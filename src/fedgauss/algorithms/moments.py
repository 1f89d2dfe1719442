"""Means and variances of all clients' columns together, from sums: what pooled standardising needs. One exchange."""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedgauss.algorithm import Data, FederatedAlgorithm, Key


class MomentsRequest(NamedTuple):
    """The point about which to take the sums: zero at first."""

    about: Float[Array, "D+P"]


class MomentsReply(NamedTuple):
    """Sums over a client's rows. They add; five numbers a column whatever the number of rows.

    A client with a single row thereby tells its values: see `users and trust` in the documentation.
    """

    num_rows: Float[Array, ""]
    sums: Float[Array, "D+P"]
    squares: Float[Array, "D+P"]
    within: Float[Array, "P"]
    """The targets' squared deviations from the client's own means."""


class MomentsServer(NamedTuple):
    """What is known so far."""

    about: Float[Array, "D+P"]
    exchanges: Float[Array, ""]
    num_rows: Float[Array, ""]
    mean: Float[Array, "D+P"]
    variance: Float[Array, "D+P"]
    within: Float[Array, "P"]
    """The targets' variance about the clients' own means, pooled."""


class MomentsInfo(NamedTuple):
    """Worth plotting: nothing but the count."""

    num_rows: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments(FederatedAlgorithm[MomentsServer, tuple[()], MomentsRequest, MomentsReply]):
    """Pooled means and variances of the columns.

    Sums of squares about zero lose digits when a column's mean is far larger than its spread. Where more than six of
    the sixteen digits are gone, one more exchange takes them about the mean.
    """

    quorum: ClassVar[Literal["some", "every"]] = "every"

    num_inputs: int
    num_targets: int

    def init(self, key: Key) -> MomentsServer:
        """Nothing known."""
        zeros, zero = jnp.zeros(self.num_inputs + self.num_targets), jnp.zeros(())
        return MomentsServer(zeros, zero, zero, zeros, zeros, jnp.zeros(self.num_targets))

    def init_client(self, key: Key) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def request(self, server: MomentsServer) -> MomentsRequest | None:
        """Sums about zero; once more about the mean where a variance is below 1e-6 of the squared mean."""
        if server.exchanges == 0:
            return MomentsRequest(server.about)
        mean, variance = np.asarray(server.mean), np.asarray(server.variance)
        if server.exchanges == 1 and np.any(variance < 1e-6 * mean**2):
            return MomentsRequest(server.mean)
        return None

    def client_update(
        self, request: MomentsRequest, client: tuple[()], data: Data, key: Key
    ) -> tuple[tuple[()], MomentsReply]:
        """Sums over the rows.

        Sent: the number of rows, 2 (D + P) + P sums. Of a client with one row they are the row itself.
        Kept: nothing.
        """
        del key
        row = jnp.arange(data.X.shape[0]) < data.num_rows
        columns = jnp.concatenate([data.X, data.Y], axis=1)
        about = jnp.where(row[:, None], columns - request.about[None, :], 0.0)
        Y = about[:, self.num_inputs :]
        count = data.num_rows.astype(columns.dtype)
        own = jnp.where(row[:, None], Y - (Y.sum(0) / jnp.maximum(count, 1.0))[None, :], 0.0)
        return client, MomentsReply(count, about.sum(0), (about**2).sum(0), (own**2).sum(0))

    def server_update(self, server: MomentsServer, total: MomentsReply) -> tuple[MomentsServer, MomentsInfo]:
        """var = E[(x - a)^2] - (E[x] - a)^2."""
        shift = total.sums / total.num_rows
        variance = jnp.maximum(total.squares / total.num_rows - shift**2, 0.0)
        about = jnp.where(server.exchanges == 0, 0.0, server.mean)
        mean = about + shift
        server = MomentsServer(
            about, server.exchanges + 1, total.num_rows, mean, variance, total.within / total.num_rows
        )
        return server, MomentsInfo(total.num_rows)

    def client_bytes(self, rows: int) -> int:
        """Two copies of the columns."""
        return 16 * rows * (self.num_inputs + self.num_targets)


def spread(variance: Any, mean: Any) -> np.ndarray[Any, Any]:
    """Standard deviations to divide by: 1 for a constant column, whose computed variance is rounding alone.

    Example:
        >>> spread(np.array([4.0, 1e-30]), np.array([0.0, 5.0]))
        array([2., 1.])
    """
    constant = np.asarray(variance) <= (1e-13 * np.abs(mean)) ** 2
    return np.asarray(np.where(constant, 1.0, np.sqrt(variance)))
