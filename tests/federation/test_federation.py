"""The federation: one schema for all clients, whatever they came in and in whatever order."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgauss import federation as federation_module
from fedgauss.clients import Client
from fedgauss.errors import SettingsError
from fedgauss.federation import Federation

Refusal = Callable[[Callable[[], object]], str]


def arrays(*sizes: int, num_inputs: int = 2) -> dict[str, tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return {f"c{k}": (rng.normal(size=(n, num_inputs)), rng.normal(size=n)) for k, n in enumerate(sizes)}


def assert_same(left: Federation, right: Federation) -> None:
    assert left.names == right.names
    for name in left:
        np.testing.assert_array_equal(left[name].X, right[name].X)
        np.testing.assert_array_equal(left[name].Y, right[name].Y)


class TestContainer:
    def test_clients_are_sorted_by_name(self) -> None:
        data = arrays(3, 4, 5)
        federation = Federation.from_arrays({name: data[name] for name in ("c2", "c0", "c1")})
        assert federation.names == tuple(federation) == ("c0", "c1", "c2")
        assert federation.sizes.tolist() == [3, 4, 5]
        assert federation.sizes.dtype == np.int64
        assert (len(federation), federation.num_rows) == (3, 12)
        assert [(name, client.num_rows) for name, client in federation.items()] == [("c0", 3), ("c1", 4), ("c2", 5)]
        assert_same(federation, Federation.from_arrays(data))

    def test_columns_without_names_are_numbered(self) -> None:
        federation = Federation.from_arrays(arrays(3, 4))
        assert (federation.inputs, federation.targets) == (("x0", "x1"), ("y",))
        two = Federation.from_arrays({"a": (np.zeros((3, 1)), np.zeros((3, 2)))})
        assert two.targets == ("y0", "y1")

    def test_it_shows_counts_only(self) -> None:
        assert repr(Federation.from_arrays(arrays(3, 4))) == "Federation(2 clients, 7 rows, 2 inputs, 1 target)"

    def test_a_client_by_name(self, refusal: Refusal) -> None:
        federation = Federation.from_arrays([("7", (np.zeros((1, 1)), [1])), ("south", (np.zeros((2, 1)), [1, 2]))])
        assert federation["south"].num_rows == 2
        assert federation[7] is federation["7"]
        assert "south" in federation
        assert "west" not in federation
        assert refusal(lambda: federation["sout"]) == 'no client "sout" among 2 clients; did you mean "south"?'
        assert refusal(lambda: federation["zzz"]) == 'no client "zzz" among 2 clients'

    def test_pairs(self) -> None:
        assert_same(Federation.from_arrays(arrays(3, 4)), Federation.from_arrays(list(arrays(3, 4).items())))

    def test_subset(self, refusal: Refusal) -> None:
        federation = Federation.from_arrays(arrays(3, 4, 5))
        assert federation.subset(["c2", "c0"]).names == ("c0", "c2")
        assert federation.subset("c1").names == ("c1",)
        assert 'no client "c9"' in refusal(lambda: federation.subset(["c9"]))
        assert "at least one client" in refusal(lambda: federation.subset([]))

    def test_map(self) -> None:
        federation = Federation.from_arrays(arrays(3, 4))
        shifted = federation.map(lambda client: client.with_values(Y=client.Y + 1))
        np.testing.assert_array_equal(shifted["c1"].Y, federation["c1"].Y + 1)

    def test_single_target(self, refusal: Refusal) -> None:
        Federation.from_arrays(arrays(3)).single_target("FGPR")
        two = Federation.from_arrays({"a": (np.zeros((3, 1)), pd.DataFrame({"s": [1, 2, 3], "t": [1, 2, 3]}))})
        message = refusal(lambda: two.single_target("FGPR"))
        assert message.startswith('FGPR learns one target, got 2 ("s", "t"); choose one')

    def test_align(self, refusal: Refusal) -> None:
        frame = pl.DataFrame({"unit": [1, 1], "b": [1, 2], "a": [3, 4], "y": [5, 6]})
        federation = Federation.from_frame(frame, client="unit", target="y")
        np.testing.assert_array_equal(federation.align(frame.select("a", "b")), federation["1"].X)
        assert 'column "y" was not expected' in refusal(lambda: federation.align(frame.select("a", "b", "y")))


class TestSchema:
    def test_columns_are_put_in_order_by_name(self) -> None:
        frame = pd.DataFrame({"p": [1.0, 2.0], "q": [3.0, 4.0]})
        federation = Federation.from_arrays({"a": (frame, [1, 2]), "b": (frame[["q", "p"]], [1, 2])})
        assert federation.inputs == ("p", "q")
        np.testing.assert_array_equal(federation["a"].X, federation["b"].X)

    def test_targets_are_put_in_order_by_name(self) -> None:
        Y = pd.DataFrame({"s": [1.0], "t": [2.0]})
        federation = Federation.from_arrays({"a": ([[0.0]], Y), "b": ([[0.0]], Y[["t", "s"]])})
        np.testing.assert_array_equal(federation["b"].Y, [[1.0, 2.0]])

    @pytest.mark.parametrize(
        ("columns", "parts"),
        [
            (["cycle"], ['column "load" is missing, client "a" has it', 'got "cycle"']),
            (["cycle", "lode"], ['column "load" is missing', 'did you mean "lode"?']),
            (["cycle", "load", "s9"], ['column "s9" was not expected, client "a" has "cycle", "load"', "leave it out"]),
        ],
    )
    def test_missing_renamed_and_extra_columns(self, refusal: Refusal, columns: list[str], parts: list[str]) -> None:
        first = pd.DataFrame({"cycle": [1.0], "load": [2.0]})
        other = pl.DataFrame(np.ones((1, len(columns))), schema=columns)
        message = refusal(lambda: Federation.from_arrays({"b": (other, [1]), "a": (first, [1])}))
        assert message.startswith('client "b": X')
        for part in parts:
            assert part in message

    def test_a_renamed_target(self, refusal: Refusal) -> None:
        data = {"a": ([[1.0]], pd.Series([1.0], name="s2")), "b": ([[1.0]], pd.Series([1.0], name="s_2"))}
        message = refusal(lambda: Federation.from_arrays(data))
        assert message.startswith('client "b": y: column "s2" is missing, client "a" has it')

    def test_arrays_of_another_width(self, refusal: Refusal) -> None:
        data = {"a": (np.ones((2, 2)), [1, 2]), "b": (np.ones((2, 3)), [1, 2])}
        message = refusal(lambda: Federation.from_arrays(data))
        assert message == 'client "b": X has 3 columns, client "a" has 2 ("x0", "x1")'

    def test_names_at_some_clients_only(self, refusal: Refusal) -> None:
        frame = pd.DataFrame({"p": [1.0], "q": [2.0]})
        message = refusal(lambda: Federation.from_arrays({"a": (frame.to_numpy(), [1]), "b": (frame, [1])}))
        assert message.startswith('client "a": X has no column names, that of client "b" has')
        one = Federation.from_arrays({"a": (frame[["p"]].to_numpy(), [1]), "b": (frame[["p"]], [1])})
        assert one.inputs == ("p",)

    @pytest.mark.parametrize(
        ("data", "part"),
        [
            ({}, "at least one client"),
            ([("a", ([[1]], [1])), ("a", ([[2]], [1]))], 'two clients are named "a"'),
            ({1: ([[1]], [1]), "1": ([[2]], [1])}, 'two clients are named "1"'),
            ({"a": np.ones((2, 2))}, 'client "a": expected a pair (X, y), got ndarray'),
            ({"": ([[1]], [1])}, "a client's name is empty"),
            ({"a": ([[1e-200], [0.0]], [1, 2]), "b": ([[0.0]], [1])}, 'client "a", column "x0": values are so small'),
        ],
    )
    def test_refusals(self, refusal: Refusal, data: Any, part: str) -> None:
        assert part in refusal(lambda: Federation.from_arrays(data))

    def test_a_client_without_a_name(self, refusal: Refusal) -> None:
        assert "needs a name" in refusal(lambda: Federation([Client([[1.0]], [1.0])]))

    def test_small_values_beside_ordinary_ones_and_zeros_are_data(self) -> None:
        Federation.from_arrays({"a": ([[1e-200, 0.0]], [0.0]), "b": ([[1.0, 0.0]], [0.0])})


class TestFromFrame:
    FRAME = pl.DataFrame(
        {
            "unit": ["b", "a", "b"],
            "cycle": [1, 2, 3],
            "load": [4.0, 5.0, 6.0],
            "s2": [7.0, 8.0, 9.0],
            "note": list("xyz"),
        }
    )

    def test_rows_go_to_their_clients_in_order(self) -> None:
        federation = Federation.from_frame(self.FRAME, client="unit", target="s2", inputs=["load", "cycle"])
        assert (federation.names, federation.inputs, federation.targets) == (("a", "b"), ("load", "cycle"), ("s2",))
        assert federation["b"].X.tolist() == [[4.0, 1.0], [6.0, 3.0]]
        assert federation["b"].Y.tolist() == [[7.0], [9.0]]

    def test_every_other_column_is_an_input(self) -> None:
        federation = Federation.from_frame(self.FRAME.drop("note"), client="unit", target="s2")
        assert federation.inputs == ("cycle", "load")

    def test_two_targets_and_one_input_as_text(self) -> None:
        federation = Federation.from_frame(self.FRAME, client="unit", target=["s2", "load"], inputs="cycle")
        assert (federation.inputs, federation.targets) == (("cycle",), ("s2", "load"))

    @pytest.mark.parametrize("labels", [pd.Series([2, 1, 2]), pd.Categorical(["2", "1", "2"]), ["2", "1", "2"]])
    def test_labels(self, labels: Any) -> None:
        frame = pd.DataFrame({"unit": labels, "x": [1, 2, 3], "y": [4, 5, 6]})
        federation = Federation.from_frame(frame, client="unit", target="y")
        assert federation.names == ("1", "2")
        assert federation["2"].X.tolist() == [[1.0], [3.0]]

    @pytest.mark.parametrize(
        ("changes", "part"),
        [
            (
                {"client": "units"},
                'no column "units" (client column); got "unit", "cycle", "load", "s2", "note"; did you',
            ),
            (
                {"target": "s22"},
                'no column "s22" (target); got "unit", "cycle", "load", "s2", "note"; did you mean "s2"?',
            ),
            ({"inputs": ["cycles"]}, 'no column "cycles" (input); got'),
            ({"inputs": ["cycle", "cycle"]}, 'column "cycle" is listed 2 times (input and input)'),
            ({"inputs": ["cycle", "s2"]}, 'column "s2" is listed 2 times (target and input)'),
            ({"inputs": ["unit"]}, 'column "unit" is listed 2 times (input and client column)'),
            ({"inputs": []}, 'no input column is left beside "s2"'),
            ({"target": []}, "no target column was named"),
            ({"inputs": None}, 'every client, column "note": got text'),
        ],
    )
    def test_refusals(self, refusal: Refusal, changes: dict[str, Any], part: str) -> None:
        chosen = {"client": "unit", "target": "s2", "inputs": ["cycle"]} | changes
        assert part in refusal(lambda: Federation.from_frame(self.FRAME, **chosen))

    def test_rows_are_counted_in_the_whole_frame(self, refusal: Refusal) -> None:
        frame = pl.DataFrame({"unit": list("abab"), "x": [0.0, 1.0, 31415.9, np.nan], "y": [1, 2, 3, 4]})
        message = refusal(lambda: Federation.from_frame(frame, client="unit", target="y"))
        assert message.startswith('client "b", column "x": 1 of 2 rows are missing or NaN, the first is row 3 ')

    @pytest.mark.parametrize(
        ("frame", "part"),
        [
            (
                pd.DataFrame({"unit": ["a", None], "x": [1, 2], "y": [1, 2]}),
                "1 of 2 rows are without a client, the first is row 1",
            ),
            (pd.DataFrame({"unit": [1.0, np.nan], "x": [1, 2], "y": [1, 2]}), "1 of 2 rows are without a client"),
            (
                pl.DataFrame({"unit": [1.5], "x": [1], "y": [1]}),
                'column "unit": a client\'s name must be text or a whole',
            ),
            (pl.DataFrame({"unit": [""], "x": [1], "y": [1]}), 'column "unit": a client\'s name is empty'),
            (pl.DataFrame({"unit": [], "x": [], "y": []}), "the table has no rows"),
            (pl.LazyFrame({"unit": [1], "x": [1], "y": [1]}), "call .collect() first"),
            (np.ones((2, 3)), "expected a pandas or polars DataFrame, got ndarray"),
            (pd.DataFrame([[1, 2, 3, 4]], columns=["unit", "x", "x", "y"]), 'two columns are named "x"'),
        ],
    )
    def test_bad_frames(self, refusal: Refusal, frame: Any, part: str) -> None:
        assert part in refusal(lambda: Federation.from_frame(frame, client="unit", target="y"))


class TestSplit:
    @pytest.mark.parametrize("fraction", [0.1, 0.5, 0.99])
    def test_every_row_lands_once_and_one_stays(self, fraction: float) -> None:
        federation = Federation.from_arrays(arrays(1, 2, 7, 50))
        train, test = federation.split(fraction, seed=3)
        assert train.names == federation.names
        for name, client in federation.items():
            aside = test[name].X if name in test else np.empty((0, 2))
            assert len(aside) == min(round(fraction * client.num_rows), client.num_rows - 1)
            rows = np.concatenate([train[name].X, aside])
            np.testing.assert_array_equal(rows[np.lexsort(rows.T)], client.X[np.lexsort(client.X.T)])

    def test_inputs_and_targets_stay_together(self) -> None:
        federation = Federation.from_arrays({"a": (np.arange(20.0), np.arange(20.0))})
        for part in federation.split(0.3, seed=0):
            np.testing.assert_array_equal(part["a"].X, part["a"].Y)
            assert (np.diff(part["a"].X[:, 0]) > 0).all()

    def test_it_depends_on_seed_and_name_alone(self) -> None:
        federation = Federation.from_arrays(arrays(30, 30, 30))
        assert_same(federation.split(0.5, seed=1)[0], federation.split(0.5, seed=1)[0])
        alone = federation.subset(["c1"]).split(0.5, seed=1)[0]
        np.testing.assert_array_equal(alone["c1"].X, federation.split(0.5, seed=1)[0]["c1"].X)
        assert (alone["c1"].X != federation.split(0.5, seed=2)[0]["c1"].X).any()

    def test_clients_differ(self) -> None:
        same = (np.arange(30.0), np.arange(30.0))
        train, _ = Federation.from_arrays({"a": same, "b": same}).split(0.5, seed=1)
        assert (train["a"].X != train["b"].X).any()

    def test_refusals(self, refusal: Refusal) -> None:
        federation = Federation.from_arrays(arrays(1, 1))
        assert "no client has enough rows" in refusal(lambda: federation.split(0.5, seed=0))
        for fraction in (0.0, 1.0, -1.0, float("nan")):
            with pytest.raises(SettingsError, match="expected a number between 0 and 1"):
                federation.split(fraction, seed=0)


sizes_of_clients = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(sizes=sizes_of_clients, order=st.permutations(["p", "q", "r"]), seed=st.integers(0, 99))
def test_permuting_columns_rows_of_clients_and_libraries_changes_nothing(
    sizes: list[int], order: list[str], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    labels = np.repeat([f"c{k}" for k in range(len(sizes))], sizes)
    table = {name: rng.normal(size=len(labels)) for name in ("p", "q", "r", "s")} | {"unit": labels}
    X = np.stack([table[name] for name in ("p", "q", "r")], axis=1)
    expected = Federation.from_arrays({name: (X[labels == name], table["s"][labels == name]) for name in set(labels)})

    shuffled = np.lexsort((np.arange(len(labels)), rng.permutation(len(sizes))[[int(name[1:]) for name in labels]]))
    permuted = {name: table[name][shuffled] for name in [*order, "unit", "s"]}
    frames = [
        Federation.from_frame(library.DataFrame(permuted), client="unit", target="s", inputs=["p", "q", "r"])
        for library in (pd, pl)
    ]
    by_client = Federation.from_arrays(
        {
            name: (
                pl.DataFrame(table).filter(pl.col("unit") == name).select(order if k else ["p", "q", "r"]),
                table["s"][labels == name],
            )
            for k, name in enumerate(sorted(set(labels)))
        }
    )
    for federation in [*frames, by_client]:
        assert_same(federation, expected)
        assert federation.inputs == ("p", "q", "r")


def test_the_data_side_needs_no_jax_and_no_pandas() -> None:
    code = """
import sys, types
package = types.ModuleType("fedgauss")  # in place of the real one, which imports everything
package.__path__ = sys.argv[1:]
sys.modules["fedgauss"] = package
import fedgauss.buckets
print([name for name in ("jax", "pandas") if name in sys.modules])
"""
    folder = str(Path(federation_module.__file__).parent)
    run = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
