"""A fitted model: a learned prior that is conditioned on a client's own rows when asked to predict."""

import collections
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import scipy.optimize
from jaxtyping import Float

from fedgauss import metrics
from fedgauss.columns import client_name
from fedgauss.errors import DataError, SettingsError, suggest
from fedgauss.federation import Client, Federation, align_inputs
from fedgauss.files import parquet_bytes, read_json, replace_folder
from fedgauss.gp.condition import Choice, condition
from fedgauss.gp.exact import negative_log_marginal_likelihood
from fedgauss.gp.kernels import Kernel, Parameters, scale_parameters
from fedgauss.gp.parameters import Flat, Space, flatten, unflatten
from fedgauss.gp.posterior import Posterior
from fedgauss.messages import from_bytes, to_bytes
from fedgauss.runtime import prepare
from fedgauss.scaling import Scaling, Units

Vector = Float[np.ndarray, " T"]
Results = dict[str, tuple[Vector, Vector, Vector]]

_KEPT = 8
"""Posteriors kept in memory for the next prediction."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """Everything a fitted model knows apart from data. It is what `save` writes.

    Args:
        method: "FGPR", "Separate" or "Pooled".
        settings: The method's settings as plain values.
        space: The model's hyper-parameters: kernel, box, priors, and where they start.
        shared: Shared parameters by name, in the model's units.
        personal: By client, the parameters that stayed with it, in the model's units.
        own_scales: By client, what its inputs and targets were divided by, where every parameter is its own.
        scaling: From the user's units to the model's.
        names: The clients.
        inputs: Input columns.
        target: The target column.
        posterior: How `predict` conditions.
    """

    method: str
    settings: dict[str, Any]
    space: Space
    shared: Flat
    personal: dict[str, Flat]
    own_scales: dict[str, Flat]
    scaling: Scaling
    names: tuple[str, ...]
    inputs: tuple[str, ...]
    target: str
    posterior: Choice

    @property
    def kernel(self) -> Kernel:
        """The prior's covariance."""
        return self.space.kernel

    @functools.cached_property
    def start(self) -> Flat:
        """Where parameters start."""
        return {name: np.asarray(value) for name, value in self.space.named(self.space.first()).items()}


