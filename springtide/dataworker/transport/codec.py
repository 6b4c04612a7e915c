"""Encodes a mini-batch as a message: a small header with the layout, and the bytes of all tensors.

In: a tree that a stage has made. Out: a `BatchMessage`; decoded tensors are views of the payload. Nothing is unpickled:
a header is msgpack, and its types, sizes and offsets are checked before any allocation. Named tuples, dataclasses and
types registered with torch's pytree are sent by qualified name. The receiver must know these types (`types_in`).
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils import _pytree

from springtide import _native, errors
from springtide.data.source import UnreadableBatch
from springtide.dataworker.transport import layout
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.data.samples import Batch
from springtide.rpc.transport.frames import BadFrame

ALIGNMENT = layout.ALIGNMENT
# strings, bytes and lists of plain values up to this size are part of the header; larger ones are buffers of the
# payload
INLINE_BYTES = 1024

ALWAYS_KNOWN: Mapping[str, type] = {
    f"{kind.__module__}.{kind.__qualname__}": kind for kind in (Batch, UnreadableBatch, collections.OrderedDict)
}
_STRIDED = torch.strided
_ARRAY_KINDS = "biufcSUMm"


Pieces = list[tuple[int, int, int]] | _native.Pieces
NO_PIECES: Pieces = []


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """A tree that is ready to be sent."""

    header: bytes
    pieces: Pieces
    """Buffers of the payload. Each buffer has an offset in the payload (in ascending order, multiples of `ALIGNMENT`),
    an address and a size in bytes.
    """
    size: int
    keep: list[Any]
    """Objects that own the buffers. The addresses are valid while these objects exist."""

    @property
    def places(self) -> list[tuple[int, int, int]]:
        return self.pieces if isinstance(self.pieces, list) else self.pieces.told()

    def copied(self) -> "BatchMessage":
        """Return a copy of the message with its own memory, so that the original tensors may change."""
        whole = np.empty(self.size, np.uint8)
        begin = whole.__array_interface__["data"][0]
        _native.gather_pieces(self.pieces, begin, self.size)
        there = [(offset, begin + offset, size) for offset, _, size in self.places]
        return BatchMessage(self.header, there, self.size, [whole])


_encode = msgspec.msgpack.Encoder().encode
_decode_long: dict[str, Callable[[bytes], Any]] = {
    "str": msgspec.msgpack.Decoder(str).decode,
    "bytes": msgspec.msgpack.Decoder(bytes).decode,
    "list": msgspec.msgpack.Decoder(list[layout.Value]).decode,
    "tuple": msgspec.msgpack.Decoder(tuple[layout.Value, ...]).decode,
}
_KINDS: dict[str, Callable[[Iterable[Any]], Any]] = {"list": list, "tuple": tuple}


class _Unfit(Exception):
    """Error for a leaf that cannot be sent. Each level of the tree adds its part to the leaf's path."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []


def pack(tree: Any) -> BatchMessage:
    """Encode the tree; contiguous tensors are not copied. Raise `BadInput` for a leaf that cannot be sent."""
    try:
        signature = layout.signature(tree)
        known = layout.layouts.get(signature.key) if signature is not None else None
        if signature is not None and known is not None:
            pieces = known.layout.at(signature.addresses)
            if pieces is not None:  # None stands for a tensor of zeros that has no memory of its own
                return BatchMessage(known.header, pieces, known.size, signature.tensors)
        packing, node = _packed(tree)
        header = _encode(layout.Header(layout.VERSION, packing.size, node))
    except RecursionError:
        raise errors.BadInput("a batch cannot be sent: it is nested too deeply, or contains itself") from None
    except (OverflowError, UnicodeEncodeError) as error:
        raise errors.BadInput(f"a batch cannot be sent: {error}") from None
    if signature is not None and known is None:
        layout.remember(signature, header, packing.pieces, packing.size)
    return BatchMessage(header, packing.pieces, packing.size, packing.keep)


def check(tree: Any) -> None:
    """Raise `BadInput` if a batch cannot be sent, or if sending would change its type."""
    _packed(tree)


