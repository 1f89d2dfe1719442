"""FedBNR against its equations in NumPy, against the same model of all rows in one place, and in trouble."""

import dataclasses
import functools
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedgauss as fg
from algorithms.catalogue import exact_sums, feature_model, local_steps, small_federation
from fedgauss.algorithm import Data
from fedgauss.algorithms.fedbnr import FeatureAveraging, KernelDistillation, NetworkDistillation
from fedgauss.algorithms.sums import GatherSums, SumsRequest
from fedgauss.disclosure import disclosed
from fedgauss.engines.local import Local, LocalWorker, Network, Run
from fedgauss.errors import DataError, RunError, ScheduleError, SettingsError
from fedgauss.exchange import Exchange
from fedgauss.fitted.sums import gather
from fedgauss.gp.features import Fourier, FourierFeature
from fedgauss.gp.summed import sums_of
from fedgauss.ledger import Ledger
from fedgauss.schedules import Synchronous
from reference import feature_regression

FEDERATION = small_federation()
POOLED = np.concatenate([c.X for c in FEDERATION.clients]), np.concatenate([c.Y for c in FEDERATION.clients])
QUICK: dict[str, Any] = {"features": Fourier(ard=True), "num_samples": 10, "rounds": 2, "local_steps": 3}
X_NEW = np.random.default_rng(5).normal(size=(7, 2))


def fit(federation: fg.Federation = FEDERATION, **settings: Any) -> Any:
    return fg.FedBNR(**(QUICK | settings)).fit(federation, seed=0, progress=False)


def server_data(rows: int = 6) -> fg.Client:
    random = np.random.default_rng(9)
    return fg.Client(random.normal(size=(rows, 2)), random.normal(size=rows))


def same(left: Any, right: Any, rtol: float = 1e-10) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12)


# --- phase 1 as printed ----------------------------------------------------------------------------------------------


def objective(theta: np.ndarray[Any, Any], omega: Any, X: Any, y: Any) -> float:
    """Minus the log evidence of a row, from the N x N covariance of the weight-space model."""
    phases = (X * np.exp(-theta[:2])) @ omega.T
    phi = np.concatenate([np.cos(phases), np.sin(phases)], axis=1) / np.sqrt(len(omega))
    return -feature_regression.log_density(phi.T, y, np.exp(theta[2]), np.exp(theta[3])) / len(y)


def slope(theta: np.ndarray[Any, Any], *data: Any) -> np.ndarray[Any, Any]:
    steps = 1e-5 * np.eye(len(theta))
    return np.array([(objective(theta + s, *data) - objective(theta - s, *data)) / 2e-5 for s in steps])


def test_averaging_is_algorithm_1() -> None:
    rate = 0.1
    raw: dict[str, Any] = {"inputs": "none", "targets": "none", "noise_floor": 1e-12}
    model = fit(optimiser="sgd", learning_rate=rate, average="uniform", tune=False, rounds=3, local_steps=4, **raw)
    omega = np.asarray(model.learned.constants["omega"])
    size = float(np.sqrt(np.mean(POOLED[1] ** 2)))  # the unit of the start where targets are as they are
    shared = np.array([0.5 * np.log(2.0)] * 2 + [np.log(0.3 * size), np.log(size)])
    for _ in range(3):
        after = []
        for client in FEDERATION.clients:
            theta = shared.copy()
            for _ in range(4):
                theta = theta - rate * slope(theta, omega, client.X, client.Y[:, 0])
            after.append(np.concatenate([theta[:2], np.exp(theta[2:])]))  # sigma and lambda are averaged themselves
        mean = np.mean(after, axis=0)
        shared = np.concatenate([mean[:2], np.log(mean[2:])])
    found = model.parameters_
    np.testing.assert_allclose(found["features"]["log_lengthscale"], shared[:2], rtol=1e-6)
    np.testing.assert_allclose(found["noise_variance"], np.exp(2 * shared[2]), rtol=1e-6)
    np.testing.assert_allclose(found["weight_variance"], np.exp(2 * shared[3]), rtol=1e-6)


