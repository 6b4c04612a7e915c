"""Batches survive packing; other values are refused before allocation."""

import collections
import contextlib
import gc
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from springtide import _native, errors
from springtide.data.source import UnreadableBatch
from springtide.dataworker.transport import codec, layout
from springtide.domain.data.samples import Batch
from springtide.rpc.transport.frames import BadFrame


class Click(NamedTuple):
    user: Any
    item: Any


@dataclass(frozen=True, slots=True)
class Page:
    ids: Any
    title: Any

    def __post_init__(self) -> None:
        if isinstance(self.title, bytes):
            raise AssertionError("a received record must not run the user's own code again")


TYPES = codec.types_in([Click(0, 0), Page(0, "")])


def travel(tree: Any) -> Any:
    """Through one contiguous payload, as over a socket."""
    message = codec.pack(tree)
    assert all(offset % codec.ALIGNMENT == 0 and size for offset, _, size in message.places)
    payload = laid_out(message)
    return codec.unpack(message.header, payload, TYPES)


def laid_out(message: codec.BatchMessage) -> bytearray:
    payload = np.zeros(message.size, np.uint8)
    _native.gather_pieces(message.pieces, payload.ctypes.data, message.size)
    return bytearray(payload.tobytes())


def same(one: Any, other: Any) -> bool:
    """Equal in value, type, dtype, shape and every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bytes(one.clone(memory_format=torch.contiguous_format).untyped_storage()) == bytes(
            other.clone(memory_format=torch.contiguous_format).untyped_storage()
        )
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Page):
        return same(one.ids, other.ids) and same(one.title, other.title)
    return bool(one == other or (one != one and other != other))


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.uint16,
    torch.uint32,
    torch.float8_e4m3fn,
]


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    """Of any dtype and shape: empty, without dimensions, transposed, with steps, expanded."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape)) if shape else 1
    raw = torch.tensor(draw(st.lists(st.integers(0, 255), min_size=size, max_size=size)), dtype=torch.uint8)
    dtype = draw(st.sampled_from(DTYPES))
    tensor = (raw.to(torch.float32) if dtype.is_floating_point or dtype.is_complex else raw).to(dtype).reshape(shape)
    match draw(st.sampled_from(["plain", "transposed", "every other", "tail", "expanded"])):
        case "transposed" if tensor.dim() > 1:
            return tensor.transpose(0, 1)
        case "every other" if tensor.dim():
            return tensor[::2]
        case "tail" if tensor.dim():
            return tensor[1:]
        case "expanded":
            return tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor


arrays = np_st.arrays(
    st.one_of(
        np_st.integer_dtypes(endianness="<"),
        np_st.floating_dtypes(endianness="<"),
        np_st.boolean_dtypes(),
        np_st.unicode_string_dtypes(max_len=3),
        np_st.datetime64_dtypes(),
        np_st.integer_dtypes(endianness=">"),
    ),
    np_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=20), st.binary(max_size=9)
)
leaves = st.one_of(tensors(), arrays, plain, np_st.arrays(np.float32, ()).map(lambda array: array[()]))
texts = st.lists(st.text(max_size=30), max_size=40)
trees = st.recursive(
    st.one_of(leaves, texts, texts.map(tuple)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(0, 9)), inner, max_size=3),
        st.builds(Batch, inner, inner),
        st.builds(Click, inner, inner),
        st.builds(Page, inner, st.text(max_size=4)),
        st.builds(lambda one: collections.OrderedDict(b=one, a=1), inner),
    ),
    max_leaves=6,
)


@given(trees)
def test_batch_survives_packing_and_unpacking(tree: Any) -> None:
    assert same(tree, travel(tree))


def test_all_tensors_share_one_payload_of_aligned_views() -> None:
    tree = {f"f{index}": torch.arange(index) for index in range(29)}
    message = codec.pack(tree)
    payload = bytearray(message.size)
    made = codec.unpack(message.header, payload)
    payload[0] = 7
    assert len(message.places) == 28  # an empty tensor has no bytes
    assert made["f1"].item() == 7, "a received tensor is a view"
    assert all(tensor.data_ptr() % 8 == 0 for tensor in made.values())


def test_contiguous_tensors_and_arrays_are_not_copied_when_packed() -> None:
    tensor, array = torch.zeros(4, dtype=torch.bfloat16), np.zeros(4)
    message = codec.pack((tensor, array))
    copied = message.copied()
    tensor.fill_(1.0), array.fill(1.0)
    assert all(any(laid_out(message)[offset : offset + size]) for offset, _, size in message.places)
    assert not any(laid_out(copied)), "but a copy has its own memory"


def test_long_strings_and_lists_are_buffers_outside_the_header() -> None:
    tree = {"clicks": [f"item-{index}" for index in range(5000)], "raw": b"\x00" * 9000, "page": "a" * 9000}
    assert len(codec.pack(tree).header) < 200
    assert same(tree, travel(tree))


