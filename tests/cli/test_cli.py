"""The command line as a person meets it: what is written, what is said, exit codes, and nothing of anyone's data."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from fedgauss.cli import app
from fedgauss.engines.local import Run
from fedgauss.errors import SettingsError

SECRET = "31415.9"
"""The value that tests put where it does not belong: no message may show it."""
METHOD = "[method]\nrounds = 4\nlocal_steps = 1\n"
QUICK = '[engine]\ndevices = 1\n[output]\nfolder = "out"\nfigures = false\n'


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object, code: int = 2) -> str:
    """What is said on stderr when a command fails as it should: one message, no traceback, no data, no path."""
    result = call(*arguments)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert result.stderr.startswith("fedgauss: ")
    assert "Traceback" not in result.stderr
    assert SECRET[:5] not in result.stderr
    for argument in arguments:
        if isinstance(argument, Path) and argument.is_absolute():
            assert str(argument.parent) not in result.stderr
    return result.stderr.removeprefix("fedgauss: ").strip()


def write_plants(folder: Path) -> None:
    """Three plants with a curve to learn; columns in another order in one of them."""
    random = np.random.default_rng(0)
    (folder / "plants").mkdir(parents=True)
    for name, rows in (("north", 9), ("south", 12), ("west", 15)):
        x = random.normal(size=rows)
        y = np.sin(2 * x) + 0.1 * random.normal(size=rows)
        table = pl.DataFrame({"x": x, "y": y} if name != "west" else {"y": y, "x": x})
        table.write_csv(folder / "plants" / f"{name}.csv")


def write_run(folder: Path, text: str = "", data: str = 'clients = "plants/*.csv"\ntarget = "y"\n') -> Path:
    path = folder / "run.toml"
    path.write_text(f"[data]\n{data}{text or METHOD + QUICK}")
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_plants(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plants and one finished run, for tests that only look at it."""
    folder = tmp_path_factory.mktemp("done")
    write_plants(folder)
    assert call("run", write_run(folder), "--no-progress").exit_code == 0
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def learned(folder: Path) -> tuple[bytes, list[Any], list[Any]]:
    """What a run learned, bit by bit, and how it came there."""
    history = pl.read_parquet(folder / "history.parquet").drop("seconds")
    ledger = pl.read_parquet(folder / "ledger.parquet")
    return (folder / "model" / "arrays.safetensors").read_bytes(), history.rows(), ledger.rows()


# --- run -----------------------------------------------------------------------------------------------------------


def test_a_run_writes_a_folder_that_says_everything(done: Path) -> None:
    out = done / "out"
    model = {f"model/{name}" for name in ("model.json", "arrays.safetensors", "history.parquet", "ledger.parquet")}
    assert files(out) == {"run.toml", "metrics.json", "history.parquet", "ledger.parquet"} | model
    metrics = json.loads((out / "metrics.json").read_text())
    assert (metrics["method"], metrics["seed"], metrics["rounds"], metrics["stopped"]) == ("FGPR", 0, 4, False)
    assert metrics["rows"] == {"north": 7, "south": 10, "west": 12}
    assert set(metrics["metrics"]) == {"north", "south", "west", "pooled", "mean"}
    assert pl.read_parquet(out / "history.parquet").height == 4


def test_what_is_printed_names_sizes_parameters_and_metrics(place: Path) -> None:
    result = call("run", write_run(place), "--no-progress")
    assert result.exit_code == 0
    assert result.stderr == ""
    for words in ("FGPR: 3 clients, 29 training rows, 4 rounds", "sent: ", "lengthscale", "all rows pooled", "RMSE"):
        assert words in result.stdout
    assert f"written to {place / 'out'}" in result.stdout


def test_the_run_file_of_a_folder_does_the_same_run_again(done: Path, tmp_path: Path) -> None:
    again = call("run", done / "out" / "run.toml", "--output", done / "again", "--no-progress")
    assert again.exit_code == 0, again.output
    assert learned(done / "again") == learned(done / "out")


