"""Cache headers: batches of a job look alike, so their layout is computed once.

In: dataworker/transport/codec.py asks for the header of a tree to be packed, and for the layout of a received header.
Out: both from a small cache. The key is everything that matters: containers, names, dtypes and shapes of a tree, or all
bytes of a header. Any difference computes a new entry.

Only dense CPU tensors in dicts with string keys, lists, tuples, named tuples and dataclasses are cached. Everything
else is packed leaf by leaf, which also reports what cannot be sent.

Native code reads the layout of all tensors at once and makes new ones over a payload (cpp/bindings/batch/tensors.cpp),
through torch's DLPack functions. Versions of torch before 2.10 have none: there Python does it one by one.
"""

import array
import dataclasses
import functools
import itertools
import operator
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from springtide import _native
from springtide.dataworker.transport import layout
from springtide.rpc.transport.frames import BadFrame

REMEMBERED = 32  # entries: the last batch of an epoch, one of an evaluation, and some to spare
LONGEST_HEADER = 1 << 16  # bytes; longer ones are not cached, so that a peer cannot fill our memory
MOST_TENSORS = 1 << 12

Outline = Any  # what is around tensors: None for a tensor; (type, names, number of tensors, or outlines of the parts)

Laid = tuple[torch.dtype, int, int, tuple[int, ...]]

_KINDS = {list: "list", tuple: "tuple"}
_SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple}
_ONLY_TENSORS, _ONLY_STRINGS = {torch.Tensor}, {str}
_CAST = frozenset(dtype for dtype in layout.DTYPE_NAMES if not dtype.is_complex)  # those may be conjugates
_read = operator.attrgetter("dtype", "shape", "requires_grad", "is_cpu")
_requires_grad = operator.attrgetter("requires_grad")
_pointer, _is_dense, _is_negated = torch.Tensor.data_ptr, torch.Tensor.is_contiguous, torch.Tensor.is_neg
_FUNCTIONS = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(layout.Header).decode


class UncachedTree(Exception):
    """A tree that the cache does not handle."""


class TreeLayout(NamedTuple):
    """What is the same for all trees of one outline, dtypes and shapes."""

    header: bytes
    layout: _native.Layout
    size: int


class CastTree(NamedTuple):
    """A tree with its cached layout: a message without a name."""

    header: bytes
    pieces: _native.Pieces
    size: int
    keep: list[Any]


class CachedHeader(NamedTuple):
    """A header whose tensors are known to lie within its payload."""

    size: int
    tree: layout.Node
    tensors: list[Laid]
    """Of each, in the order of the tree: dtype, elements, offset, shape."""
    native: _native.TensorPlan | None = None
    """Makes all of them at once, if torch supports it."""
    outline: Outline = None
    """How to rebuild the tree, if it has only lists, tuples and dicts with string keys."""


def cast(tree: Any) -> CastTree:
    """A tree as the fields of a message; raises `UncachedTree` if it cannot be cached."""
    tensors: list[torch.Tensor] = []
    outline = _outline(tree, tensors)
    if not 0 < len(tensors) <= MOST_TENSORS:
        raise UncachedTree
    key, addresses = _look(tensors)
    header, layout, size = _tree_layout(outline, key, tensors)
    pieces = layout.at(addresses)
    if pieces is None:
        raise UncachedTree  # zeros that nobody has written anywhere
    return CastTree(header, pieces, size, tensors)


def _outline(item: Any, tensors: list[torch.Tensor]) -> Outline:
    """What an item looks like around its tensors, which are added to those found."""
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
    elif layout.is_named_tuple(kind):
        parts = item
    elif layout.is_record(item):
        parts = [getattr(item, field.name) for field in dataclasses.fields(item)]
    else:
        raise UncachedTree
    if not parts:
        raise UncachedTree  # it would be plain values, of which there are none
    if _ONLY_TENSORS.issuperset(map(type, parts)):
        tensors.extend(parts)
        return kind, names, len(parts)
    return kind, names, tuple([_outline(part, tensors) for part in parts])


def _look(tensors: list[torch.Tensor]) -> tuple[Hashable, bytes]:
    """What decides about dtypes and shapes, and addresses as bytes; `Odd` if one is not plain memory of the CPU."""
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
    except RuntimeError:  # one without memory, or without a shape: sparse, nested
        raise UncachedTree from None
    if not fit:
        raise UncachedTree
    return (dtypes, shapes), pointers


_moulds: dict[Hashable, TreeLayout] = {}


def _tree_layout(outline: Outline, key: Hashable, tensors: list[torch.Tensor]) -> TreeLayout:
    """The mould of trees that look like this one."""
    known = _moulds.get((outline, key))
    if known is None:
        dtypes = tuple(tensor.dtype for tensor in tensors)
        if not _CAST.issuperset(dtypes):
            raise UncachedTree
        while len(_moulds) >= REMEMBERED:
            _moulds.pop(next(iter(_moulds)), None)
        known = _moulds[outline, key] = _lay_out(outline, dtypes, tuple(tuple(tensor.shape) for tensor in tensors))
    return known


