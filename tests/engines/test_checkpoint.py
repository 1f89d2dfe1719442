"""Runs that are killed, interrupted or out of space: they go on bit for bit, and nothing half-written is left."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgauss as fg
from engines.runs import DrawingToy, bits, checkpointed_run, small_world, toy_world
from fedgauss.callbacks import Checkpoint, EarlyStopping
from fedgauss.engines.local import Callback, Local, Run
from fedgauss.errors import DataError, RunError, SettingsError
from fedgauss.messages import from_bytes
from fedgauss.schedules import Asynchronous, Synchronous
from protocol.toy import Natural, Posterior, PosteriorRequest

TESTS = Path(__file__).parents[1]
ROUNDS = 8


def run_to_the_end(folder: Path, updates: int = ROUNDS, **changes: Any) -> Run:
    return checkpointed_run(updates, **changes)([Checkpoint(folder)])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Snapshots:
    """Copies of a folder before and after every operation that a crash could come between."""

    def __init__(self, folder: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.into, self.taken = folder, into, 0
        for name in ("fsync", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._around(getattr(os, name)))

    def take(self, cut: int = 0, file: str = "") -> None:
        place = self.into / str(self.taken)
        self.taken += 1
        shutil.copytree(self.folder, place)
        if file:
            os.truncate(place / file, max(0, (place / file).stat().st_size - cut))

    def _around(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any) -> Any:
            self.take()
            if operation.__name__ == "fsync" and os.path.isfile(f"/proc/self/fd/{arguments[0]}"):
                written = Path(os.readlink(f"/proc/self/fd/{arguments[0]}")).name
                for cut in (
                    1,
                    40,
                    10**9 if written.startswith(".") else 40,
                ):  # not all that was written came to the disk
                    self.take(cut, written)
            result = operation(*arguments)
            self.take()
            return result

        return around


def check_every_crash(checkpoint: type[Checkpoint], tmp_path: Path, every: int = 1, **changes: Any) -> int:
    whole = checkpointed_run(ROUNDS, **changes)()
    (tmp_path / "run").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        snapshots = Snapshots(tmp_path / "run", tmp_path, patch)
        checkpointed_run(ROUNDS, **changes)([checkpoint(tmp_path / "run", every=every)])
    for number in range(snapshots.taken):
        for again in ("once", "again, from what that left"):
            resumed = checkpointed_run(ROUNDS, **changes)([Checkpoint(tmp_path / str(number))])
            assert bits(resumed) == bits(whole), f"snapshot {number}, {again}"
    return snapshots.taken


@pytest.mark.parametrize(
    ("every", "changes"), [(1, {}), (3, {"schedule": Synchronous(cohort=2)})], ids=["async", "every 3, cohort"]
)
def test_a_run_killed_at_any_file_operation_goes_on_bit_for_bit(every: int, changes: Any, tmp_path: Path) -> None:
    assert check_every_crash(Checkpoint, tmp_path, every, **changes) > 20


class StateFirst(Checkpoint):
    """The mistake: the state is written before the journal that it refers to."""

    def _write(self, page: Any) -> None:
        from fedgauss.files import append, write_atomically

        self._next = None
        write_atomically(self.state_file, page.state)
        self._length = append(self.journal_file, self._length, page.journal)
        self._rows, self._entries = page.rows, page.entries


@pytest.mark.xfail(raises=RunError, strict=True, reason="the order is broken on purpose")
def test_a_broken_order_of_writing_is_noticed(tmp_path: Path) -> None:
    check_every_crash(StateFirst, tmp_path)


def start(folder: Path, stage: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(TESTS), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "engines.killed", str(folder), stage]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=TESTS)


def finished_rounds(folder: Path) -> int:
    """What the state says; the journal may be ahead of it."""
    state = from_bytes((folder / "state.safetensors").read_bytes()[32:], [Natural, Posterior, PosteriorRequest])
    return int(state["run"]["numbers"][0])


def test_a_process_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    lengths: list[int] = []
    for stage in ("replace:4", "write:8", "wait"):
        process = start(tmp_path, stage)
        assert process.stdout is not None
        if stage == "wait":
            first = int(process.stdout.readline())
            assert first == lengths[-1] + 1, "it did not go on from the last finished round"
            time.sleep(np.random.default_rng().uniform(0.0, 0.1))
            process.kill()
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
        lengths.append(finished_rounds(tmp_path))
    assert lengths[0] < lengths[1] < lengths[2] < 40
    resumed = run_to_the_end(tmp_path, updates=40)
    assert bits(resumed) == bits(checkpointed_run(40)())


def test_early_stopping_goes_on_where_it_was(tmp_path: Path) -> None:
    def watchers(folder: Path) -> list[Callback]:
        return [EarlyStopping("precision", patience=5), Checkpoint(folder)]

    whole = checkpointed_run(40)(watchers(tmp_path / "whole"))
    assert len(whole.history) == 6
    cut = checkpointed_run(40)
    cut([*watchers(tmp_path / "cut"), StopsAt(3)])
    assert len(cut.history) == 3
    resumed = checkpointed_run(40)(watchers(tmp_path / "cut"))
    assert bits(resumed) == bits(whole)
    again = checkpointed_run(40)(watchers(tmp_path / "cut"))
    assert bits(again) == bits(whole), "a run that had been stopped early went on"


def test_early_stopping_names_the_columns_there_are() -> None:
    with pytest.raises(SettingsError, match="no column 'loss', only precision"):
        checkpointed_run(3)([EarlyStopping("loss")])


class StopsAt(Callback):
    """Stops after so many rounds, or does something then."""

    def __init__(self, rounds: int, act: Callable[[], object] = lambda: None) -> None:
        self.rounds, self.act = rounds, act

    def round_end(self, run: Run) -> bool:
        if len(run.history) == self.rounds:
            self.act()
        return len(run.history) == self.rounds


class ActsAt(StopsAt):
    """Does something after so many rounds, and lets the run go on."""

    def round_end(self, run: Run) -> bool:
        super().round_end(run)
        return False


# --- checkpoints that do not fit -----------------------------------------------------------------------------------

OTHERS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "settings": {"algorithm": DrawingToy(updates=ROUNDS, damping=0.4)},
    "schedule": {"schedule": Asynchronous(in_flight=1)},
    "engine": {"engine": Local()},
    "clients": {"rows": (1, 2, 5, 7)},
    "data": {"federation": toy_world(sick="a")},
    "targets in another order": {"federation": toy_world().map(lambda client: client.with_values(Y=client.Y[::-1]))},
    "targets of the other sign": {"federation": toy_world().map(lambda client: client.with_values(Y=-client.Y))},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_the_checkpoint_of_another_run_is_refused_and_stays(other: dict[str, Any], tmp_path: Path) -> None:
    run_to_the_end(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(RunError, match="belongs to another run: its method, settings, clients, data, schedule"):
        run_to_the_end(tmp_path, **other)
    assert contents(tmp_path) == before


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def scribble(path: Path) -> None:
    path.write_bytes(b"\x00scribble" * 40)


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "state cut": ("state.safetensors", cut),
    "state empty": ("state.safetensors", lambda path: path.write_bytes(b"")),
    "state of others": ("state.safetensors", scribble),
    "journal cut": ("journal.jsonl", cut),
    "journal gone": ("journal.jsonl", lambda path: path.unlink()),
    "journal of others": ("journal.jsonl", lambda path: path.write_bytes(b"[]\n" * 10_000)),
    "journal scribbled on": ("journal.jsonl", lambda path: path.write_bytes(b"\xff" * 100_000)),
}


@pytest.mark.parametrize(("file", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_stays(file: str, damage: Callable[[Path], object], tmp_path: Path) -> None:
    run_to_the_end(tmp_path)
    damage(tmp_path / file)
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"the checkpoint is damaged: .* Choose an empty folder"):
        run_to_the_end(tmp_path)
    assert contents(tmp_path) == before


@given(st.sampled_from(["state.safetensors", "journal.jsonl"]), st.integers(0, 10**6), st.integers(1, 255))
def test_a_flipped_byte_is_refused_with_a_message(file: str, place: int, flip: int) -> None:
    folder = _written()
    kept = contents(folder)
    raw = bytearray(kept[file])
    raw[place % len(raw)] ^= flip
    (folder / file).write_bytes(raw)
    try:
        with pytest.raises(RunError, match="the checkpoint is damaged"):
            run_to_the_end(folder)
    finally:
        for name, content in kept.items():
            (folder / name).write_bytes(content)


_WRITTEN: list[Path] = []


def _written() -> Path:
    return _WRITTEN[0]


@pytest.fixture(autouse=True, scope="module")
def _write_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("written")
    checkpointed_run(ROUNDS)([Checkpoint(folder), StopsAt(ROUNDS - 2)])
    _WRITTEN[:] = [folder]


def test_a_checkpoint_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "state.safetensors").mkdir()
    with pytest.raises(RunError, match="the checkpoint cannot be read: Is a directory"):
        run_to_the_end(tmp_path)


def test_a_checkpoint_in_a_place_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"could not write 'journal.jsonl': (File exists|Not a directory)"):
        run_to_the_end(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_journal_without_a_state_is_begun_again(tmp_path: Path) -> None:
    run_to_the_end(tmp_path)
    (tmp_path / "state.safetensors").unlink()
    assert bits(run_to_the_end(tmp_path)) == bits(checkpointed_run(ROUNDS)())
    assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == ROUNDS


# --- Ctrl-C --------------------------------------------------------------------------------------------------------


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_lets_the_round_finish_and_the_run_goes_on_later(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    stopped = checkpointed_run(ROUNDS)([ActsAt(3, press), Checkpoint(tmp_path)])
    assert (stopped.interrupted, len(stopped.history)) == (True, 3)
    assert signal.getsignal(signal.SIGINT) is before
    assert bits(run_to_the_end(tmp_path)) == bits(checkpointed_run(ROUNDS)())


def test_ctrl_c_twice_stops_at_once_and_keeps_the_last_finished_round(tmp_path: Path) -> None:
    def twice() -> None:
        press()
        press()

    before = signal.getsignal(signal.SIGINT)
    run = checkpointed_run(ROUNDS)
    with pytest.raises(KeyboardInterrupt):
        run([ActsAt(4, twice), Checkpoint(tmp_path)])
    assert signal.getsignal(signal.SIGINT) is before
    assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == 3
    assert bits(run_to_the_end(tmp_path)) == bits(checkpointed_run(ROUNDS)())


def test_an_error_in_a_round_keeps_the_rounds_before_it_however_seldom_one_writes(tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkpointed_run(ROUNDS)([Checkpoint(tmp_path, every=100), ActsAt(4, fail)])
    assert finished_rounds(tmp_path) == 4
    assert bits(run_to_the_end(tmp_path)) == bits(checkpointed_run(ROUNDS)())


# --- a full disk ---------------------------------------------------------------------------------------------------


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """What a full disk does: writing fails after some of the bytes. The limit is the operating system's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("size", [0, 700, 5000])
def test_a_full_disk_ends_the_run_and_the_checkpoint_before_it_stays_good(size: int, tmp_path: Path) -> None:
    checkpointed_run(ROUNDS)([Checkpoint(tmp_path), StopsAt(3)])
    state = (tmp_path / "state.safetensors").read_bytes()
    with no_file_larger_than(size), pytest.raises(RunError, match=r"could not write '.*': File too large"):
        run_to_the_end(tmp_path)
    assert set(contents(tmp_path)) == {"state.safetensors", "journal.jsonl"}, "a half-written file was left"
    if size < 5000:
        assert (tmp_path / "state.safetensors").read_bytes() == state
    assert bits(run_to_the_end(tmp_path)) == bits(checkpointed_run(ROUNDS)())


