"""FGPR: a prior learned by many clients, which each conditions on its own rows."""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
import optax
import polars as pl

from fedgauss.algorithm import FederatedAlgorithm
from fedgauss.algorithms.fgpr import ExactHyperparameters, HyperparameterAveraging
from fedgauss.callbacks import Progress
from fedgauss.engines.local import Callback, Local, Run
from fedgauss.errors import RunError, SettingsError, suggest
from fedgauss.federation import Federation
from fedgauss.fitted.prior import CLASSES, FittedPrior, LearnedPrior
from fedgauss.gp.condition import CHOICES, Choice
from fedgauss.gp.kernels import Kernel, check_active, resolve
from fedgauss.gp.parameters import LogNormal, Space
from fedgauss.models.fitting import NOTHING_LEARNED, Optimiser, Plan, held_out, plain_settings
from fedgauss.scaling import Mode
from fedgauss.schedules import Schedule, Synchronous
from fedgauss.settings import check_choice, check_kind, check_positive, number_of, settings

logger = logging.getLogger("fedgauss")

_ALL_NOISE = 0.9
"""A noise variance above this part of the target's: the fit found no signal."""


@settings
class FGPR:
    """Federated GP regression: clients learn one prior together; each predicts from it and its own rows.

    Yue and Kontar, "Federated Gaussian Process". Only hyper-parameters (`solver="averaging"`) or sums of likelihood
    derivatives over them (`solver="exact"`) leave a client, a few numbers a round.

    Args:
        kernel: A name ("rbf", "matern32", ...) or a kernel, such as `fg.kernels.RBF(ard=True) + fg.kernels.Linear()`.
        solver: "averaging" is the paper's: local optimiser steps, then the mean. "exact" takes trust-region Newton
            steps on the exact likelihood of all clients: about 10 exchanges, no rates to tune.
        rounds: The most rounds. Where a schedule asks clients apart, a round is one client's answer.
        batch_size: Rows of a minibatch (averaging).
        local_steps: Optimiser steps a round, or "epoch" for one pass through a client's rows (averaging).
        minibatch: "uniform", or "nearest": the neighbours of a random row, as the authors' code draws them.
        optimiser: "adam", "sgd", or an Optax transformation, which brings its own rate.
        learning_rate: Of "adam" and "sgd".
        decay: Steps after which the rate has halved, learning_rate / (1 + t / decay); `None` keeps it constant.
        keep_optimiser: Whether clients keep their optimiser's state between rounds.
        gradient_scale: "batch" divides by M; "paper" by s1 = tau log M and s2 = M; "none".
        tau: Of s1.
        transform: How parameters are kept positive: "softplus", "log", or "none" with projection onto the box.
        average: Whether the mean is taken of "constrained" or "unconstrained" parameters.
        start: Starting values by name, on the standardised scale.
        lower: The box from below, by name, on the standardised scale.
        upper: The box from above.
        noise_floor: The least noise variance, as a fraction of the target's variance. Without it deterministic data
            drive the noise to zero and the errors up.
        priors: Log-normal priors by name, on the standardised scale: `{"lengthscale": fg.LogNormal(mean=0, std=1)}`. A
            prior counts once beside the likelihood of all clients.
        personal: Parameters that stay with each client, such as "noise_variance" or a tuple of names, where sensors
            differ (averaging).
        client_weights: By client, its weight in the mean, in place of its number of rows (averaging).
        server_optimiser: An Optax transformation of the pseudo-gradient; `None` takes the mean (averaging).
        weighting: "joint", the likelihood of all clients, or "size", the paper's equation 3 (exact).
        block_size: Clients of up to this many rows are taken whole, larger ones in blocks of it (exact).
        tolerance: Stop when the next step promises less than this many nats (exact).
        inputs: Standardise inputs by "pooled" moments, or "none".
        targets: Standardise targets by "pooled" moments, by each "client"'s own, or "none".
        posterior: How to condition: "auto", "dense", "statespace" or "sparse".

    Example:
        >>> import fedgauss as fg
        >>> x = np.linspace(0.0, 10.0, 60)[:, None]
        >>> federation = fg.Federation.from_arrays({"plus": (x, np.sin(x[:, 0])), "minus": (x, -np.sin(x[:, 0]))})
        >>> model = fg.FGPR(rounds=20, learning_rate=0.1).fit(federation, seed=0, progress=False)
        >>> mean, std = model.predict("minus", [[5.0]], return_std=True)
        >>> bool(abs(mean[0] + np.sin(5.0)) < 0.05)
        True
    """

    kernel: str | Kernel = "rbf"
    solver: Literal["averaging", "exact"] = "averaging"
    rounds: int = 100
    batch_size: int = 64
    local_steps: int | Literal["epoch"] = 10
    minibatch: Literal["uniform", "nearest"] = "uniform"
    optimiser: Optimiser = "adam"
    learning_rate: float = 0.05
    decay: float | None = None
    keep_optimiser: bool = False
    gradient_scale: Literal["none", "batch", "paper"] = "batch"
    tau: float = 1.0
    transform: Literal["softplus", "log", "none"] = "softplus"
    average: Literal["constrained", "unconstrained"] = "constrained"
    start: Mapping[str, float] = dataclasses.field(default_factory=dict)
    lower: Mapping[str, float] = dataclasses.field(default_factory=dict)
    upper: Mapping[str, float] = dataclasses.field(default_factory=dict)
    noise_floor: float = 1e-4
    priors: Mapping[str, LogNormal] = dataclasses.field(default_factory=dict)
    personal: str | Sequence[str] = ()
    client_weights: Mapping[str, float] | None = None
    server_optimiser: optax.GradientTransformation | None = None
    weighting: Literal["joint", "size"] = "joint"
    block_size: int = 1000
    tolerance: float = 1e-6
    inputs: Literal["pooled", "none"] = "pooled"
    targets: Mode = "pooled"
    posterior: Choice = "auto"

    def __post_init__(self) -> None:
        check_kind("FGPR(kernel=...)", self.kernel, str | Kernel, "a name or a kernel, such as fg.kernels.RBF()")
        object.__setattr__(self, "kernel", resolve(self.kernel))
        object.__setattr__(
            self, "personal", (self.personal,) if isinstance(self.personal, str) else tuple(self.personal)
        )
        choices = {
            "solver": ("averaging", "exact"), "minibatch": ("uniform", "nearest"),
            "gradient_scale": ("none", "batch", "paper"), "transform": ("softplus", "log", "none"),
            "average": ("constrained", "unconstrained"), "weighting": ("joint", "size"), "inputs": ("pooled", "none"),
            "targets": ("pooled", "client", "none"), "posterior": CHOICES,
        }  # fmt: skip
        for name, allowed in choices.items():
            check_choice("FGPR", name, getattr(self, name), allowed)
        if isinstance(self.optimiser, str):
            check_choice("FGPR", "optimiser", self.optimiser, ("adam", "sgd"))
        for name in ("optimiser", "server_optimiser"):
            if not isinstance(getattr(self, name), str | None):
                expected = "an Optax transformation, such as optax.adam(0.1)"
                check_kind(f"FGPR({name}=...)", getattr(self, name), optax.GradientTransformation, expected)
        for name in ("start", "lower", "upper"):
            check_kind(f"FGPR({name}=...)", getattr(self, name), Mapping, "a dict of numbers by parameter")
            given = {str(key): number_of("FGPR", f"{name}[{key!r}]", v) for key, v in getattr(self, name).items()}
            object.__setattr__(self, name, given)
        check_kind("FGPR(priors=...)", self.priors, Mapping, "a dict of fg.LogNormal by parameter")
        for name, prior in self.priors.items():
            check_kind(f"FGPR(priors[{name!r}])", prior, LogNormal, "fg.LogNormal(mean=..., std=...)")
        if self.client_weights is not None:
            check_kind("FGPR(client_weights=...)", self.client_weights, Mapping, "a dict of numbers by client")
            for name, weight in self.client_weights.items():
                if not 0.0 <= number_of("FGPR", f"client_weights[{name!r}]", weight) < math.inf:
                    raise SettingsError(
                        f"FGPR(client_weights=...): client {name!r} needs a finite weight, zero or more"
                    )
        for name in ("rounds", "batch_size", "block_size"):
            check_positive("FGPR", name, getattr(self, name), whole=True)
        if self.local_steps != "epoch":
            check_positive("FGPR", "local_steps", self.local_steps, whole=True)
        for name in ("learning_rate", "tau", "tolerance", "noise_floor"):
            check_positive("FGPR", name, getattr(self, name))
        if self.decay is not None:
            check_positive("FGPR", "decay", self.decay)
        if self.solver == "exact":
            for name in ("personal", "client_weights", "server_optimiser"):
                if getattr(self, name):
                    raise SettingsError(f'FGPR({name}=...) needs solver="averaging"; solver="exact" sums likelihoods')

    @classmethod
    def as_published(cls, **overrides: Any) -> "FGPR":
        """The settings of the authors' CURRIN experiment: their code where the paper is silent.

        Adam with its state reset every round, on minibatches of 40 nearest neighbours, one local epoch, the gradient
        divided by the batch size, softplus parameters averaged after the softplus, everything starting at log 2, the
        inputs as they are and each client's targets standardised by its own mean and standard deviation. Their noise
        floor is 1e-4. The paper's text has SGD with rates O(1/t): `optimiser="sgd", decay=1.0`.

        Example:
            >>> FGPR.as_published(rounds=101).batch_size
            40
        """
        published: dict[str, Any] = {
            "kernel": "rbf", "rounds": 201, "batch_size": 40, "local_steps": "epoch", "minibatch": "nearest",
            "optimiser": "adam", "learning_rate": 0.01, "gradient_scale": "batch", "transform": "softplus",
            "average": "constrained", "noise_floor": 1e-4, "inputs": "none", "targets": "client",
            "start": dict.fromkeys(("lengthscale", "variance", "noise_variance"), math.log(2.0)),
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
    ) -> FittedPrior:
        """Learn the shared prior.

        Args:
            federation: The clients' data.
            seed: Every draw follows from it.
            schedule: Who is asked, and when; all clients every round by default.
            engine: How clients are computed; in this process over all cores by default.
            validation: Held-out rows of the same clients. Their NLPD and RMSE are put in the history now and then.
            callbacks: `fg.Checkpoint`, `fg.EarlyStopping`, or your own.
            progress: Whether to show a bar.

        Returns:
            The fitted model. Ctrl-C returns the last finished round.
        """
        plan = PriorPlan.make(self, federation, schedule, engine, seed, inputs=self.inputs, targets=self.targets)
        weights = self._weights(federation, plan.plan.schedule)
        asked_apart = not isinstance(plan.plan.schedule, Synchronous)
        algorithm = self._algorithm(
            plan.space, num_rows=federation.num_rows, total_weight=float(weights.sum()) if asked_apart else None
        )
        return plan.run(algorithm, weights, federation, callbacks, validation, progress, "FGPR", self)

    def _space(self, num_inputs: int, target_scale: float) -> Space:
        assert isinstance(self.kernel, Kernel)
        names = Space(kernel=self.kernel, num_inputs=num_inputs).names
        has_lengthscale = any(name.rsplit(".", 1)[-1] == "lengthscale" for name in names)
        start = {"lengthscale": math.sqrt(num_inputs)} if has_lengthscale else {}
        transform = "log" if self.solver == "exact" else self.transform
        return Space(
            kernel=self.kernel,
            num_inputs=num_inputs,
            transform=transform,
            noise_floor=self.noise_floor,
            target_scale=target_scale,
            start=tuple((start | dict(self.start)).items()),
            lower=tuple(self.lower.items()),
            upper=tuple(self.upper.items()),
            priors=tuple(self.priors.items()),
        )

    def _algorithm(
        self, space: Space, *, num_rows: int, total_weight: float | None = None
    ) -> FederatedAlgorithm[Any, Any, Any, Any]:
        if self.solver == "exact":
            return ExactHyperparameters(
                space=space, rounds=self.rounds, weighting=self.weighting, block_size=self.block_size,
                tolerance=self.tolerance,
            )  # fmt: skip
        return HyperparameterAveraging(
            space=space, rounds=self.rounds, batch_size=self.batch_size, local_steps=self.local_steps,
            minibatch=self.minibatch, optimiser=self.optimiser, learning_rate=self.learning_rate, decay=self.decay,
            keep_optimiser=self.keep_optimiser, gradient_scale=self.gradient_scale, tau=self.tau, average=self.average,
            personal=tuple(self.personal), server_optimiser=self.server_optimiser, total_weight=total_weight,
            num_rows=num_rows if self.priors else 1,  # else it changes nothing, and a compilation serves any number
        )  # fmt: skip

    def _weights(self, federation: Federation, schedule: Schedule) -> np.ndarray[Any, Any]:
        """What each client weighs in a mean over those asked: the rows it stands for."""
        weights = federation.sizes.astype(np.float64)
        if self.client_weights is not None:
            given = {str(name): weight for name, weight in self.client_weights.items()}
            for name in given:
                if name not in federation:
                    near = suggest(name, federation.names)
                    raise SettingsError(f"FGPR(client_weights=...): there is no client {name!r}{near}")
            for name in federation:
                if name not in given:
                    raise SettingsError(f"FGPR(client_weights=...): client {name!r} needs a weight, zero or more")
            weights = np.array([float(given[name]) for name in federation])
            if not weights.sum() > 0.0:
                raise SettingsError("FGPR(client_weights=...): all weights are zero")
        if isinstance(schedule, Synchronous):
            weights = weights / schedule.inclusion(federation.sizes)
        return weights


