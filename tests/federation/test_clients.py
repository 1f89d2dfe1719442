"""One client's data: what is taken, what it becomes, and what every refusal says."""

import pickle
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from fedgauss.clients import Client, align_inputs
from fedgauss.columns import client_name

Refusal = Callable[[Callable[[], object]], str]
X3 = np.array([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]])
Y3 = np.array([6.0, 7.0, 8.0])


class TestWhatIsTaken:
    def test_arrays_are_float64_in_c_order_with_a_target_axis(self) -> None:
        client = Client(np.asfortranarray(X3), Y3, name="a")
        assert client.X.flags.c_contiguous
        assert client.Y.shape == (3, 1)
        np.testing.assert_array_equal(client.X, X3)
        np.testing.assert_array_equal(client.Y[:, 0], Y3)
        assert (client.name, client.inputs, client.targets, client.num_rows) == ("a", None, None, 3)

    def test_arrays_are_copied_and_the_callers_stay_writable(self) -> None:
        X, y = X3.copy(), Y3.copy()
        client = Client(X, y)
        X[0, 0], y[0] = -1.0, -1.0
        assert (client.X[0, 0], client.Y[0, 0]) == (X3[0, 0], Y3[0])
        assert X.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            client.X[0, 0] = 1.0

    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "longdouble", ">f8", "<i4"])
    def test_numbers_of_every_kind_become_float64(self, dtype: str) -> None:
        client = Client(np.array([[0], [1]]).astype(dtype), np.array([1, 0]).astype(dtype))
        assert client.X.dtype == client.Y.dtype == np.dtype("float64")
        assert client.X.tolist() == [[0.0], [1.0]]

    @pytest.mark.parametrize("y", [Y3, Y3[:, None], list(Y3), pd.Series(Y3), pl.Series(Y3), pl.DataFrame({"s": Y3})])
    def test_one_target_however_it_is_written(self, y: Any) -> None:
        np.testing.assert_array_equal(Client(X3, y).Y, Y3[:, None])

    def test_two_targets(self) -> None:
        assert Client(X3, np.stack([Y3, Y3], axis=1)).Y.shape == (3, 2)

    def test_one_dimension_is_one_input(self) -> None:
        assert Client(Y3, Y3).X.shape == (3, 1)

    @pytest.mark.parametrize("library", [pd, pl])
    def test_frames_keep_their_names(self, library: Any) -> None:
        client = Client(
            library.DataFrame({"p": [1, 2], "q": [True, False]}),
            library.Series(name="s", data=[3, 4]) if library is pd else library.Series("s", [3, 4]),
        )
        assert (client.inputs, client.targets) == (("p", "q"), ("s",))
        assert client.X.tolist() == [[1.0, 1.0], [2.0, 0.0]]

    def test_frame_columns_that_are_numbers_are_named_by_them(self) -> None:
        assert Client(pd.DataFrame(X3), Y3).inputs == ("0", "1")

    def test_one_row_and_constant_columns_are_data(self) -> None:
        assert Client([[1.0, 0.0]], [2.0]).num_rows == 1
        assert Client(np.ones((4, 2)), np.zeros(4)).num_rows == 4

    @pytest.mark.parametrize(("name", "expected"), [("a", "a"), (7, "7"), (np.int64(7), "7"), (np.str_("a"), "a")])
    def test_names(self, name: Any, expected: str) -> None:
        client = Client(X3, Y3, name=name)
        assert client.name == expected
        assert type(client.name) is str

    def test_it_shows_counts_only(self) -> None:
        assert repr(Client(X3, Y3, name="a")) == 'Client("a": 3 rows, 2 inputs, 1 target)'
        assert repr(Client(X3[:1], Y3[:1])) == "Client(without a name: 1 row, 2 inputs, 1 target)"

    def test_it_survives_a_pickle(self) -> None:
        client = pickle.loads(pickle.dumps(Client(X3, Y3, name="a")))
        np.testing.assert_array_equal(client.X, X3)
        assert client.name == "a"

    def test_other_values_are_checked_and_keep_names(self, refusal: Refusal) -> None:
        client = Client(pl.DataFrame({"p": [1.0], "q": [2.0]}), pl.Series("s", [3.0]), name="a")
        scaled = client.with_values(X=client.X / 2)
        assert (scaled.inputs, scaled.targets, scaled.X.tolist()) == (("p", "q"), ("s",), [[0.5, 1.0]])
        assert client.with_values(X=[[1.0]]).inputs is None
        assert refusal(lambda: client.with_values(Y=[np.nan])).startswith('client "a", column "s": 1 of 1 rows are mis')


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("values", "column", "what"),
        [
            (np.array([[1, "b"], [2, "c"]], dtype=object), "x1", "Python objects"),
            (np.array([[1, 2], [2, 3]], dtype=object), "x0", "Python objects"),
            (np.array([["31415.9"], ["c"]]), "x0", "text"),
            (np.array([[1j], [2.0]]), "x0", "complex numbers"),
            (np.array([["2020-01-01"], ["2020-01-02"]], dtype="datetime64[ns]"), "x0", "dates"),
            (np.array([[1], [2]], dtype="timedelta64[s]"), "x0", "durations"),
            (pd.DataFrame({"p": [1, 2], "when": pd.to_datetime(["2020", "2021"])}), "when", "dates or times"),
            (pd.DataFrame({"p": ["31415.9", "b"]}), "p", "text"),
            (pd.DataFrame({"p": [1, "b"]}), "p", "Python objects"),
            (pd.DataFrame({"p": pd.Categorical(["a", "b"])}), "p", "categories"),
            (pd.DataFrame({"p": [1j, 2j]}), "p", "values (dtype complex128)"),
            (pl.DataFrame({"p": ["a", "b"]}), "p", "text"),
            (pl.DataFrame({"p": [datetime(2020, 1, 1), datetime(2021, 1, 1)]}), "p", "dates or times"),
            (pl.DataFrame({"p": pl.Series(["a", "b"], dtype=pl.Categorical)}), "p", "categories"),
            (pl.DataFrame({"p": pl.Series(["a", "b"], dtype=pl.Enum(["a", "b"]))}), "p", "categories"),
            (pl.DataFrame({"p": [[1], [2]]}), "p", "values (dtype List(Int64))"),
        ],
    )
    def test_what_is_not_a_number(self, refusal: Refusal, values: Any, column: str, what: str) -> None:
        message = refusal(lambda: Client(values, [1.0, 2.0], name="a"))
        assert message.startswith(f'client "a", column "{column}": got {what}')
        assert "expected numbers" in message

    def test_a_target_that_is_text(self, refusal: Refusal) -> None:
        assert refusal(lambda: Client(X3, ["a", "b", "c"], name="a")).startswith('client "a", column "y": got text')
        two = np.array([["a", "b"]] * 3)
        assert refusal(lambda: Client(X3, two, name="a")).startswith('client "a", column "y0": got text')

    @pytest.mark.parametrize("library", ["numpy", "pandas", "polars"])
    @pytest.mark.parametrize(
        ("bad", "what"),
        [
            (np.nan, "missing or NaN"),
            (np.inf, "infinite"),
            (-np.inf, "infinite"),
            (1e300, "so large that squares overflow"),
            (-1e300, "so large that squares overflow"),
        ],
    )
    def test_values_no_method_can_use(self, refusal: Refusal, library: str, bad: float, what: str) -> None:
        X, y = np.full((20, 3), 31415.9), np.full(20, 31415.9)
        y[[7, 9, 11]] = bad
        names = ["x0", "x1", "x2"]

        def frame(X: Any) -> Any:
            return {"numpy": X, "pandas": pd.DataFrame(X, columns=names), "polars": pl.DataFrame(X, schema=names)}[
                library
            ]

        message = refusal(lambda: Client(frame(X), y, name="a"))
        assert message.startswith(
            f'client "a", column "y": 3 of 20 rows are {what}, the first is row 7 (counting from 0)'
        )
        X[[4, 5], 1] = bad
        message = refusal(lambda: Client(frame(X), y, name="a"))
        assert message.startswith(
            f'client "a", column "x1": 2 of 20 rows are {what}, the first is row 4 (counting from 0)'
        )
        assert ("rescale" in message) == (abs(bad) == 1e300)

    @pytest.mark.parametrize(
        "column",
        [
            pd.array([1, None, 3], "Int64"),
            pd.array([True, None, False], "boolean"),
            pd.array([1.5, None, 2.0], "Float64"),
            pd.array([1.5, None, 2.0], "double[pyarrow]"),
            pl.Series([1, None, 3]),
            pl.Series([True, None, False]),
            pl.Series([None, None, None]),
            pl.Series([1.5, None, 3.0]),
        ],
    )
    def test_missing_entries(self, refusal: Refusal, column: Any) -> None:
        library: Any = pl if isinstance(column, pl.Series) else pd
        count, first = (3, 0) if library is pl and column.null_count() == 3 else (1, 1)
        message = refusal(lambda: Client(library.DataFrame({"p": column}), Y3, name="a"))
        assert f'client "a", column "p": {count} of 3 rows are missing or NaN, the first is row {first} ' in message

    def test_masked_entries_are_missing(self, refusal: Refusal) -> None:
        masked = np.ma.masked_array([[1, 2], [3, 31415]], mask=[[False, False], [False, True]])
        assert 'column "x1": 1 of 2 rows are missing' in refusal(lambda: Client(masked, [1, 2], name="a"))

    @pytest.mark.parametrize(
        ("X", "y", "part"),
        [
            (X3, Y3[:2], "X has 3 rows, y has 2"),
            (X3, Y3[None, :], "X has 3 rows, y has 1"),
            (X3[:0], Y3[:0], "no rows"),
            (pd.DataFrame({"p": []}), [], "no rows"),
            (X3[:, :0], Y3, "X has no columns"),
            (pd.DataFrame(index=range(3)), Y3, "X has no columns"),
            (X3, np.empty((3, 0)), "y has no columns"),
            (np.zeros((3, 2, 4)), Y3, "X has shape (3, 2, 4), expected rows by columns"),
            (X3, np.zeros((3, 1, 1)), "y has shape (3, 1, 1), expected rows by columns"),
            (1.0, 2.0, "X has shape (), expected rows by columns"),
            ([[1.0], [2.0, 3.0]], [1, 2], "X is not a table of numbers; its rows must all have the same length"),
            (sparse.csr_matrix(X3), Y3, "X is a sparse matrix, expected a dense array"),
            (sparse.coo_array(X3), Y3, "X is a sparse matrix, expected a dense array"),
            (pl.LazyFrame({"p": Y3}), Y3, "lazy frame"),
            (pd.DataFrame(X3, columns=["p", "p"]), Y3, 'two columns are named "p"'),
            (pd.DataFrame(X3, columns=[1, "1"]), Y3, 'two columns are named "1"'),
            (pd.DataFrame({"s": Y3, "p": Y3}), pd.Series(Y3, name="s"), 'column "s" is both an input and the target'),
        ],
    )
    def test_what_is_not_a_table_with_targets(self, refusal: Refusal, X: Any, y: Any, part: str) -> None:
        message = refusal(lambda: Client(X, y, name="a"))
        assert message.startswith('client "a": ')
        assert part in message

    @pytest.mark.parametrize(
        ("name", "part"),
        [
            ("", "a client's name is empty"),
            ("  ", "a client's name is empty"),
            (1.5, "text or a whole number, got float"),
            (True, "text or a whole number, got bool"),
        ],
    )
    def test_names(self, refusal: Refusal, name: Any, part: str) -> None:
        assert part in refusal(lambda: client_name(name))

    def test_a_client_without_a_name_is_called_so(self, refusal: Refusal) -> None:
        assert refusal(lambda: Client(X3, Y3[:2])).startswith("the client without a name: X has 3 rows")