class Full:
    """Fails at the n-th call of any operation that a full disk lets fail."""

    def __init__(self, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = number
        for name in ("fsync", "replace", "mkdir"):
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return operation(*arguments, **options)

        return failing


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """Two models of the same kind, the second of which is saved over the first."""
    data = small_world(num_inputs=2)
    fits = [fg.FGPR(rounds=n, local_steps=1, personal=("noise_variance",)).fit(data, progress=False) for n in (1, 2)]
    return fits[0], fits[1]


def litter(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_saving_over_a_model_leaves_the_old_or_the_new_one_wherever_it_fails(models: Any, tmp_path: Path) -> None:
    failures = 0
    for number in range(1, 40):
        place = tmp_path / str(number)
        models[0].save(place)
        old = contents(place)
        with pytest.MonkeyPatch.context() as patch:
            full = Full(number, patch)
            message = ""
            try:
                models[1].save(place)
            except RunError as error:
                message = str(error)
        assert litter(tmp_path) == []
        if full.left > 0:
            assert fg.load(place).history_.height == 2
            break
        if message:
            failures += 1
            assert message.startswith(f"could not write '{number}': No space left on device. What was there")
            assert contents(place) == old
            assert fg.load(place).history_.height == 1
        else:  # the folder's own entry, which not every system can make last
            assert fg.load(place).history_.height == 2
    assert failures >= 6, "a folder, each file and the renames may fail"
    assert full.left > 0


def test_a_disk_that_fills_up_while_saving_leaves_no_half_of_a_model(models: Any, tmp_path: Path) -> None:
    sizes = sorted({len(content) for content in contents(models[1].save(tmp_path / "sizes")).values()})
    models[0].save(tmp_path / "old")
    old = contents(tmp_path / "old")
    for size in (0, *(size - 1 for size in sizes)):
        for name in ("new", "old"):
            with no_file_larger_than(size), pytest.raises(RunError, match=f"could not write '{name}': File too large"):
                models[1].save(tmp_path / name)
        assert not (tmp_path / "new").exists()
        assert contents(tmp_path / "old") == old
        assert litter(tmp_path) == []


def test_only_a_model_is_replaced(models: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("thesis", "file"):
        with pytest.raises(RunError, match=rf"'{name}' exists and holds something else"):
            models[0].save(tmp_path / name)
    assert contents(tmp_path) == {"thesis/chapter.tex": b"mine", "file": b"mine"}
    (tmp_path / "empty").mkdir()
    assert fg.load(models[0].save(tmp_path / "empty")).history_.height == 1


# --- what is in the files ------------------------------------------------------------------------------------------


def numbers_in(folder: Path) -> set[float]:
    """Every number in a folder: eight bytes anywhere in a file, a value of a table, a number of a JSON file."""
    found: set[float] = set()

    def collect(value: Any) -> None:
        if isinstance(value, float):
            found.add(value)
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                collect(item)

    for name, content in contents(folder).items():
        for offset in range(8):
            found.update(np.frombuffer(content[offset : len(content) - (len(content) - offset) % 8], "<f8").tolist())
        if name.endswith(".parquet"):  # compressed
            collect(pl.read_parquet(folder / name).rows(named=True))
        if name.endswith(".json"):
            collect(json.loads(content))
    return found


def test_a_saved_model_and_a_checkpoint_hold_no_value_of_the_training_data(models: Any, tmp_path: Path) -> None:
    model = models[1]
    data = {
        float(v) for client in small_world(num_inputs=2).clients for part in (client.X, client.Y) for v in part.flat
    }
    standardised = model.learned.scaling.apply(small_world(num_inputs=2))
    scaled = {float(v) for client in standardised.clients for part in (client.X, client.Y) for v in part.flat}
    with_data = numbers_in(model.save(tmp_path / "with", include_data=True))
    assert data <= with_data, "the search misses what is there"
    assert not (data | scaled) & numbers_in(model.save(tmp_path / "without"))
    method = fg.FGPR(rounds=2, local_steps=1, personal=("noise_variance",))
    method.fit(small_world(num_inputs=2), callbacks=[Checkpoint(tmp_path / "checkpoint")], progress=False)
    assert not (data | scaled) & numbers_in(tmp_path / "checkpoint")


def test_a_model_loaded_predicts_as_the_one_saved(models: Any, tmp_path: Path) -> None:
    data, model = small_world(num_inputs=2), models[1]
    at = np.linspace(-1.0, 1.0, 8).reshape(4, 2)
    expected = model.predict("b", at, return_std=True)
    bare, full = fg.load(model.save(tmp_path / "bare")), fg.load(model.save(tmp_path / "full", include_data=True))
    np.testing.assert_array_equal(full.predict("b", at, return_std=True), expected)
    own = fg.Client(data["b"].X, data["b"].Y, name="b")
    np.testing.assert_array_equal(bare.predict(own, at, return_std=True), expected)
    assert bare.history_.equals(model.history_)
    assert bare.ledger_.equals(model.ledger_)
    with pytest.raises(DataError, match=r'client "b": this model was loaded without training data'):
        bare.predict("b", at)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *((name, Path.unlink) for name in ("arrays.safetensors", "history.parquet", "ledger.parquet", "model.json")),
        ("model.json", cut),
        *((name, cut) for name in ("arrays.safetensors", "history.parquet", "ledger.parquet")),
    ],
)
def test_a_model_that_is_not_whole_is_refused_with_a_message(
    models: Any, file: str, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    place = models[0].save(tmp_path / "model")
    damage(place / file)
    with pytest.raises(DataError, match=r"incomplete|holds no model.json|is not JSON"):
        fg.load(place)
