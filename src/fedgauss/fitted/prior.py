"""Priors learned by many clients: what FGPR, and `Separate` and `Pooled` with it, give back."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import scipy.optimize

from fedgauss.errors import DataError, SettingsError
from fedgauss.federation import Client
from fedgauss.fitted.base import Fitted, Learned, name_of, pool
from fedgauss.gp.condition import Choice, condition
from fedgauss.gp.exact import negative_log_marginal_likelihood
from fedgauss.gp.kernels import Kernel, Parameters, scale_parameters
from fedgauss.gp.parameters import Flat, Space, flatten, unflatten
from fedgauss.gp.posterior import Posterior
from fedgauss.scaling import Units


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnedPrior(Learned):
    """A prior, apart from data.

    Args:
        space: The model's hyper-parameters: kernel, box, priors, and where they start.
        shared: Shared parameters by name, in the model's units.
        personal: By client, the parameters that stayed with it, in the model's units.
        own_scales: By client, what its inputs and targets were divided by, where every parameter is its own.
        posterior: How `predict` conditions.
    """

    space: Space
    shared: Flat
    personal: dict[str, Flat]
    own_scales: dict[str, Flat]
    posterior: Choice

    @property
    def kernel(self) -> Kernel:
        """The prior's covariance."""
        return self.space.kernel

    @functools.cached_property
    def start(self) -> Flat:
        """Where parameters start."""
        return {name: np.asarray(value) for name, value in self.space.named(self.space.first()).items()}

    def head(self) -> dict[str, Any]:
        """See `Learned.head`."""
        own = {"space": self.space.to_config(), "posterior": self.posterior, "personal_clients": list(self.personal)}
        return super().head() | own

    def arrays(self) -> dict[str, Any]:
        """See `Learned.arrays`."""
        personal = list(self.personal.values())
        return super().arrays() | {
            "shared": self.shared,
            "own_scales": list(self.own_scales.values()),
            "personal": {name: np.stack([own[name] for own in personal]) for name in (personal[0] if personal else {})},
        }

    @classmethod
    def from_files(cls, head: dict[str, Any], arrays: dict[str, Any]) -> "LearnedPrior":
        """What `head` and `arrays` wrote."""
        personal = {
            client: {name: stacked[i] for name, stacked in arrays["personal"].items()}
            for i, client in enumerate(head["personal_clients"])
        }
        return cls(
            **cls.read(head, arrays), space=Space.from_config(head["space"]), shared=arrays["shared"],
            personal=personal, own_scales=dict(zip(personal, arrays["own_scales"], strict=False)),
            posterior=head["posterior"],
        )  # fmt: skip


