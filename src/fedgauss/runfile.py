"""Run files: a fit described in TOML, checked key by key, and carried out into a folder.

Only `data.clients` and `data.target` are needed; paths start at the run file's own folder.

    seed = 0

    [data]
    clients = "plants/*.csv"     # one file a client, a list of files, or one file with a client column
    target = "y"
    inputs = ["x"]               # all other columns if left out
    client = "plant"             # the client column, if one file holds all clients
    test_fraction = 0.2          # of each client's rows, kept from the fit and predicted afterwards; 0 for none

    [method]
    name = "FGPR"                # or "FedBNR", "FedSparseGP"; "Separate" and "Pooled" hold one in [method.method]
    preset = "as_published"      # the paper's settings; what else stands here changes them
    kernel = { name = "sum", terms = ["rbf", { name = "linear" }] }
    priors = { lengthscale = { mean = 0.0, std = 1.0 } }

    [schedule]
    kind = "synchronous"         # or "sequential", "asynchronous"
    cohort = 10

    [engine]
    devices = 2
    network = { loss = 0.1 }

    [output]
    folder = "results"           # named like the run file if left out
"""

import dataclasses
import glob
import json
import os
import re
import tomllib
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import polars as pl
import pydantic

from fedgauss import runs
from fedgauss.callbacks import Checkpoint
from fedgauss.clients import Client
from fedgauss.engines.local import Callback, Local, Run
from fedgauss.engines.local import Network as SimulatedNetwork
from fedgauss.errors import DataError, SettingsError, suggest
from fedgauss.federation import Federation
from fedgauss.fitted import Fitted
from fedgauss.gp.features import Fourier, Network
from fedgauss.gp.kernels import Kernel, from_config
from fedgauss.gp.parameters import LogNormal
from fedgauss.metrics import MEAN, POOLED
from fedgauss.models import FGPR, FedBNR, FedSparseGP, Pooled, Separate, plain_settings
from fedgauss.schedules import Asynchronous, Schedule, Sequential, Synchronous

Method: TypeAlias = FGPR | FedBNR | FedSparseGP | Separate | Pooled
Model = TypeVar("Model", bound=pydantic.BaseModel)

METHODS: dict[str, type[Method]] = {
    "FGPR": FGPR, "FedBNR": FedBNR, "FedSparseGP": FedSparseGP, "Separate": Separate, "Pooled": Pooled,
}  # fmt: skip
FEATURES: dict[str, Any] = {"network": Network, "fourier": Fourier}
SCHEDULES: dict[str, type[Schedule]] = {
    "synchronous": Synchronous, "sequential": Sequential, "asynchronous": Asynchronous,
}  # fmt: skip
_SECTIONS = ("seed", "data", "method", "schedule", "engine", "output")
_STRICT = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


class Data(pydantic.BaseModel):
    """What `[data]` may hold."""

    model_config = _STRICT

    clients: str | list[str]
    target: str
    inputs: list[str] | None = None
    client: str | None = None
    test_fraction: Annotated[float, pydantic.Field(ge=0.0, lt=1.0)] = 0.2


