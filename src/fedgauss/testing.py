"""The list that every algorithm passes. Run it over your own: `check_algorithm(MyAlgorithm(...), federation)`."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from fedgauss.algorithm import FederatedAlgorithm, fingerprint
from fedgauss.engines.local import Local, LocalWorker, Run, _compiled_cohort
from fedgauss.errors import ScheduleError
from fedgauss.exchange import reply_shape, sum_in_order
from fedgauss.federation import Client, Federation
from fedgauss.messages import from_bytes, named_leaves, to_bytes, types_in
from fedgauss.schedules import Asynchronous, Synchronous, check_schedule

Algorithm = FederatedAlgorithm[Any, Any, Any, Any]
_MOST_ROUNDS = 1000


def check_algorithm(algorithm: Algorithm, federation: Federation) -> None:
    """Run every check.

    Args:
        algorithm: The algorithm, with settings under which it finishes soon.
        federation: Clients of at least three rows, in the units that the algorithm expects.

    Raises:
        AssertionError: Names the check and what went wrong.

    Example:
        >>> from fedgauss.algorithms.moments import Moments
        >>> x = np.arange(12.0)[:, None]
        >>> check_algorithm(
        ...     Moments(num_inputs=1, num_targets=1), Federation.from_arrays({"a": (x, x[:, 0]), "b": (x, -x[:, 0])})
        ... )
    """
    for name, check in checks():
        try:
            check(algorithm, federation)
        except AssertionError as error:
            raise AssertionError(f"{type(algorithm).__name__}, {name}: {error}") from error


def checks() -> Iterator[tuple[str, Callable[[Algorithm, Federation], None]]]:
    """Each check with its name."""
    yield "frozen, hashable, with a fingerprint", _is_frozen
    yield "the same twice", _is_deterministic
    yield "messages survive a trip through bytes", _survives_bytes
    yield "a reply's shape does not depend on the number of rows", _has_constant_shape
    yield "padding changes nothing", _ignores_padding
    yield "replies add in any grouping", _adds_in_any_grouping
    yield "one compilation for all rounds", _compiles_once
    yield "it finishes, and honours its quorum", _finishes
    yield "a state saved and restored goes on alike", _resumes
    yield "an answer that is not finite is refused by name", _refuses_nan


def _run(algorithm: Algorithm, federation: Federation, **options: Any) -> Run:
    return Run(algorithm, federation, schedule=Synchronous(), engine=Local(**options), seed=0)


class _Kind(NamedTuple):
    """The first request of its kind in a run, and what all clients make of it."""

    run: Run
    """A run that has come to it."""
    request: Any
    proposals: Any
    replies: Any
    """Flattened, one row a client."""


def _kinds(algorithm: Algorithm, federation: Federation) -> list[_Kind]:
    """One for each kind of request that the algorithm makes until it finishes."""
    run = _run(algorithm, federation)
    found: dict[type, _Kind] = {}
    for _ in range(_MOST_ROUNDS):
        request = algorithm.request(run.server)
        if request is None:
            break
        if type(request) not in found:
            here = _run(algorithm, federation)
            here.restore(jax.tree.map(np.array, run.state()))
            everybody = np.arange(len(federation))
            found[type(request)] = _Kind(here, request, *here.worker.compute(request, 0, everybody, here.clients))
        run.step()
    assert found, "the first request is None: there is nothing to do"
    return list(found.values())


def _same(left: Any, right: Any) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _is_frozen(algorithm: Algorithm, federation: Federation) -> None:
    assert hash(algorithm) == hash(algorithm), "it is not hashable"
    assert len(fingerprint(algorithm)) == 12
    for name in list(vars(algorithm))[:1]:
        try:
            setattr(algorithm, name, None)
        except AttributeError:
            continue
        raise AssertionError(f"field {name} can be set: make it a frozen dataclass")


def _is_deterministic(algorithm: Algorithm, federation: Federation) -> None:
    for one, other in zip(*(_kinds(algorithm, federation) for _ in range(2)), strict=True):
        assert _same(one.proposals, other.proposals), "a client proposed another state the second time"
        assert np.array_equal(one.replies, other.replies), "a client answered otherwise the second time"


def _survives_bytes(algorithm: Algorithm, federation: Federation) -> None:
    for run, request, _, _ in _kinds(algorithm, federation):
        for message in (request, run.worker.abstract_reply(request), jax.device_get(run.server), run.clients):
            message = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), message)
            back = from_bytes(to_bytes(message), types_in(message))
            structures = [str(jax.tree.structure(tree)) for tree in (back, message)]
            assert structures[0] == structures[1], f"{type(message).__name__} came back otherwise"
            assert _same(back, message)


def _resized(federation: Federation, rows: int) -> Federation:
    def resize(client: Client) -> Client:
        return client.take(np.arange(rows) % client.num_rows)

    return federation.map(resize)


def _has_constant_shape(algorithm: Algorithm, federation: Federation) -> None:
    for few, many in zip(*(_kinds(algorithm, _resized(federation, rows)) for rows in (10, 100)), strict=True):
        numbers = [kind.replies.shape[1] for kind in (few, many)]
        assert numbers[0] == numbers[1], f"10 rows give {numbers[0]} numbers, 100 rows give {numbers[1]}"


def _ignores_padding(algorithm: Algorithm, federation: Federation) -> None:
    longest = int(federation.sizes.max())
    name = f"{federation.names[-1]} and more"
    last = federation.clients[-1]
    X, Y = (np.resize(part, (2 * longest, part.shape[1])) for part in (last.X, last.Y))
    long = Client.of_matrices(X, Y, name, last.inputs, last.targets)
    with_long, all_but_last = Federation([*federation.clients, long]), np.arange(len(federation))
    for run, request, _, replies in _kinds(algorithm, federation):
        worker = LocalWorker(algorithm, with_long, np.append(run.worker.weights, 1.0), seed=0)
        _, padded = worker.compute(request, 0, all_but_last, run.clients)
        np.testing.assert_allclose(padded, replies, rtol=1e-8, atol=1e-10)


def _adds_in_any_grouping(algorithm: Algorithm, federation: Federation) -> None:
    if algorithm.combine == "stack":
        return
    for run, request, _, replies in _kinds(algorithm, federation):
        shape = reply_shape(algorithm, request, run.worker)
        in_order, *_ = shape.update(run.server, sum_in_order(replies))
        backwards, *_ = shape.update(run.server, sum_in_order(np.ascontiguousarray(replies[::-1])))
        for (name, a), (_, b) in zip(named_leaves(in_order), named_leaves(backwards), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=name)


def _compiles_once(algorithm: Algorithm, federation: Federation) -> None:
    run = _run(algorithm, federation)
    known: set[Any] = set()
    while (request := algorithm.request(run.server)) is not None and run.exchange.round < 10:
        update = reply_shape(algorithm, request, run.worker).update
        cohorts = [_compiled_cohort(algorithm, at.devices, at.together) for at in run.worker._layouts.values()]
        before = [function._cache_size() for function in (update, *cohorts)]
        run.step()
        after = [function._cache_size() for function in (update, *cohorts)]
        assert after == before or update not in known, "a later round was compiled again"
        known.add(update)


def _finishes(algorithm: Algorithm, federation: Federation) -> None:
    run = _run(algorithm, federation)
    for _ in range(_MOST_ROUNDS):
        if not run.step():
            break
    else:
        raise AssertionError(f"request is not None after {_MOST_ROUNDS} rounds")
    if algorithm.quorum == "every":
        try:
            check_schedule(Asynchronous(), algorithm)
        except ScheduleError:
            return
        raise AssertionError("it needs every client, but Asynchronous takes it")


def _resumes(algorithm: Algorithm, federation: Federation) -> None:
    whole = _run(algorithm, federation)
    whole.step()
    saved = to_bytes(whole.state())
    whole.step()
    resumed = _run(algorithm, federation)
    resumed.restore(from_bytes(saved, types_in(whole.state())))
    resumed.step()
    assert _same(jax.device_get(whole.server), jax.device_get(resumed.server)), "the server's state differs"
    assert _same(whole.clients, resumed.clients), "a client's state differs"


def _refuses_nan(algorithm: Algorithm, federation: Federation) -> None:
    for run, request, _, _ in _kinds(algorithm, federation):
        before = jax.device_get(run.server)
        answers = run.exchange.ask(request, np.arange(len(federation)))
        answers.replies[0] = np.nan
        info = run.exchange.deliver(answers, np.array([0]))
        assert info is None, "an answer that is not finite was counted"
        assert _same(before, jax.device_get(run.server)), "the server's state changed"
        rows = run.ledger.to_frame()
        refused = rows.filter(rows["outcome"] == "refused")["client"].to_list()
        assert refused == [federation.names[0]], "the ledger does not name the client whose answer was refused"
