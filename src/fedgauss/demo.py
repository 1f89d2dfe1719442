"""A small fleet without data of your own: the personalised fit beside each vehicle alone and all in one place."""

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table

from fedgauss import figures, metrics, runs
from fedgauss.disclosure import disclosed, in_bytes
from fedgauss.engines.local import Local
from fedgauss.federation import Client, Federation
from fedgauss.fitted import Fitted, Results
from fedgauss.models import FGPR, Pooled, Separate
from fedgauss.runfile import Data, RunFile

NUM_ROWS = (8, 8, 8, 9, 10, 10, 12, 15, 20, 30, 45, 60)
"""Rows a vehicle learns from; as many again are held out."""
NEWCOMER_ROWS = 6
NOISE, INPUT, TARGET = 1.0, "mileage", "health"
_COSINES = 40
"""Cosines of which a vehicle's own wobble is made: enough to look like a draw of a Gaussian process."""


class Vehicle(NamedTuple):
    """A vehicle's true curve: wear of its own pace, and wobbles of one kind but of its own shape."""

    wear: float
    frequencies: np.ndarray[tuple[int], np.dtype[np.float64]]
    phases: np.ndarray[tuple[int], np.dtype[np.float64]]

    @classmethod
    def draw(cls, generator: np.random.Generator) -> "Vehicle":
        """A vehicle of the family: wobbles of lengthscale 15 and standard deviation 4."""
        wear, frequencies = generator.uniform(5.0, 25.0), generator.normal(size=_COSINES) / 15.0
        return cls(wear, frequencies, generator.uniform(0.0, 2 * np.pi, size=_COSINES))

    def health(
        self, mileage: np.ndarray[tuple[int], np.dtype[np.float64]]
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Its health in percent, without noise, at mileages in thousands of kilometres."""
        wobble = np.cos(np.outer(mileage, self.frequencies) + self.phases).sum(axis=1)
        return np.asarray(90.0 - self.wear * (mileage / 100.0) ** 1.5 + 4.0 * np.sqrt(2.0 / _COSINES) * wobble)

    def drive(self, num_rows: int, generator: np.random.Generator) -> tuple[pl.DataFrame, pl.Series]:
        """Noisy rows at random mileages up to 100."""
        mileage = np.sort(generator.uniform(0.0, 100.0, size=num_rows)).round(2)
        health = self.health(mileage) + NOISE * generator.normal(size=num_rows)
        return pl.DataFrame({INPUT: mileage}), pl.Series(TARGET, health.round(3))


class Fleet(NamedTuple):
    """Twelve vehicles that learn together, and one that comes later."""

    vehicles: dict[str, Vehicle]
    data: Federation
    newcomer: Client
    ahead: Client
    """Held-out rows of the newcomer."""


def make_fleet(seed: int) -> Fleet:
    """The fleet of a seed.

    Example:
        >>> fleet = make_fleet(0)
        >>> fleet.data, fleet.newcomer
        (Federation(12 clients, 470 rows, 1 input, 1 target), Client("newcomer": 6 rows, 1 input, 1 target))
    """
    generator = np.random.default_rng([seed, 0xF1EE7])
    vehicles, clients = {}, []
    for number, num_rows in enumerate(NUM_ROWS, start=1):
        name = f"vehicle-{number:02d}"
        vehicles[name] = Vehicle.draw(generator)
        clients.append(Client(*vehicles[name].drive(2 * num_rows, generator), name=name))
    late = Vehicle.draw(generator)
    newcomer, ahead = (Client(*late.drive(rows, generator), name="newcomer") for rows in (NEWCOMER_ROWS, 60))
    return Fleet(vehicles | {"newcomer": late}, Federation(clients), newcomer, ahead)


def run(folder: Path, *, seed: int = 0, console: Console, progress: bool = True) -> None:
    """Make the fleet, fit it three ways, say how well, and write a run's folder with the data beside it.

    Args:
        folder: A new name or an empty folder.
        seed: Of the fleet and the split.
        console: Where to print.
        progress: Whether to show that something is being done.
    """
    fleet = make_fleet(seed)
    federated = FGPR(solver="exact")
    engine = Local(devices=1)  # so small a fleet is one core's work; two fits run at a time
    run_file = RunFile(
        path=folder / runs.RUN_FILE, data=Data(clients="data/*.csv", target=TARGET, test_fraction=0.5),
        method=federated, engine=engine, seed=seed,
    )  # fmt: skip
    train, test = fleet.data.split(run_file.data.test_fraction, seed)
    alone = Federation([*train.clients, fleet.newcomer])  # one more changes nothing for those who fit alone
    fits: dict[str, tuple[FGPR | Separate | Pooled, Federation]] = {
        "FGPR": (federated, train),
        "Pooled": (Pooled(method=federated), train),
        "Separate": (Separate(method=federated), alone),
    }
    with runs.started(folder, run_file.to_toml(folder)):
        _write_data(folder, fleet)
        console.print(_opening(train))
        waiting = console.status("three fits ...") if progress else contextlib.nullcontext()
        with waiting, ThreadPoolExecutor(max_workers=2) as threads:
            running = {
                name: threads.submit(_fit, method, data, test, seed, engine) for name, (method, data) in fits.items()
            }
            done = {name: running[name].result() for name in ("FGPR", "Separate", "Pooled")}
            models = {name: model for name, (model, _) in done.items()}
            results = {name: found for name, (_, found) in done.items()}
            more = {"compared": {name: runs.by_client(metrics.per_client(found)) for name, found in results.items()}}
            runs.write(folder, models["FGPR"], train, test, seed=seed, more=more)
            figure = figures.comparison(metrics.compare(results), target_name=f"{TARGET} (%)")
            runs.save_figure(folder / runs.FIGURES / "compared.png", figure)
            console.print(_comparison(results))
            console.print(_winners(results))
            console.print(_one_vehicle(train, models, fleet))
            console.print(_newcomer(models, fleet))
            console.print(_left(models["FGPR"], train))
    console.print(_next(folder), soft_wrap=True)  # commands to copy


def _fit(
    method: FGPR | Separate | Pooled, data: Federation, test: Federation, seed: int, engine: Local
) -> tuple[Fitted[Any], Results]:
    model = method.fit(data, seed=seed, engine=engine, progress=False)
    return model, model.results(test)


def _write_data(folder: Path, fleet: Fleet) -> None:
    places = {f"data/{name}.csv": client for name, client in fleet.data.items()}
    for place, client in (places | {"newcomer.csv": fleet.newcomer, "ahead.csv": fleet.ahead}).items():
        columns = {INPUT: client.X[:, 0], TARGET: client.Y[:, 0]}
        runs.write_table(folder / place, pl.DataFrame(columns))


def _opening(train: Federation) -> str:
    return (
        f"{len(train)} vehicles report their {TARGET} (%) over {INPUT} (1000 km). The data are made up: each wears at"
        " its own pace and wobbles in its own way, but all belong to one family of curves, which is what FGPR assumes."
        f" Each learns from {min(train.sizes)} to {max(train.sizes)} rows and is judged on as many others.\n"
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _comparison(results: Mapping[str, Results]) -> Table:
    """Each method's metrics: every vehicle counting alike, and every row."""
    labels = {
        "FGPR": "FGPR: shared prior, own rows",
        "Separate": "Separate: each vehicle alone",
        "Pooled": "Pooled: one GP over all rows",
    }
    table = _table("On held-out rows", "", "", "RMSE", "NLPD", "in 95 %")
    for name, found in results.items():
        both = runs.by_client(metrics.per_client(found))
        for which, label in ((metrics.MEAN, "mean over vehicles"), (metrics.POOLED, "all rows pooled")):
            row = both[which]
            cells = (f"{row['rmse']:.2f}", f"{row['nlpd']:.2f}", f"{100 * row['coverage_95']:.0f} %")
            table.add_row(labels[name] if which == metrics.MEAN else "", label, *cells)
    table.caption_justify, table.caption_style = "left", ""
    table.caption = (
        '"in 95 %": rows inside their 95 % interval. Separate is each vehicle\'s own likelihood at its maximum; its'
        ' other budget, "same", counts optimiser steps, which solver="exact" does not take.\n'
    )
    return table


def _winners(results: Mapping[str, Results]) -> str:
    """Who has the least error at how many vehicles, and where a vehicle alone did better."""
    errors = {
        name: {vehicle: metrics.root_mean_squared_error(y, mean) for vehicle, (y, mean, _) in found.items()}
        for name, found in results.items()
    }
    own, alone, pooled = errors["FGPR"], errors["Separate"], errors["Pooled"]
    better = [f"{name} ({alone[name]:.2f} against {own[name]:.2f})" for name in own if alone[name] < own[name]]
    return (
        f"FGPR's RMSE is below Separate's for {len(own) - len(better)} of {len(own)} vehicles, and below Pooled's for"
        f" {sum(own[name] < pooled[name] for name in own)}."
        + (f" Alone is better for {', '.join(better)}." if better else "")
        + "\n"
    )


def _one_vehicle(train: Federation, models: Mapping[str, Fitted[Any]], fleet: Fleet) -> Table:
    """What the vehicle with the fewest rows is told, beside the truth."""
    vehicle = min(train.clients, key=lambda client: client.num_rows)
    name, at = str(vehicle.name), np.linspace(10.0, 90.0, 5)
    columns = [f"at {INPUT}", "FGPR", "Separate", "true, without noise"]
    table = _table(f"{name}, from {vehicle.num_rows} rows: {TARGET} and its 95 % interval", *columns)
    (reach,) = metrics.half_widths([0.95])
    cells = [[f"{x:.0f}" for x in at]]
    for method in ("FGPR", "Separate"):
        mean, std = models[method].predict(name, at[:, None], return_std=True)
        cells.append([f"{m:.1f} ± {reach * s:4.1f}" for m, s in zip(mean, std, strict=True)])
    cells.append([f"{y:.1f}" for y in fleet.vehicles[name].health(at)])
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def _newcomer(models: Mapping[str, Fitted[Any]], fleet: Fleet) -> Table:
    """Predictions for a vehicle that took no part, from the shared prior and from its own rows alone."""
    title = f"A vehicle that took no part, from {NEWCOMER_ROWS} rows of its own, judged on {fleet.ahead.num_rows}"
    table = _table(title, "", "RMSE", "NLPD", "in 95 %")
    y = fleet.ahead.Y[:, 0]
    whose: tuple[tuple[str, str, Client | str], ...] = (
        ("FGPR: the fleet's prior, own rows", "FGPR", fleet.newcomer), ("Separate: alone", "Separate", "newcomer")
    )  # fmt: skip
    for label, method, client in whose:
        found = metrics.summarise(y, *models[method].predict(client, fleet.ahead.X, return_std=True))
        table.add_row(label, f"{found['rmse']:.2f}", f"{found['nlpd']:.2f}", f"{100 * found['coverage_95']:.0f} %")
    return table


def _left(model: Fitted[Any], train: Federation) -> Table:
    """What left one vehicle; it is the same for all."""
    told = disclosed(model.ledger_, {name: client.num_rows for name, client in train.items()})[0]
    (sent, up), (received, down) = told.total("up"), told.total("down")
    table = Table.grid(padding=(0, 2))
    title = f"What left each vehicle, however many rows it has: {sent} messages, {in_bytes(up)}"
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    table.add_column(no_wrap=True)
    table.add_column()
    for message in told.messages:
        if message.direction == "up":
            times = f"{message.count} x {in_bytes(message.bytes)}"
            table.add_row(times, "; ".join(array.words for array in message.arrays))
    table.add_row("not sent", f"its rows. It received {received} messages, {in_bytes(down)}.")
    return table


def _next(folder: Path) -> str:
    return (
        f"\nWritten to {folder}: the model (without data), history, ledger, metrics and figures. Next:\n"
        f"  fedgauss inspect {folder}\n"
        f"  fedgauss predict {folder} --data {folder / 'newcomer.csv'} {folder / 'ahead.csv'}\n"
        f"  fedgauss run {folder / 'run.toml'} --output again"
    )