def _packed(tree: Any) -> "tuple[_Packing, layout.Node]":
    packing = _Packing()
    try:
        return packing, packing.node(tree)
    except _Unfit as unfit:
        raise errors.BadInput(f"a batch cannot be sent: batch{''.join(unfit.path)} is {unfit}") from None
    finally:
        # break reference cycles, which would otherwise keep batches in memory until the next garbage collection
        packing.by_type.clear()


class PayloadMissing(Exception):
    """Error for a tree that cannot be unpacked before its payload arrives, because the tree needs the values."""


def unpack(header: bytes, payload: Any, types: Mapping[str, type] | None = None, *, arrived: bool = True) -> Any:
    """Decode the tree. Tensors and arrays are views of `payload`, which must be writable. The views keep `payload`
    alive.

    `payload`: a buffer at least as long as the message's payload. If the payload has not `arrived`, the tensors are
    views of memory that the payload will fill. Raise `PayloadMissing` if the tree needs the values themselves.
    """
    read = layout.plan(header)
    there = memoryview(payload).nbytes
    if not 0 <= read.size <= there:
        raise BadFrame(f"a batch announces {read.size} bytes, but {there} arrived")
    known = {**ALWAYS_KNOWN, **types} if types else ALWAYS_KNOWN
    return _Unpacking(payload, read, known, arrived).make(read.tree)


def types_in(tree: Any) -> dict[str, type]:
    """Return the named types of a tree, which `unpack` needs for similar trees."""
    found: dict[str, type] = {}

    def visit(item: Any) -> None:
        kind = type(item)
        if kind in (list, tuple):
            parts: Iterable[Any] = () if all(type(part) in layout.PLAIN for part in item) else item
        elif kind is dict:
            parts = item.values()
        elif layout.is_named_tuple(kind):
            parts = item
        elif layout.is_record(item):
            parts = [getattr(item, field.name) for field in dataclasses.fields(item)]
        elif kind in _pytree.SUPPORTED_NODES:
            parts = _pytree.SUPPORTED_NODES[kind].flatten_fn(item)[0]
        else:
            return
        if kind not in (list, tuple, dict):
            found[layout.type_name(kind)] = kind
        for part in parts:
            visit(part)

    visit(tree)
    return found


