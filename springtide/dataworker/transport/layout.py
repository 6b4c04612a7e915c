"""Header format of a batch. The header has one node for each object of a tree. Headers and layouts are cached.

In: a tree from codec.py, to get the header for packing; or a received header, to get its layout. A header from a socket
is either valid, or refused completely. All batches of a job usually have the same layout, so the layout is computed
only once. The cache handles dense CPU tensors in dicts with string keys, lists, tuples, named tuples and dataclasses.
"""

import array
import dataclasses
import functools
import operator
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from springtide import _native
from springtide.domain.core.validation import UNDECODABLE
from springtide.rpc.transport.frames import BadFrame

VERSION = 1
ALIGNMENT = 64  # alignment of payload buffers: a cache line, and enough for any vector instruction
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits", "torch.int1_"))
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
PLAIN = (bool, int, float, str, bytes, type(None))
Value = Any  # one of PLAIN. codec.py checks the type, because msgspec cannot tell strings from bytes within one field.


class _Base(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A node of a tree. The tags of the subclasses are part of the format; see `VERSION`."""


class Tensor(_Base, frozen=True, tag=0):
    """A dense tensor; its bytes begin at `offset` of the payload."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class Array(_Base, frozen=True, tag=1):
    """A NumPy array or scalar."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    scalar: bool


class PlainValue(_Base, frozen=True, tag=2):
    """A value that is stored in the header."""

    value: Value


class LongValue(_Base, frozen=True, tag=3):
    """A long string, bytes, or a long list or tuple of plain values, stored as msgpack in the payload."""

    kind: str
    offset: int
    size: int


class SequenceNode(_Base, frozen=True, tag=4):
    """A list or tuple of any nodes."""

    kind: str
    items: "list[Node]"


class PlainSequence(_Base, frozen=True, tag=5):
    """A short list or tuple of plain values."""

    kind: str
    values: list[Value]


class Dict(_Base, frozen=True, tag=6):
    """A dict whose keys are plain values."""

    keys: list[Value]
    items: "list[Node]"


class Named(_Base, frozen=True, tag=7):
    """A named tuple or a dataclass, with its fields in order."""

    name: str
    items: "list[Node]"


class Registered(_Base, frozen=True, tag=8):
    """A type that torch's pytree can flatten, with its parts and the context to rebuild it."""

    name: str
    items: "list[Node]"
    context: "Node"


Node = Tensor | Array | PlainValue | LongValue | SequenceNode | PlainSequence | Dict | Named | Registered


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The whole message, except the bytes of its buffers."""

    version: int
    size: int
    tree: Node


def is_named_tuple(kind: type) -> bool:
    """Return True for a named tuple type, which is sent as `Named`."""
    return issubclass(kind, tuple) and kind is not tuple and hasattr(kind, "_fields")


def is_record(item: Any) -> bool:
    """Return True for a dataclass that has only its fields, which is sent as `Named`.

    A dataclass with further attributes would lose these attributes, and a dataclass that is also a dict or list would
    lose its items.
    """
    if not dataclasses.is_dataclass(item) or isinstance(item, type) or type(item).__new__ is not object.__new__:
        return False
    names = [field.name for field in dataclasses.fields(item)]
    return getattr(item, "__dict__", {}).keys() <= set(names) and all(hasattr(item, name) for name in names)


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# most cache entries: the usual batch, the last batch of an epoch, an evaluation batch, and some reserve
REMEMBERED = 32
LONGEST_HEADER = 1 << 16  # longest header to cache, in bytes; the limit keeps a peer from filling this process's memory
MOST_TENSORS = 1 << 12

Outline = Any  # structure around tensors: None for a tensor; (type, names, number of tensors, or outlines of the parts)
Laid = tuple[torch.dtype, int, int, tuple[int, ...]]

_ONLY_TENSORS, _ONLY_STRINGS = {torch.Tensor}, {str}
# dtypes that the cache handles; complex tensors are excluded, because they may be conjugates
_CACHED = frozenset(dtype for dtype in DTYPE_NAMES if not dtype.is_complex)
_read = operator.attrgetter("dtype", "shape", "requires_grad", "is_cpu")
_requires_grad = operator.attrgetter("requires_grad")
_pointer, _is_dense, _is_negated = torch.Tensor.data_ptr, torch.Tensor.is_contiguous, torch.Tensor.is_neg
_FUNCTIONS = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_decode = msgspec.msgpack.Decoder(Header).decode


class UncachedTree(Exception):
    """Error for a tree that the cache does not handle."""


class TreeLayout(NamedTuple):
    """Layout shared by all trees with the same outline, dtypes and shapes."""

    header: bytes
    layout: _native.Layout
    size: int


class TreeSignature(NamedTuple):
    """Key of a tree in the cache, and the tensors of the tree."""

    key: Hashable
    addresses: bytes
    tensors: list[torch.Tensor]


class CachedHeader(NamedTuple):
    """A decoded header, all of whose tensors lie within the payload."""

    size: int
    tree: Node
    tensors: list[Laid]
    """Dtype, number of elements, offset and shape of each tensor, in the order of the tree."""
    native: _native.TensorPlan | None = None
    """Native plan that creates all tensors at once, if torch supports it."""


def signature(tree: Any) -> TreeSignature | None:
    """Return the key of a tree; None if the cache does not handle the tree."""
    tensors: list[torch.Tensor] = []
    try:
        outline = _outline(tree, tensors)
        if not 0 < len(tensors) <= MOST_TENSORS:
            return None
        key, addresses = _key_of(tensors)
    except UncachedTree:
        return None
    return TreeSignature((outline, key), addresses, tensors)


def remember(tree: TreeSignature, header: bytes, pieces: Sequence[tuple[int, int, int]], size: int) -> None:
    """Cache the layout of a tree that was packed leaf by leaf, with the offset and size of each tensor."""
    if _CACHED.issuperset(tensor.dtype for tensor in tree.tensors):
        places = (place for place, tensor in enumerate(tree.tensors) if tensor.nbytes)
        while len(layouts) >= REMEMBERED:
            layouts.pop(next(iter(layouts)), None)
        laid = [(place, offset, length) for place, (offset, _, length) in zip(places, pieces, strict=True)]
        layouts[tree.key] = TreeLayout(header, _native.Layout(laid), size)


def _outline(item: Any, tensors: list[torch.Tensor]) -> Outline:
    """Return the structure around the tensors of an item, and append its tensors to `tensors`."""
    kind = type(item)
    if kind is torch.Tensor:
        tensors.append(item)
        return None
    names: tuple[str, ...] = ()
    parts: Collection[Any]
    if kind is list or kind is tuple:
        parts = item
    elif kind is dict:
        names, parts = tuple(item), item.values()
        if not _ONLY_STRINGS.issuperset(map(type, names)):
            raise UncachedTree
    elif is_named_tuple(kind):
        parts = item
    elif is_record(item):
        parts = [getattr(item, field.name) for field in dataclasses.fields(item)]
    else:
        raise UncachedTree
    if not parts:
        raise UncachedTree  # an empty sequence is not cached, because it would be encoded as plain values
    if _ONLY_TENSORS.issuperset(map(type, parts)):
        tensors.extend(parts)
        return kind, names, len(parts)
    return kind, names, tuple([_outline(part, tensors) for part in parts])


def _key_of(tensors: list[torch.Tensor]) -> tuple[Hashable, bytes]:
    """Return the cache key for dtypes and shapes, and the addresses as bytes.

    Raise `UncachedTree` if a tensor is not plain CPU memory.
    """
    try:
        if any(map(_is_negated, tensors)):
            raise UncachedTree
        if _FUNCTIONS is not None:
            seen: Any = None if any(map(_requires_grad, tensors)) else _native.look_at_tensors(_FUNCTIONS, tensors)
            if seen is None:
                raise UncachedTree
            return seen[0], seen[1]
        dtypes, shapes, grads, near = zip(*map(_read, tensors), strict=True)
        pointers = array.array("Q", map(_pointer, tensors)).tobytes()
        fit = all(near) and not any(grads) and all(map(_is_dense, tensors))
    except RuntimeError:  # a sparse or nested tensor has no plain memory or shape
        raise UncachedTree from None
    if not fit:
        raise UncachedTree
    return (dtypes, shapes), pointers


layouts: dict[Hashable, TreeLayout] = {}


def plan(header: bytes) -> CachedHeader:
    """Decode a header, and check every tensor against the payload. Raise `BadFrame` if the header is invalid."""
    return _plan(header) if len(header) <= LONGEST_HEADER else _plan.__wrapped__(header)


@functools.lru_cache(REMEMBERED)
def _plan(header: bytes) -> CachedHeader:
    try:
        read = _decode(header)
        tensors: list[Tensor] = []
        _tensors_of(read.tree, tensors)
    except UNDECODABLE as error:
        raise BadFrame(f"cannot decode the header of a batch: {error}") from error
    if read.version != VERSION:
        raise BadFrame(f"a batch of format {read.version}, this side reads format {VERSION}")
    checked = [_checked(tensor, read.size) for tensor in tensors]
    return CachedHeader(read.size, read.tree, checked, _natively(checked, read.size))


def _natively(tensors: list[Laid], size: int) -> _native.TensorPlan | None:
    if _FUNCTIONS is None or not tensors or not all(count for _, count, _, _ in tensors):
        return None  # no native plan, because a tensor without elements may have any shape
    places = {dtype: place for place, dtype in enumerate(dict.fromkeys(dtype for dtype, _, _, _ in tensors))}
    like = [torch.empty(0, dtype=dtype) for dtype in places]
    if _native.look_at_tensors(_FUNCTIONS, like) is None:
        return None  # DLPack has no equivalent of this dtype
    return _native.TensorPlan(
        _FUNCTIONS, like, [(places[dtype], shape, offset) for dtype, _, offset, shape in tensors], size
    )


def _tensors_of(node: Node, found: list[Tensor]) -> None:
    """Collect all tensors of a tree, in the order in which the tree is rebuilt."""
    match node:
        case Tensor():
            found.append(node)
        case SequenceNode(_, items) | Dict(_, items) | Named(_, items):
            for item in items:
                _tensors_of(item, found)
        case Registered(_, items, context):
            for item in (*items, context):
                _tensors_of(item, found)


def _checked(tensor: Tensor, size: int) -> Laid:
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise BadFrame(f"a tensor of unknown dtype {tensor.dtype!r}")
    return dtype, elements(tensor.shape, dtype.itemsize, tensor.offset, size), tensor.offset, tensor.shape


def elements(shape: Sequence[int], itemsize: int, offset: int, size: int) -> int:
    """Return the number of elements of a shape. Raise `BadFrame` unless the tensors lie within a payload of this
    size.
    """
    if len(shape) > 64:
        raise BadFrame(f"a tensor of {len(shape)} dimensions")
    count = 1
    for length in shape:
        if not 0 <= length < 1 << 62:
            raise BadFrame(f"invalid shape of a tensor: {shape}")
        count *= length
    within(offset, count * itemsize, size)
    return count


def within(offset: int, length: int, size: int) -> None:
    if offset < 0 or length < 0 or offset % ALIGNMENT or offset + length > size:
        raise BadFrame(f"bytes {offset} to {offset + length} of a payload of {size}")


def views(plan: CachedHeader, payload: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a plan as views of a payload. Each view has its own storage, because torch.save writes the
    whole storage of a view.
    """
    if plan.native is not None:
        return iter(plan.native.make(payload))
    made, view = [], torch.frombuffer
    for dtype, count, offset, shape in plan.tensors:
        if not count:
            made.append(torch.empty(shape, dtype=dtype))
            continue
        flat = view(payload, dtype=dtype, count=count, offset=offset)
        made.append(flat if len(shape) == 1 else flat.view(shape))
    return iter(made)
