"""What every fitted model does: predict in the user's units, judge itself, tell what it knows, save itself."""

import abc
import collections
import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import jax
import numpy as np
import polars as pl
from jaxtyping import Float

from fedgauss import metrics
from fedgauss.columns import client_name
from fedgauss.errors import DataError, SettingsError, suggest
from fedgauss.federation import Client, Federation, align_inputs
from fedgauss.files import parquet_bytes, replace_folder
from fedgauss.gp.posterior import Posterior
from fedgauss.messages import to_bytes
from fedgauss.runtime import prepare
from fedgauss.scaling import Scaling, Units

Values = Float[np.ndarray, "T *P"]
Results = dict[str, tuple[Values, Values, Values]]

_KEPT = 8
"""Posteriors kept in memory for the next prediction."""

FORMAT = "fedgauss-2"
"""Of saved models."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """What every fitted model knows apart from data. It is what `save` writes.

    Args:
        method: "FGPR", "FedBNR", "FedSparseGP", "Separate" or "Pooled".
        settings: The method's settings as plain values.
        scaling: From the user's units to the model's.
        names: The clients.
        inputs: Input columns.
        targets: Target columns.
    """

    method: str
    settings: dict[str, Any]
    scaling: Scaling
    names: tuple[str, ...]
    inputs: tuple[str, ...]
    targets: tuple[str, ...]

    def head(self) -> dict[str, Any]:
        """The part of a saved model that is JSON."""
        scaling = {"inputs": self.scaling.inputs, "targets": self.scaling.targets}
        plain = {"method": self.method, "settings": self.settings, "scaling": scaling}
        return plain | {"names": self.names, "inputs": self.inputs, "targets": self.targets}

    def arrays(self) -> dict[str, Any]:
        """The part that is arrays."""
        return {"pooled": self.scaling.pooled, "within": self.scaling.within}

    @staticmethod
    def read(head: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
        """The fields of this class from what `head` and `arrays` wrote."""
        scaling = Scaling(pooled=arrays["pooled"], within=arrays["within"], **head["scaling"])
        columns = {name: tuple(head[name]) for name in ("names", "inputs", "targets")}
        return {"method": head["method"], "settings": head["settings"], "scaling": scaling} | columns


L = TypeVar("L", bound=Learned)


class Fitted(abc.ABC, Generic[L]):
    """A fitted model. What `fit` returns and `fg.load` reads; not made by hand.

    Args:
        learned: What was learned.
        history: One row a round, in the model's units.
        ledger: One row a message.
        federation: The training data, as long as they are in memory. `save` leaves them out.
    """

    KIND: ClassVar[str]
    """What a saved model of this class is called."""

    def __init__(self, learned: L, history: pl.DataFrame, ledger: pl.DataFrame, federation: Federation | None) -> None:
        self.learned = learned
        self.ledger_ = ledger
        self._history = history
        self.federation = federation
        self.clamped_ = 0
        """How many predicted variances rounding had made negative, and were set to zero."""
        self._posteriors: collections.OrderedDict[str, tuple[Posterior, Units, Any]] = collections.OrderedDict()

    @abc.abstractmethod
    def _posterior(self, client: str | int | Client | None) -> tuple[Posterior, Units, Any]:
        """The posterior for a client, its units, and the noise variances of the targets in the model's units."""

    @property
    @abc.abstractmethod
    def parameters_(self) -> dict[str, Any]:
        """Learned values in the target's own units and the inputs' own scale."""

    @property
    def is_global(self) -> bool:
        """Whether `predict(None, X)` gives a model that is the same for everyone."""
        return False

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
        """Predictions for one client.

        Args:
            client: The name of a client of the training federation; or `fg.Client(X_few, y_few)`, one that took no part
                (with `name=`, a client whose personal parameters the model knows). `None` asks for a global model.
            X: Inputs, [T, D] or a DataFrame with the training columns in any order.
            return_std: Also return the standard deviation of a new observation at each row.
            return_cov: Also return the covariance matrix of new observations, where the posterior is dense.
            include_noise: Whether "a new observation" includes the noise, or means f alone.

        Returns:
            The mean [T], or a pair with the standard deviations [T] or the covariance [T, T]: in the user's units.
            With P targets [T, P], and the covariances [P, T, T].

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
        scale, shift, inputs = units.target_scale, units.target_mean, units.inputs(rows)
        noise = np.broadcast_to(np.asarray(noise), scale.shape)
        if return_cov:
            covariance = self._covariance(posterior, inputs, "return_cov") * (scale**2)[:, None, None]
            if include_noise:
                covariance = covariance + (noise * scale**2)[:, None, None] * np.eye(len(rows))[None]
            mean = self._by_target(posterior.predict(inputs).mean) * scale + shift
            return (mean, covariance) if len(scale) > 1 else (mean[:, 0], covariance[0])
        prediction = posterior.predict(inputs)
        self.clamped_ += int(prediction.clamped)
        mean = self._by_target(prediction.mean) * scale + shift
        std = np.sqrt(self._by_target(prediction.variance) + (noise if include_noise else 0.0)) * scale
        mean, std = (mean, std) if len(scale) > 1 else (mean[:, 0], std[:, 0])
        return (mean, std) if return_std else mean

    def _by_target(self, values: Any) -> Any:
        """[T] or [T, P] as [T, P]."""
        return np.asarray(values).reshape(-1, len(self.learned.targets))

    def _covariance(self, posterior: Posterior, inputs: Any, what: str) -> Any:
        """Of f, [P, T, T]."""
        if not hasattr(posterior, "covariance"):
            raise SettingsError(
                f"{what}: needs a posterior that knows the covariance between rows, such as a dense one, this is"
                f' "{posterior.kind}"'
            )
        return np.asarray(posterior.covariance(inputs)).reshape(-1, len(inputs), len(inputs))

    def sample(self, client: str | int | Client | None, X: Any, num_samples: int = 1, *, seed: int = 0) -> Any:
        """Draws of f, [S, T] (with P targets [S, T, P]), from a posterior that knows covariances.

        Example:
            >>> import fedgauss as fg
            >>> x = np.linspace(0.0, 1.0, 9)[:, None]
            >>> model = fg.FGPR(solver="exact").fit(fg.Federation.from_arrays({"a": (x, x[:, 0])}), progress=False)
            >>> model.sample("a", [[0.1], [0.2]], num_samples=3).shape
            (3, 2)
        """
        prepare()
        posterior, units, _ = self._posterior(client)
        if not hasattr(posterior, "sample"):
            raise SettingsError(f'sample: needs a dense posterior, this client\'s is "{posterior.kind}"')
        inputs = units.inputs(align_inputs(X, self.learned.inputs))
        draws = np.asarray(posterior.sample(jax.random.key(seed), inputs, num_samples))
        draws = draws.reshape(*draws.shape[:2], -1) * units.target_scale + units.target_mean
        return draws if draws.shape[2] > 1 else draws[:, :, 0]

    def results(self, test: Federation) -> Results:
        """Observed targets with predictive means and standard deviations, by client.

        A client of `test` that took part in training is predicted from its training rows, where the model needs them.
        """
        found: Results = {}
        for name, client in test.items():
            is_known = name in self.learned.names or not self.is_global
            mean, std = self.predict(name if is_known else None, _named(client, test.inputs), return_std=True)
            found[name] = (client.Y if client.Y.shape[1] > 1 else client.Y[:, 0], mean, std)
        return found

    def score(self, client: str | int | Client | None, X: Any, y: Any) -> float:
        """R^2 of one client's predictions: 1 is perfect, 0 no better than the mean of `y`.

        Args:
            client: As of `predict`.
            X: Inputs.
            y: What was observed there; several targets count together.

        Example:
            >>> import fedgauss as fg
            >>> x = np.linspace(0.0, 1.0, 30)[:, None]
            >>> federation = fg.Federation.from_arrays({"a": (x, np.sin(6 * x[:, 0]))})
            >>> fg.FGPR(solver="exact").fit(federation, progress=False).score("a", x, np.sin(6 * x[:, 0])) > 0.999
            True
        """
        observed = Client(X, y).Y
        residual = observed - self._by_target(self.predict(client, X))
        spread = observed - observed.mean(axis=0)
        return float(1.0 - np.sum(residual**2) / max(np.sum(spread**2), np.finfo(float).tiny))

    def evaluate(self, test: Federation) -> pl.DataFrame:
        """RMSE, MAE, NLPD, CRPS, coverage, sharpness, ECE, MCE and Brier on held-out rows, by client and pooled."""
        return metrics.per_client(self.results(test))

    def posterior(self, client: str | int | Client | None) -> Posterior:
        """The posterior that predictions for this client come from: its `kind` and `notes` say how it was computed."""
        prepare()
        return self._posterior(client)[0]

    @property
    def history_(self) -> pl.DataFrame:
        """One row a round: seconds, bytes up and down, objective, clients that answered."""
        return self._history

    def __repr__(self) -> str:
        data = "with" if self.federation is not None else "without"
        return f"{self.learned.method}, fitted: {len(self.learned.names)} clients, {data} training data in memory"

    # --- whose rows ----------------------------------------------------------------------------------------------

    def _rows(self, client: str | int) -> Client:
        name = name_of(client)
        if self.federation is None:
            raise DataError(
                f'client "{name}": this model was loaded without training data, which `save` leaves out. Pass the'
                f" client's own rows: predict(fg.Client(X, y, name={name!r}), X_new)"
            )
        return self.federation[name]

    def _check_known(self, client: str | int) -> None:
        """Refuse a name that took no part."""
        if (known := name_of(client)) not in self.learned.names:
            near = suggest(known, self.learned.names)
            raise DataError(f'no client "{known}" took part in this fit{near}; pass None for the global model')

    def _cached(self, name: str, make: Any) -> tuple[Posterior, Units, Any]:
        """A posterior made before, or made now."""
        if name in self._posteriors:
            self._posteriors.move_to_end(name)
            return self._posteriors[name]
        made: tuple[Posterior, Units, Any] = make()
        self._posteriors[name] = made
        while len(self._posteriors) > _KEPT:
            self._posteriors.popitem(last=False)
        return made

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
            head = {"format": FORMAT, "kind": self.KIND} | self.learned.head()
            content = to_bytes(self.learned.arrays())
            (place / "arrays.safetensors").write_bytes(content)
            head["sha256"] = hashlib.sha256(content).hexdigest()
            (place / "history.parquet").write_bytes(parquet_bytes(self._history))
            (place / "ledger.parquet").write_bytes(parquet_bytes(self.ledger_))
            if include_data and self.federation is not None:
                data = {name: {"X": c.X, "Y": c.Y} for name, c in self.federation.items()}
                (place / "training_data.safetensors").write_bytes(to_bytes(data))
            (place / "model.json").write_text(json.dumps(head, indent=2))
        return target


def pool(federation: Federation) -> Client:
    """All rows as one client's."""
    X = np.concatenate([client.X for client in federation.clients])
    Y = np.concatenate([client.Y for client in federation.clients])
    return Client.of_matrices(X, Y, "pooled", federation.inputs, federation.targets)


def name_of(client: object) -> str:
    """A client's name, of what is no client; values, such as a pair (X, y), are not shown."""
    if not isinstance(client, str | int | np.integer):
        raise DataError(
            f"client: got {type(client).__name__}, expected the name of a client, fg.Client(X, y) with its own rows,"
            " or None for a global model"
        )
    return client_name(client)


def _named(client: Client, inputs: tuple[str, ...]) -> Any:
    return pl.DataFrame(client.X, schema=list(inputs), orient="row")
