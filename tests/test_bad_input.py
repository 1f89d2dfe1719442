"""Bad input through the doors, as users bring it: what each refusal says, and what only looks bad and works."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import fedgauss as fg
from fedgauss.errors import DataError, FedgaussError, SettingsError

SECRET = 31415.9
"""The value that stands where it does not belong: no message may show it."""
QUICK: dict[str, Any] = {"rounds": 2, "local_steps": 1}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RANDOM.normal(size=12)
AT = np.array([[0.3, -0.2], [5.0, 5.0]])
NAMES = ["load", "cycle"]


def frame(values: Any = X, names: list[str] = NAMES) -> pd.DataFrame:
    return pd.DataFrame(values, columns=names)


def world(**clients: Any) -> fg.Federation:
    return fg.Federation.from_arrays({"b": (X, Y)} | clients)


def fit(federation: fg.Federation | None = None, *, seed: Any = 0, engine: Any = None, **settings: Any) -> Any:
    method = fg.FGPR(**(QUICK | settings))
    return method.fit(federation or world(), seed=seed, engine=engine, progress=False)


@pytest.fixture(scope="module")
def named() -> Any:
    """A model whose columns have names."""
    return fit(fg.Federation.from_arrays({"a": (frame(), Y), "b": (frame(X[:7]), Y[:7])}))


def with_value(values: Any, row: int, value: float, column: int | None = None) -> Any:
    changed = np.array(values, dtype=np.float64)
    changed[row if column is None else (row, column)] = value
    return changed


# --- what is refused -----------------------------------------------------------------------------------------------

BAD_DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "NaN input": (
        lambda: world(a=(frame(with_value(X, 4, np.nan, 1)), Y)),
        'client "a", column "cycle": 1 of 12 rows are missing or NaN, the first is row 4',
    ),
    "infinite input": (
        lambda: world(a=(with_value(X, 3, np.inf, 0), Y)),
        'client "a", column "x0": 1 of 12 rows are infinite, the first is row 3',
    ),
    "NaN target": (
        lambda: world(a=(X, pd.Series(with_value(Y, 11, np.nan), name="health"))),
        'client "a", column "health": 1 of 12 rows are missing or NaN, the first is row 11',
    ),
    "infinite target": (lambda: world(a=(X, with_value(Y, 0, -np.inf))), 'client "a", column "y": 1 of 12 rows are'),
    "empty client": (lambda: world(a=(X[:0], Y[:0])), 'client "a": no rows; leave this client out'),
    "no client": (lambda: fg.Federation([]), "at least one client"),
    "same name twice": (
        lambda: fg.Federation([fg.Client(X, Y, name="a"), fg.Client(X, Y, name="a")]), 'two clients are named "a"',
    ),
    "same name as text and number": (
        lambda: fg.Federation.from_arrays([(7, (X, Y)), ("7", (X, Y))]), 'two clients are named "7"',
    ),
    "objects": (lambda: world(a=(X.astype(object), Y)), 'client "a", column "x0": got Python objects'),
    "text": (lambda: world(a=(X, np.full(12, f"{SECRET}"))), 'client "a", column "y": got text'),
    "complex": (lambda: world(a=(X + 1j, Y)), 'client "a", column "x0": got complex numbers'),
    "another width": (lambda: world(a=(X[:, :1], Y)), 'client "b": X has 2 columns, client "a" has 1'),
    "two targets": (
        lambda: fit(fg.Federation.from_arrays({"a": (X, np.stack([Y, Y], axis=1))})),
        'FGPR learns one target, got 2 ("y0", "y1"); choose one, or fit one model a target',
    ),
    "two targets, pooled": (
        lambda: fg.Pooled().fit(fg.Federation.from_arrays({"a": (X, np.stack([Y, Y], axis=1))}), progress=False),
        "learns one target, got 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "words"), BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_is_refused_by_client_and_column(act: Callable[[], Any], words: str) -> None:
    with pytest.raises(DataError) as info:
        act()
    assert words in str(info.value)
    assert "31415" not in str(info.value)


BAD_REQUESTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "NaN": (lambda m: m.predict("a", frame(with_value(AT, 1, np.nan, 0))), 'column "load": 1 of 2 rows are missing'),
    "infinite": (lambda m: m.predict("a", with_value(AT, 0, np.inf, 1)), 'column "cycle": 1 of 2 rows are infinite'),
    "missing": (lambda m: m.predict("a", frame()[["load"]]), 'column "cycle" is missing, the model has it; got "load"'),
    "renamed": (lambda m: m.predict("a", frame(X, ["load", "cycles"])), 'got "load", "cycles"; did you mean "cycles"?'),
    "extra": (
        lambda m: m.predict("a", frame().assign(health=SECRET)), 'column "health" was not expected, the model has',
    ),
    "too wide": (lambda m: m.predict("a", np.zeros((3, 3))), 'X has 3 columns, the model has 2 ("load", "cycle")'),
    "one row as a vector": (lambda m: m.predict("a", AT[0]), "for one row write X[None]"),
    "a number": (lambda m: m.predict("a", 0.5), "the new inputs: X has shape (), expected rows by columns"),
    "objects": (lambda m: m.predict("a", AT.astype(object)), 'column "x0": got Python objects'),
    "text": (lambda m: m.predict("a", [["31415.9", "2"]]), 'column "x0": got text'),
    "unknown client": (lambda m: m.predict("aa", AT), 'no client "aa" among 2 clients; did you mean "a"?'),
    "a client's missing column": (
        lambda m: m.predict(fg.Client(frame()[["load"]], Y, name="new"), AT), 'client "new": X: column "cycle" is',
    ),
    "a client's two targets": (
        lambda m: m.predict(fg.Client(X, np.stack([Y, Y], axis=1)), AT), "y has 2 columns, the model has 1",
    ),
    "test rows with other columns": (
        lambda m: m.evaluate(fg.Federation.from_arrays({"a": (frame(X, ["load", "cycles"]), Y)})), 'mean "cycles"?',
    ),
    "test rows of a stranger": (
        lambda m: m.evaluate(fg.Federation.from_arrays({"stranger": (frame(), Y)})), 'no client "stranger"',
    ),
    "no such folder": (lambda m: fg.load("gone"), "'gone' holds no model.json: expected a fedgauss model"),
}  # fmt: skip


@pytest.mark.parametrize(("act", "words"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_what_a_model_cannot_do_is_refused(act: Callable[[Any], Any], words: str, named: Any) -> None:
    with pytest.raises(DataError) as info:
        act(named)
    assert words in str(info.value)
    assert "31415" not in str(info.value)


BAD_SETTINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "no rounds": (lambda: fg.FGPR(rounds=0), "FGPR(rounds=0): expected a positive whole number"),
    "unknown kernel": (lambda: fg.FGPR(kernel="mattern32"), 'did you mean "matern32"'),
    "unknown setting": (lambda: fg.FGPR(lerning_rate=0.1), 'did you mean "learning_rate"'),  # type: ignore[call-arg]
    "unknown setting of a baseline": (lambda: fg.Separate(budgt="same"), 'mean "budget"'),  # type: ignore[call-arg]
    "unknown budget": (lambda: fg.Separate(budget="converge"), 'did you mean "converged"'),  # type: ignore[arg-type]
    "batch of none": (lambda: fg.FGPR(batch_size=0), "FGPR(batch_size=0)"),
    "rate that is no number": (lambda: fg.FGPR(learning_rate=float("nan")), "FGPR(learning_rate=nan)"),
    "negative seed": (lambda: fit(seed=-1), "seed=-1: expected a whole number"),
    "broken seed": (lambda: fit(seed=1.5), "seed=1.5: expected a whole number"),
    "seed in words": (lambda: fit(seed="one"), "seed='one': expected a whole number"),
    "huge seed": (lambda: fit(seed=2**70), "expected a whole number from 0 to below 2**63"),
    "negative seed of a split": (lambda: world().split(0.5, seed=-1), "seed=-1: expected a whole number"),
    "engine in words": (lambda: fit(engine="local"), "engine: got str, expected fg.Local(...)"),
    "function for a callback": (
        lambda: fg.FGPR(**QUICK).fit(world(), callbacks=[print], progress=False),  # type: ignore[list-item]
        "callbacks: got builtin_function_or_method, expected objects like fg.Checkpoint",
    ),
    "no such column to stop by": (
        lambda: fg.FGPR(**QUICK).fit(world(), callbacks=[fg.EarlyStopping("validation_nlpd")], progress=False),
        "EarlyStopping: the history has no column 'validation_nlpd'",
    ),
    "personal and exact": (
        lambda: fg.FGPR(solver="exact", personal=("noise_variance",)), 'needs solver="averaging"',
    ),
    "std and cov": (
        lambda: fit().predict("b", AT, return_std=True, return_cov=True), "ask for return_std or return_cov, not both",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "words"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_impossible_settings_are_refused_by_name(act: Callable[[], Any], words: str) -> None:
    with pytest.raises(SettingsError) as info:
        act()
    assert words in str(info.value)


# --- what only looks bad -------------------------------------------------------------------------------------------


def check_predictions(model: Any, client: Any, at: Any = AT) -> None:
    mean, std = model.predict(client, at, return_std=True)
    assert mean.shape == std.shape == (len(at),)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.isfinite(list(model.history_["objective"])).all()


@pytest.mark.parametrize("settings", [{}, {"targets": "client"}, {"solver": "exact", "rounds": 4}], ids=str)
def test_a_client_with_one_row_learns_and_predicts_with_the_others(settings: dict[str, Any]) -> None:
    model = fit(world(a=(X[:1], Y[:1])), **settings)
    check_predictions(model, "a")
    check_predictions(model, "b")
    at_its_row, far = model.predict("a", np.stack([X[0], X[0] + 100.0]), return_std=True)[1]
    assert at_its_row < far, "the client's one row says nothing"


@pytest.mark.parametrize("settings", [{}, {"solver": "exact", "rounds": 4}], ids=str)
def test_columns_that_are_constant_work(settings: dict[str, Any]) -> None:
    constant = X * [1.0, 0.0] + [0.0, 7.0]
    model = fit(fg.Federation.from_arrays({"a": (constant, Y), "b": (constant[:8], np.full(8, 3.0))}), **settings)
    for name in ("a", "b"):
        check_predictions(model, name)
    everywhere = fit(fg.Federation.from_arrays({"a": (X, np.full(12, 1e6)), "b": (X[:8], np.full(8, 1e6))}), **settings)
    np.testing.assert_allclose(everywhere.predict("a", X[:2]), 1e6, rtol=1e-9)


def test_columns_are_found_by_name_wherever_they_stand(named: Any) -> None:
    swapped = frame()[NAMES[::-1]]
    federation = fg.Federation.from_arrays({"a": (frame(), Y), "b": (swapped.iloc[:7], Y[:7])})
    again = fit(federation)
    expected = named.predict("b", frame(AT), return_std=True)
    for model in (named, again):
        for at in (frame(AT)[NAMES[::-1]], pl.DataFrame({"cycle": AT[:, 1], "load": AT[:, 0]}), AT):
            np.testing.assert_array_equal(model.predict("b", at, return_std=True), expected)
    stranger = fg.Client(swapped, Y)
    np.testing.assert_array_equal(named.predict(stranger, AT), named.predict("a", AT))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64", "float16", "float32"])
def test_numbers_of_other_types_are_those_numbers(dtype: str) -> None:
    values = np.array([[0, 1], [1, 1], [1, 0], [0, 0], [1, 1], [0, 1]])
    targets = np.array([0, 1, 1, 0, 1, 0])
    models = [
        fit(fg.Federation.from_arrays({"a": (values.astype(kind), targets.astype(kind))}))
        for kind in ("float64", dtype)
    ]
    expected = models[0].predict("a", AT, return_std=True)
    np.testing.assert_array_equal(models[1].predict("a", AT, return_std=True), expected)
    at = values[:2]
    np.testing.assert_array_equal(models[1].predict("a", at.astype(dtype)), models[0].predict("a", at.astype(float)))


def test_one_target_may_be_a_column() -> None:
    flat, column = fit(world()), fit(fg.Federation.from_arrays({"b": (X, Y[:, None])}))
    np.testing.assert_array_equal(flat.predict("b", AT), column.predict("b", AT))
    assert column.predict("b", AT).shape == (2,)


@pytest.mark.parametrize("minibatch", ["uniform", "nearest"])
def test_a_batch_larger_than_every_client_is_all_its_rows(minibatch: str) -> None:
    large, whole = (fit(batch_size=size, minibatch=minibatch) for size in (1000, 12))
    np.testing.assert_allclose(large.predict("b", AT), whole.predict("b", AT), rtol=1e-9)


def test_no_places_give_no_predictions(named: Any) -> None:
    mean, std = named.predict("a", np.zeros((0, 2)), return_std=True)
    assert mean.shape == std.shape == (0,)


# --- files ---------------------------------------------------------------------------------------------------------


def written(separator: str = ",", ends: str = "\n", quote: str = "", mark: str = "", note: str = "") -> bytes:
    rows = [["load", "cycle", "health", *([note] if note else [])]]
    rows += [
        [repr(v) for v in (*map(float, x), float(y))] + ([note] if note else []) for x, y in zip(X, Y, strict=True)
    ]
    lines = [separator.join(f"{quote}{value}{quote}" for value in row) for row in rows]
    return (mark + ends.join(lines) + ends).encode()


WAYS: dict[str, bytes] = {
    "byte order mark": written(mark="\ufeff"),
    "semicolons": written(separator=";"),
    "carriage returns": written(ends="\r\n"),
    "quotes": written(quote='"'),
    "quoted commas": written(quote='"', note="a, b; c"),
    "all of it": written(separator=";", ends="\r\n", quote='"', mark="\ufeff", note="a, b; c"),
}


@pytest.mark.parametrize("content", WAYS.values(), ids=WAYS)
def test_however_a_file_is_written_the_same_is_learned(content: bytes, named: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    (tmp_path / "b.csv").write_bytes(b"".join(written().splitlines(keepends=True)[:8]))
    federation = fg.Federation.read(tmp_path, target="health", inputs=NAMES)
    expected = named.predict("a", AT, return_std=True)
    np.testing.assert_array_equal(fit(federation).predict("a", AT, return_std=True), expected)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b""), 'client "a": the file is empty (0 bytes)'),
        (lambda path: path.write_bytes(bytes(range(256)) * 20), 'client "a": the file is not UTF-8 text'),
        (lambda path: path.write_bytes(b"\x00\x01\x02\n" * 20), 'client "a": no column "health" (target)'),
        (lambda path: path.mkdir(), 'folder "a.csv" holds no CSV or Parquet file'),
        (lambda path: os.symlink("a.csv", path), 'client "a": there is no file "a.csv"'),
        (lambda path: None, 'client "a": there is no file "a.csv"'),
    ],
    ids=["empty", "binary", "zeros", "folder", "link to itself", "none"],
)
def test_files_that_cannot_be_read_are_refused(make: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    make(tmp_path / "a.csv")
    with pytest.raises(DataError) as info:
        fg.Federation.read(tmp_path / "a.csv", target="health")
    assert words in str(info.value)
    assert str(tmp_path) not in str(info.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(written())
    (tmp_path / "a.csv").chmod(0)
    with pytest.raises(DataError, match=r'client "a": the file cannot be read \(Permission denied\)'):
        fg.Federation.read(tmp_path / "a.csv", target="health")


def test_a_place_that_cannot_be_written_to_is_said(named: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FedgaussError, match=r"could not write 'model': (Not a directory|File exists)"):
        named.save(tmp_path / "file" / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# --- arguments of another kind -------------------------------------------------------------------------------------

WRONG_KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "a kernel's class": (lambda: fg.FGPR(kernel=fg.kernels.RBF), r"FGPR\(kernel=...\): got the class RBF"),  # type: ignore[arg-type]
    "no federation": (lambda: fg.FGPR().fit({"a": (X, Y)}), "federation: got dict, expected fg.Federation"),  # type: ignore[arg-type]
    "schedule by name": (lambda: quick(schedule="sequential"), r"schedule: got str, expected fg\.Synchronous"),
    "a callback alone": (lambda: quick(callbacks=fg.EarlyStopping()), "callbacks: got EarlyStopping, expected a list"),
    "a pair to validate": (lambda: quick(validation=(X, Y)), "validation: got tuple, expected a federation"),
    "no optimiser": (lambda: fg.FGPR(optimiser=object()), r"FGPR\(optimiser=...\): got object"),
    "a number as prior": (lambda: fg.FGPR(priors={"lengthscale": 1.0}), r"priors\['lengthscale'\]\): got float"),  # type: ignore[dict-item]
    "start of several": (lambda: fg.FGPR(start={"variance": [1.0, 2.0]}), r"start\['variance'\]=list\): expected a"),  # type: ignore[dict-item]
    "weight as text": (lambda: fg.FGPR(client_weights={"a": "1"}), "expected a number"),  # type: ignore[dict-item]
    "infinite weight": (lambda: fg.FGPR(client_weights={"a": np.inf}), "client 'a' needs a finite weight"),
    "infinite rate": (lambda: fg.FGPR(learning_rate=np.inf), "learning_rate=inf.: expected a positive number"),
    "pooled of a word": (lambda: fg.Pooled("x"), r"Pooled\(method\): got str"),  # type: ignore[arg-type]
    "separate of pooled": (lambda: fg.Separate(fg.Pooled()), r"Separate\(method\): got Pooled"),  # type: ignore[arg-type]
    "arrays of a number": (lambda: fg.Federation.from_arrays(5), "for every client, got int"),  # type: ignore[arg-type]
    "files of nothing": (lambda: fg.Federation.read(None, target="y"), "paths: got NoneType"),  # type: ignore[arg-type]
    "upper below lower": (lambda: quick(lower={"variance": 2.0}, upper={"variance": 1.0}), "upper: variance is below"),
}


def quick(**given: Any) -> Any:
    fitting = {key: given.pop(key) for key in ("schedule", "callbacks", "validation") if key in given}
    federation = fg.Federation.from_arrays({"a": (X, Y)})
    return fg.FGPR(rounds=1, local_steps=1, **given).fit(federation, progress=False, **fitting)


@pytest.mark.parametrize(("act", "words"), WRONG_KINDS.values(), ids=WRONG_KINDS)
def test_arguments_of_another_kind_are_refused_by_name(act: Callable[[], Any], words: str) -> None:
    with pytest.raises(FedgaussError, match=words):
        act()


def test_learned_parameters_are_a_start() -> None:
    learned = quick(inputs="none", targets="none").parameters_
    again = quick(inputs="none", targets="none", start=learned)
    assert again.learned.start == learned


@pytest.mark.parametrize("act", ["predict", "posterior", "score"])
def test_rows_in_the_place_of_a_client_are_refused_and_not_shown(act: str) -> None:
    model = quick()
    further = {"predict": (X,), "posterior": (), "score": (X, Y)}[act]
    for rows in ((X, Y), X, [1.2345678]):
        with pytest.raises(DataError, match=r"client: got \w+, expected the name of a client") as info:
            getattr(model, act)(rows, *further)
        assert not any(mark in str(info.value) for mark in ("1.23", "[[", "array("))


def test_a_pooled_model_takes_no_rows_beside_its_own() -> None:
    model = fg.Pooled(fg.FGPR(rounds=1)).fit(fg.Federation.from_arrays({"a": (X, Y)}), progress=False)
    with pytest.raises(DataError, match="takes no further rows: pass None"):
        model.predict(fg.Client(X, Y + 50.0), X)


def test_what_the_caller_does_to_its_arrays_later_changes_nothing() -> None:
    x, y = np.array(X, dtype=float), np.array(Y, dtype=float)
    federation = fg.Federation.from_arrays({"a": (x, y)})
    x[0], y[0] = np.nan, np.inf
    assert np.isfinite(federation["a"].X).all()
    assert np.isfinite(federation["a"].Y).all()
    with pytest.raises(ValueError, match="read-only"):
        federation["a"].Y[0] = 0.0