def _lay_out(outline: Outline, dtypes: tuple[torch.dtype, ...], shapes: tuple[tuple[int, ...], ...]) -> TreeLayout:
    """Lay tensors out side by side, and say so in a header."""
    told, size = [], 0
    said: list[layout.Node] = []
    for place, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True)):
        nbytes = dtype.itemsize
        for length in shape:
            nbytes *= length
        begin = -(-size // layout.ALIGNMENT) * layout.ALIGNMENT if nbytes else 0
        said.append(layout.Tensor(layout.DTYPE_NAMES[dtype], tuple(shape), begin))
        if nbytes:
            told.append((place, begin, nbytes))
            size = begin + nbytes
    header = _encode(layout.Header(layout.VERSION, size, _node(outline, iter(said))))
    return TreeLayout(header, _native.Layout(told), size)


def _node(outline: Outline, said: Iterator[layout.Node]) -> layout.Node:
    """The node of an outline, with those of its tensors put in."""
    if outline is None:
        return next(said)
    kind, names, inner = outline
    parts = list(itertools.islice(said, inner)) if isinstance(inner, int) else [_node(part, said) for part in inner]
    if kind is dict:
        return layout.Dict(list(names), parts)
    return layout.SequenceNode(_KINDS[kind], parts) if kind in _KINDS else layout.Named(layout.type_name(kind), parts)


def plan(header: bytes) -> CachedHeader:
    """What a header says, every tensor checked against the payload; `BadFrame` if it is none, or lies."""
    return _plan(header) if len(header) <= LONGEST_HEADER else _plan.__wrapped__(header)


@functools.lru_cache(REMEMBERED)
def _plan(header: bytes) -> CachedHeader:
    try:
        read = _decode(header)
        tensors: list[layout.Tensor] = []
        _tensors_of(read.tree, tensors)
        outline = _plain_outline(read.tree)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"not the header of a batch: {error}") from error
    if read.version != layout.VERSION:
        raise BadFrame(f"a batch of format {read.version}, this side reads {layout.VERSION}")
    checked = [_checked(tensor, read.size) for tensor in tensors]
    native = _natively(checked, read.size)
    return CachedHeader(read.size, read.tree, checked, native, None if native is None else outline)


def _plain_outline(node: layout.Node) -> Outline:
    """The outline that a tree has for `put_together`; None: it holds more than that."""
    names: tuple[str, ...] = ()
    match node:
        case layout.SequenceNode(kind, items) if kind in _SEQUENCES:
            made: type = _SEQUENCES[kind]
        case layout.Dict(keys, items) if len(keys) == len(items) and _ONLY_STRINGS.issuperset(map(type, keys)):
            made, names = dict, tuple(str(key) for key in keys)
        case _:
            return None
    if all(type(item) is layout.Tensor for item in items):
        return made, names, len(items)
    parts = [_plain_outline(item) for item in items]
    return None if None in parts else (made, names, tuple(parts))


def put_together(outline: Outline, tensors: Iterator[torch.Tensor]) -> Any:
    """A tree of this outline, of tensors in their order."""
    kind, names, inner = outline
    if isinstance(inner, int):
        parts: Iterable[Any] = itertools.islice(tensors, inner)
    else:
        parts = [put_together(part, tensors) for part in inner]
    return dict(zip(names, parts, strict=True)) if kind is dict else kind(parts)


def _natively(tensors: list[Laid], size: int) -> _native.TensorPlan | None:
    """The same tensors for the native side; None: torch does not hand out what it takes."""
    if _FUNCTIONS is None or not tensors or not all(count for _, count, _, _ in tensors):
        return None  # what has no elements may have any shape
    places = {dtype: place for place, dtype in enumerate(dict.fromkeys(dtype for dtype, _, _, _ in tensors))}
    like = [torch.empty(0, dtype=dtype) for dtype in places]
    if _native.look_at_tensors(_FUNCTIONS, like) is None:
        return None  # a dtype that DLPack has no name for
    return _native.TensorPlan(
        _FUNCTIONS, like, [(places[dtype], shape, offset) for dtype, _, offset, shape in tensors], size
    )


def _tensors_of(node: layout.Node, found: list[layout.Tensor]) -> None:
    """All tensors of a tree, in the order in which it is put together."""
    match node:
        case layout.Tensor():
            found.append(node)
        case layout.SequenceNode(_, items) | layout.Dict(_, items) | layout.Named(_, items):
            for item in items:
                _tensors_of(item, found)
        case layout.Registered(_, items, context):
            for item in (*items, context):
                _tensors_of(item, found)


def _checked(tensor: layout.Tensor, size: int) -> Laid:
    dtype = layout.DTYPES.get(tensor.dtype)
    if dtype is None:
        raise BadFrame(f"a tensor of unknown dtype {tensor.dtype!r}")
    return dtype, elements(tensor.shape, dtype.itemsize, tensor.offset, size), tensor.offset, tensor.shape


def elements(shape: Sequence[int], itemsize: int, offset: int, size: int) -> int:
    """How many elements a shape has; `BadFrame` unless they lie within a payload of that size."""
    if len(shape) > 64:
        raise BadFrame(f"a tensor of {len(shape)} dimensions")
    count = 1
    for length in shape:
        if not 0 <= length < 1 << 62:
            raise BadFrame(f"a tensor of shape {shape}")
        count *= length
    within(offset, count * itemsize, size)
    return count


def within(offset: int, length: int, size: int) -> None:
    """`BadFrame` unless so many bytes from there lie within a payload of that size."""
    if offset < 0 or length < 0 or offset % layout.ALIGNMENT or offset + length > size:
        raise BadFrame(f"bytes {offset} to {offset + length} of a payload of {size}")


def views(plan: CachedHeader, payload: Any) -> Iterator[torch.Tensor]:
    """The tensors of a plan as views of a payload, each with a storage of its own: one that is saved is saved alone."""
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
