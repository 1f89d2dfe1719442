"""Messages through bytes: the same tree and the same bits come back, and nothing is built that was not expected."""

import json
import struct
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fedgauss.messages import (
    ArraySpec,
    Weighted,
    add,
    describe,
    from_bytes,
    mean,
    named_leaves,
    reply_kind,
    to_bytes,
    types_in,
    weighted,
)


class Pair(NamedTuple):
    """A named tuple of the tests."""

    first: Any
    second: Any


HAS_NO_LONG = np.dtype(np.longdouble).itemsize == 8
ARRAYS = arrays_of.arrays(
    st.sampled_from(["f8", "f4", "f2", "i8", "i4", "u4", "u1", "?", ">f8", ">i4"]),
    arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
NUMBERS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats())
NAMES = st.one_of(
    st.text(max_size=6), st.sampled_from(["a", "b", "a.b", "0", "message", "__metadata__", "tree", "dict"])
)
TREES = st.recursive(
    st.one_of(ARRAYS, NUMBERS, st.none()),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(NAMES, parts, max_size=3),
        st.builds(Pair, parts, parts),
        st.builds(Weighted, parts, parts),
    ),
    max_leaves=8,
)


def assert_same(back: Any, sent: Any) -> None:
    if isinstance(sent, np.ndarray | bool | int | float):
        expected = np.asarray(sent)
        assert isinstance(back, np.ndarray)
        assert (back.shape, back.dtype) == (expected.shape, expected.dtype.newbyteorder("="))
        assert back.tobytes() == expected.astype(back.dtype).tobytes()
        return
    assert type(back) is type(sent)
    if sent is not None:
        assert len(back) == len(sent)
        if isinstance(sent, dict):
            assert list(back) == list(sent)
            back, sent = list(back.values()), list(sent.values())
        for one, other in zip(back, sent, strict=True):
            assert_same(one, other)


@given(tree=TREES)
def test_a_tree_comes_back_bit_for_bit(tree: Any) -> None:
    assert_same(from_bytes(to_bytes(tree), types_in(tree)), tree)


def test_two_leaves_with_one_dotted_name_stay_apart() -> None:
    tree = {"a.b": np.array(1.0), "a": {"b": np.array(2.0)}, "a.b.0": [np.array(3.0)]}
    assert len({name for name, _ in named_leaves(tree)}) < 3, "the names should clash, or this tests nothing"
    assert_same(from_bytes(to_bytes(tree), []), tree)


def test_strides_and_jax_arrays_do_not_matter() -> None:
    matrix = np.arange(12.0).reshape(3, 4)
    for sent in (matrix.T, matrix[::-1, ::2], np.asfortranarray(matrix), jnp.asarray(matrix)):
        assert_same(from_bytes(to_bytes([sent]), [])[0], np.array(sent))


def test_the_same_message_is_the_same_bytes() -> None:
    first, second = (to_bytes({"x": np.arange(3.0), "y": Pair(1.0, None)}) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("value", "came"),
    [
        ("text", "got str"),
        (b"bytes", "got bytes"),
        (1j, "got complex"),
        (np.array(1j), "an array of complex128"),
        (np.array(["a"]), "an array of <U1"),
        (np.array([None]), "an array of object"),
        (np.array(["2020"], dtype="datetime64[Y]"), "an array of datetime64"),
        (np.zeros(1, np.clongdouble), "an array of c"),
        pytest.param(np.longdouble(1.0), "an array of float", marks=pytest.mark.skipif(HAS_NO_LONG, reason="no such")),
        (2**70, "an array of object"),
        ({1: 2.0}, "got dict"),
        ({1.0}, "got set"),
        pytest.param(object(), "got object", id="object"),
        (jnp.zeros(2, jnp.bfloat16), "an array of bfloat16"),
    ],
    ids=str,
)
def test_what_is_not_a_real_number_is_refused_by_its_place(value: Any, came: str) -> None:
    with pytest.raises(TypeError) as info:
        to_bytes({"outer": [0.0, value]})
    assert str(info.value).startswith("message.outer.1: expected ")
    assert came in str(info.value)


@given(tree=TREES, data=st.data())
def test_a_message_cut_short_is_refused(tree: Any, data: st.DataObject) -> None:
    whole = to_bytes(tree)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match="not a message of fedgauss, or not a whole one"):
        from_bytes(whole[:length], types_in(tree))