class TestAlign:
    def test_columns_are_put_in_order_by_name(self) -> None:
        client = Client(pd.DataFrame(X3, columns=["b", "a"]), pd.DataFrame(X3, columns=["t", "s"]))
        aligned = client.align(["a", "b"], ["s", "t"])
        np.testing.assert_array_equal(aligned.X, X3[:, ::-1])
        np.testing.assert_array_equal(aligned.Y, X3[:, ::-1])
        assert (aligned.inputs, aligned.targets) == (("a", "b"), ("s", "t"))
        assert aligned.align(["a", "b"], ["s", "t"]) is aligned

    def test_arrays_are_counted(self, refusal: Refusal) -> None:
        client = Client(X3, Y3)
        assert client.align(["a", "b"], ["s"]) is client
        message = refusal(lambda: client.align(["a"], ["s"]))
        assert message == 'the client without a name: X has 2 columns, the model has 1 ("a")'
        message = refusal(lambda: client.align(["a", "b"], ["s", "t"]))
        assert message == 'the client without a name: y has 1 column, the model has 2 ("s", "t")'

    def test_frames_for_a_model_of_arrays(self, refusal: Refusal) -> None:
        client = Client(pd.DataFrame(X3, columns=["b", "a"]), Y3)
        assert "names like x0 stand for arrays without names: give an array" in refusal(
            lambda: client.align(["x0", "x1"], ["y"])
        )


