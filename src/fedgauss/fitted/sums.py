"""Models that are given by sums over everybody's rows: what FedBNR and FedSparseGP give back.

They know the sums, not the rows, so they predict after `save` and `load` without data, and clients join and leave by
adding and subtracting sums.
"""

import dataclasses
import functools
import logging
from typing import Any, ClassVar

import jax
import numpy as np
import polars as pl

from fedgauss.algorithms.sums import GatherSums
from fedgauss.columns import quoted
from fedgauss.engines.local import Local, Run
from fedgauss.errors import DataError, RunError, SettingsError
from fedgauss.federation import Client, Federation
from fedgauss.fitted.base import Fitted, Learned, name_of
from fedgauss.gp.feature_regression import FeatureModel, FeatureSums
from fedgauss.gp.features import Features
from fedgauss.gp.inducing import InducingModel
from fedgauss.gp.parameters import Flat, unflatten
from fedgauss.gp.posterior import Posterior
from fedgauss.gp.sparse import SparseStatistics
from fedgauss.gp.summed import SummedModel, sums_of
from fedgauss.scaling import Units
from fedgauss.schedules import Synchronous
from fedgauss.settings import check_kind

logger = logging.getLogger("fedgauss")

_SUMS = {FeatureModel: ("features", FeatureSums), InducingModel: ("inducing", SparseStatistics)}
"""By model: what a saved one is called, and its sums."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnedSums(Learned):
    """A model, its parameters, and the sums over all rows there.

    Args:
        model: What the sums are of.
        learned: Parameters as they were learned, in the space in which they are learned.
        constants: What was drawn once, such as omega.
        sums: Over the rows of the clients in `names`.
        tune: Whether the parameters that the sums determine are set to their optimum.
        everyone: Whether all clients must answer when sums are gathered.
    """

    model: SummedModel
    learned: Flat
    constants: Flat
    sums: Any
    tune: bool
    everyone: bool

    @functools.cached_property
    def theta(self) -> Flat:
        """The parameters, tuned to the sums where that is asked for."""
        return self.model.tuned(self.sums, self.learned) if self.tune else self.learned

    def head(self) -> dict[str, Any]:
        """See `Learned.head`."""
        model = {"name": _SUMS[type(self.model)][0]} | self.model.to_config()
        return super().head() | {"model": model, "tune": self.tune, "everyone": self.everyone}

    def arrays(self) -> dict[str, Any]:
        """See `Learned.arrays`."""
        own = {"learned": self.learned, "constants": self.constants, "sums": list(self.sums)}
        arrays: dict[str, Any] = super().arrays() | jax.tree.map(np.asarray, own)
        return arrays

    @classmethod
    def from_files(cls, head: dict[str, Any], arrays: dict[str, Any], features: Features | None) -> "LearnedSums":
        """What `head` and `arrays` wrote."""
        model = read_model(head["model"], features)
        sums = _SUMS[type(model)][1](*arrays["sums"])
        return cls(
            **cls.read(head, arrays), model=model, learned=arrays["learned"], constants=arrays["constants"], sums=sums,
            tune=head["tune"], everyone=head["everyone"],
        )  # fmt: skip


def read_model(config: dict[str, Any], features: Features | None) -> SummedModel:
    """The model that its configuration describes."""
    settings = {name: value for name, value in config.items() if name != "name"}
    if config["name"] == "features":
        return FeatureModel.from_config(settings, features)
    return InducingModel.from_config(settings)


@dataclasses.dataclass(frozen=True)
class Gathered:
    """What one exchange of sums gave."""

    sums: Any
    names: tuple[str, ...]
    """Whose sums these are."""
    ledger: pl.DataFrame
    seconds: float


def gather(
    model: SummedModel, theta: Flat, constants: Flat, federation: Federation, *, engine: Local, seed: int,
    everyone: bool, round_number: int,
) -> Gathered:  # fmt: skip
    """The sums of all clients of a standardised federation at these parameters: one exchange."""
    algorithm = GatherSums(
        model=model, num_inputs=len(federation.inputs), num_targets=len(federation.targets), everyone=everyone
    )
    run = Run(algorithm, federation, schedule=Synchronous(), engine=engine, seed=seed)
    run.exchange.server = run.exchange.server._replace(theta=theta, constants=constants)
    run.exchange.round = round_number
    run()
    if not run.history:
        raise RunError("the run was stopped before the clients' sums were gathered: there is nothing to predict with")
    ledger = run.ledger.to_frame()
    counted = set(ledger.filter(pl.col("outcome") == "counted")["client"])
    names = tuple(name for name in federation.names if name in counted)
    if missing := [name for name in federation.names if name not in counted]:
        logger.warning("the sums are without those of %s", quoted(missing, most=5, mark="'"))
    return Gathered(jax.device_get(run.server.sums), names, ledger, run.history[-1]["seconds"])


class FittedSums(Fitted[LearnedSums]):
    """One global model of all clients' rows, given by their sums."""

    KIND: ClassVar[str] = "sums"

    @property
    def is_global(self) -> bool:
        """It is."""
        return True

    def _posterior(self, client: str | int | Client | None) -> tuple[Posterior, Units, Any]:
        learned = self.learned
        if isinstance(client, Client):
            if client.name not in learned.names:
                return self._after(self._sums(client.align(learned.inputs, learned.targets)))
        elif client is not None:
            self._check_known(client)
        return self._cached("everybody", lambda: self._after(None))

    def _sums(self, client: Client) -> Any:
        """A client's sums in the model's units."""
        learned, units = self.learned, self.learned.scaling.pooled
        X, Y = units.inputs(client.X), units.targets(client.Y)
        return _own_sums(learned.model, learned.theta, learned.constants, X, Y)

    def _after(self, more: Any) -> tuple[Posterior, Units, Any]:
        """The posterior given the sums, and `more` of them."""
        learned = self.learned
        sums = learned.sums if more is None else jax.tree.map(np.add, learned.sums, jax.device_get(more))
        posterior = learned.model.posterior(sums, learned.theta, learned.constants)
        return posterior, learned.scaling.pooled, np.asarray(learned.model.noise_variance(learned.theta))

    # --- clients that come and go --------------------------------------------------------------------------------

    def update(self, federation: Federation, *, engine: Local | None = None, seed: int = 0) -> "FittedSums":
        """Let new clients join: they send their sums once, and what the sums determine is tuned again.

        The features, or inducing inputs, stay as they were learned. This model is changed, and returned.

        Args:
            federation: The new clients.
            engine: How they are computed.
            seed: For the engine's simulated network.

        Example:
            >>> import fedgauss as fg
            >>> x = np.linspace(0.0, 1.0, 40)[:, None]
            >>> left = fg.Federation.from_arrays({"a": (x, x[:, 0] ** 2)})
            >>> right = fg.Federation.from_arrays({"b": (x + 1, (x[:, 0] + 1) ** 2)})
            >>> model = fg.FedBNR(features=fg.features.Fourier(), rounds=2, local_steps=5).fit(left, progress=False)
            >>> before, after = model.predict(None, [[1.5]]), model.update(right).predict(None, [[1.5]])
            >>> bool(abs(after[0] - 2.25) < 0.01 < abs(before[0] - 2.25))
            True
        """
        return self._change(federation, engine, seed, joining=True)

    def remove(self, federation: Federation, *, engine: Local | None = None, seed: int = 0) -> "FittedSums":
        """Let clients leave: they send their sums once more, which are subtracted. This model is changed, and returned.

        Whoever has the model before and after has the difference, which is these clients' sums; where they had fewer
        rows than features, that is their rows. Leaving does not take back what others have seen.

        Args:
            federation: The clients that leave, with the rows that were counted.
            engine: How they are computed.
            seed: For the engine's simulated network.

        Raises:
            DataError: If a client took no part, or its rows cannot be those that were counted.
        """
        return self._change(federation, engine, seed, joining=False)

    def _change(self, federation: Federation, engine: Local | None, seed: int, *, joining: bool) -> "FittedSums":
        check_kind("federation", federation, Federation, "fg.Federation.from_arrays(...)")
        learned = self.learned
        for name in federation:
            if joining and name in learned.names:
                raise DataError(f'client "{name}": its rows are counted already; remove() them first, or rename it')
            if not joining:
                self._check_known(name)
        if not joining and len(federation) == len(learned.names):
            raise DataError("remove: these are all clients of the model; nothing would be left")
        aligned = federation.map(lambda client: client.align(learned.inputs, learned.targets))
        gathered = gather(
            learned.model, learned.theta, learned.constants, learned.scaling.apply(aligned), engine=engine or Local(),
            seed=seed, everyone=learned.everyone, round_number=max(self.ledger_["round"].to_list()) + 1,
        )  # fmt: skip
        change = np.add if joining else np.subtract
        sums = jax.tree.map(change, learned.sums, gathered.sums)
        if not joining:
            if (why := learned.model.refusal(sums)) is not None:
                raise DataError(
                    f"remove: what is left cannot be sums over rows ({why}). Pass the rows that were counted, unchanged"
                )
            logger.warning(
                "the model before and the model after differ by the sums of %s: whoever has both knows them",
                quoted(gathered.names, most=5, mark="'"),
            )
        left = {*learned.names, *gathered.names} if joining else {*learned.names} - {*gathered.names}
        self.learned = dataclasses.replace(learned, sums=sums, names=tuple(sorted(left)))
        self.ledger_ = pl.concat([self.ledger_, gathered.ledger])
        self._posteriors.clear()
        if self.federation is not None:
            clients = [client for client in self.federation.clients if client.name in left]
            new = [client for client in aligned.clients if client.name in gathered.names] if joining else []
            self.federation = Federation([*clients, *new])
        return self

    # --- what was learned ----------------------------------------------------------------------------------------

    @property
    def parameters_(self) -> dict[str, Any]:
        """Variances in the target's own units, and what the features or inducing inputs are made of."""
        return _in_user_units(self.learned.model, self.learned.theta, self.learned.scaling.pooled)

    @property
    def log_evidence_(self) -> float:
        """The log evidence of all rows, or the bound on it, in nats, for standardised targets; from the sums alone."""
        learned = self.learned
        rows = float(learned.sums[-1])
        return -rows * float(learned.model.objective(learned.sums, learned.theta))


