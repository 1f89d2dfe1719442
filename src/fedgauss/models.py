"""The doors: settings objects with a `fit`. FGPR, and the two ends of every scale, `Separate` and `Pooled`."""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
import optax
import polars as pl

from fedgauss.algorithm import FederatedAlgorithm
from fedgauss.algorithms.fgpr import ExactHyperparameters, HyperparameterAveraging
from fedgauss.algorithms.moments import Moments, spread
from fedgauss.algorithms.separate import SeparateToConvergence
from fedgauss.callbacks import Progress
from fedgauss.engines.local import Callback, Local, Run
from fedgauss.errors import DataError, RunError, SettingsError, suggest
from fedgauss.federation import Federation
from fedgauss.fitted import FittedPooled, FittedPrior, FittedSeparate, Learned, fitted_class, pool
from fedgauss.gp.condition import CHOICES, Choice
from fedgauss.gp.kernels import Kernel, check_active, resolve, to_config
from fedgauss.gp.parameters import LogNormal, Space
from fedgauss.ledger import Ledger
from fedgauss.metrics import per_client
from fedgauss.runtime import prepare
from fedgauss.scaling import Mode, Scaling, Units
from fedgauss.schedules import Schedule, Synchronous
from fedgauss.settings import check_choice, check_kind, check_positive, number_of, settings

logger = logging.getLogger("fedgauss")

_ALL_NOISE = 0.9
"""A noise variance above this part of the target's: the fit found no signal."""

_NOTHING_LEARNED = "the run was stopped before its first round finished: nothing was learned"

Optimiser: TypeAlias = Literal["sgd", "adam"] | optax.GradientTransformation


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
        plan = _Plan.make(self, federation, schedule, engine, seed, inputs=self.inputs, targets=self.targets)
        weights = self._weights(federation, plan.schedule)
        asked_apart = not isinstance(plan.schedule, Synchronous)
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


@settings
class Separate:
    """Each client fitted alone with the same model: what federation has to beat.

    Nothing is shared, nor are moments: each client standardises by its own. Show both budgets beside a federated fit.

    Args:
        method: The method whose model each client fits.
        budget: "converged" maximises each client's exact likelihood; "same" takes just the optimiser steps that the
            federated fit would have the client take.

    Example:
        >>> import fedgauss as fg
        >>> x = np.linspace(0.0, 1.0, 20)[:, None]
        >>> federation = fg.Federation.from_arrays({"a": (x, np.sin(9 * x[:, 0])), "b": (x, np.cos(3 * x[:, 0]))})
        >>> model = fg.Separate().fit(federation, progress=False)
        >>> bool(model.parameters_["a"]["lengthscale"] < model.parameters_["b"]["lengthscale"])
        True
    """

    method: FGPR = dataclasses.field(default_factory=FGPR, kw_only=False)
    budget: Literal["converged", "same"] = "converged"

    def __post_init__(self) -> None:
        check_kind("Separate(method)", self.method, FGPR, "fg.FGPR(...)")
        check_choice("Separate", "budget", self.budget, ("converged", "same"))

    @classmethod
    def as_published(cls, **overrides: Any) -> "Separate":
        """The rival of FGPR's Table 3: its settings and number of steps, each client alone.

        Args:
            overrides: Settings of `FGPR.as_published`.
        """
        return cls(method=FGPR.as_published(**overrides), budget="same")

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
    ) -> FittedSeparate:
        """Fit every client alone. Arguments as of `FGPR.fit`."""
        method = self.method if self.budget == "same" else dataclasses.replace(
            self.method, solver="exact", personal=(), client_weights=None, server_optimiser=None, rounds=100
        )  # fmt: skip
        own_inputs: Mode = "none" if method.inputs == "none" else "client"
        own_targets: Mode = "none" if method.targets == "none" else "client"
        plan = _Plan.make(method, federation, schedule, engine, seed, inputs=own_inputs, targets=own_targets)
        algorithm: FederatedAlgorithm[Any, Any, Any, Any]
        if self.budget == "same":
            if method.solver == "exact":
                raise SettingsError('Separate(budget="same") counts optimiser steps; give it FGPR(solver="averaging")')
            algorithm = dataclasses.replace(method, personal=plan.space.names)._algorithm(
                plan.space, num_rows=federation.num_rows
            )
        else:
            alone = method._algorithm(plan.space, num_rows=federation.num_rows)
            assert isinstance(alone, ExactHyperparameters)
            algorithm = SeparateToConvergence(alone=alone)
        weights = np.ones(len(federation))
        fitted = plan.run(algorithm, weights, federation, callbacks, validation, progress, "Separate", self)
        assert isinstance(fitted, FittedSeparate)
        return fitted