@dataclasses.dataclass(frozen=True)
class PriorPlan:
    """What the fits of a prior have in common: standardise, run, put the pieces together."""

    method: FGPR
    plan: Plan
    space: Space

    @classmethod
    def make(
        cls, method: FGPR, federation: Federation, schedule: Schedule | None, engine: Local | None, seed: int,
        *, inputs: Mode, targets: Mode,
    ) -> "PriorPlan":  # fmt: skip
        """Check and standardise."""

        def check(federation: Federation) -> None:
            federation.single_target("FGPR")
            assert isinstance(method.kernel, Kernel)
            check_active(method.kernel, len(federation.inputs))

        plan = Plan.make(federation, schedule, engine, seed, inputs=inputs, targets=targets, check=check)
        return cls(method, plan, method._space(len(federation.inputs), plan.target_scale))

    def run(
        self, algorithm: FederatedAlgorithm[Any, Any, Any, Any], weights: np.ndarray[Any, Any], federation: Federation,
        callbacks: Sequence[Callback], validation: Federation | None, progress: bool, label: str, settings: Any,
    ) -> FittedPrior:  # fmt: skip
        """Run the algorithm on the standardised federation; what it learned, as a fitted model."""
        plan = self.plan
        run = Run(
            algorithm, plan.standardised, schedule=plan.schedule, engine=plan.engine, seed=plan.seed, weights=weights
        )
        bar = Progress(label, None if self.method.solver == "exact" else self.method.rounds) if progress else None
        validation = None if validation is None else held_out(validation, federation)
        run(
            plan.watchers(
                callbacks, validation, lambda: self._fitted(run, federation, label, settings),
                max(1, self.method.rounds // 20), bar,
            )
        )  # fmt: skip
        if not run.history:
            raise RunError(NOTHING_LEARNED)
        fitted = self._fitted(run, federation, label, settings)
        noise = float(fitted.learned.shared.get("noise_variance", 0.0))
        if noise > _ALL_NOISE * self.space.target_scale**2:
            logger.warning(
                "%s: what was learned takes nearly all of the target for noise. If that is not so, take"
                ' solver="exact", or start with a shorter lengthscale, start={"lengthscale": 0.2}',
                label,
            )
        return fitted

    def _fitted(self, run: Run, federation: Federation, label: str, settings: Any) -> FittedPrior:
        shared, personal = run.algorithm.result(run.server, run.clients)  # type: ignore[attr-defined]
        learned = LearnedPrior(
            method=label,
            settings=plain_settings(settings),
            space=self.space,
            shared=jax.device_get(shared),
            personal={
                name: {key: np.asarray(rows[i]) for key, rows in personal.items()}
                for i, name in enumerate(run.names if personal else ())
            },
            own_scales=self._own_scales(federation) if label == "Separate" else {},
            scaling=self.plan.scaling,
            names=federation.names,
            inputs=federation.inputs,
            targets=federation.targets,
            posterior=self.method.posterior,
        )
        ledger = pl.concat([self.plan.setup, run.ledger.to_frame()])
        return CLASSES[label](learned, pl.DataFrame(run.history, infer_schema_length=None), ledger, federation)

    def _own_scales(self, federation: Federation) -> dict[str, dict[str, Any]]:
        units = {name: self.plan.scaling.units(client.X, client.Y) for name, client in federation.items()}
        return {name: {"inputs": one.input_scale, "target": one.target_scale[0]} for name, one in units.items()}
