"""FedBNR: one global Gaussian process on features that many clients learn together."""

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
import optax
import polars as pl

from fedgauss.algorithm import FederatedAlgorithm
from fedgauss.algorithms.fedbnr import (
    CollectNetworks,
    FeatureAveraging,
    KernelDistillation,
    LocalFeatures,
    LocalSteps,
    NetworkDistillation,
    TwoExchangeLastLayer,
)
from fedgauss.algorithms.sums import ExactSums
from fedgauss.callbacks import Progress
from fedgauss.clients import Client
from fedgauss.engines.local import Callback, Local, Run
from fedgauss.errors import RunError, SettingsError
from fedgauss.federation import Federation
from fedgauss.fitted import FittedLocal, FittedSums
from fedgauss.fitted.sums import LearnedLocal, LearnedSums, gather
from fedgauss.gp.feature_regression import FeatureModel
from fedgauss.gp.features import Features, Network, skeleton
from fedgauss.gp.parameters import Flat
from fedgauss.models.fitting import NOTHING_LEARNED, Plan, held_out, plain_settings
from fedgauss.schedules import Schedule, Synchronous
from fedgauss.settings import check_choice, check_kind, check_positive, settings

logger = logging.getLogger("fedgauss")


@settings
class FedBNR:
    """Federated Bayesian neural regression: a global GP whose kernel is a network, with an exact last layer.

    Yu et al., "Federated Bayesian Neural Regression". Clients learn features together; then each sends four sums over
    its rows, and the last layer is exactly that of all rows in one place. `predict(None, X)`, or of any client, is the
    same global model.

    Args:
        features: `fg.features.Network(...)`, `fg.features.Fourier(...)`, or a function `(key, num_inputs)` that makes a
            `fg.features.RandomFeature` of your own.
        num_samples: m, the draws of omega. Two features a draw.
        training: How the features are learned. "averaging" and "distillation" are the paper's; "exact" takes
            quasi-Newton steps on the evidence of all rows, in two exchanges a step; "local" lets each client alone.
        last_layer: "global" is exact, from one exchange of sums; "two_exchanges" is the paper's form of it; "local"
            leaves each client its own.
        tune: Whether noise and prior scale are set, at the end, to where the evidence of the summed rows is largest. It
            takes no further exchange.
        rounds: The most rounds; for "exact" the most exchanges. By default 100, and 400.
        local_steps: Optimiser steps of a client a round.
        batch_size: Rows of a minibatch; `None` takes all of a client's rows.
        optimiser: "adam", "sgd" or an Optax transformation, of the clients; for "exact" of the server, where the
            default is "lbfgs".
        learning_rate: Of "adam" and "sgd".
        decay: Rounds after which the rate has halved; `None` keeps it.
        average: Whether clients weigh by "size" or the same, "uniform".
        distillation: The server's own small data set, `fg.Client(X, y)`, for training="distillation".
        exchange: What clients send for distillation: their "networks", which cannot be added, or their "kernels" at
            the server's inputs, which can, but then all clients see these inputs.
        alpha: Weight of the kernels' mean squared difference beside the server's evidence a row (equation 19).
        distillation_steps: Adam steps of the server a round.
        distillation_rate: Their rate.
        quorum: Whether exact sums wait for "every" client, or go on with "some".
        noise_floor: The least noise variance, as a fraction of the target's variance.
        noise_std: sigma to start from, in the same unit.
        weight_std: lambda to start from.
        tolerance: "lbfgs" stops when a step gains less than this many nats a row.
        inputs: Standardise inputs by "pooled" moments, or "none".
        targets: Standardise targets by "pooled" moments, or "none".

    Example:
        >>> import fedgauss as fg
        >>> x = np.linspace(-1.0, 1.0, 40)[:, None]
        >>> data = {name: (x + shift, np.sin(x[:, 0] + shift)) for name, shift in (("left", -1.0), ("right", 1.0))}
        >>> federation = fg.Federation.from_arrays(data)
        >>> model = fg.FedBNR(features=fg.features.Fourier(), training="exact").fit(federation, progress=False)
        >>> mean, std = model.predict(None, [[-1.5], [1.5]], return_std=True)
        >>> bool(np.abs(mean - np.sin([-1.5, 1.5])).max() < 0.02)
        True
    """

    features: Features = dataclasses.field(default_factory=Network)
    num_samples: int = 50
    training: Literal["averaging", "distillation", "exact", "local"] = "averaging"
    last_layer: Literal["global", "two_exchanges", "local"] = "global"
    tune: bool = True
    rounds: int | None = None
    local_steps: int = 20
    batch_size: int | None = None
    optimiser: Literal["adam", "sgd", "lbfgs"] | optax.GradientTransformation | None = None
    learning_rate: float = 0.005
    decay: float | None = None
    average: Literal["size", "uniform"] = "size"
    distillation: Client | None = None
    exchange: Literal["networks", "kernels"] = "networks"
    alpha: float = 1.0
    distillation_steps: int = 20
    distillation_rate: float = 0.005
    quorum: Literal["every", "some"] = "every"
    noise_floor: float = 1e-4
    noise_std: float = 0.3
    weight_std: float = 1.0
    tolerance: float = 1e-7
    inputs: Literal["pooled", "none"] = "pooled"
    targets: Literal["pooled", "none"] = "pooled"

    def __post_init__(self) -> None:
        choices = {
            "training": ("averaging", "distillation", "exact", "local"),
            "last_layer": ("global", "two_exchanges", "local"), "average": ("size", "uniform"),
            "exchange": ("networks", "kernels"), "quorum": ("every", "some"), "inputs": ("pooled", "none"),
            "targets": ("pooled", "none"), "tune": (True, False),
        }  # fmt: skip
        for name, allowed in choices.items():
            check_choice("FedBNR", name, getattr(self, name), allowed)
        if not callable(self.features) or isinstance(self.features, type):
            expected = "fg.features.Network(), fg.features.Fourier(), or a function (key, num_inputs)"
            raise SettingsError(f"FedBNR(features=...): got {type(self.features).__name__}, expected {expected}")
        given = [name for name in ("rounds", "batch_size") if getattr(self, name) is not None]
        for name in ("num_samples", "local_steps", "distillation_steps", *given):
            check_positive("FedBNR", name, getattr(self, name), whole=True)
        for name in (
            "learning_rate",
            "alpha",
            "distillation_rate",
            "noise_floor",
            "noise_std",
            "weight_std",
            "tolerance",
        ):
            check_positive("FedBNR", name, getattr(self, name))
        if self.decay is not None:
            check_positive("FedBNR", "decay", self.decay)
        self._check_optimiser()
        if self.training == "distillation":
            expected = "the server's own small data set, fg.Client(X, y)"
            check_kind("FedBNR(distillation=...)", self.distillation, Client, expected)
        if self.training == "exact" and self.last_layer == "two_exchanges":
            raise SettingsError('FedBNR(last_layer="two_exchanges"): training="exact" has the sums already')
        if self.training == "local" and self.last_layer == "two_exchanges":
            raise SettingsError('FedBNR(last_layer="two_exchanges") needs shared features; with "local" take "global"')

    def _check_optimiser(self) -> None:
        chosen = self.optimiser
        allowed = ("lbfgs", "adam", "sgd") if self.training == "exact" else ("adam", "sgd")
        if isinstance(chosen, str):
            check_choice("FedBNR", "optimiser", chosen, allowed)
        elif chosen is not None:
            expected = "an Optax transformation, such as optax.adam(0.01)"
            check_kind("FedBNR(optimiser=...)", chosen, optax.GradientTransformation, expected)

    @classmethod
    def as_published(cls, **overrides: Any) -> "FedBNR":
        """The paper's settings, and ours where it is silent.

        From the paper: 50 draws of omega ~ N(0, I_5) with a small distribution shifter, layers of 200, at most 100
        rounds of 50 full-batch local steps, plain means, the last layer in two exchanges with sigma and lambda as
        averaged. The paper does not say how deep its networks are, nor the optimiser, its rate, how data are
        standardised, nor where sigma and lambda start: two hidden layers, Adam with rate .005, pooled moments, .3 and
        1.

        Example:
            >>> FedBNR.as_published().num_samples
            50
        """
        published: dict[str, Any] = {
            "features": Network(widths=(200, 200)), "num_samples": 50, "rounds": 100, "local_steps": 50,
            "average": "uniform", "last_layer": "two_exchanges", "tune": False,
        }  # fmt: skip
        return cls(**(published | overrides))

    def fit(
        self,
        federation: Federation,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
        engine: Local | None = None,
        validation: Federation | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> FittedSums | FittedLocal:
        """Learn the features, then the last layer.

        Args:
            federation: The clients' data, with one target or several.
            seed: Every draw follows from it.
            schedule: Who is asked, and when, while features are learned; all clients every round by default.
            engine: How clients are computed; in this process over all cores by default.
            validation: Held-out rows. Their NLPD and RMSE under the global model of each round are in the history.
            callbacks: `fg.Checkpoint`, `fg.EarlyStopping`, or your own, while features are learned.
            progress: Whether to show a bar.

        Returns:
            The fitted model. After Ctrl-C, or early stopping, the last layer is still asked for.
        """
        return self._fit(
            federation, federation.names if isinstance(federation, Federation) else (), "FedBNR", self, seed=seed,
            schedule=schedule, engine=engine, validation=validation, callbacks=callbacks, progress=progress,
        )  # fmt: skip

    def _fit(
        self, federation: Federation, names: tuple[str, ...], label: str, settings: Any, *, seed: int,
        schedule: Schedule | None, engine: Local | None, validation: Federation | None, callbacks: Sequence[Callback],
        progress: bool,
    ) -> FittedSums | FittedLocal:  # fmt: skip
        plan = Plan.make(
            federation, schedule, engine, seed, inputs=self.inputs, targets=self.targets, check=self._check_federation
        )
        fit = _Fit(self, plan, names, label, plain_settings(settings), self._model(plan))
        return fit.run(validation, callbacks, progress)

    def _check_federation(self, federation: Federation) -> None:
        skeleton(self.features, len(federation.inputs))
        if self.distillation is not None:
            self.distillation.align(federation.inputs, federation.targets, "the training data")

    @property
    def _is_local(self) -> bool:
        """Whether every client has a model of its own."""
        return self.training == "local" or self.last_layer == "local"

    def _model(self, plan: Plan) -> FeatureModel:
        return FeatureModel(
            features=self.features, num_inputs=len(plan.federation.inputs), num_targets=len(plan.federation.targets),
            num_samples=self.num_samples, noise_floor=self.noise_floor * plan.target_scale**2,
            noise_std=self.noise_std * plan.target_scale, weight_std=self.weight_std * plan.target_scale,
        )  # fmt: skip

    @property
    def _most_rounds(self) -> int:
        return self.rounds or (400 if self.training == "exact" else 100)

    @property
    def _local(self) -> Literal["adam", "sgd"] | optax.GradientTransformation:
        """The optimiser of the clients."""
        return "adam" if self.optimiser is None or self.optimiser == "lbfgs" else self.optimiser

    def _exact_optimiser(self) -> Any:
        match self.optimiser:
            case None | "lbfgs":
                return "lbfgs"
            case "adam":
                return optax.adam(self.learning_rate)
            case "sgd":
                return optax.sgd(self.learning_rate)
            case _:
                return self.optimiser

    def _algorithm(self, model: FeatureModel, distillation: Client | None) -> FederatedAlgorithm[Any, Any, Any, Any]:
        if self.training == "exact":
            return ExactSums(
                model=model, num_inputs=model.num_inputs, num_targets=model.num_targets, rounds=self._most_rounds,
                optimiser=self._exact_optimiser(), tolerance=self.tolerance, everyone=self.quorum == "every",
            )  # fmt: skip
        local = LocalSteps(
            steps=self.local_steps, batch_size=self.batch_size, optimiser=self._local, learning_rate=self.learning_rate,
            decay=self.decay,
        )  # fmt: skip
        shared: dict[str, Any] = {"model": model, "local": local, "rounds": self._most_rounds}
        if self.training == "averaging":
            return FeatureAveraging(**shared)
        if self.training == "local":
            return LocalFeatures(**shared)
        assert distillation is not None
        kind = NetworkDistillation if self.exchange == "networks" else KernelDistillation
        digest = hashlib.sha256(distillation.X.tobytes() + distillation.Y.tobytes()).hexdigest()
        return kind(
            **shared, alpha=self.alpha, steps=self.distillation_steps, learning_rate=self.distillation_rate,
            num_rows=distillation.num_rows, digest=digest,
        )  # fmt: skip

    def _weights(self, federation: Federation, schedule: Schedule) -> np.ndarray[Any, Any]:
        """What each client weighs in a mean over those asked."""
        is_by_size = self.average == "size"
        weights = federation.sizes.astype(np.float64) if is_by_size else np.ones(len(federation))
        return weights / schedule.inclusion(federation.sizes) if isinstance(schedule, Synchronous) else weights


@dataclasses.dataclass(frozen=True)
class _Fit:
    """One fit in progress: phase 1, then phase 2."""

    method: FedBNR
    plan: Plan
    names: tuple[str, ...]
    label: str
    settings: dict[str, Any]
    model: FeatureModel

    def run(
        self, validation: Federation | None, callbacks: Sequence[Callback], progress: bool
    ) -> FittedSums | FittedLocal:
        """Both phases."""
        method, plan = self.method, self.plan
        distillation = self._distillation()
        algorithm = method._algorithm(self.model, distillation)
        weights = method._weights(plan.federation, plan.schedule)
        run = Run(
            algorithm, plan.standardised, schedule=plan.schedule, engine=plan.engine, seed=plan.seed, weights=weights
        )
        if distillation is not None:
            run.exchange.server = run.exchange.server._replace(X=distillation.X, Y=distillation.Y)
        if validation is not None:
            validation = held_out(validation, plan.federation, of_clients=method._is_local)
        bar = Progress(self.label, None if method.training == "exact" else method._most_rounds) if progress else None
        every = max(1, method._most_rounds // 100)
        run(plan.watchers(callbacks, validation, lambda: self._snapshot(run), every, bar))
        if not run.history:
            raise RunError(NOTHING_LEARNED)
        return self._finish(run)

    def _distillation(self) -> Client | None:
        """The server's own rows, in the model's units."""
        client, plan = self.method.distillation, self.plan
        if client is None or self.method.training != "distillation":
            return None
        aligned = client.align(plan.federation.inputs, plan.federation.targets, "the training data")
        units = plan.scaling.pooled
        return aligned.with_values(X=units.inputs(aligned.X), Y=units.targets(aligned.Y))

    def _common(self) -> dict[str, Any]:
        federation = self.plan.federation
        return {
            "method": self.label, "settings": self.settings, "scaling": self.plan.scaling, "names": self.names,
            "inputs": federation.inputs, "targets": federation.targets, "model": self.model, "tune": self.method.tune,
        }  # fmt: skip

    def _snapshot(self, run: Run) -> FittedSums | FittedLocal:
        """The model as it would be after this round. The sums are taken in this process and not written down."""
        return self._finish(run, ledger=pl.DataFrame())

    def _finish(self, run: Run, ledger: pl.DataFrame | None = None) -> FittedSums | FittedLocal:
        method = self.method
        history = pl.DataFrame(run.history, infer_schema_length=None) if ledger is None else pl.DataFrame()
        ledgers = [self.plan.setup, run.ledger.to_frame()] if ledger is None else [ledger]
        if method.training == "exact":
            server = jax.device_get(run.server)
            theta, constants = server.theta, server.constants
        elif method.training == "local":
            theta, constants = {}, jax.device_get(run.server.constants)
        else:
            theta, constants = jax.device_get(run.algorithm.result(run.server))  # type: ignore[attr-defined]
        if method._is_local:
            local = self._finish_local(run, theta, constants, ledgers if ledger is None else None)
            return FittedLocal(local, history, pl.concat(ledgers), self.plan.federation)
        names = self.names
        if method.training == "exact":
            sums = server.sums
        elif method.last_layer == "two_exchanges":
            sums, more = self._two_exchanges(theta, constants, run)
            ledgers += [more] if ledger is None else []
        else:
            gathered = self._gather(theta, constants, run)
            sums = gathered.sums
            names = names if self.label == "Pooled" else gathered.names
            ledgers += [gathered.ledger] if ledger is None else []
        tune = method.tune and method.last_layer != "two_exchanges"
        learned = LearnedSums(
            **self._common() | {"tune": tune, "names": names}, learned=theta, constants=constants, sums=sums,
            everyone=method.quorum == "every",
        )  # fmt: skip
        return FittedSums(learned, history, pl.concat(ledgers), self.plan.federation)

    def _gather(self, theta: Flat, constants: Flat, run: Run) -> Any:
        return gather(
            self.model, theta, constants, self.plan.standardised, engine=self.plan.engine, seed=self.plan.seed,
            everyone=self.method.quorum == "every", round_number=len(run.history),
        )  # fmt: skip

    def _two_exchanges(self, theta: Flat, constants: Flat, run: Run) -> tuple[Any, pl.DataFrame]:
        layer = TwoExchangeLastLayer(model=self.model)
        second = self._next(layer, run)
        second.exchange.server = second.exchange.server._replace(theta=theta, constants=constants)
        second()
        if len(second.history) < 2:
            raise RunError("the run was stopped between the two exchanges of the last layer: there is no model")
        return jax.device_get(layer.sums(second.server)), second.ledger.to_frame()

    def _finish_local(self, run: Run, theta: Flat, constants: Flat, ledgers: list[pl.DataFrame] | None) -> LearnedLocal:
        """Clients' own last layers; or, of each client's own features, everybody's."""
        method = self.method
        own: dict[str, Flat] = {}
        sums: dict[str, Any] = {}
        if method.training == "local":
            own = {n: jax.tree.map(lambda leaf, i=i: leaf[i], run.clients) for i, n in enumerate(run.names)}
            if method.last_layer == "global":
                more = self._collect(run)
                for name in run.names:
                    gathered = self._gather(own[name], constants, run)
                    sums[name] = gathered.sums
                    more.append(gathered.ledger)
                if ledgers is not None:
                    ledgers += more
        return LearnedLocal(**self._common(), shared=theta, own=own, constants=constants, sums=sums)

    def _collect(self, run: Run) -> list[pl.DataFrame]:
        """Every client sends its network, that all can compute sums in it."""
        second = self._next(CollectNetworks(model=self.model, num_clients=len(run.names)), run)
        second.exchange.clients = run.clients
        second()
        return [second.ledger.to_frame()]

    def _next(self, algorithm: FederatedAlgorithm[Any, Any, Any, Any], run: Run) -> Run:
        """The run of one more phase, not begun, its rounds numbered after those of the first."""
        plan = self.plan
        following = Run(algorithm, plan.standardised, schedule=Synchronous(), engine=plan.engine, seed=plan.seed)
        following.exchange.round = len(run.history)
        return following
