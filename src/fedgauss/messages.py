"""Messages between server and clients: trees of named arrays that add, are counted in bytes, and need no pickle."""

import functools
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Array, Float

Tree = TypeVar("Tree")


class Weighted(NamedTuple):
    """A weighted mean on its way: `value` holds weight times value, so that replies add. See `mean`.

    Example:
        >>> a, b = Weighted(np.array(2.0) * 3, np.array(2.0)), Weighted(np.array(1.0) * 6, np.array(1.0))
        >>> float(mean(add(a, b)))
        4.0
    """

    value: Any
    weight: Float[Array, ""]


def weighted(value: Tree, weight: Float[Array, ""]) -> Weighted:
    """`value`, to be averaged over clients with this weight."""
    return Weighted(jax.tree.map(lambda leaf: weight * leaf, value), weight)


def mean(total: Weighted) -> Any:
    """The weighted mean that a sum of `Weighted` replies stands for; zero where nobody weighed anything."""
    weight = jnp.where(total.weight == 0.0, 1.0, total.weight)
    return jax.tree.map(lambda leaf: leaf / weight, total.value)


def add(left: Tree, right: Tree) -> Tree:
    """Two messages of the same kind, added leaf by leaf."""
    total: Tree = jax.tree.map(lambda a, b: a + b, left, right)
    return total


class Tally(NamedTuple):
    """A sum, and whose it is: two sums are over the same clients where their `members` are equal."""

    value: Any
    members: Float[Array, "2"]
    """How many clients, and the sum of their tickets: whole numbers that each drew once, at random."""
    failed: Float[Array, ""]
    """How many of them could not compute their part; the value is then worth nothing."""


def draw_ticket(key: Any) -> Float[Array, ""]:
    """A client's ticket: below 2^32, so the sum over a million clients is exact."""
    return jax.random.bits(key, (), jnp.uint32).astype(jnp.float64)


def tally(value: Tree, ticket: Float[Array, ""]) -> Tally:
    """A client's part of a sum; zeros that are marked as failed where it is not finite."""
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(value)]
    fine = jnp.all(jnp.array(leaves))
    value = jax.tree.map(lambda leaf: jnp.where(fine, leaf, 0.0), value)
    return Tally(value, jnp.stack([jnp.ones(()), ticket]), 1.0 - fine)


class ArraySpec(NamedTuple):
    """What the ledger records of one array of a message."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    kind: str
    """`mean`, `sum` or `stack` on the way up, `broadcast` on the way down."""


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of a message with their dotted names, in a fixed order.

    Example:
        >>> [name for name, _ in named_leaves(Weighted({"noise_variance": 1.0}, 2.0))]
        ['value.noise_variance', 'weight']
    """
    leaves, structure = jax.tree.flatten(tree)
    yield from zip(_leaf_names(structure), leaves, strict=True)


@functools.lru_cache(maxsize=256)
def _leaf_names(structure: Any) -> tuple[str, ...]:
    """Spelling them out takes longer than all else that a round's row of the history needs."""
    paths = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(structure, range(structure.num_leaves)))[0]
    return tuple(jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths)


def describe(message: Any, kind: str) -> tuple[ArraySpec, ...]:
    """Every array of a message (or of its abstract shape) as the ledger records it."""
    specs = []
    for name, leaf in named_leaves(message):
        dtype = np.dtype(leaf.dtype)
        size = int(np.prod(leaf.shape, dtype=np.int64)) * dtype.itemsize
        part = "sum" if kind == "mean" and name == "weight" else kind
        specs.append(ArraySpec(name, tuple(leaf.shape), dtype.name, size, part))
    return tuple(specs)


def reply_kind(message: Any, combine: str) -> str:
    """`mean`, `sum` or `stack`: how a reply joins the others."""
    if combine == "stack":
        return "stack"
    return "mean" if isinstance(message, Weighted) else "sum"


def message_name(message: Any) -> str:
    """What the ledger calls a message: its type, and of a mean or tally the type of what is averaged or added.

    Example:
        >>> message_name(ArraySpec("x", (), "float64", 8, "sum")), message_name(Weighted((1.0, 2.0), 1.0))
        ('ArraySpec', 'tuple')
    """
    return type(message.value if isinstance(message, Weighted | Tally) else message).__name__


# --- bytes: arrays in safetensors, the tree's shape as JSON beside them -------------------------------------------


def to_bytes(message: Any) -> bytes:
    """A message or state as safetensors, its structure as JSON in the header.

    Args:
        message: Arrays and numbers in dicts, lists, tuples and named tuples.

    Raises:
        TypeError: If there is anything else in it.

    Example:
        >>> from_bytes(to_bytes(Weighted(np.zeros(2), np.array(1.0))), [Weighted]).weight
        array(1.)
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    tree = _encode(message, "message", arrays)
    return safetensors.numpy.save(arrays, metadata={"tree": json.dumps(tree)})


def from_bytes(data: bytes, types: Iterable[type]) -> Any:
    """The message that `to_bytes` wrote. Only the named tuples listed in `types` are ever built.

    Raises:
        ValueError: If `to_bytes` did not write it, something is missing from it, or it holds other named tuples.
    """
    try:
        arrays = safetensors.numpy.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tree = json.loads(header["__metadata__"]["tree"])
        return _decode(tree, {_type_name(t): t for t in types}, arrays)
    except (safetensors.SafetensorError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a message of fedgauss, or not a whole one") from error


def types_in(tree: Any) -> set[type]:
    """The named tuples a tree is made of."""
    if isinstance(tree, dict):
        return set().union(*map(types_in, tree.values()))
    if isinstance(tree, (tuple, list)):
        found: set[type] = set().union(*map(types_in, tree))
        return found | ({type(tree)} if hasattr(tree, "_fields") else set())
    return set()


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _encode(tree: Any, name: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if tree is None:
        return None
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {k: _encode(v, f"{name}.{k}", arrays) for k, v in tree.items()}}
    if type(tree) in (tuple, list) or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        kind = _type_name(type(tree)) if hasattr(tree, "_fields") else type(tree).__name__
        return {kind: [_encode(v, f"{name}.{i}", arrays) for i, v in enumerate(tree)]}
    if not isinstance(tree, np.ndarray | np.generic | jax.Array | bool | int | float):
        raise TypeError(f"{name}: expected arrays in dicts, lists, tuples and named tuples, got {type(tree).__name__}")
    # safetensors keeps strides out of its files, so arrays go in contiguous
    array = np.array(tree, order="C")
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:  # no format has long doubles
        raise TypeError(f"{name}: expected real numbers, got an array of {array.dtype}")
    unique = f"{len(arrays)}.{name}"  # {"a.b": x, "a": {"b": y}} has one dotted name for two arrays
    arrays[unique] = array
    return unique


def _decode(code: Any, types: dict[str, type], arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if code is None:
        return None
    if isinstance(code, str):
        return arrays[code]
    if len(code) != 1:
        raise KeyError(code)
    ((kind, parts),) = code.items()
    if kind == "dict":
        return {k: _decode(v, types, arrays) for k, v in parts.items()}
    values = [_decode(part, types, arrays) for part in parts]
    if kind in ("tuple", "list"):
        return tuple(values) if kind == "tuple" else values
    if kind not in types:
        raise ValueError(f"the message holds a {kind!r}, which is not among the expected types {sorted(types)}")
    return types[kind](*values)