class Output(pydantic.BaseModel):
    """What `[output]` may hold."""

    model_config = _STRICT

    folder: str | None = None
    figures: bool = True
    include_data: bool = False
    checkpoint: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFile:
    """A run file that has been read: every setting is known and possible.

    Args:
        path: Where it stands; paths in it start at its folder.
        data: Whose data, and which columns.
        method: What is fitted.
        schedule: Who is asked, and when.
        engine: How clients are computed.
        output: What is written, and where.
        seed: Every draw, and the split into training and test rows, follows from it.
        distillation: Where the method's own small data set was read from, if it has one.
    """

    path: Path
    data: Data
    method: Method
    schedule: Schedule = dataclasses.field(default_factory=Synchronous)
    engine: Local = dataclasses.field(default_factory=Local)
    output: Output = dataclasses.field(default_factory=Output)
    seed: int = 0
    distillation: str | None = None

    @property
    def folder(self) -> Path:
        """Where the run is written: `output.folder`, or the run file's own name without its ending."""
        return self.path.parent / Path(self.output.folder or self.path.stem).expanduser()

    def read_data(self) -> Federation:
        """The clients' data, from the files that `[data]` names."""
        clients = self.data.clients
        files = [self._place(text) for text in ([clients] if isinstance(clients, str) else clients)]
        return Federation.read(files, target=self.data.target, inputs=self.data.inputs, client=self.data.client)

    def _place(self, text: str) -> str:
        """A path or pattern that starts at the run file's folder, whose own name is not a pattern."""
        path = Path(text).expanduser()
        plain = self.path.parent / path
        return str(plain if plain.exists() else Path(glob.escape(str(self.path.parent))) / path)

    def to_toml(self, folder: Path) -> str:
        """The run file in full, every default written out, as it reads from another folder.

        Example:
            >>> data = Data(clients="plants/*.csv", target="y")
            >>> text = RunFile(path=Path("run.toml"), data=data, method=FGPR(rounds=7)).to_toml(Path("run"))
            >>> "../plants" in text, "rounds = 7" in text
            (True, True)
        """

        def moved(text: str) -> str:
            path = Path(text).expanduser()
            return text if path.is_absolute() else Path(os.path.relpath(self.path.parent / path, folder)).as_posix()

        clients = self.data.clients
        moved_clients = moved(clients) if isinstance(clients, str) else [moved(text) for text in clients]
        kind = next(name for name, schedule in SCHEDULES.items() if type(self.schedule) is schedule)
        method = _method_table(self.method)
        if self.distillation is not None:
            place = method["method"] if isinstance(self.method, Pooled) else method
            place["distillation"] = moved(self.distillation)
        sections = {
            "data": self.data.model_dump() | {"clients": moved_clients},
            "method": method,
            "schedule": {"kind": kind} | dataclasses.asdict(self.schedule),
            "engine": dataclasses.asdict(self.engine),
            "output": self.output.model_dump() | {"folder": "."},
        }
        lines = [runs.HEADLINE, f"seed = {self.seed}"]
        for section, table in sections.items():
            lines += ["", f"[{section}]"]
            lines += [f"{_toml_key(key)} = {_toml(value)}" for key, value in table.items() if value is not None]
        return "\n".join(lines) + "\n"


class Finished(NamedTuple):
    """What `execute` did."""

    folder: Path
    model: Fitted[Any]
    train: Federation
    table: pl.DataFrame | None
    """Metrics on held-out rows by client, "pooled" and "mean"; `None` if no rows were held out."""
    stopped: bool
    """Whether Ctrl-C ended the run before its time: what was written is the last finished round."""