def test_another_seed_from_the_command_line_is_another_run(done: Path) -> None:
    assert call("run", done / "run.toml", "--seed", 5, "--output", done / "five", "--no-progress").exit_code == 0
    assert json.loads((done / "five" / "metrics.json").read_text())["seed"] == 5
    assert learned(done / "five")[0] != learned(done / "out")[0]


def test_a_run_with_figures_and_data_has_them(place: Path) -> None:
    text = METHOD + '[output]\nfolder = "out"\ninclude_data = true\n[engine]\ndevices = 1\n'
    assert call("run", write_run(place, text), "--no-progress").exit_code == 0
    figures = {"figures/convergence.png", "figures/calibration.png", "figures/prediction.png"}
    assert figures | {"model/training_data.safetensors"} <= files(place / "out")
    assert call("predict", place / "out", place / "plants" / "north.csv", "--client", "north").exit_code == 0


# (text after [data] in place of the rest of the run file, words of the message)
BAD_RUN_FILES: dict[str, tuple[str, list[str]]] = {
    "unknown section": ("[methods]\nrounds = 2\n", ["methods: unknown section", 'did you mean "method"?']),
    "unknown key": ("[method]\nruonds = 2\n", ["method.ruonds: unknown key", 'did you mean "rounds"?']),
    "unknown key of data": ("targets = 'y'\n", ["data.targets: unknown key", 'did you mean "target"?']),
    "unknown key of output": ("[output]\nfigure = true\n", ["output.figure: unknown key", 'did you mean "figures"?']),
    "unknown key of engine": ("[engine]\ndevice = 1\n", ["engine.device: unknown key", 'did you mean "devices"?']),
    "unknown key of network": (
        "[engine]\nnetwork = { los = 0.1 }\n", ["engine.network.los: unknown key", 'did you mean "loss"?'],
    ),
    "unknown key of schedule": ("[schedule]\nkohort = 1\n", ["schedule.kohort: unknown key", 'mean "cohort"?']),
    "key of another schedule": (
        '[schedule]\nkind = "sequential"\ncohort = 1\n', ["schedule.cohort: unknown key, expected one of order"],
    ),
    "text for a number": ('[method]\nrounds = "2"\n', ['method.rounds: got "2", expected a whole number']),
    "fraction for a whole number": ("[method]\nrounds = 2.5\n", ["method.rounds: got 2.5, expected a whole number"]),
    "number for text": ("[method]\nkernel = 3\n", ["method.kernel: got 3, expected text or a table"]),
    "number for a switch": ("[output]\nfigures = 1\n", ["output.figures: got 1, expected true or false"]),
    "table for a number": ("[method]\nrounds = {}\n", ["method.rounds: got a table, expected a whole number"]),
    "value for a table": ("[engine]\nnetwork = 1\n", ["engine.network: got 1, expected a table"]),
    "no rounds": ("[method]\nrounds = 0\n", ["method.rounds: got 0, expected a positive whole number"]),
    "unknown kernel": ('[method]\nkernel = "rbff"\n', ["method.kernel", 'did you mean "rbf"?']),
    "unknown kernel within": (
        '[method]\nkernel = { name = "sum", terms = ["rbf", "linar"] }\n', ["method.kernel", 'mean "linear"?'],
    ),
    "unknown method": ('[method]\nname = "FPGR"\n', ['method.name: got "FPGR"', 'did you mean "FGPR"?']),
    "unknown preset": ('[method]\npreset = "published"\n', ['method.preset: got "published", expected "as_published"']),
    "unknown choice": ('[method]\nsolver = "exakt"\n', ['method.solver: got "exakt"', 'did you mean "exact"?']),
    "unknown schedule": ('[schedule]\nkind = "sequentiel"\n', ['schedule.kind: got "sequentiel"', '"sequential"?']),
    "setting of another solver": (
        '[method]\nsolver = "exact"\npersonal = ["noise_variance"]\n', ["method", 'needs solver="averaging"'],
    ),
    "loss of one": ("[engine]\nnetwork = { loss = 1.0 }\n", ["engine.network.loss: got 1.0, expected a probability"]),
    "fraction too large": ("test_fraction = 1.0\n", ["data.test_fraction: got 1.0, expected a number from 0"]),
    "not TOML": ("[method\n", ["run file 'run.toml': not readable as TOML", "line"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD_RUN_FILES.values(), ids=BAD_RUN_FILES)
def test_a_run_file_that_cannot_be_is_refused_by_its_key(text: str, words: list[str], tmp_path: Path) -> None:
    message = refused("run", write_run(tmp_path, text))
    for part in words:
        assert part in message
    assert files(tmp_path) == {"run.toml"}


def test_what_is_missing_and_every_other_problem_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('seed = -1\n[data]\nclient = 5\n[method]\nrounds = "2"\n[output]\nfolder = 3\n')
    message = refused("run", path)
    assert message.startswith("run.toml has 6 problems.\n")
    for line in (
        "seed: got -1, expected a whole number, not negative",
        "data.clients: missing; it has no default",
        "data.target: missing; it has no default",
        'method.rounds: got "2", expected a whole number',
        "output.folder: got 3, expected text",
    ):
        assert line in message.splitlines()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not UTF-8 text"),
        (lambda path: path.write_bytes(b""), "data.clients: missing"),
    ],
    ids=["no file", "folder", "binary", "empty"],
)
def test_a_run_file_that_cannot_be_read_is_refused(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    make(tmp_path / "mine.toml")
    message = refused("run", tmp_path / "mine.toml")
    assert "mine.toml" in message
    assert words in message


BAD_DATA: dict[str, tuple[str, str, list[str]]] = {
    "text": ("x,y\n1,2\n31415.9km,3\n", "", ['client "east", column "x": 1 of 2 rows are not numbers']),
    "missing": ("x,y\n1,2\n31415.9,\n", "", ['client "east", column "y": 1 of 2 rows are missing or NaN']),
    "ragged": ("x,y\n1,2\n31415.9\n", "", ['client "east"', "row 1 (counting from 0) has 1 fields"]),
    "no header": ("31415.9,1\n2,3\n", "", ['client "east"', "expected a header with column names"]),
    "another column": ("z,y\n1,2\n", "", ['client "north": X: column "z" is missing, client "east" has it']),
    "empty": ("", "", ['client "east": the file is empty']),
    "no such files": ("x,y\n1,2\n", 'clients = "plans/*.csv"\ntarget = "y"\n', ['no file matches "*.csv"']),
    "no such target": ("x,y\n1,2\n", 'clients = "plants/*.csv"\ntarget = "Y"\n', ['no column "Y" (target)']),
}


@pytest.mark.parametrize(("content", "data", "words"), BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_is_refused_by_client_and_column(content: str, data: str, words: list[str], place: Path) -> None:
    (place / "plants" / "east.csv").write_text(content)
    path = write_run(place, METHOD + QUICK, data) if data else write_run(place)
    message = refused("run", path)
    for part in words:
        assert part in message
    assert str(place) not in message
    assert not (place / "out").exists(), "a run that never began left a folder"


def test_a_schedule_that_does_not_fit_the_method_is_bad_input(place: Path) -> None:
    text = f'[method]\nsolver = "exact"\n[schedule]\ncohort = 2\n{QUICK}'
    assert "ExactHyperparameters needs the answer of every client" in refused("run", write_run(place, text))
    assert not (place / "out").exists(), "a run that never began left a folder"


def test_a_run_that_fails_ends_with_one_and_names_the_clients(place: Path) -> None:
    text = METHOD + QUICK.replace("devices = 1", "devices = 1\nretries = 0\nnetwork = { loss = 0.9999 }")
    message = refused("run", write_run(place, text), code=1)
    assert "needs the answer of every client, but 'north', 'south', 'west': silent after 1 requests" in message
    assert not (place / "out").exists()


def test_debug_lets_the_traceback_through(tmp_path: Path) -> None:
    for arguments in (("run", tmp_path / "none.toml", "--debug"), ("--debug", "run", tmp_path / "none.toml")):
        assert isinstance(call(*arguments).exception, SettingsError)


def test_what_others_raise_is_not_shown_without_debug(place: Path, monkeypatch: Any) -> None:
    def fail(self: Run) -> bool:
        raise ZeroDivisionError(f"client data {SECRET}")

    monkeypatch.setattr(Run, "step", fail)
    message = refused("run", write_run(place), code=1)
    assert message == "an unexpected ZeroDivisionError. The same command with --debug shows where it came from"
    assert isinstance(call("run", write_run(place), "--debug").exception, ZeroDivisionError)


@pytest.mark.parametrize("content", [{"notes.txt": "mine"}, {"run.toml": "mine"}], ids=["file", "run file of others"])
def test_a_folder_with_something_else_is_left_alone(place: Path, content: dict[str, str]) -> None:
    (place / "out").mkdir()
    for name, text in content.items():
        (place / "out" / name).write_text(text)
    message = refused("run", write_run(place), "--resume")
    assert message == "output folder 'out': exists and holds something else; choose another name"
    assert {path.name: path.read_text() for path in (place / "out").iterdir()} == content


# --- resume --------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_neither_overwritten_nor_done_again(done: Path) -> None:
    before = {name: (done / "out" / name).read_bytes() for name in files(done / "out")}
    assert "holds a run already; choose another name, or go on with it by --resume" in refused("run", done / "run.toml")
    result = call("run", done / "run.toml", "--resume")
    assert (result.exit_code, result.stdout.strip()) == (0, f"{done / 'out'} is finished: there is nothing left to do")
    message = refused("run", done / "run.toml", "--seed", 3, "--resume")
    assert "holds another run, which differs in seed; choose another name, or put the settings back" in message
    assert {name: (done / "out" / name).read_bytes() for name in files(done / "out")} == before


def test_ctrl_c_keeps_the_last_round_and_resume_ends_with_the_same_bits(
    done: Path, place: Path, monkeypatch: Any
) -> None:
    step = Run.step

    def interrupted(self: Run) -> bool:
        goes_on = step(self)
        if len(self.history) == 2 and "objective" in self.history[0]:
            os.kill(os.getpid(), signal.SIGINT)
        return goes_on

    monkeypatch.setattr(Run, "step", interrupted)
    stopped = call("run", write_run(place), "--no-progress")
    assert stopped.exit_code == 1
    assert "stopped by Ctrl-C after 2 rounds. What was written is the last of them; --resume goes on" in stopped.stderr
    metrics = json.loads((place / "out" / "metrics.json").read_text())
    assert (metrics["stopped"], metrics["rounds"]) == (True, 2)
    monkeypatch.setattr(Run, "step", step)
    assert call("run", place / "run.toml", "--resume", "--no-progress").exit_code == 0
    assert learned(place / "out") == learned(done / "out")
    assert files(place / "out") == files(done / "out"), "the checkpoint of a finished run was left"


def test_a_real_process_interrupted_then_killed_is_resumed_with_the_same_bits(place: Path) -> None:
    path = write_run(place, METHOD.replace("4", "600") + QUICK)
    state = place / "out" / "checkpoint" / "state.safetensors"
    command = [sys.executable, "-c", "from fedgauss.cli import main; main()", "run", str(path), "--no-progress"]

    def end(process: "subprocess.Popen[str]", by: signal.Signals, written: int) -> str:
        deadline = time.monotonic() + 120
        while not state.exists() or state.stat().st_mtime_ns <= written:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(by)
        return process.communicate(timeout=120)[1]

    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    first = subprocess.Popen(command, **pipes)
    said = end(first, signal.SIGINT, 0)
    assert first.returncode == 1
    assert "stopping after this round" in said
    assert "stopped by Ctrl-C after" in said
    assert "Traceback" not in said
    second = subprocess.Popen([*command, "--resume"], **pipes)
    end(second, signal.SIGKILL, state.stat().st_mtime_ns)
    assert second.returncode == -signal.SIGKILL
    assert call("run", path, "--resume", "--no-progress").exit_code == 0
    assert call("run", path, "--output", place / "whole", "--no-progress").exit_code == 0
    assert learned(place / "out") == learned(place / "whole")


# --- predict -------------------------------------------------------------------------------------------------------


def test_predictions_stand_beside_the_columns_that_came(done: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text('id,note,x,when\n007,"a, b",0.5,\n8,"say ""hi""",1e-1,2020-01-01\n')
    result = call("predict", done / "out", "--data", done / "plants" / "north.csv", new)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "id,note,x,when,mean,std,lower_95,upper_95"
    assert lines[1].startswith('007,"a, b",0.5,,')
    assert lines[2].startswith('8,"say ""hi""",1e-1,2020-01-01,')
    mean, std, low, high = (float(number) for number in lines[1].split(",")[-4:])
    np.testing.assert_allclose([high - mean, mean - low], 1.959963984540054 * std, rtol=1e-9)
    for output in ("out.csv", "out.parquet"):
        written = call(
            "predict", done / "out", "--data", done / "plants" / "north.csv", new, "--output", tmp_path / output
        )
        assert written.exit_code == 0
        assert written.stdout == f"2 predictions written to {tmp_path / output}\n"
    assert (tmp_path / "out.csv").read_text() == result.stdout
    table = pl.read_parquet(tmp_path / "out.parquet")
    assert table["mean"][0] == mean
    assert table["id"].to_list() == ["007", "8"]


def test_the_target_and_the_order_of_columns_do_not_matter(done: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("x,y\n0.5,\n0.7,\n")
    (tmp_path / "two.csv").write_text("y;x\n9;0.5\n9;0.7\n")
    own = done / "plants" / "west.csv"
    one, two = (call("predict", done / "out", "--data", own, tmp_path / name).stdout for name in ("one.csv", "two.csv"))
    first, second = (pl.read_csv(text.encode()).select("mean", "std") for text in (one, two))
    assert first.equals(second)


BAD_PREDICTIONS: dict[str, tuple[dict[str, str], list[str], str]] = {
    "no input": ({"new.csv": "z\n1\n"}, [], '\'new.csv\': no column "x" (input); got "z"'),
    "text": ({"new.csv": f"x\n{SECRET}km\n"}, [], "'new.csv', column \"x\": 1 of 1 rows are not numbers"),
    "missing": ({"new.csv": "x,a\n,1\n2,3\n"}, [], 'column "x": 1 of 2 rows are missing or NaN'),
    "no rows": ({"new.csv": "x\n"}, [], "'new.csv': the file has a header but no rows"),
    "name of a prediction": ({"new.csv": "x,mean\n1,2\n"}, [], 'column "mean" has the name of a prediction'),
    "no file": ({}, [], "there is no file 'new.csv'"),
    "no target": ({"new.csv": "x\n1\n", "own.csv": "x,z\n1,2\n"}, [], "'own.csv': no column \"y\" (target)"),
    "ending": ({"new.csv": "x\n1\n"}, ["--output", "out.xlsx"], "--output 'out.xlsx': expected a name that ends in"),
}


@pytest.mark.parametrize(("content", "options", "words"), BAD_PREDICTIONS.values(), ids=BAD_PREDICTIONS)
def test_what_cannot_be_predicted_is_refused(
    content: dict[str, str], options: list[str], words: str, done: Path, tmp_path: Path
) -> None:
    for name, text in ({"own.csv": "x,y\n1,2\n3,4\n"} | content).items():
        (tmp_path / name).write_text(text)
    message = refused("predict", done / "out", "--data", tmp_path / "own.csv", tmp_path / "new.csv", *options)
    assert words in message
    assert str(tmp_path) not in message


def test_whose_prediction_it_is_must_be_said(done: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("x\n1\n")
    message = refused("predict", done / "out", tmp_path / "new.csv")
    assert message.startswith(
        "--data: missing. The model holds no rows; a prediction needs the client's own, with columns"
    )
    assert "holds a run already" not in message


@pytest.mark.parametrize("command", ["predict", "inspect"])
def test_a_folder_that_is_no_run_is_refused(command: str, tmp_path: Path) -> None:
    new = [] if command == "inspect" else [tmp_path / "new.csv"]
    assert "RUN: there is no folder 'gone'" in refused(command, tmp_path / "gone", *new)
    assert f"RUN: '{tmp_path.name}' is not the folder of a run or of a model" in refused(command, tmp_path, *new)
    (tmp_path / "checkpoint").mkdir()
    assert "it has not finished, run it again with --resume" in refused(command, tmp_path, *new)


# --- inspect -------------------------------------------------------------------------------------------------------


def test_inspect_counts_what_the_ledger_holds(done: Path) -> None:
    told = json.loads(call("inspect", done / "out", "--json").stdout)
    ledger = pl.read_parquet(done / "out" / "ledger.parquet")
    assert (told["method"], list(told["clients"])) == ("FGPR", ["north", "south", "west"])
    for name, client in told["clients"].items():
        for direction in ("up", "down"):
            of_client = ledger.filter(client=name, direction=direction)
            assert client[direction] == {"messages": of_client.height, "bytes": of_client["bytes"].sum()}
        assert all(array["words"] for message in client["messages"] for array in message["arrays"])
    assert told["clients"]["north"]["rows"] == 7


def test_inspect_says_it_in_words_for_all_or_one(done: Path) -> None:
    everybody, north = call("inspect", done / "out").stdout, call("inspect", done / "out", "--client", "north").stdout
    for words in ("what left each of 3 clients", "the number of rows", "LocalFit, 4 times", "neither encrypted"):
        assert words in everybody
    assert "what left north" in north
    assert "south" not in north
    assert 'no client "nort" in this run; did you mean "north"?' in refused("inspect", done / "out", "--client", "nort")


def test_inspect_warns_of_a_client_with_one_row(place: Path) -> None:
    (place / "plants" / "tiny.csv").write_text("x,y\n0.5,1.0\n")
    assert call("run", write_run(place), "--no-progress").exit_code == 0
    told = " ".join(call("inspect", place / "out").stdout.split())
    assert "Mind: tiny has 1 row: sums over one row are the row itself, so its inputs and its target left." in told


# --- the program ---------------------------------------------------------------------------------------------------


def test_help_version_and_mistyped_commands() -> None:
    assert call("--version").stdout.startswith("fedgauss 0.")
    for command in ("demo", "run", "predict", "inspect"):
        assert command in call("--help").stdout
        assert "Examples" in call(command, "-h").stdout
    for wrong in (["ruun"], ["run"], ["run", "a.toml", "--outptu", "x"], ["run", "a.toml", "--seed", "-1"]):
        result = call(*wrong)
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr


def test_the_demo_runs_and_what_it_says_to_do_next_works(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("demo", "--no-progress")
    assert result.exit_code == 0, result.output
    for words in ("12 vehicles", "FGPR", "Separate", "Pooled", "A vehicle that took no part", "not sent"):
        assert words in result.stdout
    found = files(tmp_path / "fedgauss-demo")
    assert {"run.toml", "metrics.json", "newcomer.csv", "ahead.csv", "figures/compared.png"} <= found
    assert sum(name.startswith("data/vehicle-") for name in found) == 12
    steps = [line.split() for line in result.stdout.splitlines() if line.startswith("  fedgauss ")]
    assert [step[1] for step in steps] == ["inspect", "predict", "run"]
    for step in steps:
        done = call(*step[1:])
        assert done.exit_code == 0, done.output
    compared = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("fedgauss-demo", "again")]
    for name, row in compared[0]["metrics"].items():
        np.testing.assert_allclose(list(row.values()), list(compared[1]["metrics"][name].values()), rtol=1e-9)


PROBE = """
import logging, signal, sys
import jax
def state():
    return signal.getsignal(signal.SIGINT), list(logging.getLogger().handlers), logging.getLogger("fedgauss").level
before, config = state(), dict(jax.config.values)
import fedgauss
from jax._src import xla_bridge
changed = [key for key, value in config.items() if jax.config.values[key] != value]
print([name for name in sys.argv[1:] if name in sys.modules], changed, xla_bridge.backends_are_initialized(),
      before == state())
"""


def test_importing_starts_nothing_changes_nothing_and_needs_no_optional_package() -> None:
    optional = ["flwr", "torch", "tensorflow", "tinygp", "sklearn", "pandas", "pyarrow", "typer", "matplotlib.pyplot"]
    run = subprocess.run(
        [sys.executable, "-c", PROBE, *optional], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout == "[] [] False True\n"
    assert run.stderr == ""
