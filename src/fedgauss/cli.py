"""The command line: `fedgauss demo`, `run`, `predict`, `inspect`. Exit codes: 0 done, 1 the run failed, 2 bad input.

What a command needs is imported when it runs, so that help and a mistyped option are quick.
"""

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgauss.errors import DataError, FedgaussError, ScheduleError, SettingsError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from fedgauss.disclosure import Told
    from fedgauss.federation import Client
    from fedgauss.fitted import Fitted
    from fedgauss.runfile import Finished

app = typer.Typer(
    name="fedgauss",
    help="Federated Gaussian processes: many clients learn one model, each keeps its data.",
    epilog="Start with [bold]fedgauss demo[/bold]. Exit codes: 0 done, 1 the run failed, 2 bad input.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Debug = Annotated[bool, typer.Option("--debug", help="On an error show the traceback; log what is done.")]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Show a bar while fitting.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a saved model.")]
_MOST_CLIENTS = 30
"""Clients that `inspect` lists one by one."""


def _block(heading: str, *lines: str) -> str:
    """Lines for a help text that keep their breaks."""
    return "\b\n" + "\n".join([f"[bold]{heading}[/bold]", *(f"  {line}" for line in lines)]) + "\n\n"


def main() -> None:
    """The entry point."""
    app()


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedgauss {metadata.version('fedgauss')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    context.obj = debug


@contextlib.contextmanager
def _told(context: typer.Context, debug: bool) -> Iterator[None]:
    """Turn what goes wrong into a message on stderr and an exit code; with `--debug`, let it through."""
    debug = debug or bool(context.obj)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("fedgauss").setLevel(logging.DEBUG if debug else logging.WARNING)
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        typer.echo("fedgauss: stopped; nothing was kept", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        if debug:
            raise
        typer.echo(f"fedgauss: {_sentence(error)}", err=True)
        raise typer.Exit(2 if isinstance(error, DataError | SettingsError | ScheduleError) else 1) from None


def _sentence(error: Exception) -> str:
    """What went wrong, for a person. Messages of others may hold data or paths, so only ours are shown."""
    if isinstance(error, FedgaussError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"'{Path(error.filename).name}': {error.strerror}"
    return f"an unexpected {type(error).__name__}. The same command with --debug shows where it came from"


# demo ----------------------------------------------------------------------------------------------------------------


@app.command(epilog=_block("Examples", "fedgauss demo", "fedgauss demo --output my-demo --seed 1"))
def demo(
    context: typer.Context,
    output: Annotated[
        Path | None, typer.Option(help="Where to write the run.", show_default="fedgauss-demo, fedgauss-demo-2, ...")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the made-up data and the split.")] = 0,
    progress: Progress = True,
    debug: Debug = False,
) -> None:
    """A small made-up fleet: the personalised fit, its error and coverage against Separate and Pooled, figures."""
    with _told(context, debug):
        from rich.console import Console

        from fedgauss import demo

        demo.run(output or _free_name("fedgauss-demo"), seed=seed, console=Console(highlight=False), progress=progress)


def _free_name(name: str) -> Path:
    number = 1
    while (path := Path(name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path


# run -----------------------------------------------------------------------------------------------------------------


@app.command(
    epilog=_block(
        "A run file: clients and target are needed, the documentation lists the rest",
        *("\\[data]", 'clients = "plants/*.csv"    # one file a client', 'target = "y"', "\\[method]", "rounds = 50"),
    )
    + _block(
        "Examples",
        *("fedgauss run run.toml", "fedgauss run run.toml --output second --seed 1", "fedgauss run run.toml --resume"),
    )
)
def run(
    context: typer.Context,
    run_file: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="What to fit, to which data.")],
    output: Annotated[
        Path | None, typer.Option(help="Where to write the run.", show_default="what the run file says")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="In place of the run file's.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that stopped, if it did.")] = False,
    progress: Progress = True,
    debug: Debug = False,
) -> None:
    """Fit what a run file describes, predict the held-out rows, write it all to a folder."""
    with _told(context, debug):
        from fedgauss import runs
        from fedgauss.runfile import execute, read_run_file

        read = read_run_file(run_file)
        if seed is not None:
            read = dataclasses.replace(read, seed=seed)
        folder = output or read.folder
        if resume and runs.is_finished(folder, read.to_toml(folder)):
            typer.echo(f"{folder} is finished: there is nothing left to do")
            return
        finished = execute(read, output=folder, resume=resume, progress=progress)
        _show_run(finished)
        if finished.stopped:
            typer.echo(
                f"fedgauss: stopped by Ctrl-C after {len(finished.model.history_)} rounds. What was written is the last"
                " of them; --resume goes on from there",
                err=True,
            )
            raise typer.Exit(1)


def _show_run(finished: "Finished") -> None:
    from fedgauss.disclosure import in_bytes

    model, train, history = finished.model, finished.train, finished.model.history_
    ledger = model.ledger_
    up, down = (int(ledger.filter(direction=which)["bytes"].sum()) for which in ("up", "down"))
    typer.echo(f"{model.learned.method}: {len(train)} clients, {train.num_rows} training rows, {len(history)} rounds")
    typer.echo(f"sent: {in_bytes(up)} by the clients, {in_bytes(down)} to them")
    if shown := _short_parameters(model):
        typer.echo("learned: " + ", ".join(shown))
    if finished.table is None:
        typer.echo("no rows were held out: nothing to judge the predictions by")
    else:
        _console().print(_metrics_table(finished.table))
    typer.echo(f"written to {finished.folder}")


def _short_parameters(model: "Fitted[Any]") -> list[str]:
    """What was learned and is shared by all, but for networks' weights and inducing inputs."""
    from fedgauss.gp.parameters import flatten

    if model.learned.method == "Separate":
        return []
    found = flatten(model.parameters_).items()
    return [f"{name} {_number(value)}" for name, value in found if ".layers." not in name and name != "inducing_inputs"]


def _number(value: Any) -> str:
    numbers = [f"{number:.4g}" for number in value.ravel().tolist()]
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"


def _metrics_table(table: "pl.DataFrame") -> Any:
    """Metrics on held-out rows: averages, and the clients with the least and the largest error."""
    import polars as pl
    from rich import box
    from rich.table import Table

    from fedgauss.metrics import MEAN, POOLED

    clients = table.filter(~pl.col("client").is_in([POOLED, MEAN])).sort("rmse")
    labels = {MEAN: f"mean of {len(clients)} client{'' if len(clients) == 1 else 's'}", POOLED: "all rows pooled"}
    shown = Table(title="Held-out rows", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("")
    for name in ("RMSE", "NLPD", "in 95 %"):
        shown.add_column(name, justify="right")
    rows = list(table.filter(pl.col("client").is_in([POOLED, MEAN])).sort("client").iter_rows(named=True))
    if len(clients) > 1:
        ends = (("least error", clients.row(0, named=True)), ("largest error", clients.row(-1, named=True)))
        for label, row in ends:
            labels[row["client"]] = f"{label}: {row['client']}"
            rows.append(row)
    for row in rows:
        cells = (f"{row['rmse']:.4g}", f"{row['nlpd']:.3f}", f"{100 * row['coverage_95']:.0f} %")
        shown.add_row(labels[row["client"]], *cells)
    return shown


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=False)


# predict -------------------------------------------------------------------------------------------------------------


@app.command(
    epilog="Columns are found by name. All columns of NEW are kept beside the predictions: mean, std, lower_95 and"
    " upper_95 of a new observation.\n\n"
    + _block(
        "Examples",
        *(
            "fedgauss predict results --data site.csv new.csv",
            "fedgauss predict results --data site.csv new.csv > out.csv",
        ),
    )
)
def predict(
    context: typer.Context,
    folder: RunFolder,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="CSV or Parquet with the inputs to predict at.")],
    data: Annotated[
        Path | None, typer.Option(help="CSV or Parquet with the client's own rows: inputs and target.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A CSV or Parquet file to write.", show_default="print as CSV")
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose rows these are.", show_default="the name of the --data file"),
    ] = None,
    debug: Debug = False,
) -> None:
    """Predict for one client, from what all learned and the client's own rows."""
    with _told(context, debug):
        from fedgauss import runs
        from fedgauss.fitted import load

        if output is not None and output.suffix.lower() not in (".csv", ".parquet"):
            raise SettingsError(f"--output '{output.name}': expected a name that ends in .csv or .parquet")
        model = load(_inside(folder, "model.json"))
        table, X = _read_new(new, model)
        who = _whose(model, data, client)
        mean, std = model.predict(who, X, return_std=True)
        predicted = _beside(table, mean, std, new.name)
        if output is None:
            typer.echo(predicted.write_csv(), nl=False)
            return
        runs.write_table(output, predicted)
        typer.echo(f"{len(predicted)} predictions written to {output}")


def _inside(folder: Path, file: str) -> Path:
    """Where a file of the model stands: in the folder of a model, or of a run, which has the model within."""
    if not folder.is_dir():
        raise DataError(f"RUN: there is no folder '{folder.name}'")
    place = next((place for place in (folder, folder / "model") if (place / file).exists()), None)
    if place is None:
        unfinished = "; it has not finished, run it again with --resume" if (folder / "checkpoint").exists() else ""
        raise DataError(f"RUN: '{folder.name}' is not the folder of a run or of a model{unfinished}")
    return place


def _read_new(path: Path, model: "Fitted[Any]") -> "tuple[pl.DataFrame, pl.DataFrame]":
    """All columns of a file as they are, and the model's inputs as numbers."""
    import polars as pl

    from fedgauss.columns import Columns, quoted
    from fedgauss.errors import suggest

    names: list[str] = []

    def inputs(came: Sequence[str]) -> Columns:
        for name in model.learned.inputs:
            if name not in came:
                raise DataError(f"'{path.name}': no column \"{name}\" (input); got {quoted(came)}{suggest(name, came)}")
        names.extend(came)
        return Columns(model.learned.inputs, (), None)

    X = _read(path, inputs)
    # a column that is neither input nor target is read as it stands there: text of a CSV file stays the same text
    columns = [_read(path, lambda came, name=name: Columns((), (), name)) for name in dict.fromkeys(names)]
    return pl.concat(columns, how="horizontal"), X


def _read(path: Path, choose: Any) -> "pl.DataFrame":
    from fedgauss.readers import read_file

    if not path.is_file():
        raise DataError(f"there is no file '{path.name}'")
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(f"'{path.name}': expected a file that ends in .csv or .parquet")
    return read_file(path, f"'{path.name}'", choose)[0]


def _whose(model: "Fitted[Any]", data: Path | None, name: str | None) -> "Client | str | None":
    """Who is predicted for: a client with these rows, or one whose rows were saved with the model."""
    from fedgauss.columns import choose_columns
    from fedgauss.federation import Client

    learned = model.learned
    if model.is_global and (data is None or learned.method == "Pooled"):
        if data is not None:
            raise SettingsError("--data: a pooled model is the same for everyone; leave it out")
        return None
    if data is None:
        if name is None or model.federation is None:
            raise SettingsError(
                "--data: missing. The model holds no rows; a prediction needs the client's own, with columns"
                f" {', '.join((*learned.inputs, *learned.targets))}"
                if model.federation is None
                else "--data or --client: missing. Say whose prediction this is"
            )
        return name

    def columns(came: Sequence[str]) -> Any:
        chosen = {"target": learned.targets, "inputs": learned.inputs}
        return choose_columns(came, f"'{data.name}'", client=None, **chosen)

    rows = _read(data, columns)
    return Client(rows.select(learned.inputs), rows.select(learned.targets), name=name or data.stem)


def _beside(table: "pl.DataFrame", mean: Any, std: Any, file: str) -> "pl.DataFrame":
    import polars as pl

    from fedgauss.metrics import half_widths

    reach = half_widths([0.95])[0] * std
    found = {"mean": mean, "std": std, "lower_95": mean - reach, "upper_95": mean + reach}
    for name in found:
        if name in table.columns:
            raise DataError(f"'{file}': column \"{name}\" has the name of a prediction; rename or drop it")
    return table.hstack(pl.DataFrame(found))


# inspect -------------------------------------------------------------------------------------------------------------


@app.command(
    epilog=_block(
        "Examples",
        *("fedgauss inspect results", "fedgauss inspect results --client site-3", "fedgauss inspect results --json"),
    )
)
def inspect(
    context: typer.Context,
    folder: RunFolder,
    client: Annotated[str | None, typer.Option(metavar="NAME", help="One client alone.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """What left each client, in words and bytes, and whom it may have given away."""
    with _told(context, debug):
        import polars as pl

        from fedgauss.disclosure import disclosed
        from fedgauss.errors import suggest
        from fedgauss.files import read_json

        place = _inside(folder, "ledger.parquet")
        head = read_json(_inside(folder, "model.json") / "model.json", "a fedgauss model")
        method = str(head["method"])
        is_run = (folder / "metrics.json").exists()
        rows = read_json(folder / "metrics.json", "the metrics of a run")["rows"] if is_run else {}
        told = disclosed(pl.read_parquet(place / "ledger.parquet"), rows)
        columns = len(head["inputs"]) + len(head["targets"])
        if client is not None:
            names = [one.client for one in told]
            told = [one for one in told if one.client == client]
            if not told:
                raise DataError(f'--client: no client "{client}" in this run{suggest(client, names)}')
        if as_json:
            typer.echo(json.dumps(_as_json(method, told), indent=2, ensure_ascii=False))
        else:
            _show_told(method, told, columns)


def _as_json(method: str, told: "list[Told]") -> dict[str, Any]:
    clients = {}
    for one in told:
        totals = {}
        for direction in ("up", "down"):
            count, size = one.total(direction)
            totals[direction] = {"messages": count, "bytes": size}
        clients[one.client] = dataclasses.asdict(one) | totals
        del clients[one.client]["client"]
    return {"method": method, "clients": clients}


_NOTES = {
    "Pooled": "All rows of all clients were brought to one place. The messages below are that place's own.",
    "Separate": "Every client was fitted alone. What left it is what its objective was, for the history.",
}


def _show_told(method: str, told: "list[Told]", columns: int) -> None:
    from rich import box
    from rich.table import Table

    from fedgauss.disclosure import in_bytes

    console = _console()
    console.print(f"{method}: what left {told[0].client if len(told) == 1 else f'each of {len(told)} clients'}")
    if method in _NOTES:
        console.print(_NOTES[method])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("client")
    for name in ("rows", "messages sent", "bytes", "messages received", "bytes"):
        table.add_column(name, justify="right")
    few_first = sorted(told, key=lambda one: (one.rows is None, one.rows)) if len(told) > _MOST_CLIENTS else told
    for one in few_first[:_MOST_CLIENTS]:
        (sent, up), (received, down) = one.total("up"), one.total("down")
        rows = "?" if one.rows is None else str(one.rows)
        table.add_row(one.client, rows, str(sent), in_bytes(up), str(received), in_bytes(down))
    console.print(table)
    if len(told) > _MOST_CLIENTS:
        console.print(f"These have the fewest rows; {len(told) - _MOST_CLIENTS} more: see --client NAME, or --json.\n")
    for direction, heading in (("up", "What a client sent"), ("down", "What a client received")):
        console.print(heading)
        for line in _message_lines(told, direction):
            console.print(f"  {line}", overflow="ignore", no_wrap=True, crop=False)
        console.print()
    for line in _mind(method, told, columns):
        console.print(line)


def _message_lines(told: "list[Told]", direction: str) -> Iterator[str]:
    """The kinds of messages and their arrays, over all clients."""
    from fedgauss.disclosure import in_bytes, in_words

    counts: dict[tuple[str, int], list[int]] = {}
    arrays: dict[tuple[str, int], Any] = {}
    for one in told:
        for message in one.messages:
            if message.direction == direction:
                counts.setdefault((message.name, message.bytes), []).append(message.count)
                arrays[message.name, message.bytes] = message.arrays
    for (name, size), times in counts.items():
        least, most = min(times) if len(times) == len(told) else 0, max(times)
        often = "once" if least == most == 1 else f"{most} times" if least == most else f"{least} to {most} times"
        yield f"{name}, {often}, {in_bytes(size)}"
        parts = [(array.name, in_words(array.shape), array.kind, array.words) for array in arrays[name, size]]
        widths = [max(len(part[k]) for part in parts) for k in range(3)]
        for part in parts:
            yield "  " + "  ".join([*(part[k].ljust(widths[k]) for k in range(3)), part[3]]).rstrip()


def _mind(method: str, told: "list[Told]", columns: int) -> Iterator[str]:
    """What few rows, or many messages, may have given away."""
    warnings = [warning for one in told for warning in one.warnings]
    yield from (f"Mind: {warning}" for warning in warnings)
    if method == "Pooled":
        return
    if any(one.rows is None for one in told):
        yield "How many rows each client has is not known here, so it cannot be said whom few rows give away."
    elif not warnings:
        yield "No client has so few rows that one message amounts to the rows themselves."
    many = [one for one in told if one.rows is not None and one.numbers >= one.rows * columns]
    if many:
        yield (
            f"{len(many)} of {len(told)} clients sent at least as many numbers as their rows hold"
            f" ({many[0].client}: {many[0].numbers} about {(many[0].rows or 0) * columns}): counting alone does not"
            " rule out that such rows could be worked out."
        )
    yield "Messages are plain numbers, neither encrypted nor blurred by noise."
