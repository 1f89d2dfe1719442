"""Global models from run files: fitted, inspected and predicted with, without Python."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from cli.test_cli import QUICK, call, refused, write_plants, write_run
from fedgauss.runfile import read_run_file

FEATURES = 'features = { name = "network", widths = [4], latent = 2, shifter = 3 }\nnum_samples = 6\n'
METHODS = {
    "averaging": f'name = "FedBNR"\nrounds = 2\nlocal_steps = 2\n{FEATURES}',
    "exact": f'name = "FedBNR"\ntraining = "exact"\nrounds = 4\n{FEATURES}',
    "published": 'name = "FedBNR"\npreset = "as_published"\nrounds = 1\nlocal_steps = 1\nfeatures = "fourier"\n',
    "distillation": 'name = "FedBNR"\nrounds = 1\nlocal_steps = 1\nfeatures = "fourier"\ntraining = "distillation"\n'
    'distillation = "server.csv"\n',
    "sparse": 'name = "FedSparseGP"\nnum_inducing = 5\nrounds = 4\nkernel = "matern32"\n',
    "pooled": 'name = "Pooled"\nmethod = { name = "FedSparseGP", num_inducing = 5, rounds = 4 }\n',
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_plants(tmp_path)
    shutil.copy(tmp_path / "plants" / "north.csv", tmp_path / "server.csv")
    return tmp_path


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_written_and_predicts_for_everyone_without_data(place: Path, method: str) -> None:
    path = write_run(place, f"[method]\n{METHODS[method]}{QUICK}")
    result = call("run", path, "--no-progress")
    assert result.exit_code == 0, result.output
    assert ".layers." not in result.output  # a network's weights are not for reading
    written = read_run_file(place / "out" / "run.toml")
    assert written.method.__class__ == read_run_file(path).method.__class__
    if method != "distillation":  # a client's rows cannot be compared
        assert written.method == read_run_file(path).method
    predicted = call("predict", place / "out", place / "plants" / "west.csv")
    if method == "pooled":
        assert pl.read_csv(predicted.stdout.encode())["std"].min() is not None
    assert predicted.exit_code == 0, predicted.output
    assert pl.read_csv(predicted.stdout.encode()).columns == ["y", "x", "mean", "std", "lower_95", "upper_95"]


def test_inspect_names_those_whose_records_can_be_reconstructed(place: Path) -> None:
    path = write_run(place, f"[method]\n{METHODS['averaging']}{QUICK}")
    assert call("run", path, "--no-progress").exit_code == 0
    said = json.loads(call("inspect", place / "out", "--json").stdout)["clients"]
    few = {name: one["warnings"] for name, one in said.items() if one["warnings"]}
    assert set(few) == {"north", "south"}  # 7 and 10 rows left after holding out, 12 features
    assert "can be reconstructed" in few["north"][-1]
    told = " ".join(call("inspect", place / "out").stdout.split())
    assert "phi_phi 12 x 12 numbers sum the sum over rows of products of features" in told


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ('name = "FedBNR"\nfeatures = "netwrok"\n', 'method.features.name: got "netwrok", expected one of network'),
        ('name = "FedBNR"\nfeatures = { name = "network", width = 3 }\n', "method.features.width: unknown key"),
        ('name = "FedBNR"\ntraining = "avg"\n', 'method.training: got "avg", expected'),
        ('name = "FedBNR"\ntraining = "distillation"\ndistillation = "no.csv"\n', "method.distillation: "),
        ('name = "FedSparseGP"\nnum_inducing = 0\n', "method.num_inducing: got 0, expected a positive whole number"),
        ('name = "Separate"\nmethod = { name = "FedSparseGP" }\n', "expected fg.FGPR(...) or fg.FedBNR(...)"),
    ],
)
def test_what_cannot_be_is_said_by_its_key(place: Path, method: str, words: str) -> None:
    assert words in refused("run", write_run(place, f"[method]\n{method}{QUICK}"))
