"""FedSparseGP: Titsias's bound of all rows, maximised from sums, against the same in one place and the exact GP."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import fedgauss as fg
from algorithms.catalogue import small_federation
from fedgauss.errors import DataError, SettingsError
from fedgauss.gp.inducing import InducingModel
from fedgauss.gp.parameters import unflatten
from fedgauss.gp.sparse import client_statistics, collapsed_bound, inducing_basis

FEDERATION = small_federation()
X_NEW = np.random.default_rng(5).normal(size=(7, 2))
QUICK: dict[str, Any] = {"num_inducing": 12, "kernel": fg.kernels.RBF(ard=True)}


def fit(federation: fg.Federation = FEDERATION, **settings: Any) -> Any:
    return fg.FedSparseGP(**(QUICK | settings)).fit(federation, seed=0, progress=False)


def test_federated_is_pooled() -> None:
    method = fg.FedSparseGP(**QUICK, rounds=40)
    federated: Any
    pooled: Any
    federated, pooled = (one.fit(FEDERATION, progress=False) for one in (method, fg.Pooled(method)))
    for one, other in zip(*(m.predict(None, X_NEW, return_std=True) for m in (federated, pooled)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_allclose(federated.log_evidence_, pooled.log_evidence_, rtol=1e-8)


def test_it_ends_where_scipy_finds_no_better_noise_and_variance() -> None:
    model = fit(rounds=2000, tolerance=1e-12)
    learned = model.learned
    assert isinstance(learned.model, InducingModel)
    kernel, Z = learned.model.space.kernel, learned.theta["inducing_inputs"]
    start = {name: np.asarray(value) for name, value in learned.model.values(learned.theta).items()}
    units = learned.scaling.pooled
    X = units.inputs(np.concatenate([c.X for c in FEDERATION.clients]))
    Y = units.targets(np.concatenate([c.Y for c in FEDERATION.clients]))

    def minus_bound(logs: Any) -> float:
        parameters = unflatten(start | {"variance": np.exp(logs[0]), "noise_variance": np.exp(logs[1])})
        basis, _ = inducing_basis(kernel, parameters, Z)
        return -float(collapsed_bound(client_statistics(kernel, parameters, basis, X, Y), parameters["noise_variance"]))

    here = np.log([start["variance"], start["noise_variance"]])
    best = scipy.optimize.minimize(minus_bound, here, method="Nelder-Mead", options={"maxiter": 60})
    np.testing.assert_allclose(model.log_evidence_, -minus_bound(here), rtol=1e-6)
    assert best.fun > minus_bound(here) - 1e-3


def test_the_bound_rises_at_every_step_and_with_more_inducing_inputs() -> None:
    few, many = fit(num_inducing=3), fit(num_inducing=40)
    assert (np.diff(few.history_["objective"].to_numpy()) <= 1e-12).all()
    assert many.log_evidence_ > few.log_evidence_


def test_with_enough_inducing_inputs_it_is_the_exact_gp() -> None:
    model = fit(num_inducing=60, rounds=1000)
    exact = fg.Pooled(fg.FGPR(solver="exact", kernel=fg.kernels.RBF(ard=True))).fit(FEDERATION, progress=False)
    for one, other in zip(*(m.predict(None, X_NEW, return_std=True) for m in (model, exact)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.02)


def test_saved_joined_and_left(tmp_path: Path) -> None:
    model = fit(rounds=10)
    before = model.predict(None, X_NEW)
    again: Any = fg.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(None, X_NEW), before)
    random = np.random.default_rng(1)
    new = fg.Federation.from_arrays({"d": (random.normal(size=(9, 2)), random.normal(size=9))})
    assert not np.allclose(again.update(new).predict(None, X_NEW), before)
    np.testing.assert_allclose(again.remove(new).predict(None, X_NEW), before, rtol=1e-6)


def test_parameters_are_in_the_users_units() -> None:
    wide = FEDERATION.map(lambda client: client.with_values(X=100.0 * client.X, Y=10.0 * client.Y))
    one, other = fit(rounds=10), fit(wide, rounds=10)
    np.testing.assert_allclose(other.parameters_["lengthscale"], 100.0 * one.parameters_["lengthscale"], rtol=1e-6)
    np.testing.assert_allclose(
        other.parameters_["noise_variance"], 100.0 * one.parameters_["noise_variance"], rtol=1e-6
    )


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(SettingsError, match="expected one of 'collapsed'"):
        fg.FedSparseGP(training="pvi")  # type: ignore[arg-type]
    two = FEDERATION.map(lambda client: client.with_values(Y=np.repeat(client.Y, 2, axis=1)))
    with pytest.raises(DataError, match="FedSparseGP learns one target, got 2"):
        fit(two)
    with pytest.raises(SettingsError, match="covariance between rows"):
        fit(rounds=4).predict(None, X_NEW, return_cov=True)