def test_clients_weigh_by_size_unless_told_otherwise() -> None:
    by_size, uniform = fit(rounds=1), fit(rounds=1, average="uniform")
    assert not np.allclose(
        by_size.parameters_["features"]["log_lengthscale"], uniform.parameters_["features"]["log_lengthscale"]
    )


@pytest.mark.parametrize(
    "changes", [{"batch_size": 8}, {"optimiser": "sgd", "decay": 1.0}, {"optimiser": optax.sgd(0.1)}]
)
def test_local_steps_improve_the_evidence(changes: dict[str, Any]) -> None:
    history = fit(rounds=6, **changes).history_["objective"]
    assert history[-1] < history[0]


# --- phase 2: the exact last layer ------------------------------------------------------------------------------------


def test_the_global_model_is_that_of_all_rows_in_one_place() -> None:
    federated = fit(tune=False)
    together = fg.Federation.from_arrays({"all": POOLED})
    learned = dataclasses.replace(federated.learned, sums=None)
    gathered = gathered_from(learned, together)
    pooled = type(federated)(dataclasses.replace(learned, sums=gathered), federated.history_, federated.ledger_, None)
    same(federated.predict(None, X_NEW, return_cov=True), pooled.predict(None, X_NEW, return_cov=True), rtol=1e-9)
    same(federated.learned.sums, gathered)
    np.testing.assert_allclose(federated.log_evidence_, pooled.log_evidence_, rtol=1e-10)
    same([federated.predict("a", X_NEW)], [federated.predict(None, X_NEW)])


def gathered_from(learned: Any, federation: fg.Federation) -> Any:
    return gather(
        learned.model, learned.learned, learned.constants, learned.scaling.apply(federation), engine=Local(), seed=0,
        everyone=True, round_number=0,
    ).sums  # fmt: skip


def test_two_exchanges_give_the_same_weights() -> None:
    one, two = fit(tune=False), fit(last_layer="two_exchanges")
    same(two.predict(None, X_NEW, return_std=True), one.predict(None, X_NEW, return_std=True), rtol=1e-8)
    sent = two.ledger_.filter(direction="up")["message"].to_list()
    assert {"Scatter", "Weights"} < set(sent)
    assert "FeatureSums" not in sent


def test_tuning_raises_the_evidence_and_takes_no_message() -> None:
    tuned, as_learned = fit(), fit(tune=False)
    assert tuned.log_evidence_ > as_learned.log_evidence_
    assert tuned.ledger_["message"].to_list() == as_learned.ledger_["message"].to_list()


def test_several_targets_share_the_features_and_have_noise_of_their_own() -> None:
    random = np.random.default_rng(2)
    data, first = {}, {}
    for name, client in FEDERATION.items():
        Y = np.column_stack([client.Y[:, 0], 100.0 * client.X[:, 1] + 5.0 * random.normal(size=client.num_rows)])
        data[name], first[name] = (client.X, Y), (client.X, Y[:, 0])
    both = fit(fg.Federation.from_arrays(data))
    mean, std = both.predict(None, X_NEW, return_std=True)
    assert mean.shape == std.shape == (7, 2)
    assert both.parameters_["noise_variance"].shape == (2,)
    assert both.predict(None, X_NEW, return_cov=True)[1].shape == (2, 7, 7)
    assert both.sample(None, X_NEW, 3).shape == (3, 7, 2)
    sent = {spec["name"]: spec["shape"] for spec in both.ledger_.filter(message="FeatureSums")["arrays"][0]}
    assert sent["phi_phi"] == [20, 20]
    assert sent["phi_y"] == [20, 2]
    scores = both.evaluate(fg.Federation.from_arrays(data))
    assert np.isfinite(scores["rmse"].to_numpy()).all()