class FittedPrior:
    """A prior learned by many clients. `predict` conditions it on one client's rows.

    What `fit` returns and `fg.load` reads; not made by hand.

    Args:
        learned: What was learned.
        history: One row a round, in the model's units.
        ledger: One row a message.
        federation: The training data, as long as they are in memory. `save` leaves them out.
    """

    HISTORY_PARAMETERS: ClassVar[str] = "parameters."
    NOT_GLOBAL: ClassVar[str] = "its clients share a prior, and each conditions it on its own rows"

    def __init__(
        self, learned: Learned, history: pl.DataFrame, ledger: pl.DataFrame, federation: Federation | None
    ) -> None:
        self.learned = learned
        self.ledger_ = ledger
        self._history = history
        self.federation = federation
        self.clamped_ = 0
        """How many predicted variances rounding had made negative, and were set to zero."""
        self._posteriors: collections.OrderedDict[str, tuple[Posterior, Units, float]] = collections.OrderedDict()

    # --- predicting ----------------------------------------------------------------------------------------------

    def predict(
        self,
        client: str | int | Client | None,
        X: Any,
        *,
        return_std: bool = False,
        return_cov: bool = False,
        include_noise: bool = True,
    ) -> Any:
        """Predictions for one client, from the learned prior and that client's own rows.

        Args:
            client: The name of a client of the training federation; or `fg.Client(X_few, y_few)`, one that took no part
                (with `name=`, a client whose personal parameters the model knows). `None` asks for a global model.
            X: Inputs, [T, D] or a DataFrame with the training columns in any order.
            return_std: Also return the standard deviation of a new observation at each row.
            return_cov: Also return the covariance matrix of new observations, where the posterior is dense.
            include_noise: Whether "a new observation" includes the noise, or means f alone.

        Returns:
            The mean [T], or a pair with the standard deviations [T] or the covariance [T, T]: in the user's units.

        Raises:
            DataError: If the client is unknown, its rows are not in memory, or columns do not fit.
            SettingsError: If the method has no global model.

        Example:
            >>> import fedgauss as fg
            >>> x = np.linspace(0.0, 1.0, 30)[:, None]
            >>> federation = fg.Federation.from_arrays({"a": (x, np.sin(6 * x[:, 0])), "b": (x, np.cos(6 * x[:, 0]))})
            >>> model = fg.FGPR(solver="exact").fit(federation, progress=False)
            >>> mean, std = model.predict("a", [[0.5]], return_std=True)
            >>> bool(abs(mean[0] - np.sin(3.0)) < 0.05)
            True
        """
        if return_std and return_cov:
            raise SettingsError("predict: ask for return_std or return_cov, not both")
        prepare()
        rows = align_inputs(X, self.learned.inputs)
        posterior, units, noise = self._posterior(client)
        scale, shift = float(units.target_scale[0]), float(units.target_mean[0])
        inputs = units.inputs(rows)
        if return_cov:
            if posterior.kind != "dense":
                raise SettingsError(
                    f'predict: return_cov needs a dense posterior, this client\'s is "{posterior.kind}"; fit with'
                    ' posterior="dense", or ask for return_std'
                )
            covariance = np.asarray(posterior.covariance(inputs))  # type: ignore[attr-defined]
            mean = np.asarray(posterior.predict(inputs).mean)
            extra = noise * np.eye(len(rows)) if include_noise else 0.0
            return mean * scale + shift, (covariance + extra) * scale**2
        prediction = posterior.predict(inputs)
        self.clamped_ += int(prediction.clamped)
        mean = np.asarray(prediction.mean) * scale + shift
        if not return_std:
            return mean
        return mean, np.sqrt(np.asarray(prediction.variance) + (noise if include_noise else 0.0)) * scale

    def sample(self, client: str | int | Client, X: Any, num_samples: int = 1, *, seed: int = 0) -> Any:
        """Draws of f, [S, T], from a client's dense posterior.

        Example:
            >>> import fedgauss as fg
            >>> x = np.linspace(0.0, 1.0, 9)[:, None]
            >>> model = fg.FGPR(solver="exact").fit(fg.Federation.from_arrays({"a": (x, x[:, 0])}), progress=False)
            >>> model.sample("a", [[0.1], [0.2]], num_samples=3).shape
            (3, 2)
        """
        prepare()
        posterior, units, _ = self._posterior(client)
        if posterior.kind != "dense":
            raise SettingsError(f'sample: needs a dense posterior, this client\'s is "{posterior.kind}"')
        inputs = units.inputs(align_inputs(X, self.learned.inputs))
        draws = posterior.sample(jax.random.key(seed), inputs, num_samples)  # type: ignore[attr-defined]
        return np.asarray(draws) * float(units.target_scale[0]) + float(units.target_mean[0])

    def results(self, test: Federation) -> Results:
        """Observed targets with predictive means and standard deviations, by client.

        A client of `test` that took part in training is predicted from its training rows.
        """
        found: Results = {}
        for name, client in test.items():
            mean, std = self.predict(name, _named(client, test.inputs), return_std=True)
            found[name] = (client.Y[:, 0], mean, std)
        return found

    def score(self, client: str | int | Client | None, X: Any, y: Any) -> float:
        """R^2 of one client's predictions: 1 is perfect, 0 no better than the mean of `y`.

        Args:
            client: As of `predict`.
            X: Inputs.
            y: What was observed there, one target.

        Example:
            >>> import fedgauss as fg
            >>> x = np.linspace(0.0, 1.0, 30)[:, None]
            >>> federation = fg.Federation.from_arrays({"a": (x, np.sin(6 * x[:, 0]))})
            >>> fg.FGPR(solver="exact").fit(federation, progress=False).score("a", x, np.sin(6 * x[:, 0])) > 0.999
            True
        """
        observed = Client(X, y).Y[:, 0]
        residual = observed - self.predict(client, X)
        spread = observed - observed.mean()
        return float(1.0 - residual @ residual / max(spread @ spread, np.finfo(float).tiny))

    def evaluate(self, test: Federation) -> pl.DataFrame:
        """RMSE, MAE, NLPD, CRPS, coverage, sharpness, ECE, MCE and Brier on held-out rows, by client and pooled."""
        return metrics.per_client(self.results(test))

    def posterior(self, client: str | int | Client) -> Posterior:
        """The posterior that predictions for this client come from: its `kind` and `notes` say how it was computed."""
        prepare()
        return self._posterior(client)[0]

    def _posterior(self, client: str | int | Client | None) -> tuple[Posterior, Units, float]:
        if client is None:
            raise SettingsError(
                f"{self.learned.method} has no global model: {self.NOT_GLOBAL}. Pass a client's name, or"
                " fg.Client(X, y); fg.Pooled(fg.FGPR()) fits one model to all data"
            )
        if not isinstance(client, Client):
            known = _name(client)
            if known in self._posteriors:
                self._posteriors.move_to_end(known)
                return self._posteriors[known]
            made = self._condition(self._rows(known), known)
            self._posteriors[known] = made
            while len(self._posteriors) > _KEPT:
                self._posteriors.popitem(last=False)
            return made
        return self._condition(client.align(self.learned.inputs, (self.learned.target,)), client.name)

    def _rows(self, name: str) -> Client:
        if self.federation is None:
            raise DataError(
                f'client "{name}": this model was loaded without training data, which `save` leaves out. Pass the'
                f" client's own rows: predict(fg.Client(X, y, name={name!r}), X_new)"
            )
        return self.federation[name]

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

    def __repr__(self) -> str:
        data = "with" if self.federation is not None else "without"
        return f"{self.learned.method}, fitted: {len(self.learned.names)} clients, {data} training data in memory"

    # --- files ---------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str], *, include_data: bool = False) -> Path:
        """Write the model to a folder: arrays in safetensors, the rest JSON and Parquet. Whole, or not at all.

        Args:
            folder: A new folder, or one that holds an earlier model, which is replaced.
            include_data: Whether to write the training data too. Whoever has the folder then has the data.

        Returns:
            The folder.

        Raises:
            RunError: If it cannot be written, or the folder holds something else.
        """
        if include_data and self.federation is None:
            raise DataError("save(include_data=True): this model has no training data in memory")
        target = Path(folder)
        with replace_folder(target, marker="model.json") as place:
            head, arrays = _to_files(self.learned)
            content = to_bytes(arrays)
            (place / "arrays.safetensors").write_bytes(content)
            head["sha256"] = hashlib.sha256(content).hexdigest()
            (place / "history.parquet").write_bytes(parquet_bytes(self._history))
            (place / "ledger.parquet").write_bytes(parquet_bytes(self.ledger_))
            if include_data and self.federation is not None:
                data = {name: {"X": c.X, "Y": c.Y} for name, c in self.federation.items()}
                (place / "training_data.safetensors").write_bytes(to_bytes(data))
            (place / "model.json").write_text(json.dumps(head, indent=2))
        return target


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

    def _posterior(self, client: str | int | Client | None) -> tuple[Posterior, Units, float]:
        if isinstance(client, Client):
            raise DataError(
                "a pooled model has one posterior, given all training rows, and takes no further rows: pass None. To"
                " learn from these rows too, fit it to a federation that has them"
            )
        if client is not None and (known := _name(client)) not in self.learned.names:
            near = suggest(known, self.learned.names)
            raise DataError(f'no client "{known}" took part in this fit{near}; pass None for the pooled model')
        if "pooled" not in self._posteriors:
            if self.federation is None:
                raise DataError(
                    "this pooled model was loaded without training data, which it needs to predict: save it with"
                    " include_data=True"
                )
            self._posteriors["pooled"] = self._condition(pool(self.federation), None)
        return self._posteriors["pooled"]


