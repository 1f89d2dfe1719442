"""The two ends of every scale: each client alone, and all data in one place."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fedgauss.algorithm import FederatedAlgorithm
from fedgauss.algorithms.fgpr import ExactHyperparameters
from fedgauss.algorithms.separate import SeparateToConvergence
from fedgauss.engines.local import Callback, Local
from fedgauss.errors import SettingsError
from fedgauss.federation import Federation
from fedgauss.fitted import Fitted, FittedPooled, FittedSeparate, pool
from fedgauss.models.fedbnr import FedBNR
from fedgauss.models.fgpr import FGPR, PriorPlan
from fedgauss.models.sparse import FedSparseGP
from fedgauss.scaling import Mode
from fedgauss.schedules import Schedule, Synchronous
from fedgauss.settings import check_choice, check_kind, settings


@settings
class Separate:
    """Each client fitted alone with the same model: what federation has to beat.

    Nothing is shared, nor are moments: each client standardises by its own. Show both budgets beside a federated fit.
    Of FedBNR it is the paper's "local + local": `FedBNR(training="local", last_layer="local")`, in pooled units.

    Args:
        method: The method whose model each client fits.
        budget: For FGPR. "converged" maximises each client's exact likelihood; "same" takes just the optimiser steps
            that the federated fit would have the client take.

    Example:
        >>> import fedgauss as fg
        >>> x = np.linspace(0.0, 1.0, 20)[:, None]
        >>> federation = fg.Federation.from_arrays({"a": (x, np.sin(9 * x[:, 0])), "b": (x, np.cos(3 * x[:, 0]))})
        >>> model = fg.Separate().fit(federation, progress=False)
        >>> bool(model.parameters_["a"]["lengthscale"] < model.parameters_["b"]["lengthscale"])
        True
    """

    method: FGPR | FedBNR = dataclasses.field(default_factory=FGPR, kw_only=False)
    budget: Literal["converged", "same"] = "converged"

    def __post_init__(self) -> None:
        check_kind("Separate(method)", self.method, FGPR | FedBNR, "fg.FGPR(...) or fg.FedBNR(...)")
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
    ) -> Fitted[Any]:
        """Fit every client alone. Arguments as of `FGPR.fit`."""
        if isinstance(self.method, FedBNR):
            alone = dataclasses.replace(self.method, training="local", last_layer="local", optimiser=self.method._local)
            return alone._fit(
                federation, federation.names, "Separate", self, seed=seed, schedule=schedule, engine=engine,
                validation=validation, callbacks=callbacks, progress=progress,
            )  # fmt: skip
        method = self.method if self.budget == "same" else dataclasses.replace(
            self.method, solver="exact", personal=(), client_weights=None, server_optimiser=None, rounds=100
        )  # fmt: skip
        own_inputs: Mode = "none" if method.inputs == "none" else "client"
        own_targets: Mode = "none" if method.targets == "none" else "client"
        plan = PriorPlan.make(method, federation, schedule, engine, seed, inputs=own_inputs, targets=own_targets)
        algorithm: FederatedAlgorithm[Any, Any, Any, Any]
        if self.budget == "same":
            if method.solver == "exact":
                raise SettingsError('Separate(budget="same") counts optimiser steps; give it FGPR(solver="averaging")')
            algorithm = dataclasses.replace(method, personal=plan.space.names)._algorithm(
                plan.space, num_rows=federation.num_rows
            )
        else:
            exact = method._algorithm(plan.space, num_rows=federation.num_rows)
            assert isinstance(exact, ExactHyperparameters)
            algorithm = SeparateToConvergence(alone=exact)
        weights = np.ones(len(federation))
        fitted = plan.run(algorithm, weights, federation, callbacks, validation, progress, "Separate", self)
        assert isinstance(fitted, FittedSeparate)
        return fitted


@settings
class Pooled:
    """All data in one place, the same model: what federation may hope to reach, where that would be allowed.

    Args:
        method: The method whose model is fitted: one GP over the union of the clients' rows.

    Example:
        >>> import fedgauss as fg
        >>> x = np.linspace(0.0, 1.0, 20)[:, None]
        >>> federation = fg.Federation.from_arrays({"a": (x, x[:, 0] ** 2), "b": (x + 1, (x[:, 0] + 1) ** 2)})
        >>> model = fg.Pooled(fg.FGPR(solver="exact")).fit(federation, progress=False)
        >>> bool(abs(model.predict(None, [[0.5]])[0] - 0.25) < 0.01)
        True
    """

    method: FGPR | FedBNR | FedSparseGP = dataclasses.field(default_factory=FGPR, kw_only=False)

    def __post_init__(self) -> None:
        expected = "fg.FGPR(...), fg.FedBNR(...) or fg.FedSparseGP(...)"
        check_kind("Pooled(method)", self.method, FGPR | FedBNR | FedSparseGP, expected)
        if isinstance(self.method, FedBNR) and self.method._is_local:
            raise SettingsError('Pooled(method): FedBNR with a "local" training or last layer has clients of its own')

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
    ) -> Fitted[Any]:
        """Fit one model to all rows. Arguments as of `FGPR.fit`; there is nobody to schedule."""
        if schedule not in (None, Synchronous()):
            raise SettingsError("Pooled: all rows are in one place, so there is no schedule; leave it out")
        check_kind("federation", federation, Federation, "fg.Federation.from_arrays(...), .from_frame or .read")
        together = Federation([pool(federation)])
        if not isinstance(self.method, FGPR):
            return self.method._fit(
                together, federation.names, "Pooled", self, seed=seed, schedule=None, engine=engine,
                validation=validation, callbacks=callbacks, progress=progress,
            )  # fmt: skip
        method = dataclasses.replace(
            self.method, personal=(), client_weights=None,
            targets="none" if self.method.targets == "none" else "pooled",
        )  # fmt: skip
        plan = PriorPlan.make(method, together, None, engine, seed, inputs=method.inputs, targets=method.targets)
        algorithm = method._algorithm(plan.space, num_rows=federation.num_rows)
        fitted = plan.run(algorithm, np.ones(1), federation, callbacks, validation, progress, "Pooled", self)
        assert isinstance(fitted, FittedPooled)
        return fitted