@functools.partial(jax.jit, static_argnums=0)
def _own_sums(model: SummedModel, theta: Flat, constants: Flat, X: Any, Y: Any) -> Any:
    return sums_of(model, theta, constants, X, Y, X.shape[0])


def _in_user_units(model: SummedModel, theta: Flat, units: Units) -> dict[str, Any]:
    found = unflatten(model.parameters(theta, units.input_scale, units.target_scale))
    if "noise_variance" in found and np.size(found["noise_variance"]) == 1:
        found |= {name: np.reshape(found[name], ()) for name in ("noise_variance", "weight_variance") if name in found}
    return found


# --- last layers of the clients' own: FedBNR's ablations --------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnedLocal(Learned):
    """Features that are shared or each client's own, with a last layer that is each client's own.

    Args:
        model: The features.
        shared: Parameters that all clients share; empty where each has its own.
        own: By client, its own parameters.
        constants: What was drawn once.
        sums: By client, the sums of all clients in its own features; empty where it uses its own rows alone.
        tune: Whether sigma and lambda are set to what the sums say.
    """

    model: FeatureModel
    shared: Flat
    own: dict[str, Flat]
    constants: Flat
    sums: dict[str, FeatureSums]
    tune: bool

    def head(self) -> dict[str, Any]:
        """See `Learned.head`."""
        return super().head() | {"model": {"name": "features"} | self.model.to_config(), "tune": self.tune}

    def arrays(self) -> dict[str, Any]:
        """See `Learned.arrays`."""
        sums = {name: list(parts) for name, parts in self.sums.items()}
        mine = {"shared": self.shared, "own": self.own, "constants": self.constants, "sums": sums}
        arrays: dict[str, Any] = super().arrays() | jax.tree.map(np.asarray, mine)
        return arrays

    @classmethod
    def from_files(cls, head: dict[str, Any], arrays: dict[str, Any], features: Features | None) -> "LearnedLocal":
        """What `head` and `arrays` wrote."""
        model = read_model(head["model"], features)
        assert isinstance(model, FeatureModel)
        sums = {name: FeatureSums(*parts) for name, parts in arrays["sums"].items()}
        return cls(
            **cls.read(head, arrays), model=model, shared=arrays["shared"], own=arrays["own"],
            constants=arrays["constants"], sums=sums, tune=head["tune"],
        )  # fmt: skip


