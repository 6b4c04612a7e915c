"""Header format of a batch: a node for each object of a tree.

In: dataworker/transport/codec.py walks a tree. Out: small, typed msgpack. Bytes from a socket are either a valid
header, or refused as a whole. The tags define the format: raise `VERSION` when they change.
"""

import dataclasses
from typing import Any

import msgspec
import torch

VERSION = 1
ALIGNMENT = 64  # alignment of payload buffers: a cache line, and enough for any vector instruction
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits", "torch.int1_"))
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
PLAIN = (bool, int, float, str, bytes, type(None))
Value = Any  # one of PLAIN; codec.py checks it, because msgspec cannot tell strings from bytes in one field


class _Base(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A node of a tree. The tags of the subclasses define the format; see `VERSION`."""


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
    """A value in the header."""

    value: Value


class LongValue(_Base, frozen=True, tag=3):
    """A long string, bytes, or list or tuple of plain values: msgpack in the payload."""

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
    """A dict; keys are plain values."""

    keys: list[Value]
    items: "list[Node]"


class Named(_Base, frozen=True, tag=7):
    """A named tuple or a dataclass: its fields in order."""

    name: str
    items: "list[Node]"


class Registered(_Base, frozen=True, tag=8):
    """A type that torch's pytree can flatten: its parts, and the context to rebuild it."""

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

    A dataclass with further attributes would lose them. So would a dataclass that is also a dict or list.
    """
    if not dataclasses.is_dataclass(item) or isinstance(item, type) or type(item).__new__ is not object.__new__:
        return False
    names = [field.name for field in dataclasses.fields(item)]
    return getattr(item, "__dict__", {}).keys() <= set(names) and all(hasattr(item, name) for name in names)


def type_name(kind: type) -> str:
    """Return the name of a type in a header."""
    return f"{kind.__module__}.{kind.__qualname__}"