@given(foreign=st.binary(max_size=200))
def test_foreign_bytes_are_refused(foreign: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of fedgauss"):
        from_bytes(foreign, [])


@given(place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_numbers_alone(place: int, flip: int) -> None:
    sent = {"x": np.arange(4.0), "pair": Pair(np.arange(3.0), np.array(7))}
    raw = bytearray(to_bytes(sent))
    raw[place % len(raw)] ^= flip
    try:
        back = from_bytes(bytes(raw), [Pair])
    except ValueError:
        return
    assert isinstance(back, dict)


TREES_OF_OTHERS: list[Any] = [
    "nonsense", None, 5, {"dict": {"a": "missing"}}, {"dict": []}, {"list": "ab"}, {"a": 1, "b": 2}, {}, ["x"],
    {"list": None}, {"builtins.eval": ["x"]},
]  # fmt: skip


@pytest.mark.parametrize("tree", TREES_OF_OTHERS, ids=str)
def test_safetensors_of_others_are_refused(tree: Any) -> None:
    foreign = safetensors.numpy.save({"x": np.zeros(2)}, metadata={"tree": json.dumps(tree)})
    if tree is None:
        foreign = safetensors.numpy.save({"x": np.zeros(2)})
    with pytest.raises(ValueError, match=r"not a message of fedgauss|not among the expected types"):
        from_bytes(foreign, [Pair])


def test_a_tree_that_is_not_json_is_refused() -> None:
    foreign = safetensors.numpy.save({"x": np.zeros(2)}, metadata={"tree": "{"})
    with pytest.raises(ValueError, match="not a message of fedgauss"):
        from_bytes(foreign, [])


def test_only_expected_named_tuples_are_built() -> None:
    raw = to_bytes([Weighted(1.0, jnp.array(2.0)), Pair(3.0, 4.0)])
    with pytest.raises(ValueError, match=r"holds a '.*test_messages\.Pair', which is not among the expected types"):
        from_bytes(raw, [Weighted])
    assert type(from_bytes(raw, [Weighted, Pair])[1]) is Pair


def test_a_named_tuple_of_another_length_is_refused() -> None:
    raw = to_bytes(Pair(1.0, 2.0))
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    tree = json.loads(header["__metadata__"]["tree"])
    (name,) = tree
    tree[name].append(tree[name][0])
    header["__metadata__"]["tree"] = json.dumps(tree)
    encoded = json.dumps(header).encode()
    with pytest.raises(ValueError, match="not a message of fedgauss"):
        from_bytes(struct.pack("<Q", len(encoded)) + encoded + raw[8 + size :], [Pair])


@given(
    st.lists(
        st.tuples(st.integers(1, 100), arrays_of.arrays("f8", 3, elements=st.integers(-100, 100))),
        min_size=1,
        max_size=6,
    )
)
def test_a_sum_of_weighted_replies_is_the_weighted_mean(parts: list[tuple[int, Any]]) -> None:
    total = weighted({"p": parts[0][1]}, jnp.asarray(float(parts[0][0])))
    for weight, value in parts[1:]:
        total = add(total, weighted({"p": value}, jnp.asarray(float(weight))))
    expected = np.average([value for _, value in parts], axis=0, weights=[weight for weight, _ in parts])
    np.testing.assert_allclose(mean(total)["p"], expected, rtol=1e-12, atol=1e-12)


def test_what_the_ledger_is_told_of_a_message() -> None:
    reply = Weighted({"ell": np.zeros((2, 3)), "n": np.zeros(0)}, jnp.zeros(()))
    assert describe(reply, "mean") == (
        ArraySpec("value.ell", (2, 3), "float64", 48, "mean"),
        ArraySpec("value.n", (0,), "float64", 0, "mean"),
        ArraySpec("weight", (), "float64", 8, "sum"),
    )
    assert [reply_kind(one, how) for one, how in ((reply, "sum"), (Pair(0, 0), "sum"), (reply, "stack"))] == [
        "mean", "sum", "stack",
    ]  # fmt: skip


def test_the_bytes_in_the_ledger_are_those_of_the_arrays() -> None:
    reply = Weighted({"a": np.zeros((4, 5)), "b": np.zeros(3, dtype=np.int32)}, jnp.zeros(()))
    raw = to_bytes(reply)
    header = 8 + int.from_bytes(raw[:8], "little")
    assert sum(spec.bytes for spec in describe(reply, "mean")) == len(raw) - header