class FittedLocal(Fitted[LearnedLocal]):
    """Each client predicts with a last layer of its own."""

    KIND: ClassVar[str] = "local"

    def _posterior(self, client: str | int | Client | None) -> tuple[Posterior, Units, Any]:
        learned = self.learned
        if client is None:
            raise SettingsError(
                f"{learned.method} has no global model: its last layers are the clients' own. Pass a client's name, or"
                ' fit with last_layer="global" and training="averaging", "distillation" or "exact"'
            )
        if isinstance(client, Client):
            return self._condition(client.name, client.align(learned.inputs, learned.targets))
        self._check_known(client)
        name = name_of(client)
        return self._cached(name, lambda: self._condition(name, None if name in learned.sums else self._rows(name)))

    def _condition(self, name: str | None, rows: Client | None) -> tuple[Posterior, Units, Any]:
        learned, units = self.learned, self.learned.scaling.pooled
        theta = learned.shared or learned.own.get(name or "")
        if not theta:
            raise DataError("every client of this model has features of its own; a client that took no part has none")
        sums = learned.sums.get(name or "")
        if sums is None:
            assert rows is not None
            X, Y = units.inputs(rows.X), units.targets(rows.Y)
            sums = jax.device_get(_own_sums(learned.model, theta, learned.constants, X, Y))
        theta = learned.model.tuned(sums, theta) if learned.tune else theta
        posterior = learned.model.posterior(sums, theta, learned.constants)
        return posterior, units, np.asarray(learned.model.noise_variance(theta))

    @property
    def parameters_(self) -> dict[str, Any]:
        """The shared parameters; where each client has its own, by client."""
        learned, units = self.learned, self.learned.scaling.pooled
        if learned.shared:
            return _in_user_units(learned.model, learned.shared, units)
        return {name: _in_user_units(learned.model, theta, units) for name, theta in learned.own.items()}