class _Packing:
    """Walks over a tree and collects its buffers."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, int, int]] = []
        self.keep: list[Any] = []
        self.size = 0
        self.by_type: dict[type, Callable[[Any], layout.Node]] = {
            torch.Tensor: self.tensor,
            np.ndarray: self.array,
            dict: self.dict,
            list: self.sequence,
            tuple: self.sequence,
            str: self.text,
            bytes: self.text,
            bool: layout.PlainValue,
            int: layout.PlainValue,
            float: layout.PlainValue,
            type(None): layout.PlainValue,
        }

    def node(self, item: Any) -> layout.Node:
        known = self.by_type.get(type(item))
        return known(item) if known is not None else self.other(item)

    def add(self, holder: Any, address: int, size: int) -> int:
        offset = -(-self.size // ALIGNMENT) * ALIGNMENT
        self.pieces.append((offset, address, size))
        self.keep.append(holder)
        self.size = offset + size
        return offset

    def tensor(self, item: torch.Tensor) -> layout.Node:
        name = layout.DTYPE_NAMES.get(item.dtype)
        if name is None or item.layout is not _STRIDED or item.is_nested or item.is_meta:
            raise _Unfit(
                f"a tensor of {item.dtype}, {item.layout}; expected a plain, dense one (convert it in forward())"
            )
        if item.requires_grad:
            raise _Unfit("a tensor that requires grad; expected data only (detach it)")
        if own := vars(item):
            raise _Unfit(f"a tensor with its own attributes ({', '.join(own)}), which would not be sent")
        if not (item.is_cpu and item.is_contiguous()) or item.is_neg() or item.is_conj():
            item = item.cpu().resolve_conj().resolve_neg().contiguous()
        size = item.nbytes
        if size and not item.data_ptr():
            item = item.clone()  # a tensor of zeros that has no memory of its own
        return layout.Tensor(name, tuple(item.shape), self.add(item, item.data_ptr(), size) if size else 0)

    def array(self, item: np.ndarray[Any, Any], scalar: bool = False) -> layout.Node:
        if item.dtype.kind not in _ARRAY_KINDS or item.dtype.hasobject:
            raise _Unfit(f"an array of dtype {item.dtype}; expected numbers, or strings of fixed width")
        shape, whole = item.shape, np.ascontiguousarray(item)
        return layout.Array(item.dtype.str, shape, self.add_array(whole) if item.nbytes else 0, scalar)

    def add_array(self, whole: np.ndarray[Any, Any]) -> int:
        return self.add(whole, whole.__array_interface__["data"][0], whole.nbytes)

    def text(self, item: str | bytes) -> layout.Node:
        return layout.PlainValue(item) if len(item) <= INLINE_BYTES else self.long(type(item).__name__, item)

    def long(self, kind: str, item: Any) -> layout.Node:
        written = _encode(item)
        return layout.LongValue(kind, self.add_array(np.frombuffer(written, np.uint8)), len(written))

    def sequence(self, item: list[Any] | tuple[Any, ...]) -> layout.Node:
        kind = "list" if type(item) is list else "tuple"
        if all(type(part) in layout.PLAIN for part in item):
            short = len(item) <= 16 and all(type(part) not in (str, bytes) or len(part) <= 64 for part in item)
            return layout.PlainSequence(kind, list(item)) if short else self.long(kind, item)
        return layout.SequenceNode(kind, self.each((f"[{index}]", part) for index, part in enumerate(item)))

    def dict(self, item: dict[Any, Any]) -> layout.Node:
        if odd := [key for key in item if type(key) not in layout.PLAIN]:
            raise _Unfit(f"a dict with a key of type {layout.type_name(type(odd[0]))}; expected strings or numbers")
        return layout.Dict(list(item), self.each((f"[{key!r}]", part) for key, part in item.items()))

    def other(self, item: Any) -> layout.Node:
        kind = type(item)
        if layout.is_named_tuple(kind):
            return layout.Named(
                layout.type_name(kind), self.each(zip(map(".{}".format, kind._fields), item, strict=True))
            )
        if layout.is_record(item):
            fields = [field.name for field in dataclasses.fields(item)]
            return layout.Named(layout.type_name(kind), self.each((f".{name}", getattr(item, name)) for name in fields))
        if isinstance(item, np.generic):
            return self.array(np.asarray(item), scalar=True)
        if kind in _pytree.SUPPORTED_NODES:
            parts, context = _pytree.SUPPORTED_NODES[kind].flatten_fn(item)
            made = self.each((f".parts[{index}]", part) for index, part in enumerate(parts))
            return layout.Registered(layout.type_name(kind), made, self.each([(".context", context)])[0])
        raise _Unfit(f"of type {layout.type_name(kind)}; {_alternative(item)}")

    def each(self, items: Iterable[tuple[str, Any]]) -> list[layout.Node]:
        made = []
        for step, item in items:
            try:
                made.append(self.node(item))
            except _Unfit as unfit:
                unfit.path.insert(0, step)
                raise
        return made


class _Unpacking:
    """Decodes a tree. Checks every node against the payload's size before use."""

    def __init__(self, payload: Any, read: layout.CachedHeader, types: Mapping[str, type], arrived: bool) -> None:
        self.payload, self.size, self.types, self.arrived = payload, read.size, types, arrived
        self.tensors = layout.views(read, payload)

    def make(self, node: layout.Node) -> Any:
        match node:
            case layout.Tensor():
                return next(self.tensors)
            case layout.Array():
                return self.array(node)
            case layout.PlainValue(value):
                return _plain([value])[0]
            case layout.PlainSequence(kind, values):
                return _sequence(kind)(_plain(values))
            case layout.SequenceNode(kind, items):
                return _sequence(kind)(self.each(items))
            case layout.Dict(keys, items):
                if len(keys) != len(items):
                    raise BadFrame(f"a dict of {len(keys)} keys and {len(items)} values")
                return dict(zip(_plain(keys), self.each(items), strict=True))
            case layout.LongValue(kind, offset, size):
                return self.long(kind, offset, size)
            case layout.Named(name, items):
                return _assemble(self.type(name), self.each(items))
            case layout.Registered(name, items, context):
                self.need_payload()
                known = _pytree.SUPPORTED_NODES.get(self.type(name))
                if known is None:
                    raise BadFrame(f"{name} is not registered with torch's pytree here")
                try:
                    return known.unflatten_fn(self.each(items), self.make(context))
                except (TypeError, ValueError, LookupError) as error:
                    raise BadFrame(f"these are not the parts of a {name}: {error}") from error

    def each(self, items: list[layout.Node]) -> list[Any]:
        tensors, make = self.tensors, self.make
        return [next(tensors) if type(item) is layout.Tensor else make(item) for item in items]

    def need_payload(self) -> None:
        if not self.arrived:
            raise PayloadMissing

    def array(self, node: layout.Array) -> Any:
        try:
            dtype = np.dtype(node.dtype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise BadFrame(f"an array of unknown dtype {node.dtype!r}") from error
        if dtype.kind not in _ARRAY_KINDS or dtype.hasobject or dtype.fields or dtype.subdtype:
            raise BadFrame(f"an array of dtype {node.dtype!r}")
        count = layout.elements(node.shape, dtype.itemsize, node.offset, self.size)
        try:
            if count and dtype.itemsize:
                array = np.frombuffer(self.payload, dtype, count, node.offset).reshape(node.shape)
            else:
                # elements of width 0 take no bytes, so allow at most as many elements as the payload has bytes
                layout.within(0, count, self.size)
                array = np.empty(node.shape, dtype)
        except ValueError as error:
            raise BadFrame(f"an array of shape {node.shape}: {error}") from error
        if not node.scalar:
            return array
        self.need_payload()
        return array[()]

    def long(self, kind: str, offset: int, size: int) -> Any:
        layout.within(offset, size, self.size)
        if kind not in _decode_long:
            raise BadFrame(f"unknown kind {kind!r} of a long value")
        self.need_payload()
        # copy the bytes, because the sender may still write to the memory
        written = bytes(memoryview(self.payload).cast("B")[offset : offset + size])
        try:
            made = _decode_long[kind](written)
        except UNDECODABLE as error:
            raise BadFrame(f"not a {kind}: {error}") from error
        return made if kind in ("str", "bytes") else _plain(made)

    def type(self, name: str) -> type:
        if name not in self.types:
            raise errors.BadInput(
                f"a batch holds a {name}, which no batch of this process has held; "
                f"known: {', '.join(sorted(self.types))}"
            )
        return self.types[name]


def _alternative(item: Any) -> str:
    """Describe which supported objects a user can send instead of an unsupported object."""
    if isinstance(item, torch.Tensor):
        return "expected a plain tensor, not a subclass (x.as_subclass(torch.Tensor))"
    if dataclasses.is_dataclass(item):
        return "expected a dataclass that has only its fields: attributes that __post_init__ sets would be lost"
    return "expected tensors, arrays, numbers, strings, and tuples, lists, dicts, named tuples or dataclasses of them"


def _assemble(kind: type, items: list[Any]) -> Any:
    """Build a named tuple or dataclass from its fields, without running the user's constructor."""
    is_tuple = layout.is_named_tuple(kind)
    if not is_tuple and not dataclasses.is_dataclass(kind):
        raise BadFrame(f"{layout.type_name(kind)} is neither a named tuple nor a dataclass")
    names = kind._fields if is_tuple else [field.name for field in dataclasses.fields(kind)]  # type: ignore[attr-defined]
    if len(items) != len(names):
        raise BadFrame(f"a {layout.type_name(kind)} of {len(items)} fields, expected {len(names)}")
    if is_tuple:
        return tuple.__new__(kind, items)
    made: Any = object.__new__(kind)
    for name, item in zip(names, items, strict=True):
        object.__setattr__(made, name, item)
    return made


def _plain(values: Sequence[Any]) -> Sequence[Any]:
    for value in values:
        if type(value) not in layout.PLAIN:
            raise BadFrame(f"unexpected {type(value).__name__} among plain values")
    return values


def _sequence(kind: str) -> Callable[[Iterable[Any]], Any]:
    if kind not in _KINDS:
        raise BadFrame(f"a sequence of kind {kind!r}")
    return _KINDS[kind]