def test_dataset_error_survives_packing() -> None:
    assert travel(UnreadableBatch("ValueError: no such row (reader.py:9)")).error.startswith("ValueError")


def test_types_in_torchs_pytree_registry_are_sent_by_their_parts() -> None:
    class Bag:
        def __init__(self, values: Any, keys: list[str]) -> None:
            self.values, self.keys = values, keys

    torch.utils._pytree.register_pytree_node(
        Bag, lambda bag: ([bag.values], bag.keys), lambda parts, keys: Bag(*parts, keys)
    )
    bag = Bag(torch.arange(3), ["user", "item"])
    message = codec.pack(bag)
    made = codec.unpack(message.header, laid_out(message), codec.types_in([bag]))
    assert made.keys == ["user", "item"] and made.values.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        ({"x": [torch.zeros(1), object()]}, ["batch['x'][1]", "object"]),
        (Click(0, {"deep": {1, 2}}), ["batch.item['deep']", "set"]),
        ({"x": np.array([object()])}, ["batch['x']", "object"]),
        (torch.zeros(2, requires_grad=True), ["requires grad"]),
        (torch.zeros(2).to_sparse(), ["sparse"]),
        ({(1, 2): 3}, ["key", "tuple"]),
        ([2**70], ["2**64"]),
        (["\ud800"], ["surrogates"]),
    ],
)
def test_unsendable_leaf_is_named(tree: Any, names: list[str]) -> None:
    with pytest.raises(errors.BadInput) as raised:
        codec.pack(tree)
    assert all(name in str(raised.value) for name in names), str(raised.value)


def test_self_referencing_tree_is_refused() -> None:
    tree: list[Any] = []
    tree.append([tree, torch.zeros(1)])
    with pytest.raises(errors.BadInput, match="contains itself"):
        codec.pack(tree)


def test_type_unknown_to_the_receiver_is_named() -> None:
    with pytest.raises(errors.BadInput, match="Click, which no batch of this process has held"):
        codec.unpack(codec.pack(Click(1, 2)).header, b"")


HOSTILE: list[layout.Node] = [
    layout.Tensor("float32", (2**40,), 0),
    layout.Tensor("float32", (-1, -64), 0),
    layout.Tensor("float32", (2**62, 0, 2**62), 0),
    layout.Tensor("float32", (1,), 32),
    layout.Tensor("float32", (1,), -64),
    layout.Tensor("float32", (16,), 64),
    layout.Tensor("qint8", (1,), 0),
    layout.Tensor("float32", (1,) * 200, 0),
    layout.Array("|O", (8,), 0, False),
    layout.Array("O", (0,), 0, False),
    layout.Array("i8,i8", (1,), 0, False),
    layout.Array("<U0", (2**40,), 0, False),
    layout.Array("<U999999999", (1,), 0, False),
    layout.Array("nonsense", (1,), 0, False),
    layout.LongValue("list", 0, 2**50),
    layout.LongValue("list", 0, 64),
    layout.LongValue("set", 0, 8),
    layout.SequenceNode("frozenset", []),
    layout.PlainValue([1]),
    layout.PlainSequence("list", [{}]),
    layout.Dict([["a"]], [layout.PlainValue(1)]),
    layout.Dict(["a"], []),
    layout.Named("springtide.domain.data.samples.Batch", []),
    layout.Named("collections.OrderedDict", []),
    layout.Registered("springtide.domain.data.samples.Batch", [], layout.PlainValue(1)),
    layout.Registered("collections.OrderedDict", [layout.PlainValue(1)], layout.PlainValue(7)),
]


@pytest.mark.parametrize("node", HOSTILE, ids=str)
def test_inconsistent_header_is_refused_before_allocation(node: layout.Node) -> None:
    header = msgspec.msgpack.encode(layout.Header(layout.VERSION, 65, node))
    with pytest.raises(BadFrame):
        codec.unpack(header, bytearray(b"\xdd" + b"\xff" * 64))


def test_payload_shorter_than_announced_is_refused() -> None:
    message = codec.pack(torch.arange(100))
    with pytest.raises(BadFrame, match="800 bytes, but 799 arrived"):
        codec.unpack(message.header, bytearray(799))


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(BadFrame):
        codec.unpack(garbage, bytearray(64))


@given(trees, st.data())
def test_damaged_header_gives_a_tree_or_our_error(tree: Any, data: Any) -> None:
    message = codec.pack(tree)
    damaged = bytearray(message.header)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadFrame, errors.BadInput):
        codec.unpack(bytes(damaged), bytearray(message.size), TYPES)


def test_sent_batch_is_freed_with_its_message_without_garbage_collection():
    tensor = torch.ones(3)
    seen = weakref.ref(tensor)
    gc.disable()
    try:
        message = codec.pack({"rows": tensor, "text": ["a", "b"]})
        del tensor
        assert seen() is not None
        del message
        assert seen() is None
    finally:
        gc.enable()