_FIT_ROWS = 2000
"""A new client's personal parameters are fitted on about this many of its rows, evenly spread."""

_CLASSES: dict[str, type[FittedPrior]] = {
    "FGPR": FittedPrior, "Separate": FittedSeparate, "Pooled": FittedPooled,
}  # fmt: skip


def fitted_class(method: str) -> type[FittedPrior]:
    """What a method's `fit` returns."""
    return _CLASSES[method]


def pool(federation: Federation) -> Client:
    """All rows as one client's."""
    X = np.concatenate([client.X for client in federation.clients])
    Y = np.concatenate([client.Y for client in federation.clients])
    return Client(X, Y, name="pooled")


def load(folder: str | os.PathLike[str]) -> FittedPrior:
    """The model that `save` wrote.

    Raises:
        DataError: If the folder holds no model, or one of a version this one cannot read.

    Example:
        >>> import fedgauss as fg, tempfile
        >>> x = np.linspace(0.0, 1.0, 9)[:, None]
        >>> model = fg.FGPR(solver="exact").fit(fg.Federation.from_arrays({"a": (x, x[:, 0])}), progress=False)
        >>> path = model.save(tempfile.mkdtemp() + "/model")
        >>> fg.load(path)
        FGPR, fitted: 1 clients, without training data in memory
    """
    prepare()
    place = Path(folder)
    head = read_json(place / "model.json", "a fedgauss model")
    if head.get("format") != _FORMAT:
        raise DataError(f"the model has format {head.get('format')!r}, this version of fedgauss reads {_FORMAT!r}")
    try:
        content = (place / "arrays.safetensors").read_bytes()
        if hashlib.sha256(content).hexdigest() != head["sha256"]:
            raise ValueError("the arrays are not those that were saved")
        arrays = from_bytes(content, [Units])
        history = pl.read_parquet(place / "history.parquet")
        ledger = pl.read_parquet(place / "ledger.parquet")
        learned = _from_files(head, arrays)
        federation = None
        if (data := place / "training_data.safetensors").exists():
            stored = from_bytes(data.read_bytes(), [])
            federation = Federation(
                Client.of_matrices(both["X"], both["Y"], name, learned.inputs, (learned.target,))
                for name, both in stored.items()
            )
    except OSError as error:
        raise DataError(f"the model is incomplete: {Path(error.filename or '').name} cannot be read") from error
    except (ValueError, KeyError, TypeError, IndexError, pl.exceptions.PolarsError) as error:
        raise DataError(
            "the model is incomplete: a file in it is cut short, changed or not ours. Save it again"
        ) from error
    return fitted_class(learned.method)(learned, history, ledger, federation)