# --- exact training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "features", [Fourier(), fg.features.Network(widths=(5,), latent=2, shifter=3)], ids=["fourier", "network"]
)
@pytest.mark.parametrize("parts", [1, 2, 40])
def test_any_split_gives_the_same_gradient(parts: int, features: Any) -> None:
    X, Y = POOLED
    order = np.random.default_rng(parts).permutation(len(X))
    hands = np.array_split(order, parts)
    split = fg.Federation.from_arrays({f"{i:02d}": (X[rows], Y[rows]) for i, rows in enumerate(hands)})
    run, whole = (
        started(exact_sums(feature_model(features)), data)
        for data in (split, fg.Federation.from_arrays({"all": POOLED}))
    )
    for _ in range(2):
        run.step()
        whole.step()
    one, other = jax.device_get((run.server, whole.server))
    np.testing.assert_allclose(one.value, other.value, rtol=1e-10)
    moved = [server.candidate[name] - server.theta[name] for server in (one, other) for name in server.theta]
    for left, right in zip(moved[: len(moved) // 2], moved[len(moved) // 2 :], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-10)  # the first step of L-BFGS is the gradient's


def started(algorithm: Any, federation: fg.Federation, **options: Any) -> Run:
    return Run(algorithm, federation, schedule=Synchronous(), engine=Local(**options), seed=0)


def test_the_summed_gradient_is_that_of_the_pooled_objective() -> None:
    algorithm = exact_sums(feature_model(Fourier(ard=True)))
    run = started(algorithm, FEDERATION)
    run.step()
    request = algorithm.request(run.server)
    _, replies = run.worker.compute(request, 1, np.arange(3), run.clients)
    total = run.exchange.ask(request, np.arange(3)).shape.unravel(replies.sum(axis=0))
    found = jax.tree.map(jnp.add, total.value.gradient, run.server.explicit)

    def pooled(theta: Any) -> Any:
        sums = sums_of(
            algorithm.model, theta, run.server.constants, jnp.asarray(POOLED[0]), jnp.asarray(POOLED[1]), len(POOLED[0])
        )
        return algorithm.model.objective(sums, theta)

    expected = jax.grad(pooled)(run.server.theta)
    for name, leaf in expected.items():
        np.testing.assert_allclose(found[name], leaf, rtol=1e-10, atol=1e-12, err_msg=name)


def test_exact_training_raises_the_evidence_above_what_averaging_reaches() -> None:
    exact = fit(training="exact", rounds=60, tune=False)
    assert exact.log_evidence_ > fit(rounds=10, local_steps=10, tune=False).log_evidence_
    objective = exact.history_["objective"].to_numpy()
    assert (np.diff(objective) <= 1e-12).all()
    np.testing.assert_allclose(exact.log_evidence_ / -82, objective[-1], rtol=1e-9)


def test_exact_training_of_the_pooled_rows_is_the_same_fit() -> None:
    method = fg.FedBNR(**(QUICK | {"training": "exact", "rounds": 20}))
    federated, pooled = (m.fit(FEDERATION, progress=False) for m in (method, fg.Pooled(method)))
    same(federated.predict(None, X_NEW, return_std=True), pooled.predict("a", X_NEW, return_std=True), rtol=1e-5)


def test_a_client_lost_between_the_two_exchanges_is_left_out_of_both() -> None:
    algorithm = exact_sums(feature_model(Fourier()), everyone=False)
    worker = LocalWorker(algorithm, FEDERATION, FEDERATION.sizes, seed=0, devices=1)
    exchange = Exchange(algorithm, FEDERATION.names, worker, 0, Ledger(FEDERATION.names))

    def one(arrived: list[int]) -> Any:
        request = algorithm.request(exchange.server)
        exchange.deliver(exchange.ask(request, np.arange(3)), np.array(arrived))
        return request

    one([0, 1, 2])  # the sums of three
    one([0, 1])  # the gradient of two: not counted
    assert float(exchange.server.redone) == 1.0
    assert isinstance(algorithm.request(exchange.server), SumsRequest)
    at = exchange.server.theta
    one([0, 1])
    assert float(exchange.server.sums.num_rows) == 42.0
    one([0, 1])
    assert not float(exchange.server.wants_gradient)

    alone = started(algorithm, FEDERATION.subset(["a", "b"]))
    alone.exchange.server = alone.exchange.server._replace(candidate=at, theta=at)
    alone.step()
    alone.step()
    moved = [{n: s.candidate[n] - s.theta[n] for n in s.theta} for s in (exchange.server, alone.server)]
    for name in at:
        np.testing.assert_allclose(moved[0][name], moved[1][name], rtol=1e-9, err_msg=name)


def test_clients_that_are_always_lost_in_between_end_the_run() -> None:
    algorithm = exact_sums(feature_model(Fourier()), everyone=False, rounds=1000)
    worker = LocalWorker(algorithm, FEDERATION, FEDERATION.sizes, seed=0, devices=1)
    exchange = Exchange(algorithm, FEDERATION.names, worker, 0, Ledger(FEDERATION.names))

    def go_on() -> None:
        for _ in range(100):
            for arrived in ([0, 1, 2], [0, 1]):
                exchange.deliver(exchange.ask(algorithm.request(exchange.server), np.arange(3)), np.array(arrived))

    with pytest.raises(RunError, match="missing when the gradient was asked for"):
        go_on()


class NotANumber(FourierFeature):
    """Features that overflow."""

    def batch(self, omega: Any, X: Any, weight: Any) -> Any:
        return jnp.nan * super().batch(omega, X, weight)


def overflowing(key: Any, num_inputs: int) -> NotANumber:
    return NotANumber(jnp.zeros(1), "rbf", num_inputs)


def test_a_start_that_is_not_a_number_ends_the_run() -> None:
    with pytest.raises(RunError, match="at the start the objective is not a number"):
        fit(training="exact", features=overflowing)


def test_exact_training_needs_everybody_at_once() -> None:
    with pytest.raises(ScheduleError, match="needs the answer of every client"):
        fg.FedBNR(training="exact").fit(FEDERATION, schedule=fg.Asynchronous(), progress=False)


# --- distillation and ablations ---------------------------------------------------------------------------------------


def test_networks_and_kernels_distil_alike() -> None:
    settings: dict[str, Any] = {"training": "distillation", "distillation": server_data(), "distillation_steps": 4}
    networks, kernels = (fit(exchange=kind, **settings) for kind in ("networks", "kernels"))
    same(networks.predict(None, X_NEW, return_std=True), kernels.predict(None, X_NEW, return_std=True), rtol=1e-8)
    kinds = [
        {a["kind"] for a in m.ledger_.filter(message=name)["arrays"][0]}
        for m, name in ((networks, "LocalNetwork"), (kernels, "LocalKernel"))
    ]
    assert kinds == [{"stack"}, {"mean", "sum"}]
    shown = kernels.ledger_.filter(message="KernelRequest")["arrays"][0]
    assert "inputs" in [array["name"] for array in shown]  # the server's inputs are public then, and the ledger says so


@pytest.mark.parametrize("kind", [NetworkDistillation, KernelDistillation])
def test_distillation_follows_equation_19(kind: Any) -> None:
    model, data = feature_model(Fourier(), num_samples=4), server_data()
    algorithm = kind(
        model=model, local=local_steps(optimiser="sgd", learning_rate=0.1), rounds=1, alpha=3.0, steps=1,
        learning_rate=1e-9, num_rows=6, digest="",
    )  # fmt: skip
    run = started(algorithm, FEDERATION)
    run.exchange.server = run.exchange.server._replace(X=data.X, Y=data.Y)
    start, omega = run.server.values, np.asarray(run.server.constants["omega"])
    local = started(FeatureAveraging(model=model, local=algorithm.local, rounds=1), FEDERATION)
    deltas = local.worker.compute(algorithm_request(local), 0, np.arange(3), local.clients)[1]
    shape: Any = local.exchange.ask(algorithm_request(local), np.arange(3)).shape

    def phi(log_lengthscale: Any) -> Any:
        phases = (data.X * np.exp(-log_lengthscale)) @ omega.T
        return np.concatenate([np.cos(phases), np.sin(phases)], axis=1) / 2.0

    row: Any
    kernels = []
    for row, client in zip(deltas, FEDERATION.clients, strict=True):
        after = (
            start["features.log_lengthscale"]
            + shape.unravel(row).value.delta["features.log_lengthscale"] / client.num_rows
        )
        kernels.append(phi(after) @ phi(after).T)
    here = phi(start["features.log_lengthscale"])
    mismatch = np.mean((here @ here.T - np.mean(kernels, axis=0)) ** 2)
    evidence = feature_regression.log_density(
        here.T, data.Y[:, 0], float(start["noise_std"][0]), float(start["weight_std"][0])
    )
    run.step()
    row = run.history[-1]  # the server's rate is so small that this is still the start
    np.testing.assert_allclose(row["mismatch"], mismatch, rtol=1e-6)
    np.testing.assert_allclose(row["loss"], -evidence / 6 + 3.0 * mismatch, rtol=1e-6)


def algorithm_request(run: Run) -> Any:
    return run.algorithm.request(run.server)


def test_distillation_with_clients_lost_takes_the_mean_of_those_who_answered() -> None:
    settings: dict[str, Any] = {"training": "distillation", "distillation": server_data(), "rounds": 6}
    engine = Local(network=Network(loss=0.4), retries=50)
    model: Any = fg.FedBNR(**(QUICK | settings)).fit(FEDERATION, engine=engine, progress=False)
    assert np.isfinite(model.predict(None, X_NEW)).all()
    assert min(model.history_["clients_answered"].to_list()) < 3


def test_local_local_is_every_client_alone() -> None:
    raw: dict[str, Any] = {"inputs": "none", "targets": "none", "tune": False}
    local = fit(training="local", last_layer="local", **raw)
    # sigma and lambda start relative to the size of all targets: the same start for the client alone
    ratio = scale(FEDERATION) / scale(FEDERATION.subset(["b"]))
    alone = fit(
        FEDERATION.subset(["b"]), noise_std=0.3 * ratio, weight_std=ratio, noise_floor=1e-4 * ratio**2, **raw
    )  # fmt: skip
    same(local.predict("b", X_NEW, return_std=True), alone.predict("b", X_NEW, return_std=True), rtol=1e-8)


def test_separate_is_local_local() -> None:
    separate = fg.Separate(fg.FedBNR(**QUICK)).fit(FEDERATION, seed=0, progress=False)
    local = fit(training="local", last_layer="local")
    assert separate.learned.method == "Separate"
    same(separate.predict("b", X_NEW, return_std=True), local.predict("b", X_NEW, return_std=True), rtol=0.0)
    assert set(separate.ledger_.filter(direction="up")["message"]) == {"MomentsReply", "LocalInfo"}


def scale(federation: fg.Federation) -> float:
    Y = np.concatenate([client.Y for client in federation.clients])
    return float(np.sqrt(np.mean(Y**2)))


def test_local_global_gives_every_client_everybodys_sums_in_its_own_features() -> None:
    model = fit(training="local", last_layer="global")
    assert model.ledger_.filter(message="FeatureSums").height == 9  # three clients' features, three clients' sums
    assert model.ledger_.filter(message="ClientNetwork").height == 3
    learned = model.learned
    X, Y = learned.scaling.pooled.inputs(POOLED[0]), learned.scaling.pooled.targets(POOLED[1])
    same(
        learned.sums["b"],
        sums_of(learned.model, learned.own["b"], learned.constants, jnp.asarray(X), jnp.asarray(Y), len(X)),
    )


@pytest.mark.parametrize("training", ["averaging", "distillation"])
def test_a_local_last_layer_knows_one_clients_rows_alone(training: str) -> None:
    data = server_data() if training == "distillation" else None
    model = fit(training=training, last_layer="local", distillation=data)
    rows = FEDERATION["a"]
    same(model.predict("a", X_NEW, return_std=True), model.predict(fg.Client(rows.X, rows.Y), X_NEW, return_std=True))
    with pytest.raises(SettingsError, match="no global model"):
        model.predict(None, X_NEW)
    assert "FeatureSums" not in model.ledger_["message"].to_list()


# --- clients that come and go --------------------------------------------------------------------------------------


def newcomers() -> fg.Federation:
    random = np.random.default_rng(7)
    return fg.Federation.from_arrays({"d": (random.normal(size=(25, 2)), random.normal(size=25))})


def test_joining_is_being_there_from_the_start_of_phase_2() -> None:
    model = fit()
    everybody = gathered_from(model.learned, fg.Federation([*FEDERATION.clients, *newcomers().clients]))
    before = len(model.ledger_)
    assert model.update(newcomers()) is model
    same(model.learned.sums, everybody)
    assert model.learned.names == ("a", "b", "c", "d")
    assert len(model.ledger_) == before + 2
    assert model.ledger_["round"][-1] == 3


def test_leaving_takes_a_client_out_again(caplog: pytest.LogCaptureFixture) -> None:
    model = fit()
    before = model.predict(None, X_NEW, return_std=True)
    model.update(newcomers())
    with caplog.at_level(logging.WARNING):
        model.remove(newcomers())
    assert "whoever has both knows them" in caplog.text
    same(model.predict(None, X_NEW, return_std=True), before, rtol=1e-5)
    with pytest.raises(DataError, match='no client "d" took part'):
        model.remove(newcomers())


def test_leaving_with_other_rows_than_were_counted_is_refused() -> None:
    model = fit()
    other = fg.Federation.from_arrays({"b": (50.0 * FEDERATION["a"].X, FEDERATION["a"].Y)})
    with pytest.raises(DataError, match="cannot be sums over rows"):
        model.remove(other)
    assert model.learned.names == FEDERATION.names


def test_who_is_counted_cannot_join_and_not_all_can_leave() -> None:
    model = fit()
    with pytest.raises(DataError, match='client "a": its rows are counted already'):
        model.update(FEDERATION.subset(["a"]))
    with pytest.raises(DataError, match="nothing would be left"):
        model.remove(FEDERATION)


def test_a_stranger_with_rows_is_predicted_as_if_it_had_joined() -> None:
    model = fit(tune=False)
    client = newcomers()["d"]
    as_guest = model.predict(fg.Client(client.X, client.Y), X_NEW, return_std=True)
    same(as_guest, model.update(newcomers()).predict(None, X_NEW, return_std=True))


# --- files ------------------------------------------------------------------------------------------------------------


def own_features(key: Any, num_inputs: int, *, family: str = "rbf") -> FourierFeature:
    """A user's own features: a function, not a settings object."""
    return Fourier(ard=True)(key, num_inputs)


@pytest.mark.parametrize(
    "settings", [{}, {"training": "local", "last_layer": "global"}, {"features": fg.features.Network(widths=(4,))}]
)
def test_a_saved_model_predicts_without_data(settings: dict[str, Any], tmp_path: Path) -> None:
    model = fit(**settings)
    again: Any = fg.load(model.save(tmp_path / "model"))
    who = "b" if settings.get("training") == "local" else None
    same(again.predict(who, X_NEW, return_std=True), model.predict(who, X_NEW, return_std=True), rtol=0.0)
    assert again.federation is None


def test_features_of_ones_own_are_passed_to_load(tmp_path: Path) -> None:
    model = fit(features=own_features)
    folder = model.save(tmp_path / "model")
    with pytest.raises(DataError, match=r"own_features.*pass it"):
        fg.load(folder)
    same([fg.load(folder, features=own_features).predict(None, X_NEW)], [model.predict(None, X_NEW)], rtol=0.0)


def test_a_saved_model_still_takes_newcomers(tmp_path: Path) -> None:
    model = fit()
    again: Any = fg.load(model.save(tmp_path / "model"))
    same(
        again.update(newcomers()).predict(None, X_NEW, return_std=True),
        model.update(newcomers()).predict(None, X_NEW, return_std=True),
        rtol=1e-12,
    )


def test_a_run_stopped_early_goes_back_to_its_best_round_and_resumes_there(tmp_path: Path) -> None:
    def go(folder: Path | None, rounds: int = 8) -> Any:
        stop = fg.EarlyStopping("validation_rmse", patience=3, keep_best=True)
        callbacks = [stop, *([fg.Checkpoint(folder)] if folder else [])]
        held_out = fg.Federation.from_arrays({"elsewhere": (X_NEW, np.sin(2 * X_NEW[:, 0]))})
        method = fg.FedBNR(**(QUICK | {"rounds": rounds, "learning_rate": 0.5}))
        return method.fit(FEDERATION, validation=held_out, callbacks=callbacks, progress=False)

    whole = go(None)
    errors = whole.history_["validation_rmse"].to_numpy()
    best = fit(rounds=int(errors.argmin()) + 1, learning_rate=0.5)
    same(whole.predict(None, X_NEW, return_std=True), best.predict(None, X_NEW, return_std=True), rtol=1e-9)
    first, again = go(tmp_path / "c"), go(tmp_path / "c")
    same(again.predict(None, X_NEW, return_std=True), first.predict(None, X_NEW, return_std=True), rtol=0.0)
    same(first.predict(None, X_NEW), whole.predict(None, X_NEW), rtol=0.0)


# --- bad answers ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lying(GatherSums):
    """Clients with 12 rows, of which there is one, answer something that cannot be."""

    lie: str

    def client_update(self, request: Any, client: Any, data: Data, key: Any) -> Any:
        kept, sums = super().client_update(request, client, data, key)
        G, b = sums.phi_phi, sums.phi_y
        lies = {
            "asymmetric": sums._replace(phi_phi=G.at[0, 1].add(1.0)),
            "indefinite": sums._replace(phi_phi=-G),
            "impossible targets": sums._replace(phi_y=1e3 * b),
            "not finite": sums._replace(phi_phi=jnp.nan * G),
        }
        is_liar = data.num_rows == 12
        return kept, jax.tree.map(lambda lie, truth: jnp.where(is_liar, lie, truth), lies[self.lie], sums)


WORDS = {
    "asymmetric": "not symmetric", "indefinite": "indefinite", "impossible targets": "cannot belong",
    "not finite": "not finite",
}  # fmt: skip


@pytest.mark.parametrize("lie", WORDS)
def test_a_client_whose_sums_cannot_be_is_refused_by_name(lie: str) -> None:
    algorithm = Lying(model=feature_model(Fourier()), num_inputs=2, num_targets=1, lie=lie)
    with pytest.raises(RunError, match=f"'b': .*{WORDS[lie]}"):
        started(algorithm, FEDERATION)()


@pytest.mark.parametrize("lie", WORDS)
def test_the_rest_of_the_round_is_kept_where_some_are_enough(lie: str) -> None:
    algorithm = Lying(model=feature_model(Fourier()), num_inputs=2, num_targets=1, lie=lie, everyone=False)
    run = started(algorithm, FEDERATION)()
    assert run.history[-1]["clients_refused"] == ["b"]
    assert float(run.server.sums.num_rows) == 70.0


def test_a_client_that_answers_with_another_number_of_features_is_refused_by_name() -> None:
    algorithm = GatherSums(model=feature_model(Fourier()), num_inputs=2, num_targets=1, everyone=False)
    run = started(algorithm, FEDERATION)
    compute = run.worker.compute

    def other_software(*arguments: Any) -> Any:
        proposals, replies = compute(*arguments)
        return proposals, [row if place != 1 else row[:-7] for place, row in enumerate(replies)]

    run.worker.compute = other_software  # type: ignore[assignment,method-assign]
    run()
    assert run.history[-1]["clients_refused"] == ["b"]
    strict = started(dataclasses.replace(algorithm, everyone=True), FEDERATION)
    strict.worker.compute = other_software  # type: ignore[assignment,method-assign]
    with pytest.raises(RunError, match="'b': the answer has another number of values"):
        strict()


def test_a_client_lost_for_good_is_left_out_of_the_sums_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        model: Any = fg.FedBNR(**(QUICK | {"quorum": "some"})).fit(
            FEDERATION, engine=Local(network=Network(loss=0.6)), seed=1, progress=False
        )
    missing = set(FEDERATION.names) - set(model.learned.names)
    assert missing
    assert all(name in caplog.text for name in missing)
    assert float(model.learned.sums.num_rows) == sum(FEDERATION[name].num_rows for name in model.learned.names)


def test_inspect_says_whose_records_can_be_reconstructed() -> None:
    model = fit(num_samples=8)
    told = disclosed(model.ledger_, {name: client.num_rows for name, client in FEDERATION.items()})
    assert [bool(one.warnings) for one in told] == [False, True, False]
    assert "its records, inputs and targets, can be reconstructed" in told[1].warnings[0]


def test_every_array_that_leaves_a_client_has_words() -> None:
    fits = [
        fit(), fit(last_layer="two_exchanges"), fit(training="exact"), fit(training="local", last_layer="global"),
        fit(training="distillation", distillation=server_data()),
        fit(training="distillation", distillation=server_data(), exchange="kernels"),
        fg.FedSparseGP(num_inducing=5, rounds=4).fit(FEDERATION, progress=False),
    ]  # fmt: skip
    for model in fits:
        for one in disclosed(model.ledger_, {}):
            for message in one.messages:
                for array in message.arrays:
                    assert array.words, f"{message.name}: {array.name}"


# --- settings and data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training": "avg"}, "expected one of"),
        ({"training": "distillation"}, "the server's own small data set"),
        ({"features": "network"}, "expected fg.features.Network"),
        ({"features": fg.features.Network}, "expected fg.features.Network"),
        ({"optimiser": "lbfgs"}, "expected one of 'adam', 'sgd'"),
        ({"rounds": 0}, "expected a positive whole number"),
        ({"num_samples": 2.5}, "expected a positive whole number"),
        ({"training": "exact", "last_layer": "two_exchanges"}, "has the sums already"),
        ({"targets": "client"}, "expected one of 'pooled', 'none'"),
        ({"feature": Fourier()}, 'did you mean "features"'),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        fg.FedBNR(**settings)


def test_what_the_ends_of_the_scale_cannot_do_is_refused() -> None:
    with pytest.raises(SettingsError, match="clients of its own"):
        fg.Pooled(fg.FedBNR(training="local"))
    with pytest.raises(SettingsError, match=r"expected fg.FGPR\(...\) or fg.FedBNR"):
        fg.Separate(fg.FedSparseGP())  # type: ignore[arg-type]


def test_distillation_rows_with_other_columns_are_refused() -> None:
    with pytest.raises(DataError, match="has 3 columns, the training data has 2"):
        fit(training="distillation", distillation=fg.Client(np.zeros((4, 3)), np.zeros(4)))


def not_a_feature(key: Any, num_inputs: int) -> Any:
    return functools.partial(print)


def test_features_that_are_none_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"expected a fg.features.RandomFeature"):
        fit(features=not_a_feature)


def test_one_client_one_row_and_constant_targets_are_fitted() -> None:
    one = fg.Federation.from_arrays({"a": (np.ones((1, 1)), [2.0])})
    assert np.isfinite(fit(one).predict(None, [[1.0]])).all()
    flat = fg.Federation.from_arrays({"a": (np.arange(9.0)[:, None], np.full(9, 4.0)), "b": ([[1.0]], [4.0])})
    mean, std = fit(flat).predict(None, [[3.0]], return_std=True)
    np.testing.assert_allclose(mean, 4.0, atol=1e-6)
    assert std[0] < 0.1


def test_as_published_says_what_the_paper_says() -> None:
    method = fg.FedBNR.as_published(rounds=7)
    assert (method.num_samples, method.local_steps, method.average, method.rounds) == (50, 50, "uniform", 7)
    assert method.last_layer == "two_exchanges"