class TestAlignInputs:
    @pytest.mark.parametrize("library", [pd, pl])
    def test_columns_are_put_in_order_by_name(self, library: Any) -> None:
        inputs = align_inputs(library.DataFrame({"b": [1, 2], "a": [3, 4]}), ["a", "b"])
        assert inputs.tolist() == [[3.0, 1.0], [4.0, 2.0]]
        assert inputs.flags.c_contiguous

    def test_arrays_go_through(self) -> None:
        np.testing.assert_array_equal(align_inputs(X3, ["a", "b"]), X3)
        assert align_inputs([1, 2, 3], ["a"]).tolist() == [[1.0], [2.0], [3.0]]
        assert align_inputs(pl.Series("a", [1, 2]), ["a"]).tolist() == [[1.0], [2.0]]
        assert align_inputs(np.empty((0, 2)), ["a", "b"]).shape == (0, 2)

    @pytest.mark.parametrize(
        ("X", "parts"),
        [
            (X3[:, :1], ['the new inputs: X has 1 column, the model has 2 ("cycle", "load")']),
            (X3[:, 0], ["one dimension, expected rows by 2 columns"]),
            (pl.DataFrame({"cycle": [1]}), ['column "load" is missing, the model has it', 'got "cycle"']),
            (pl.DataFrame({"cycle": [1], "laod": [1]}), ['column "load" is missing', 'did you mean "laod"?']),
            (pl.DataFrame({"cycle": [1], "load": [1], "s2": [1]}), ['column "s2" was not expected', "leave it out"]),
            (pl.DataFrame({"cycle": [1], "load": ["x"]}), ['the new inputs, column "load": got text']),
            (np.array([[0.0, np.nan]]), ['the new inputs, column "load": 1 of 1 rows are missing or NaN']),
        ],
    )
    def test_refusals(self, refusal: Refusal, X: Any, parts: list[str]) -> None:
        message = refusal(lambda: align_inputs(X, ["cycle", "load"]))
        for part in parts:
            assert part in message