def read_run_file(path: str | os.PathLike[str]) -> RunFile:
    """Read and check a run file.

    Raises:
        SettingsError: Names every key that is unknown, missing or of the wrong kind, what came and what was expected.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.toml"
        >>> _ = path.write_text('data = { clients = "*.csv", target = "y" }')
        >>> read_run_file(path).method.kernel.name
        'rbf'
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise SettingsError(f"run file '{path.name}': {reason}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"run file '{path.name}': not UTF-8 text; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"run file '{path.name}': not readable as TOML: {error}") from error
    check = _Check(path.parent)
    for section in tables:
        if section not in _SECTIONS:
            check.problems.append(f"{section}: unknown section, expected one of {_listed(section, _SECTIONS)}")
    check.data = check.model(Data, tables.get("data", {}), "data")
    found: dict[str, Any] = {
        "data": check.data,
        "method": check.method(tables.get("method", {}), "method"),
        "schedule": check.schedule(tables.get("schedule", {})),
        "engine": check.settings(
            Local, tables.get("engine", {}), "engine", {"network": (dict[str, Any], check.network)}
        ),
        "output": check.model(Output, tables.get("output", {}), "output"),
        "seed": check.seed(tables.get("seed", 0)),
    }
    if check.problems:
        lead = f"{path.name}: " if len(check.problems) == 1 else f"{path.name} has {len(check.problems)} problems.\n"
        raise SettingsError(lead + "\n".join(check.problems))
    return RunFile(path=path, distillation=check.read_distillation, **found)


def execute(run_file: RunFile, *, output: Path | None = None, resume: bool = False, progress: bool = True) -> Finished:
    """Fit, predict the held-out rows, and write the run's folder.

    Args:
        run_file: What to do.
        output: Where to write, instead of the run file's own choice.
        resume: Whether to go on with a run that stopped: from its last finished round, bit for bit.
        progress: Whether to show a bar.

    Returns:
        The fitted model and its metrics, which are also in the folder.

    Raises:
        DataError: If the data cannot be used.
        SettingsError: If the folder holds something else, or another run.
        RunError: If the run could not go on, or not be written.
    """
    folder = output or run_file.folder
    train, test = _split(run_file)
    with runs.started(folder, run_file.to_toml(folder), resume=resume):
        watch = _Watch()
        callbacks: list[Callback] = [watch]
        if run_file.output.checkpoint:
            callbacks.append(Checkpoint(folder / runs.CHECKPOINT))
        model = run_file.method.fit(
            train, seed=run_file.seed, schedule=run_file.schedule, engine=run_file.engine, callbacks=callbacks,
            progress=progress,
        )  # fmt: skip
        table = runs.write(
            folder, model, train, test, seed=run_file.seed, stopped=watch.stopped,
            include_data=run_file.output.include_data, figures=run_file.output.figures,
        )  # fmt: skip
    return Finished(folder, model, train, table, watch.stopped)


class _Watch(Callback):
    """Remembers whether Ctrl-C ended the run."""

    stopped = False

    def end(self, run: Run) -> None:
        self.stopped = run.interrupted


def _split(run_file: RunFile) -> tuple[Federation, Federation | None]:
    """Training rows and held-out rows."""
    federation = run_file.read_data()
    if not run_file.data.test_fraction:
        return federation, None
    for name in (POOLED, MEAN):
        if name in federation:
            raise DataError(f'client "{name}": this is the name of a row of the metrics; rename the client')
    return federation.split(run_file.data.test_fraction, run_file.seed)


# Checking ------------------------------------------------------------------------------------------------------------

Part = tuple[Any, Callable[[Any, str], Any]]
"""How a key is read whose value is more than a number or text: its type in TOML, and what makes the value of it."""


class _KernelTable(pydantic.BaseModel):
    """What the table of any kernel may hold; which kernel has which keys, `from_config` knows."""

    model_config = _STRICT

    name: str
    ard: bool = False
    active: list[int] = []
    degree: int = 2
    terms: list[str | dict[str, Any]] = []
    factors: list[str | dict[str, Any]] = []


class _Check:
    """Reads tables into settings and gathers what is wrong, so that all of it can be told at once."""

    def __init__(self, folder: Path) -> None:
        self.problems: list[str] = []
        self.folder = folder
        """Where paths start."""
        self.data: Data | None = None
        """`[data]`, once it has been read."""
        self.read_distillation: str | None = None
        """Where `method.distillation` was read from."""

    def model(self, model: type[Model], table: Any, key: str) -> Model | None:
        """A table as a model of pydantic; `None` if something is wrong."""
        try:
            return model.model_validate(table)
        except pydantic.ValidationError as error:
            self.problems += _sentences(error, table, key, list(model.model_fields))
            return None

    def settings(
        self, make: Any, table: Any, key: str, parts: Mapping[str, Part] = {}, *, owner: type[Any] | None = None
    ) -> Any:
        """A table as a settings object, whose own dataclass says which keys there are and of which kind.

        Args:
            make: The class, or a function that makes an object of it.
            table: What came.
            key: Where it came from, dotted.
            parts: Keys whose value is made of a table.
            owner: The class, if `make` is a function.
        """
        owner = owner or make
        kinds = typing.get_type_hints(owner) | {name: kind for name, (kind, _) in parts.items()}
        known = [field.name for field in dataclasses.fields(owner) if field.name != "server_optimiser"]
        keys: dict[str, Any] = {name: (kinds[name], None) for name in known}
        checked = self.model(pydantic.create_model("Table", __config__=_STRICT, **keys), table, key)
        if checked is None:
            return None
        before = len(self.problems)
        values = {name: getattr(checked, name) for name in checked.model_fields_set}
        values |= {name: parts[name][1](values[name], f"{key}.{name}") for name in parts if name in values}
        return None if len(self.problems) > before else self._made(lambda: make(**values), key)

    def _made(self, make: Callable[[], Any], key: str) -> Any:
        try:
            return make()
        except SettingsError as error:
            self.problems.append(_in_dots(str(error), key))
            return None

    def method(self, table: Any, key: str) -> Method | None:
        """`[method]`, and `[method.method]` within."""
        cls, rest = self._choice(table, key, "name", METHODS, "FGPR")
        if cls is None:
            return None
        if cls in (Separate, Pooled):
            inner: dict[str, Part] = {"method": (dict[str, Any], self._inner_method)}
            return typing.cast(Method | None, self.settings(cls, rest, key, inner))
        make: Any = cls
        if cls is not FedSparseGP:
            preset = rest.pop("preset", None)
            if preset not in (None, "as_published"):
                self.problems.append(f'{key}.preset: got {_shown(preset)}, expected "as_published"')
            make = cls if preset is None else cls.as_published
        return typing.cast(Method | None, self.settings(make, rest, key, self._parts(cls), owner=cls))

    def _parts(self, cls: type[Any]) -> dict[str, Part]:
        """The keys of a method whose value is not a number or text as it stands."""

        def same(value: Any, key: str) -> Any:
            return value

        kernel: Part = (str | dict[str, Any], self.kernel)
        if cls is FGPR:
            priors: Part = (dict[str, dict[str, Any]], self.priors)
            return {"kernel": kernel, "priors": priors, "optimiser": (Literal["adam", "sgd"], same)}
        if cls is FedSparseGP:
            return {"kernel": kernel, "optimiser": (Literal["lbfgs"], same)}
        return {
            "features": (str | dict[str, Any], self.features), "optimiser": (Literal["adam", "sgd", "lbfgs"], same),
            "distillation": (str, self.distillation),
        }  # fmt: skip

    def distillation(self, value: str, key: str) -> Client | None:
        """The server's own rows, from a file beside the run file."""
        path = self.folder / Path(value).expanduser()
        if self.data is None:
            return None
        try:
            read = Federation.read([str(path)], target=self.data.target, inputs=self.data.inputs)
        except DataError as error:
            self.problems.append(f"{key}: {error}")
            return None
        self.read_distillation = value
        return read.clients[0]

    def _inner_method(self, table: Any, key: str) -> Method | None:
        method = self.method(table, key)
        if isinstance(method, Separate | Pooled):
            came = type(method).__name__
            self.problems.append(f'{key}.name: got "{came}", expected "FGPR", "FedBNR" or "FedSparseGP"')
        return method

    def schedule(self, table: Any) -> Schedule | None:
        """`[schedule]`."""
        cls, rest = self._choice(table, "schedule", "kind", SCHEDULES, "synchronous")
        return None if cls is None else typing.cast(Schedule | None, self.settings(cls, rest, "schedule"))

    def _choice(
        self, table: Any, key: str, word: str, choices: Mapping[str, Any], default: str
    ) -> tuple[Any, dict[str, Any]]:
        """The class that a table names, and the rest of the table."""
        if not isinstance(table, dict):
            self.problems.append(f"{key}: got {_shown(table)}, expected a table")
            return None, {}
        rest = dict(table)
        name = rest.pop(word, default)
        if not isinstance(name, str) or name not in choices:
            self.problems.append(f"{key}.{word}: got {_shown(name)}, expected one of {_listed(name, choices)}")
            return None, rest
        return choices[name], rest

    def network(self, table: Any, key: str) -> SimulatedNetwork | None:
        """`engine.network`."""
        return typing.cast(SimulatedNetwork | None, self.settings(SimulatedNetwork, table, key))

    def features(self, value: Any, key: str) -> Any:
        """Features by name or as a table."""
        cls, rest = self._choice({"name": value} if isinstance(value, str) else value, key, "name", FEATURES, "network")
        parts: dict[str, Part] = {"widths": (int | list[int], lambda widths, key: widths)} if cls is Network else {}
        return None if cls is None else self.settings(cls, rest, key, parts)

    def priors(self, table: Any, key: str) -> dict[str, LogNormal]:
        """`method.priors`."""
        return {name: self.settings(LogNormal, prior, f"{key}.{name}") for name, prior in table.items()}

    def kernel(self, value: Any, key: str) -> Kernel | None:
        """A kernel by name or as a table, whose terms and factors are kernels again."""
        config = self._kernel_config(value, key)
        return None if config is None else typing.cast(Kernel | None, self._made(lambda: from_config(config), key))

    def _kernel_config(self, value: Any, key: str) -> dict[str, Any] | None:
        if isinstance(value, str):
            return {"name": value}
        if self.model(_KernelTable, value, key) is None:
            return None
        config: dict[str, Any] = dict(value)
        for group in ("terms", "factors"):
            if group in config:
                parts = [self._kernel_config(part, f"{key}.{group}[{i}]") for i, part in enumerate(config[group])]
                if None in parts:
                    return None
                config[group] = parts
        return config

    def seed(self, value: Any) -> int:
        """`seed`."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.problems.append(f"seed: got {_shown(value)}, expected a whole number, not negative")
            return 0
        return value


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "is_instance_of": "a list",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
"""What pydantic expected, by the type of its error."""


def _sentences(error: pydantic.ValidationError, table: Any, section: str, known: list[str]) -> list[str]:
    """What pydantic found, one sentence a key: where, what came, what was expected."""
    expected: dict[str, list[str]] = {}
    came: dict[str, Any] = {}
    sentences = []
    for problem in error.errors(include_url=False):
        kind, place, context = problem["type"], problem["loc"], problem.get("ctx", {})
        where, value = _place(section, place, table)
        if kind == "extra_forbidden":
            sentences.append(f"{where}: unknown key, expected one of {_listed(str(place[-1]), known)}")
        elif kind == "missing":
            sentences.append(f"{section}.{place[-1]}: missing; it has no default")
        else:
            if kind == "literal_error":
                choices = str(context["expected"]).replace("'", '"')
                phrase = choices + (suggest(value, re.findall('"(.*?)"', choices)) if isinstance(value, str) else "")
            elif kind in ("greater_than_equal", "less_than"):
                phrase = "a number from 0 to below 1"
            else:
                phrase = _EXPECTED.get(kind, problem["msg"])
            expected.setdefault(where, []).append(phrase)
            came[where] = value
    for where, phrases in expected.items():
        sentences.append(f"{where}: got {_shown(came[where])}, expected {' or '.join(dict.fromkeys(phrases))}")
    return sentences


def _place(section: str, location: tuple[int | str, ...], value: Any) -> tuple[str, Any]:
    """The dotted key an error belongs to, and what stands there. Pydantic adds names of types, which are left out."""
    where = section
    for part in location:
        if isinstance(value, dict) and part in value:
            where, value = f"{where}.{part}", value[part]
        elif isinstance(value, list) and isinstance(part, int):
            where, value = f"{where}[{part}]", value[part]
        else:
            break
    return where, value


def _in_dots(message: str, key: str) -> str:
    """What a settings object says, `FGPR(rounds=0): expected ...`, as a run file's: `method.rounds: got 0, ...`."""
    match = re.fullmatch(r"\w+\((\w+)=(.*?)\): (.*)", message, re.DOTALL)
    return f"{key}.{match[1]}: got {match[2]}, {match[3]}" if match else f"{key}: {message}"


def _listed(name: Any, known: Any) -> str:
    return ", ".join(known) + (suggest(name, known) if isinstance(name, str) else "")


def _shown(value: Any) -> str:
    """A value for a message; of tables and lists only that they are."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return _toml(value) if isinstance(value, str | bool | int | float) else f"a {type(value).__name__}"


# Writing -------------------------------------------------------------------------------------------------------------


def _method_table(method: Method) -> dict[str, Any]:
    """A method as the table it would be read from."""
    table: dict[str, Any] = plain_settings(method)
    if isinstance(method, FGPR):
        table["priors"] = {name: dataclasses.asdict(prior) for name, prior in method.priors.items()}
    elif isinstance(method, Separate | Pooled):
        table["method"] = _method_table(method.method)
    return table


def _toml(value: Any) -> str:
    """A value in TOML. Keys without a value are left out, as TOML has no null."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case dict():
            pairs = [f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items() if item is not None]
            return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case _:
            return repr(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)
