"""FGPR against Algorithms 1 and 2 written out in NumPy, and against the optimum that SciPy finds."""

import math
import signal
from typing import Any

import numpy as np
import optax
import pytest
import scipy.optimize

import fedgauss as fg
from algorithms.catalogue import small_federation
from fedgauss.errors import SettingsError
from reference import fgpr_averaging

FEDERATION = small_federation()
PAIRS = [(client.X, client.Y[:, 0]) for client in FEDERATION.clients]
RAW: dict[str, Any] = {"inputs": "none", "targets": "none", "batch_size": 64}
OWN = RAW | {"targets": "client"}
"""Nothing pooled: a subset of the clients is fitted in the same units."""


def vector(parameters: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.array([float(np.squeeze(parameters[name])) for name in ("lengthscale", "variance", "noise_variance")])


def fit(federation: fg.Federation = FEDERATION, **settings: Any) -> Any:
    return fg.FGPR(**settings).fit(federation, seed=0, progress=False)


# --- Algorithms 1 and 2 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient_scale", ["none", "batch", "paper"])
@pytest.mark.parametrize("decay", [None, 2.0])
def test_projected_sgd_is_algorithm_2(gradient_scale: str, decay: float | None) -> None:
    start = {"lengthscale": 0.9, "variance": 1.2, "noise_variance": 0.3}
    box = {"lengthscale": 0.5, "variance": 0.5, "noise_variance": 0.05}
    rate = 0.02 if gradient_scale == "none" else 0.1
    model = fit(
        optimiser="sgd", learning_rate=rate, decay=decay, transform="none", gradient_scale=gradient_scale, tau=1.5,
        start=start, lower=box, upper={"lengthscale": 2.0}, rounds=3, local_steps=4, **RAW,
    )  # fmt: skip
    scales = {
        "none": lambda m: np.ones(3),
        "batch": lambda m: np.full(3, float(m)),
        "paper": lambda m: np.array([1.5 * math.log(m), 1.5 * math.log(m), m]),
    }
    expected = fgpr_averaging.average(
        PAIRS, vector(start), rounds=3, steps=4, scale=scales[gradient_scale],
        rate=lambda t: rate if decay is None else rate / (1 + t / decay),
        low=vector(box), high=np.array([2.0, np.inf, np.inf]), weights=[30.0, 12.0, 40.0],
    )  # fmt: skip
    np.testing.assert_allclose(vector(model.parameters_), expected, rtol=1e-10)


def test_adam_with_softplus_is_the_authors_code() -> None:
    start = dict.fromkeys(("lengthscale", "variance", "noise_variance"), math.log(2.0))
    model = fit(start=start, rounds=3, local_steps=5, learning_rate=0.05, noise_floor=1e-4, **OWN)
    expected = fgpr_averaging.average_adam_softplus(
        [(X, (y - y.mean()) / y.std()) for X, y in PAIRS],
        vector(start), np.array([1e-6, 1e-6, 1e-4]), rounds=3, steps=5, rate=0.05,
    )  # fmt: skip
    np.testing.assert_allclose(vector(model.parameters_), expected, rtol=1e-9)


def test_objective_is_the_mean_likelihood_of_a_row() -> None:
    model = fit(rounds=1, local_steps=1, **RAW)
    start = {name: float(np.squeeze(value)) for name, value in model.learned.start.items()}
    values = [fgpr_averaging.negative_log_likelihood(vector(start), X, y) for X, y in PAIRS]
    by_size = np.average([v / len(y) for v, (_, y) in zip(values, PAIRS, strict=True)], weights=[30, 12, 40])
    np.testing.assert_allclose(model.history_["objective"][0], by_size, rtol=1e-10)


def test_client_weights_decide_the_mean() -> None:
    alone = fit(FEDERATION.subset(["b"]), rounds=2, **OWN)
    weighted = fit(rounds=2, client_weights={"a": 0.0, "b": 3.0, "c": 0.0}, **OWN)
    np.testing.assert_allclose(vector(weighted.parameters_), vector(alone.parameters_), rtol=1e-12)


def test_sampling_by_size_takes_the_plain_mean() -> None:
    schedule = fg.Synchronous(cohort=2)
    model = fg.FGPR(rounds=1, **OWN).fit(FEDERATION, schedule=schedule, seed=3, progress=False)
    weights = model.ledger_.filter(model.ledger_["message"] == "LocalFit")
    assert weights.height == 2
    chosen = weights["client"].to_list()
    plain = fg.FGPR(rounds=1, client_weights=dict.fromkeys(chosen, 1.0), **OWN)
    expected = plain.fit(FEDERATION.subset(chosen), seed=3, progress=False)
    np.testing.assert_allclose(vector(model.parameters_), vector(expected.parameters_), rtol=1e-12)


def _start_of(model: Any) -> dict[str, float]:
    return {name: float(np.squeeze(value)) for name, value in model.learned.start.items()}


def test_server_optimiser_with_rate_one_takes_the_mean() -> None:
    plain = fit(rounds=2, **RAW)
    served = fit(rounds=2, server_optimiser=optax.sgd(1.0), **RAW)
    np.testing.assert_allclose(vector(served.parameters_), vector(plain.parameters_), rtol=1e-12)
    half = fit(rounds=1, server_optimiser=optax.sgd(0.5), **RAW)
    one = fit(rounds=1, **RAW)
    middle = (vector(_start_of(one)) + vector(one.parameters_)) / 2
    np.testing.assert_allclose(vector(half.parameters_), middle, rtol=1e-12)


def test_averaging_space_matters_only_where_clients_differ() -> None:
    alone = FEDERATION.subset(["a"])
    constrained, unconstrained = (fit(alone, rounds=3, average=a, **RAW) for a in ("constrained", "unconstrained"))
    np.testing.assert_allclose(vector(constrained.parameters_), vector(unconstrained.parameters_), rtol=1e-8)
    both = [vector(fit(rounds=3, average=a, **RAW).parameters_) for a in ("constrained", "unconstrained")]
    assert np.abs(both[0] - both[1]).max() > 1e-6


def test_same_budget_separate_is_a_fit_of_each_client_alone() -> None:
    method = fg.FGPR(rounds=4, **OWN)
    separate = fg.Separate(method=method, budget="same").fit(FEDERATION, progress=False)
    for name in FEDERATION:
        alone = method.fit(FEDERATION.subset([name]), progress=False)
        np.testing.assert_allclose(
            vector(separate.learned.personal[name]), vector(alone.learned.shared), rtol=1e-9, err_msg=name
        )


def test_personal_parameters_stay() -> None:
    model = fit(rounds=3, personal=("noise_variance",), **RAW)
    assert set(model.parameters_) == {"lengthscale", "variance"}
    own = {name: float(p["noise_variance"]) for name, p in model.personal_parameters_.items()}
    assert set(own) == {"a", "b", "c"}
    assert len(set(own.values())) == 3
    names = {array["name"] for arrays in model.ledger_["arrays"] for array in arrays}
    assert not any("noise" in name for name in names)


def test_a_kept_optimiser_goes_on_where_it_was() -> None:
    alone = FEDERATION.subset(["a"])
    start: dict[str, Any] = {"start": {"variance": 1.0, "noise_variance": 0.1}}
    kept = fit(alone, rounds=4, local_steps=1, keep_optimiser=True, **RAW, **start)
    together = fit(alone, rounds=1, local_steps=4, **RAW, **start)
    np.testing.assert_allclose(vector(kept.parameters_), vector(together.parameters_), rtol=1e-9)


# --- the exact solver ----------------------------------------------------------------------------------------------


def summed(log_theta: np.ndarray[Any, Any], weights: list[float]) -> float:
    theta = np.exp(log_theta)
    return sum(
        w * fgpr_averaging.negative_log_likelihood(theta, X, y) for w, (X, y) in zip(weights, PAIRS, strict=True)
    )


@pytest.mark.parametrize("weighting", ["joint", "size"])
def test_exact_reaches_the_optimum_that_scipy_finds(weighting: Any) -> None:
    model = fit(solver="exact", weighting=weighting, rounds=30, **RAW)
    weights = [1.0] * 3 if weighting == "joint" else [n / 82 for n in (30, 12, 40)]
    starts = [np.log([ell, 1.0, noise]) for ell in (0.3, 1.0, 3.0) for noise in (0.01, 0.3)]
    best = min(
        (
            scipy.optimize.minimize(summed, u, args=(weights,), method="L-BFGS-B", options={"ftol": 1e-14})
            for u in starts
        ),
        key=lambda result: result.fun,
    )
    assert model.history_["objective"][-1] <= best.fun + 1e-6
    np.testing.assert_allclose(summed(np.log(vector(model.parameters_)), weights), best.fun, atol=1e-6)
    assert model.history_.height <= 15


def test_exact_does_not_depend_on_names_or_order() -> None:
    renamed = fg.Federation.from_arrays(
        {new: (FEDERATION[old].X, FEDERATION[old].Y) for new, old in (("z", "a"), ("y", "b"), ("x", "c"))}
    )
    first, second = fit(solver="exact", **RAW), fit(renamed, solver="exact", **RAW)
    np.testing.assert_allclose(vector(first.parameters_), vector(second.parameters_), rtol=1e-8)


def test_blocks_of_a_large_client_are_independent_clients() -> None:
    comb = {f"{name}{b}": (c.X[b::2], c.Y[b::2]) for name, c in FEDERATION.items() if len(c.X) > 20 for b in (0, 1)}
    comb |= {"b": (FEDERATION["b"].X, FEDERATION["b"].Y)}
    start: dict[str, Any] = {"start": {"variance": 1.0, "noise_variance": 0.1}}
    blocks = fit(solver="exact", block_size=20, **RAW, **start)
    clients = fit(fg.Federation.from_arrays(comb), solver="exact", **RAW, **start)
    np.testing.assert_allclose(vector(blocks.parameters_), vector(clients.parameters_), rtol=1e-6)


def test_exact_stays_in_the_box() -> None:
    x = np.linspace(0.0, 1.0, 25)[:, None]
    deterministic = fg.Federation.from_arrays({"a": (x, np.sin(7 * x[:, 0])), "b": (x, np.cos(5 * x[:, 0]))})
    model = fit(deterministic, solver="exact", noise_floor=1e-3, inputs="none")
    floor = 1e-3 * np.concatenate([c.Y for c in deterministic.clients]).var()
    np.testing.assert_allclose(model.parameters_["noise_variance"], floor, rtol=1e-9)


def test_prior_moves_the_optimum_once() -> None:
    prior = {"lengthscale": fg.LogNormal(mean=math.log(0.2), std=0.05)}
    free, held = fit(solver="exact", **RAW), fit(solver="exact", priors=prior, **RAW)

    def penalised(u: np.ndarray[Any, Any]) -> float:
        return summed(u, [1.0] * 3) + float(((u[0] - math.log(0.2)) / 0.05) ** 2 / 2 + u[0])

    best = scipy.optimize.minimize(penalised, np.log(vector(held.parameters_)), method="Nelder-Mead")
    np.testing.assert_allclose(penalised(np.log(vector(held.parameters_))), best.fun, atol=1e-5)
    assert held.parameters_["lengthscale"][0] < free.parameters_["lengthscale"][0]


def test_averaging_full_batches_ends_where_exact_by_size_does() -> None:
    """With one step a round, averaging is gradient descent on equation 3 in the constrained parameters."""
    exact = fit(solver="exact", weighting="size", **RAW)
    averaged = fit(
        optimiser="sgd", transform="none", learning_rate=2e-3, gradient_scale="none", local_steps=1, rounds=3000,
        lower={"lengthscale": 0.05, "variance": 0.05, "noise_variance": 0.01}, **RAW,
    )  # fmt: skip
    np.testing.assert_allclose(vector(averaged.parameters_), vector(exact.parameters_), rtol=2e-2)


# --- prediction ----------------------------------------------------------------------------------------------------


def test_prediction_is_the_dense_posterior_in_user_units() -> None:
    shifted = fg.Federation.from_arrays({n: (5 + 100 * c.X, 1000 + 7 * c.Y) for n, c in FEDERATION.items()})
    model = fit(shifted, solver="exact")
    p = model.parameters_
    X, y = shifted["a"].X, shifted["a"].Y[:, 0]
    T = 5 + 100 * np.random.default_rng(1).normal(size=(7, 2))
    mean_y = np.concatenate([c.Y for c in shifted.clients]).mean()

    def k(A: Any, B: Any) -> Any:
        return p["variance"] * np.exp(-(((A[:, None] - B[None]) / p["lengthscale"]) ** 2).sum(-1) / 2)

    C = k(X, X) + p["noise_variance"] * np.eye(len(X))
    mean, std = model.predict("a", T, return_std=True)
    np.testing.assert_allclose(mean, mean_y + k(T, X) @ np.linalg.solve(C, y - mean_y), rtol=1e-9)
    variance = p["variance"] - np.einsum("ij,ji->i", k(T, X), np.linalg.solve(C, k(X, T)))
    np.testing.assert_allclose(std**2, variance + p["noise_variance"], rtol=1e-8)
    _, covariance = model.predict("a", T, return_cov=True, include_noise=False)
    np.testing.assert_allclose(np.diagonal(covariance), variance, rtol=1e-6, atol=1e-9)


def test_a_client_that_took_no_part_predicts_from_its_few_points() -> None:
    model = fit(solver="exact")
    rows = FEDERATION["a"]
    as_stranger = model.predict(fg.Client(rows.X, rows.Y), rows.X[:3], return_std=True)
    np.testing.assert_allclose(as_stranger, model.predict("a", rows.X[:3], return_std=True), rtol=1e-12)
    far = model.predict(fg.Client(rows.X[:1], rows.Y[:1]), [[50.0, 50.0]], return_std=True)
    p = model.parameters_
    np.testing.assert_allclose(far[1] ** 2, p["variance"] + p["noise_variance"], rtol=1e-6)


def test_a_stranger_fits_the_personal_parameters_it_lacks() -> None:
    model = fit(rounds=20, personal=("noise_variance",), **RAW)
    random = np.random.default_rng(5)
    X = random.normal(size=(200, 2))
    quiet = np.sin(2 * X[:, 0]) + 0.01 * random.normal(size=200)
    loud = np.sin(2 * X[:, 0]) + 1.0 * random.normal(size=200)
    spread = [model.predict(fg.Client(X, y), X[:5], return_std=True)[1].mean() for y in (quiet, loud)]
    assert spread[0] < 0.2
    assert 0.8 < spread[1] < 1.4


def test_there_is_no_global_model() -> None:
    with pytest.raises(SettingsError, match=r"FGPR has no global model.*fg\.Pooled"):
        fit(rounds=1).predict(None, [[0.0, 0.0]])


def test_pooled_is_one_gp_over_the_union() -> None:
    model = fg.Pooled(method=fg.FGPR(solver="exact")).fit(FEDERATION, progress=False)
    union = fg.Federation.from_arrays(
        {"all": (np.concatenate([X for X, _ in PAIRS]), np.concatenate([y for _, y in PAIRS]))}
    )
    alone = fit(union, solver="exact")
    T = np.zeros((2, 2))
    np.testing.assert_allclose(model.predict("a", T), alone.predict("all", T), rtol=1e-6)
    np.testing.assert_allclose(model.predict(None, T), alone.predict("all", T), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ruonds": 3}, "did you mean \"rounds\""),
        ({"kernel": "rbff"}, 'did you mean "rbf"'),
        ({"rounds": 0}, "rounds=0"),
        ({"batch_size": 2.5}, "positive whole number"),
        ({"solver": "exakt"}, 'did you mean "exact"'),
        ({"solver": "exact", "personal": ("noise_variance",)}, 'needs solver="averaging"'),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        fg.FGPR(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"start": {"lengthscal": 1.0}}, 'did you mean "lengthscale"'),
        ({"personal": ("noise",)}, "noise_variance"),
        ({"start": {"noise_variance": 1e-9}}, "outside the box"),
        ({"kernel": fg.kernels.RBF(active=(5,))}, "active column 5"),
        ({"client_weights": {"a": 1.0}}, "client 'b' needs a weight"),
    ],
)
def test_bad_names_are_refused_when_fitting(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        fit(rounds=1, **settings)


def test_compound_kernels_learn() -> None:
    kernel = fg.kernels.RBF(ard=True, active=(0,)) * fg.kernels.Linear() + fg.kernels.Matern32()
    model = fit(kernel=kernel, rounds=2)
    assert set(model.parameters_) == {"rbf*linear", "matern32", "noise_variance"}
    assert fit(kernel=kernel, solver="exact", rounds=3).history_.height == 3


# --- what else users rely on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [fg.Sequential(), fg.Asynchronous(), fg.Synchronous(cohort=1)], ids=str)
def test_a_client_that_weighs_nothing_changes_nothing(schedule: Any) -> None:
    both = {"a": FEDERATION["a"], "b": FEDERATION["b"]}
    federation = fg.Federation.from_arrays({name: (client.X, client.Y) for name, client in both.items()})
    method = fg.FGPR(client_weights={"a": 0.0, "b": 1.0}, rounds=6, local_steps=2, **RAW)
    model = method.fit(federation, seed=0, schedule=schedule, progress=False)
    changes = [vector_of_round(row) for row in model.history_.iter_rows(named=True)]
    answered = model.ledger_.filter(message="LocalFit", outcome="counted")["client"].to_list()
    assert set(answered) == {"a", "b"}
    for who, before, after in zip(answered[1:], changes, changes[1:], strict=False):
        assert np.allclose(before, after, rtol=1e-14) == (who == "a")


def vector_of_round(row: dict[str, Any]) -> Any:
    return vector({name: row[f"parameters.{name}"] for name in ("lengthscale", "variance", "noise_variance")})


def test_the_published_settings_learn_alone_together_and_pooled() -> None:
    X = np.random.default_rng(0).uniform(0.0, 1.0, size=(60, 1))
    curves = {"a": np.sin(9 * X[:40, 0]), "b": np.cos(9 * X[:, 0])}
    federation = fg.Federation.from_arrays({name: (X[: len(y)], y) for name, y in curves.items()})
    changes: dict[str, Any] = {"rounds": 30, "batch_size": 20, "learning_rate": 0.1}
    method = fg.FGPR.as_published(**changes)
    models = [
        one.fit(federation, seed=0, progress=False)
        for one in (method, fg.Separate.as_published(**changes), fg.Pooled.as_published(**changes))
    ]
    for model in models[:2]:
        assert np.sqrt(np.mean((model.predict("b", X) - curves["b"]) ** 2)) < 0.15
        assert model.history_["objective"][-1] < model.history_["objective"][0]
    assert models[1].parameters_["a"]["lengthscale"] != models[1].parameters_["b"]["lengthscale"]
    assert models[2].predict(None, X).shape == (60,)
    alone = fg.Federation.from_arrays({"a": (X[:40], curves["a"])})
    np.testing.assert_allclose(
        vector(models[1].learned.personal["a"]),
        vector(method.fit(alone, seed=0, progress=False).parameters_),
        rtol=1e-8,
    )


def test_separate_to_convergence_is_the_best_that_scipy_finds_for_each_client() -> None:
    model = fg.Separate().fit(FEDERATION, progress=False)
    for name, (X, y) in zip(FEDERATION.names, PAIRS, strict=True):
        X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
        own = model.learned.personal[name]
        found = fgpr_averaging.negative_log_likelihood(vector(own), X, y)

        def value(u: Any, X: Any = X, y: Any = y) -> float:
            return fgpr_averaging.negative_log_likelihood(np.exp(u), X, y)

        bounds = [(np.log(1e-6), np.log(1e6))] * 2 + [(np.log(1e-4), np.log(1e6))]
        best = min(
            scipy.optimize.minimize(value, np.log([ell, 1.0, noise]), bounds=bounds, method="L-BFGS-B").fun
            for ell in (0.3, 1.0, 3.0)
            for noise in (0.01, 0.3)
        )
        assert found <= best + 1e-6


NOISY = {"noise_variance": fg.LogNormal(mean=math.log(0.5), std=0.1)}
SGD: dict[str, Any] = {"rounds": 1500, "local_steps": 1, "optimiser": "sgd", "learning_rate": 0.3}


def test_a_prior_counts_once_in_averaging_too() -> None:
    """Full batches, small constant steps, clients of one size: averaging ends at the optimum of the joint objective."""
    common: dict[str, Any] = {"priors": NOISY} | RAW
    equal = fg.Federation.from_arrays({name: (X[:12], y[:12]) for name, (X, y) in zip("abc", PAIRS, strict=True)})
    exact = fg.FGPR(solver="exact", **common).fit(equal, progress=False)
    averaged = fg.FGPR(**SGD, **common).fit(equal, progress=False)
    np.testing.assert_allclose(vector(averaged.parameters_), vector(exact.parameters_), rtol=1e-3)
    without = fg.FGPR(solver="exact", **RAW).fit(equal, progress=False)
    assert abs(vector(without.parameters_)[2] / vector(exact.parameters_)[2] - 1) > 0.1


def test_a_prior_of_a_personal_parameter_counts_beside_its_own_client_alone() -> None:
    """Held apart from everything shared, a client's noise is what it would be if the client were the federation."""
    fixed = {"lengthscale": 0.9, "variance": 1.2}
    settings: dict[str, Any] = {"priors": NOISY, "lower": fixed, "upper": fixed, "start": fixed} | RAW
    one = fg.Federation.from_arrays({"b": PAIRS[1]})
    expected = vector(fg.FGPR(solver="exact", **settings).fit(one, progress=False).parameters_)[2]
    personal = fit(personal="noise_variance", **SGD, **settings)
    np.testing.assert_allclose(personal.personal_parameters_["b"]["noise_variance"], expected, rtol=1e-3)
    alone = fg.Separate(fg.FGPR(**SGD, **settings), budget="same").fit(FEDERATION, progress=False)
    np.testing.assert_allclose(alone.parameters_["b"]["noise_variance"], expected, rtol=1e-3)


def test_pooled_by_averaging_has_the_priors_too() -> None:
    settings: dict[str, Any] = {"priors": {"lengthscale": fg.LogNormal(mean=math.log(3.0), std=0.01)}} | RAW
    methods = [fg.FGPR(rounds=400, learning_rate=0.1, **settings), fg.FGPR(solver="exact", **settings)]
    found = [fg.Pooled(method).fit(FEDERATION, progress=False).parameters_["lengthscale"] for method in methods]
    np.testing.assert_allclose(found[0], found[1], rtol=0.02)


def test_parameters_of_clients_alone_are_in_their_own_units() -> None:
    scaled = fg.Federation.from_arrays({name: (10 * X, 100 * y + 7) for name, (X, y) in zip("abc", PAIRS, strict=True)})
    plain, model = (fg.Separate().fit(one, progress=False) for one in (FEDERATION, scaled))
    for name in "abc":
        one, other = plain.parameters_[name], model.parameters_[name]
        np.testing.assert_allclose(other["lengthscale"], 10.0 * one["lengthscale"], rtol=1e-5)
        for variance in ("variance", "noise_variance"):
            np.testing.assert_allclose(other[variance], 1e4 * one[variance], rtol=1e-5)


def test_a_stranger_keeps_to_the_box_the_priors_and_the_units_of_the_model() -> None:
    """Its own likelihood's maximum is far outside: deterministic rows, in large units."""
    X = np.linspace(-1.0, 1.0, 200)[:, None]
    stranger = fg.Client(X, 1e4 * np.sin(3 * X[:, 0]))
    data = {name: (x[:, :1], 1e4 * y) for name, (x, y) in zip("abc", PAIRS, strict=True)}
    federation = fg.Federation.from_arrays(data)

    def noise(**settings: Any) -> float:
        method = fg.FGPR(rounds=3, personal="noise_variance", targets="none", **settings)
        model = method.fit(federation, progress=False)
        with_noise, without = (
            model.predict(stranger, [[0.2]], return_std=True, include_noise=one)[1][0] for one in (True, False)
        )
        of_targets = np.mean(np.concatenate([y for _, y in data.values()]) ** 2)
        return float((with_noise**2 - without**2) / of_targets)

    assert noise() == pytest.approx(1e-4, rel=1e-3), "the noise floor, in the targets' units"
    low = {"noise_variance": 4e7}
    assert noise(lower=low, start=low) > 0.3
    assert noise(priors={"noise_variance": fg.LogNormal(mean=math.log(5e7), std=1e-3)}) > 0.3


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_inputs_far_from_zero_are_learned_alike_whatever_the_padding(shift: float) -> None:
    """A month of seconds since 1970: the padding is at zero, and must not take part."""
    random = np.random.default_rng(1)
    data = {}
    for name, rows in (("a", 40), ("b", 25), ("c", 33)):
        x = np.round(random.random((rows, 1)), 6)
        data[name] = (x + shift, np.sin(6 * x[:, 0]) + 0.1 * random.normal(size=rows))
    model = fg.FGPR(solver="exact", inputs="none").fit(fg.Federation.from_arrays(data), progress=False)
    near = {name: (X - shift, y) for name, (X, y) in data.items()}
    expected = fg.FGPR(solver="exact", inputs="none").fit(fg.Federation.from_arrays(near), progress=False)
    assert model.history_.height == expected.history_.height
    np.testing.assert_allclose(vector(model.parameters_), vector(expected.parameters_), rtol=1e-6)


def test_a_covariance_that_no_start_can_factorise_is_said_and_whose_it_is() -> None:
    from fedgauss.errors import RunError

    x = np.linspace(0.0, 1000.0, 12)[:, None]
    federation = fg.Federation.from_arrays({"tame": (x / 1000.0, np.sin(x[:, 0])), "wild": (x, np.sin(x[:, 0]))})
    method = fg.FGPR(kernel=fg.kernels.Polynomial(degree=60), solver="exact", inputs="none")
    for fitted in (method, fg.Separate(method)):
        with pytest.raises(
            RunError, match=r"every client, but 'wild': its covariance cannot be factorised at any start"
        ):
            fitted.fit(federation, progress=False)


def test_validation_puts_errors_of_held_out_rows_in_the_history_now_and_then() -> None:
    train, held_out = FEDERATION.split(0.7, seed=0)
    model = fg.FGPR(rounds=40, local_steps=1).fit(train, validation=held_out, progress=False)
    seen = model.history_.filter(model.history_["validation_rmse"].is_not_null())
    assert seen["round"].to_list() == [0, *range(1, 40, 2)]
    last = model.evaluate(held_out).filter(client="pooled")
    np.testing.assert_allclose(seen["validation_rmse"][-1], last["rmse"][0], rtol=1e-12)
    np.testing.assert_allclose(seen["validation_nlpd"][-1], last["nlpd"][0], rtol=1e-12)


def test_the_bar_shows_the_round_and_the_objective(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as far as Rich can tell
    monkeypatch.setenv("COLUMNS", "120")
    fg.FGPR(rounds=3, local_steps=1).fit(FEDERATION)
    printed = capsys.readouterr()
    assert printed.out == ""
    for words in ("FGPR", "3/3", "objective "):
        assert words in printed.err
    fg.FGPR(rounds=3, local_steps=1).fit(FEDERATION, progress=False)
    assert capsys.readouterr().err == ""


def test_ctrl_c_while_standardising_stops_too(monkeypatch: Any) -> None:
    from fedgauss.algorithms.moments import Moments
    from fedgauss.errors import RunError

    plain = Moments.server_update

    def pressed(self: Moments, server: Any, total: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return plain(self, server, total)

    monkeypatch.setattr(Moments, "server_update", pressed)
    X = np.arange(14.0).reshape(2, 7)  # of a width that no other test has: what is compiled already is not traced again
    wide = fg.Federation.from_arrays({"a": (X, np.arange(2.0))})
    with pytest.raises(RunError, match="stopped before its first round finished"):
        fg.FGPR(rounds=2).fit(wide, progress=False)