_FORMAT = "fedgauss-prior-1"


def _to_files(learned: Learned) -> tuple[dict[str, Any], dict[str, Any]]:
    scaling = learned.scaling
    head = {
        "format": _FORMAT,
        "method": learned.method,
        "settings": learned.settings,
        "space": learned.space.to_config(),
        "names": learned.names,
        "inputs": learned.inputs,
        "target": learned.target,
        "posterior": learned.posterior,
        "scaling": {"inputs": scaling.inputs, "targets": scaling.targets},
        "personal_clients": list(learned.personal),
    }
    personal = list(learned.personal.values())
    arrays = {
        "shared": learned.shared,
        "own_scales": list(learned.own_scales.values()),
        "personal": {name: np.stack([own[name] for own in personal]) for name in (personal[0] if personal else {})},
        "pooled": scaling.pooled,
        "within": scaling.within,
    }
    return head, arrays


def _from_files(head: dict[str, Any], arrays: dict[str, Any]) -> Learned:
    personal = {
        client: {name: stacked[i] for name, stacked in arrays["personal"].items()}
        for i, client in enumerate(head["personal_clients"])
    }
    return Learned(
        method=head["method"],
        settings=head["settings"],
        space=Space.from_config(head["space"]),
        shared=arrays["shared"],
        personal=personal,
        own_scales=dict(zip(personal, arrays["own_scales"], strict=False)),
        scaling=Scaling(pooled=arrays["pooled"], within=arrays["within"], **head["scaling"]),
        names=tuple(head["names"]),
        inputs=tuple(head["inputs"]),
        target=head["target"],
        posterior=head["posterior"],
    )


def _name(client: object) -> str:
    """A client's name, of what is no client; values, such as a pair (X, y), are not shown."""
    if not isinstance(client, str | int | np.integer):
        raise DataError(
            f"client: got {type(client).__name__}, expected the name of a client, fg.Client(X, y) with its own rows,"
            " or None for a global model"
        )
    return client_name(client)


def _named(client: Client, inputs: tuple[str, ...]) -> Any:
    return pl.DataFrame(client.X, schema=list(inputs), orient="row")


def _without(parameters: Parameters, names: set[str]) -> Parameters:
    return unflatten({name: value for name, value in flatten(parameters).items() if name not in names})
