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
    "skillcraft/skillcraft1.csv.gz": "UCI SkillCraft1 Master Table (Thompson et al. 2013), as gzip CSV",
    "sml2010/sml2010.csv.gz": "UCI SML2010 (Zamora-Martinez et al. 2014), both files one after the other, as gzip CSV",
    "parkinsons/parkinsons_updrs.csv.gz": "UCI Parkinsons Telemonitoring (Tsanas et al. 2009), as gzip CSV",
    "seoul_bike/seoul_bike.csv.gz": "UCI Seoul Bike Sharing Demand (Sathishkumar and Cho 2020), as gzip CSV",
    "ccpp/ccpp.csv.gz": "UCI Combined Cycle Power Plant (Tufekci 2014), sheet 1, as gzip CSV",
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
    return pl.read_csv(path, infer_schema_length=None)
