"""Where the real data sets are: the folder FEDGAUSS_DATA names, or `shared/data` beside the repository."""

import os
from pathlib import Path

import polars as pl

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"

SOURCES = {
    "cmapss_fd001/train_FD001.csv.gz": "NASA C-MAPSS FD001 (Saxena and Goebel 2008), train_FD001.txt with the header"
    " unit,cycle,setting1..3,s1..s21, as gzip CSV",
    "sarcos/sarcos_inv_test.csv.gz": "SARCOS inverse dynamics (gaussianprocess.org/gpml/data), sarcos_inv_test.mat with"
    " the header q1..7,qd1..7,qdd1..7,tau1..7, as gzip CSV",
}


def table(name: str) -> pl.DataFrame:
    """One of `SOURCES` as a data frame.

    Raises:
        SystemExit: If it is not there, saying what is missing and where to put it.
    """
    folder = Path(os.environ.get("FEDGAUSS_DATA", BESIDE))
    path = folder / name
    if not path.exists():
        raise SystemExit(
            f"this benchmark needs {name}: {SOURCES[name]}.\n"
            "Put it there in a folder of your choice and set FEDGAUSS_DATA to that folder."
        )
    return pl.read_csv(path)
