"""FedSparseGP: one global sparse Gaussian process of all clients' rows."""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import optax
import polars as pl

from fedgauss.algorithms.sums import ExactSums
from fedgauss.callbacks import Progress
from fedgauss.engines.local import Callback, Local, Run
from fedgauss.errors import RunError
from fedgauss.federation import Federation
from fedgauss.fitted import FittedSums
from fedgauss.fitted.sums import LearnedSums
from fedgauss.gp.inducing import InducingModel
from fedgauss.gp.kernels import Kernel, check_active, resolve
from fedgauss.gp.parameters import Space
from fedgauss.models.fitting import NOTHING_LEARNED, Plan, held_out, plain_settings
from fedgauss.schedules import Schedule
from fedgauss.settings import check_choice, check_kind, check_positive, number_of, settings

logger = logging.getLogger("fedgauss")


@settings
class FedSparseGP:
    """A sparse GP of all clients' rows, its inducing inputs and hyper-parameters learned together.

    `training="collapsed"` maximises Titsias's bound on the evidence of all rows as if they were in one place, in two
    exchanges of sums a step (Gal, van der Wilk and Rasmussen 2014).

    Args:
        kernel: A name ("rbf", "matern32", ...) or a kernel.
        training: "collapsed".
        num_inducing: M, the number of inducing inputs. They start as draws from N(0, I) on the standardised scale.
        rounds: The most exchanges.
        optimiser: "lbfgs", or an Optax transformation at the server.
        tolerance: "lbfgs" stops when a step gains less than this many nats a row.
        quorum: Whether each exchange waits for "every" client, or goes on with "some".
        noise_floor: The least noise variance, as a fraction of the target's variance.
        start: Starting values by name, on the standardised scale.
        inputs: Standardise inputs by "pooled" moments, or "none".
        targets: Standardise targets by "pooled" moments, or "none".

    Example:
        >>> import fedgauss as fg, numpy as np
        >>> x = np.linspace(-1.0, 1.0, 40)[:, None]
        >>> data = {name: (x + shift, np.sin(x[:, 0] + shift)) for name, shift in (("left", -1.0), ("right", 1.0))}
        >>> federation = fg.Federation.from_arrays(data)
        >>> model = fg.FedSparseGP(num_inducing=10).fit(federation, progress=False)
        >>> bool(np.abs(model.predict(None, [[-1.5], [1.5]]) - np.sin([-1.5, 1.5])).max() < 0.02)
        True
    """

    kernel: str | Kernel = "rbf"
    training: Literal["collapsed"] = "collapsed"
    num_inducing: int = 100
    rounds: int = 400
    optimiser: Literal["lbfgs"] | optax.GradientTransformation = "lbfgs"
    tolerance: float = 1e-7
    quorum: Literal["every", "some"] = "every"
    noise_floor: float = 1e-4
    start: Mapping[str, float] = dataclasses.field(default_factory=dict)
    inputs: Literal["pooled", "none"] = "pooled"
    targets: Literal["pooled", "none"] = "pooled"

    def __post_init__(self) -> None:
        check_kind("FedSparseGP(kernel=...)", self.kernel, str | Kernel, "a name or a kernel, such as fg.kernels.RBF()")
        object.__setattr__(self, "kernel", resolve(self.kernel))
        choices = {
            "training": ("collapsed",), "quorum": ("every", "some"), "inputs": ("pooled", "none"),
            "targets": ("pooled", "none"),
        }  # fmt: skip
        for name, allowed in choices.items():
            check_choice("FedSparseGP", name, getattr(self, name), allowed)
        for name in ("num_inducing", "rounds"):
            check_positive("FedSparseGP", name, getattr(self, name), whole=True)
        for name in ("tolerance", "noise_floor"):
            check_positive("FedSparseGP", name, getattr(self, name))
        if isinstance(self.optimiser, str):
            check_choice("FedSparseGP", "optimiser", self.optimiser, ("lbfgs",))
        else:
            expected = '"lbfgs", or an Optax transformation such as optax.adam(0.01)'
            check_kind("FedSparseGP(optimiser=...)", self.optimiser, optax.GradientTransformation, expected)
        check_kind("FedSparseGP(start=...)", self.start, Mapping, "a dict of numbers by parameter")
        start = {str(key): number_of("FedSparseGP", f"start[{key!r}]", value) for key, value in self.start.items()}
        object.__setattr__(self, "start", start)

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
    ) -> FittedSums:
        """Learn inducing inputs and hyper-parameters. Arguments as of `FedBNR.fit`."""
        return self._fit(
            federation, federation.names if isinstance(federation, Federation) else (), "FedSparseGP", self, seed=seed,
            schedule=schedule, engine=engine, validation=validation, callbacks=callbacks, progress=progress,
        )  # fmt: skip

    def _fit(
        self, federation: Federation, names: tuple[str, ...], label: str, settings: Any, *, seed: int,
        schedule: Schedule | None, engine: Local | None, validation: Federation | None, callbacks: Sequence[Callback],
        progress: bool,
    ) -> FittedSums:  # fmt: skip
        kernel = self.kernel
        assert isinstance(kernel, Kernel)

        def check(federation: Federation) -> None:
            federation.single_target("FedSparseGP")
            check_active(kernel, len(federation.inputs))

        plan = Plan.make(federation, schedule, engine, seed, inputs=self.inputs, targets=self.targets, check=check)
        D = len(federation.inputs)
        has_lengthscale = any(n.rsplit(".", 1)[-1] == "lengthscale" for n in Space(kernel=kernel, num_inputs=D).names)
        start = ({"lengthscale": math.sqrt(D)} if has_lengthscale else {}) | dict(self.start)
        space = Space(
            kernel=kernel, num_inputs=D, transform="log", noise_floor=self.noise_floor,
            target_scale=plan.target_scale, start=tuple(start.items()),
        )  # fmt: skip
        model = InducingModel(space=space, num_inducing=self.num_inducing)
        algorithm = ExactSums(
            model=model, num_inputs=D, num_targets=1, rounds=self.rounds, optimiser=self.optimiser,
            tolerance=self.tolerance, everyone=self.quorum == "every",
        )  # fmt: skip
        run = Run(algorithm, plan.standardised, schedule=plan.schedule, engine=plan.engine, seed=plan.seed)

        def fitted() -> FittedSums:
            server = jax.device_get(run.server)
            learned = LearnedSums(
                method=label, settings=plain_settings(settings), scaling=plan.scaling, names=names,
                inputs=federation.inputs, targets=federation.targets, model=model, learned=server.theta, constants={},
                sums=server.sums, tune=False, everyone=self.quorum == "every",
            )  # fmt: skip
            ledger = pl.concat([plan.setup, run.ledger.to_frame()])
            return FittedSums(learned, pl.DataFrame(run.history, infer_schema_length=None), ledger, federation)

        if validation is not None:
            validation = held_out(validation, federation, of_clients=False)
        bar = Progress(label, None) if progress else None
        run(plan.watchers(callbacks, validation, fitted, max(1, self.rounds // 100), bar))
        if not run.history:
            raise RunError(NOTHING_LEARNED)
        return fitted()
