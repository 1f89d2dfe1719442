"""What the fits of all methods have in common: standardising, watching held-out rows, settings as plain values."""

import dataclasses
import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
import optax
import polars as pl

from fedgauss.algorithms.moments import Moments, spread
from fedgauss.callbacks import Progress
from fedgauss.clients import Client
from fedgauss.engines.local import Callback, Local, Run
from fedgauss.errors import DataError, RunError, suggest
from fedgauss.federation import Federation
from fedgauss.fitted import Fitted
from fedgauss.gp.features import Fourier, Network
from fedgauss.gp.features import to_config as features_config
from fedgauss.gp.kernels import Kernel, to_config
from fedgauss.ledger import Ledger
from fedgauss.metrics import per_client
from fedgauss.runtime import prepare
from fedgauss.scaling import Mode, Scaling, Units
from fedgauss.schedules import Schedule, Synchronous
from fedgauss.settings import check_kind

logger = logging.getLogger("fedgauss")

NOTHING_LEARNED = "the run was stopped before its first round finished: nothing was learned"

Optimiser: TypeAlias = Literal["sgd", "adam"] | optax.GradientTransformation


@dataclasses.dataclass(frozen=True)
class Plan:
    """A fit about to begin: what it was asked for, checked, and the units that all clients agreed on."""

    federation: Federation
    schedule: Schedule
    engine: Local
    seed: int
    scaling: Scaling
    target_scale: float
    """The size of the targets in the model's units."""
    setup: pl.DataFrame
    """The ledger of the exchange of moments."""

    @classmethod
    def make(
        cls, federation: Federation, schedule: Schedule | None, engine: Local | None, seed: int, *, inputs: Mode,
        targets: Mode, check: Callable[[Federation], None],
    ) -> "Plan":  # fmt: skip
        """Check what was given, and standardise. `check` refuses a federation that the method cannot learn from."""
        prepare()
        check_kind("federation", federation, Federation, "fg.Federation.from_arrays(...), .from_frame or .read")
        if schedule is not None:
            check_kind("schedule", schedule, Schedule, "fg.Synchronous(), fg.Sequential() or fg.Asynchronous()")
        check(federation)
        engine = engine or Local()
        scaling, target_scale, setup = _standardise(federation, inputs, targets, engine, seed)
        return cls(federation, schedule or Synchronous(), engine, seed, scaling, target_scale, setup)

    @functools.cached_property
    def standardised(self) -> Federation:
        """The federation in the model's units."""
        return self.scaling.apply(self.federation)

    def watchers(
        self, callbacks: Sequence[Callback], validation: Federation | None, snapshot: Callable[[], Fitted[Any]],
        every: int, bar: Progress | None,
    ) -> list[Callback]:  # fmt: skip
        """The callbacks of a run: held-out rows first, then the caller's, then a bar."""
        check_kind("callbacks", callbacks, Sequence, "a list, such as [fg.Checkpoint(folder)]")
        found: list[Callback] = []
        if validation is not None:
            found.append(_Validation(snapshot, validation, every))
        return [*found, *callbacks, *([] if bar is None else [bar])]


def held_out(validation: Federation, federation: Federation, *, of_clients: bool = True) -> Federation:
    """Held-out rows, of clients that take part, their columns in the order of the training columns."""
    check_kind("validation", validation, Federation, "a federation of held-out rows, as split() gives")
    for name in validation if of_clients else ():
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
        raise RunError(NOTHING_LEARNED)
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

    def __init__(self, snapshot: Callable[[], Fitted[Any]], validation: Federation, every: int) -> None:
        self.snapshot, self.validation, self.every = snapshot, validation, every

    def round_end(self, run: Run) -> None:
        row = run.history[-1]
        if len(run.history) == 1 or len(run.history) % self.every == 0:
            table = per_client(self.snapshot().results(self.validation))
            pooled = table.filter(pl.col("client") == "pooled").row(0, named=True)
            row["validation_nlpd"], row["validation_rmse"] = pooled["nlpd"], pooled["rmse"]


def plain_settings(value: Any) -> Any:
    """Settings as plain values, for JSON; a transformation becomes the word "custom", data the number of their rows."""
    if isinstance(value, Kernel):
        return to_config(value)
    if isinstance(value, Fourier | Network) or inspect.isfunction(value):
        return features_config(value)
    if isinstance(value, optax.GradientTransformation):
        return "custom"
    if isinstance(value, Client):
        return f"{value.num_rows} rows"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain_settings(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"name": type(value).__name__} | fields
    if isinstance(value, Mapping):
        return {key: plain_settings(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_settings(item) for item in value]
    return value
