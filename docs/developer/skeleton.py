"""A federated algorithm to copy: Bayesian linear regression from one exchange of sums.

Complete and runnable: `python docs/developer/skeleton.py`. Replace the mathematics and keep the order, in which one
asks: what travels, what is kept, then the five functions. In a real file this docstring names the paper and its
equations; here they are those of Bishop (2006), section 3.3.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import fedgauss as fg
from fedgauss.algorithm import Data, FederatedAlgorithm, Key
from fedgauss.engines.local import Run
from fedgauss.testing import check_algorithm

# What travels, and what is kept: named tuples of float64 arrays. None has an axis as long as the rows.


class SumsRequest(NamedTuple):
    """What the server asks. A request carries what a client needs to know, here only when it was asked."""

    round: Float[Array, ""]


class Sums(NamedTuple):
    """What a client answers. Replies are added over clients, leaf by leaf; a mean is sent as `messages.weighted`."""

    x_x: Float[Array, "D D"]
    x_y: Float[Array, " D"]


class Posterior(NamedTuple):
    """What the server knows: a Gaussian over the weights as precision and precision times mean."""

    precision: Float[Array, "D D"]
    precision_mean: Float[Array, " D"]
    round: Float[Array, ""]


class Info(NamedTuple):
    """Worth plotting: a column of the history for each leaf. Never fed back."""

    log_determinant: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearFromSums(FederatedAlgorithm[Posterior, tuple[()], SumsRequest, Sums]):
    """y = X w + e with w ~ N(0, I) and e ~ N(0, noise_variance I): the exact posterior of w over all clients' rows.

    Args:
        num_inputs: D.
        noise_variance: Of a target.
    """

    # Fields are settings: numbers, names, frozen objects. No arrays, since the object is hashed.
    num_inputs: int
    noise_variance: float

    quorum = "every"  # the sums of some clients are not those of all; "some" where a round may go on without a few

    def init(self, key: Key) -> Posterior:
        """The prior."""
        D = self.num_inputs
        return Posterior(jnp.eye(D), jnp.zeros(D), jnp.zeros(()))

    def init_client(self, key: Key) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def request(self, server: Posterior) -> SumsRequest | None:
        """Once. The only function that is never traced: it may branch on values."""
        return None if int(server.round) >= 1 else SumsRequest(server.round)

    def client_update(self, request: SumsRequest, client: tuple[()], data: Data, key: Key) -> tuple[tuple[()], Sums]:
        """Sums over the rows: equations 3.53 and 3.54.

        Sent: D^2 + D sums, whatever the number of rows. Of a client with one row they give the row up to its sign; of
            one with fewer rows than inputs, the space they span.
        Kept: nothing.
        """
        del key  # every draw must come from it
        row = jnp.arange(data.X.shape[0]) < data.num_rows  # rows from num_rows on are padding
        X, y = jnp.where(row[:, None], data.X, 0.0), jnp.where(row, data.Y[:, 0], 0.0)
        return client, Sums(X.T @ X / self.noise_variance, X.T @ y / self.noise_variance)

    def server_update(self, server: Posterior, total: Sums) -> tuple[Posterior, Info]:
        """Add the sum of the replies to the prior."""
        precision = server.precision + total.x_x
        posterior = Posterior(precision, server.precision_mean + total.x_y, server.round + 1)
        return posterior, Info(jnp.linalg.slogdet(precision)[1])

    def client_bytes(self, rows: int) -> int:
        """Memory one client's work touches: its columns, and what is made of them."""
        return 16 * rows * (self.num_inputs + 1)


def main() -> None:
    """The checks that every algorithm passes, then the pooled computation that this one must equal."""
    fg.prepare()  # 64 bits, before the first array
    rng = np.random.default_rng(0)
    weights = np.array([1.0, -2.0, 0.5])

    def client(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.normal(size=(num_rows, 3))
        return X, X @ weights + rng.normal(0.0, 0.1, num_rows)

    federation = fg.Federation.from_arrays({f"client-{i}": client(n) for i, n in enumerate((5, 9, 30))})
    algorithm = LinearFromSums(num_inputs=3, noise_variance=0.01)
    check_algorithm(algorithm, federation)

    run = Run(algorithm, federation, schedule=fg.Synchronous(), engine=fg.Local(), seed=0)()
    found = np.linalg.solve(run.server.precision, run.server.precision_mean)

    X = np.concatenate([one.X for one in federation.clients])
    y = np.concatenate([one.Y[:, 0] for one in federation.clients])
    pooled = np.linalg.solve(X.T @ X + 0.01 * np.eye(3), X.T @ y)
    np.testing.assert_allclose(found, pooled, rtol=1e-9)
    print("all checks passed; weights", found.round(3))


if __name__ == "__main__":
    main()
