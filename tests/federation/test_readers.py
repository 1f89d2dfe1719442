"""CSV and Parquet files, as people write them, and what is said of those that cannot be read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedgauss.federation import Federation

Refusal = Callable[[Callable[[], object]], str]
EXPECTED = [[1.0, 2.0], [3.0, 4.0]]


def read(folder: Path, content: bytes | str, name: str = "north.csv", **options: Any) -> Federation:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return Federation.read(folder, **{"target": "y", **options})


class TestWhatIsRead:
    @pytest.mark.parametrize(
        "content",
        [
            "a,b,y\n1,2,5\n3,4,6\n",
            "a,b,y\n1,2,5\n3,4,6",
            "a,b,y\r\n1,2,5\r\n3,4,6\r\n",
            "a;b;y\n1;2;5\n3;4;6\n",
            "\ufeffa;b;y\r\n1;2;5\r\n3;4;6\r\n",
            "y,a,b\n5,1,2\n6,3,4\n",
            '"a","b","y"\n"1","2","5"\n3,4,6\n',
            "a, b, y\n 1, 2 ,5\n3,4, 6\n",
            "a,b,y\n1,2,5\n3,4,6\n\n\n",
            "a,b,y\n1,2,5\n3,4,6\n,,\n",
            "\n\na,b,y\n\n1,2,5\n3,4,6\n",
            "a,b,y\n1.0,2e0,+5\n3,4,6\n",
        ],
    )
    def test_csv(self, tmp_path: Path, content: str) -> None:
        federation = read(tmp_path, content)
        assert federation.names == ("north",)
        assert (federation.inputs, federation.targets) == (("a", "b"), ("y",))
        assert federation["north"].X.tolist() == EXPECTED
        assert federation["north"].Y.tolist() == [[5.0], [6.0]]

    def test_quoted_separators_and_line_ends(self, tmp_path: Path) -> None:
        content = '"a,b;c";"long\nname";y;note\n1;2;5;"p;q"\n3;4;6;"r\ns"\n'
        federation = read(tmp_path, content, inputs=["a,b;c", "long\nname"])
        assert federation["north"].X.tolist() == EXPECTED

    def test_separators_within_quotes_of_the_header_do_not_count(self, tmp_path: Path) -> None:
        federation = read(tmp_path, '"a;b;c;d","e;f",y\n1,2,5\n3,4,6\n')
        assert federation.inputs == ("a;b;c;d", "e;f")
        assert federation["north"].X.tolist() == EXPECTED

    def test_true_and_false(self, tmp_path: Path) -> None:
        assert read(tmp_path, "a,y\ntrue,1\nFalse,2\n")["north"].X.tolist() == [[1.0], [0.0]]

    def test_columns_that_are_not_used_may_hold_anything(self, tmp_path: Path) -> None:
        content = ",a,b,y,a2,a2,when,\n0,1,2,5,x,,2020,\n1,3,4,6,,,2021,\n"
        assert read(tmp_path, content, inputs=["a", "b"])["north"].X.tolist() == EXPECTED

    def test_pandas_writes_polars_reads(self, tmp_path: Path) -> None:
        values = np.random.default_rng(0).normal(size=(20, 3)) * 10.0 ** np.arange(-10, 20, 10)
        frame = pd.DataFrame(values, columns=["a", "b", "y"])
        frame.to_csv(tmp_path / "north.csv", index=False)
        frame.to_parquet(tmp_path / "south.parquet")
        federation = Federation.read(tmp_path, target="y")
        for name in ("north", "south"):
            np.testing.assert_array_equal(federation[name].X, values[:, :2])

    def test_columns_are_put_in_order_by_name(self, tmp_path: Path) -> None:
        (tmp_path / "south.csv").write_text("y;b;a\n5;2;1\n6;4;3\n")
        federation = read(tmp_path, "a,b,y\n1,2,5\n3,4,6\n")
        assert federation["south"].X.tolist() == federation["north"].X.tolist() == EXPECTED

    def test_paths(self, tmp_path: Path) -> None:
        for name in ("a.csv", "b.CSV", "c[1].csv", "README.txt", ".hidden.csv"):
            (tmp_path / name).write_text("x,y\n1,2\n")
        one = str(tmp_path / "a.csv")
        cases: list[tuple[Any, tuple[str, ...]]] = [
            (tmp_path, ("a", "b", "c[1]")),
            (str(tmp_path / "*.csv"), ("a", "c[1]")),
            (tmp_path / "[ab].[cC]*", ("a", "b")),
            (one, ("a",)),
            (tmp_path / "c[1].csv", ("c[1]",)),
            ([one, tmp_path / "b.CSV"], ("a", "b")),
            (iter([one]), ("a",)),
        ]
        for paths, names in cases:
            assert Federation.read(paths, target="y").names == names

    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_one_file_with_a_client_column(self, tmp_path: Path, suffix: str) -> None:
        frame = pl.DataFrame(
            {"unit": ["007", "8", "007"], "a": [1, 2, 3], "y": [4.0, 5.0, 6.0], "note": ["p", "q", "r"]}
        )
        path = tmp_path / f"fleet.{suffix}"
        frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
        federation = Federation.read(path, client="unit", target="y", inputs=["a"])
        assert federation.names == ("007", "8")
        assert federation["007"].X.tolist() == [[1.0], [3.0]]


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("content", "part"),
        [
            ("", "the file is empty (0 bytes)"),
            ("\n\n", "the file has no header line"),
            ("a,y", "the file has a header but no rows"),
            ("a,y\n", "the file has a header but no rows"),
            ("a,y\n\n\n", "the file has a header but no rows"),
            ("a,y\n,\n", "no rows"),
            ("a,y\n1,2\n31415.9\n", "row 1 (counting from 0) has 1 fields, the header has 2"),
            ("a,y\n31415.9\n1,2\n", "row 0 (counting from 0) has 1 fields, the header has 2"),
            ("a,y\n1,2\n3,4,31415.9\n", "row 1 (counting from 0) has 3 fields, the header has 2"),
            ('a,y\n"1,2\n3,31415.9\n', "row 0 (counting from 0) has 1 fields, the header has 2"),
            (b"a,y\n1,\xff\n", "the file is not UTF-8 text"),
            (b"a,note,y\n1,\xff,2\n", "the file is not UTF-8 text"),
            ("température,y\n1,2\n".encode("latin-1"), "the file is not UTF-8 text"),
            ("a,y\n1,2\n".encode("utf-16"), "the file is not UTF-8 text"),
            ("a\ty\n1\t2\n", "separated by tabs, expected commas or semicolons"),
            ("a,y\r1,2\r", "lines end with a carriage return alone"),
            ("31415.9,2\n3,4\n", "the first line holds numbers, expected a header with column names"),
            ("north,31415.9\nnorth,4\n", "the first line holds numbers, expected a header with column names"),
            (",a,y\n0,1,2\n", "a column has no name (an index?)"),
            ("a,a,y\n0,1,2\n", 'two columns are named "a"'),
            ("a,t\n0,1\n", 'no column "y" (target); got "a", "t"'),
            ("y\n1\n", 'no input column is left beside "y"'),
        ],
    )
    def test_files(self, refusal: Refusal, tmp_path: Path, content: bytes | str, part: str) -> None:
        message = refusal(lambda: read(tmp_path, content))
        assert message.startswith('client "north": ')
        assert part in message
        assert str(tmp_path) not in message

    @pytest.mark.parametrize(
        ("content", "what"),
        [
            ("a,y\n1,2\n,3\n", "missing or NaN, the first is row 1 "),
            ("a,y\n1,2\nnan,3\n", "missing or NaN, the first is row 1 "),
            ("a,y\n1,2\n\n3,4\n", "missing or NaN, the first is row 1 "),
            ("a,y\n1,2\ninf,3\n", "infinite, the first is row 1 "),
            ("a,y\n1,2\n1e400,3\n", "infinite, the first is row 1 "),
            ("a,y\n1,2\n-1e200,3\n", "so large that squares overflow, the first is row 1 "),
            ("a,y\n1,2\n31415.9km,3\n", "not numbers, the first is row 1 (counting from 0); text, a unit or a mark"),
            ("a,y\n1,2\nNA,3\n", "not numbers, the first is row 1 (counting from 0); text, a unit or a mark"),
            (
                "a;y\n1;2\n31415,9;3\n",
                "not numbers, the first is row 1 (counting from 0); they have a comma; write a decimal point",
            ),
            (
                'a,y\n1,2\n"31415,9",3\n',
                "not numbers, the first is row 1 (counting from 0); they have a comma; write a decimal point",
            ),
        ],
    )
    def test_values(self, refusal: Refusal, tmp_path: Path, content: str, what: str) -> None:
        message = refusal(lambda: read(tmp_path, content))
        assert message.startswith('client "north", column "a": 1 of ')
        assert f" rows are {what}" in message

    def test_a_header_of_numbers_is_a_header_when_the_target_is_in_it(self, tmp_path: Path) -> None:
        assert read(tmp_path, "0,1,2\n1,2,5\n3,4,6\n", target="2")["north"].X.tolist() == EXPECTED

    def test_parquet(self, refusal: Refusal, tmp_path: Path) -> None:
        for content, part in [
            (b"", "empty (0 bytes)"),
            (b"PAR1", "not readable as Parquet"),
            (b"a,y\n1,2", "not readable"),
        ]:
            assert part in refusal(lambda content=content: read(tmp_path, content, "north.parquet"))  # type: ignore[misc]
        pl.DataFrame({"a": ["p"], "y": [1.0]}).write_parquet(tmp_path / "north.parquet")
        message = refusal(lambda: Federation.read(tmp_path, target="y"))
        assert message.startswith('client "north", column "a": got text')
        pl.DataFrame({"a": [1, None], "y": [1.0, 2.0]}).write_parquet(tmp_path / "north.parquet")
        message = refusal(lambda: Federation.read(tmp_path, target="y"))
        assert message.startswith('client "north", column "a": 1 of 2 rows are missing')
        pl.DataFrame({"a": [], "y": []}).write_parquet(tmp_path / "north.parquet")
        assert refusal(lambda: Federation.read(tmp_path, target="y")).startswith('client "north": no rows')

    def test_columns_that_do_not_agree(self, refusal: Refusal, tmp_path: Path) -> None:
        (tmp_path / "south.csv").write_text("cycles,y\n1,2\n")
        message = refusal(lambda: read(tmp_path, "cycle,y\n1,2\n"))
        assert message.startswith('client "south": X: column "cycle" is missing, client "north" has it; got "cycles"')
        message = refusal(lambda: Federation.read(tmp_path, target="y", inputs="cycle"))
        assert message == 'client "south": no column "cycle" (input); got "cycles", "y"; did you mean "cycles"?'

    def test_paths(self, refusal: Refusal, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "other").mkdir()
        for name in ("a.csv", "other/a.csv", "b.parquet", "b.txt", "c"):
            (tmp_path / name).write_text("x,y\n1,2\n")
        (tmp_path / "d.csv").symlink_to(tmp_path / "gone.csv")
        for paths, part in [
            (tmp_path / "nothing.csv", 'client "nothing": there is no file "nothing.csv"'),
            (tmp_path / "x*.csv", 'no file matches "x*.csv"'),
            (tmp_path / "empty", 'folder "empty" holds no CSV or Parquet file'),
            ([], "no files were given"),
            (tmp_path / "b.*", 'client "b": the file has ".txt", expected .csv or .parquet'),
            (tmp_path / "c", 'client "c": the file has no suffix, expected .csv or .parquet'),
            ([tmp_path / "a.csv", tmp_path / "other" / "a.csv"], 'two files would both be client "a"; rename one'),
            (str(tmp_path / "**" / "a.csv"), 'two files would both be client "a"; rename one'),
            ([tmp_path / "b.parquet", tmp_path / "a.csv"], 'client "b": the file is not readable as Parquet'),
            (str(tmp_path / "d*"), 'client "d": the file cannot be read (No such file or directory)'),
        ]:
            message = refusal(lambda paths=paths: Federation.read(paths, target="y"))  # type: ignore[misc]
            assert part in message
            assert str(tmp_path) not in message

    def test_a_client_column(self, refusal: Refusal, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("unit,x,y\n1,2,3\n")
        assert 'file "a": no column "units" (client column)' in refusal(
            lambda: Federation.read(tmp_path, client="units", target="y")
        )
        (tmp_path / "b.csv").write_text("unit,x,y\n1,2,3\n")
        assert 'client column "unit" needs one file with all clients, got 2 files' in refusal(
            lambda: Federation.read(tmp_path, client="unit", target="y")
        )