@settings
class Pooled:
    """All data in one place, the same model: what federation may hope to reach, where that would be allowed.

    Args:
        method: The method whose model is fitted; for FGPR one GP over the union of the clients' rows.

    Example:
        >>> import fedgauss as fg
        >>> x = np.linspace(0.0, 1.0, 20)[:, None]
        >>> federation = fg.Federation.from_arrays({"a": (x, x[:, 0] ** 2), "b": (x + 1, (x[:, 0] + 1) ** 2)})
        >>> model = fg.Pooled(fg.FGPR(solver="exact")).fit(federation, progress=False)
        >>> bool(abs(model.predict(None, [[0.5]])[0] - 0.25) < 0.01)
        True
    """

    method: FGPR = dataclasses.field(default_factory=FGPR, kw_only=False)

    def __post_init__(self) -> None:
        check_kind("Pooled(method)", self.method, FGPR, "fg.FGPR(...)")

    @classmethod
    def as_published(cls, **overrides: Any) -> "Pooled":
        """One GP over all rows with FGPR's published settings.

        Args:
            overrides: Settings of `FGPR.as_published`.
        """
        return cls(method=FGPR.as_published(**overrides))

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
    ) -> FittedPooled:
        """Fit one model to all rows. Arguments as of `FGPR.fit`; there is nobody to schedule."""
        if schedule not in (None, Synchronous()):
            raise SettingsError("Pooled: all rows are in one place, so there is no schedule; leave it out")
        method = dataclasses.replace(
            self.method, personal=(), client_weights=None,
            targets="none" if self.method.targets == "none" else "pooled",
        )  # fmt: skip
        plan = _Plan.make(
            method, pool_if(federation, True), None, engine, seed, inputs=method.inputs, targets=method.targets
        )
        algorithm = method._algorithm(plan.space, num_rows=federation.num_rows)
        fitted = plan.run(algorithm, np.ones(1), federation, callbacks, validation, progress, "Pooled", self)
        assert isinstance(fitted, FittedPooled)
        return fitted


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What the fits have in common: standardise, run, put the pieces together."""

    method: FGPR
    scaling: Scaling
    space: Space
    schedule: Schedule
    engine: Local
    seed: int
    setup: pl.DataFrame
    """The ledger of the exchange of moments."""

    @classmethod
    def make(
        cls, method: FGPR, federation: Federation, schedule: Schedule | None, engine: Local | None, seed: int,
        *, inputs: Mode, targets: Mode,
    ) -> "_Plan":  # fmt: skip
        prepare()
        check_kind("federation", federation, Federation, "fg.Federation.from_arrays(...), .from_frame or .read")
        if schedule is not None:
            check_kind("schedule", schedule, Schedule, "fg.Synchronous(), fg.Sequential() or fg.Asynchronous()")
        federation.single_target("FGPR")
        assert isinstance(method.kernel, Kernel)
        check_active(method.kernel, len(federation.inputs))
        engine = engine or Local()
        scaling, target_scale, setup = _standardise(federation, inputs, targets, engine, seed)
        space = method._space(len(federation.inputs), target_scale)
        return cls(method, scaling, space, schedule or Synchronous(), engine, seed, setup)

    def run(
        self, algorithm: FederatedAlgorithm[Any, Any, Any, Any], weights: np.ndarray[Any, Any], federation: Federation,
        callbacks: Sequence[Callback], validation: Federation | None, progress: bool, label: str, settings: Any,
    ) -> FittedPrior:  # fmt: skip
        """Run the algorithm on the standardised federation; what it learned, as a fitted model."""
        training = pool_if(federation, label == "Pooled")
        run = Run(
            algorithm, self.scaling.apply(training), schedule=self.schedule, engine=self.engine, seed=self.seed,
            weights=weights,
        )  # fmt: skip
        watchers: list[Callback] = []
        check_kind("callbacks", callbacks, Sequence, "a list, such as [fg.Checkpoint(folder)]")
        if validation is not None:
            check_kind("validation", validation, Federation, "a federation of held-out rows, as split() gives")
            validation = _checked(validation, federation)
            every = max(1, self.method.rounds // 20)
            watchers.append(_Validation(lambda: self._fitted(run, federation, label, settings), validation, every))
        watchers += callbacks
        if progress:
            watchers.append(Progress(label, None if self.method.solver == "exact" else self.method.rounds))
        run(watchers)
        if not run.history:
            raise RunError(_NOTHING_LEARNED)
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
        learned = Learned(
            method=label,
            settings=plain_settings(settings),
            space=self.space,
            shared=jax.device_get(shared),
            personal={
                name: {key: np.asarray(rows[i]) for key, rows in personal.items()}
                for i, name in enumerate(run.names if personal else ())
            },
            own_scales=self._own_scales(federation) if label == "Separate" else {},
            scaling=self.scaling,
            names=federation.names,
            inputs=federation.inputs,
            target=federation.targets[0],
            posterior=self.method.posterior,
        )
        ledger = pl.concat([self.setup, run.ledger.to_frame()])
        return fitted_class(label)(learned, pl.DataFrame(run.history, infer_schema_length=None), ledger, federation)

    def _own_scales(self, federation: Federation) -> dict[str, dict[str, Any]]:
        units = {name: self.scaling.units(client.X, client.Y) for name, client in federation.items()}
        return {name: {"inputs": one.input_scale, "target": one.target_scale[0]} for name, one in units.items()}


def pool_if(federation: Federation, is_pooled: bool) -> Federation:
    """The federation, or one of a single client with all rows."""
    return Federation([pool(federation)]) if is_pooled else federation


def _checked(validation: Federation, federation: Federation) -> Federation:
    """Held-out rows of clients that take part, their columns in the order of the training columns."""
    for name in validation:
        if name not in federation:
            raise DataError(f'validation: client "{name}" takes no part in the fit{suggest(name, federation.names)}')
    return validation.map(lambda client: client.align(federation.inputs, federation.targets, "the training data"))


def _standardise(
    federation: Federation, inputs: Mode, targets: Mode, engine: Local, seed: int
) -> tuple[Scaling, float, pl.DataFrame]:
    """The scaling, the size of the targets in the model's units, and the ledger of the one exchange it took."""
    D, P = len(federation.inputs), len(federation.targets)
    nothing = Units(np.zeros(D), np.ones(D), np.zeros(P), np.ones(P))
    if inputs in ("none", "client") and targets == "client":
        scaling = Scaling(inputs=inputs, targets=targets, pooled=nothing, within=None)
        return scaling, 1.0, Ledger(federation.names).to_frame()
    moments = Moments(num_inputs=D, num_targets=P)
    run = Run(moments, federation, schedule=Synchronous(), engine=engine, seed=seed)()
    if run.interrupted:
        raise RunError(_NOTHING_LEARNED)
    found: Any = jax.device_get(run.server)
    scale = spread(found.variance, found.mean)
    of_inputs = (found.mean[:D], scale[:D]) if inputs == "pooled" else nothing[:2]
    of_targets = (found.mean[D:], scale[D:]) if targets == "pooled" else nothing[2:]
    pooled = Units(*(np.array(part) for part in (*of_inputs, *of_targets)))
    within = spread(found.within, found.mean[D:])
    # the prior has mean zero: what targets as they are must be measured by is their size, not their spread
    size = math.sqrt(float(found.variance[D] + found.mean[D] ** 2)) if targets == "none" else 1.0
    ledger = run.ledger.to_frame().with_columns(round=pl.lit(-1, dtype=pl.Int64))
    return Scaling(inputs=inputs, targets=targets, pooled=pooled, within=within), size or 1.0, ledger


class _Validation(Callback):
    """Puts NLPD and RMSE on held-out rows in the history."""

    def __init__(self, snapshot: Callable[[], FittedPrior], validation: Federation, every: int) -> None:
        self.snapshot, self.validation, self.every = snapshot, validation, every

    def round_end(self, run: Run) -> None:
        row = run.history[-1]
        if len(run.history) == 1 or len(run.history) % self.every == 0:
            table = per_client(self.snapshot().results(self.validation))
            pooled = table.filter(pl.col("client") == "pooled").row(0, named=True)
            row["validation_nlpd"], row["validation_rmse"] = pooled["nlpd"], pooled["rmse"]


def plain_settings(value: Any) -> Any:
    """Settings as plain values, for JSON; an Optax transformation becomes the word "custom"."""
    if isinstance(value, Kernel):
        return to_config(value)
    if isinstance(value, optax.GradientTransformation):
        return "custom"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain_settings(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"name": type(value).__name__} | fields
    if isinstance(value, Mapping):
        return {key: plain_settings(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_settings(item) for item in value]
    return value