class FittedPrior(Fitted[LearnedPrior]):
    """A prior learned by many clients. `predict` conditions it on one client's rows."""

    KIND: ClassVar[str] = "prior"
    HISTORY_PARAMETERS: ClassVar[str] = "parameters."
    NOT_GLOBAL: ClassVar[str] = "its clients share a prior, and each conditions it on its own rows"

    def _posterior(self, client: str | int | Client | None) -> tuple[Posterior, Units, Any]:
        if client is None:
            raise SettingsError(
                f"{self.learned.method} has no global model: {self.NOT_GLOBAL}. Pass a client's name, or"
                " fg.Client(X, y); fg.Pooled(fg.FGPR()) fits one model to all data"
            )
        if isinstance(client, Client):
            return self._condition(client.align(self.learned.inputs, self.learned.targets), client.name)
        name = name_of(client)
        return self._cached(name, lambda: self._condition(self._rows(name), name))

    def _condition(self, client: Client, name: str | None) -> tuple[Posterior, Units, float]:
        learned = self.learned
        units = learned.scaling.units(client.X, client.Y)
        X, y = units.inputs(client.X), units.targets(client.Y)[:, 0]
        flat = learned.shared | (learned.personal.get(name or "") or self._fit_missing(X, y))
        parameters = unflatten(flat)
        posterior = condition(learned.kernel, parameters, X, y, posterior=learned.posterior)
        return posterior, units, float(flat["noise_variance"])

    def _fit_missing(self, X: Any, y: Any) -> Flat:
        """A new client's personal parameters: the most likely ones for its rows and priors, given the shared."""
        learned = self.learned
        missing = [name for name in learned.start if name not in learned.shared]
        if not missing:
            return {}
        every = -(-len(X) // _FIT_ROWS)
        X, y, space = jnp.asarray(X[::every]), jnp.asarray(y[::every]), learned.space
        free = np.flatnonzero(space.select(tuple(missing), "personal"))
        known = space.ravel(learned.start | learned.shared)
        low, high = space.box()

        def theta(u: Any) -> Any:
            return known.at[free].set(jnp.exp(u))

        @jax.jit
        @jax.value_and_grad
        def objective(u: Any) -> Any:
            value = negative_log_marginal_likelihood(learned.kernel, space.unravel(theta(u)), X, y)
            return value - jnp.sum(space.log_prior(theta(u))[free])

        bounds = np.log(np.stack([low, np.minimum(high, space.ceilings())], axis=1)[free])
        best = scipy.optimize.minimize(
            lambda u: tuple(map(np.asarray, objective(u))), np.log(known[free]), jac=True, method="L-BFGS-B",
            bounds=bounds,
        )  # fmt: skip
        found = space.named(np.asarray(theta(best.x)))
        return {name: found[name] for name in missing}

    # --- what was learned ----------------------------------------------------------------------------------------

    @property
    def parameters_(self) -> Parameters:
        """Shared parameters in the target's own units and the inputs' own scale, nested as the kernel is.

        Where each client standardises its own targets (`targets="client"`), variances are in units of the clients' own.
        """
        return self._in_user_units(self.learned.shared | self._placeholders(), drop=self._placeholders())

    @property
    def personal_parameters_(self) -> dict[str, Parameters]:
        """By client, the parameters that stayed with it, in the same units."""
        shared = self.learned.shared
        return {name: self._in_user_units(shared | own, drop=shared) for name, own in self.learned.personal.items()}

    def _placeholders(self) -> Flat:
        return {name: value for name, value in self.learned.start.items() if name not in self.learned.shared}

    def _in_user_units(self, flat: Flat, *, drop: Mapping[str, Any] = {}) -> Parameters:
        units = self.learned.scaling.pooled
        scaled = scale_parameters(self.learned.kernel, unflatten(flat), units.input_scale, float(units.target_scale[0]))
        return _without(scaled, set(drop))

    @property
    def history_(self) -> pl.DataFrame:
        """One row a round: seconds, bytes up and down, objective, clients that answered, parameters in user units."""
        prefix = self.HISTORY_PARAMETERS
        names = [column for column in self._history.columns if column.startswith(prefix)]
        if not names:
            return self._history
        rows = []
        for row in self._history.select(names).iter_rows(named=True):
            flat = {name.removeprefix(prefix): np.asarray(value) for name, value in row.items()}
            scaled = self._in_user_units(flat | self._placeholders(), drop=self._placeholders())
            rows.append({f"{prefix}{k}": np.asarray(v).tolist() for k, v in flatten(scaled).items()})
        return self._history.drop(names).hstack(pl.DataFrame(rows, infer_schema_length=None))


class FittedSeparate(FittedPrior):
    """Clients fitted alone: every parameter is a client's own."""

    NOT_GLOBAL: ClassVar[str] = "its clients share nothing, each has its own"

    @property
    def parameters_(self) -> dict[str, Parameters]:
        """By client, its own parameters in the target's own units and the inputs' own scale."""
        learned = self.learned
        return {
            name: scale_parameters(learned.kernel, unflatten(own), scale["inputs"], float(scale["target"]))
            for (name, own), scale in zip(learned.personal.items(), learned.own_scales.values(), strict=True)
        }

    @property
    def personal_parameters_(self) -> dict[str, Parameters]:
        """The same as `parameters_`."""
        return self.parameters_


class FittedPooled(FittedPrior):
    """One model of all data in one place: the same for every client, and for `None`."""

    @property
    def is_global(self) -> bool:
        """It is."""
        return True

    def _posterior(self, client: str | int | Client | None) -> tuple[Posterior, Units, Any]:
        if isinstance(client, Client):
            raise DataError(
                "a pooled model has one posterior, given all training rows, and takes no further rows: pass None. To"
                " learn from these rows too, fit it to a federation that has them"
            )
        if client is not None:
            self._check_known(client)
        if self.federation is None:
            raise DataError(
                "this pooled model was loaded without training data, which it needs to predict: save it with"
                " include_data=True"
            )
        everybody = self.federation
        return self._cached("pooled", lambda: self._condition(pool(everybody), None))


_FIT_ROWS = 2000
"""A new client's personal parameters are fitted on about this many of its rows, evenly spread."""

CLASSES: dict[str, type[FittedPrior]] = {"FGPR": FittedPrior, "Separate": FittedSeparate, "Pooled": FittedPooled}
"""By method."""


def _without(parameters: Parameters, names: set[str]) -> Parameters:
    return unflatten({name: value for name, value in flatten(parameters).items() if name not in names})
