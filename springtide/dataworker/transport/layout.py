"""The header of a batch: one node for each thing in a tree.

In: dataworker/transport/codec.py walks over a tree. Out: small, typed msgpack: bytes from a socket are a valid header
or refused as a whole. The tags are the format: raise `VERSION` when they change.
"""

import dataclasses
from typing import Any

import msgspec
import torch

VERSION = 1
ALIGNMENT = 64  # of what lies in a payload: a cache line, and more than any vector instruction asks for
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits", "torch.int1_"))
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
PLAIN = (bool, int, float, str, bytes, type(None))
Value = Any  # one of PLAIN: msgspec cannot tell strings from bytes in one field, so codec.py checks


class _Base(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A node of a tree. The order of these classes' tags is the format; see `VERSION`."""


class Tensor(_Base, frozen=True, tag=0):
    """A dense tensor; its bytes begin at `offset` of the payload."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class Array(_Base, frozen=True, tag=1):
    """A NumPy array, or a scalar of its types."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    scalar: bool


class PlainValue(_Base, frozen=True, tag=2):
    """A value in the header itself."""

    value: Value


class LongValue(_Base, frozen=True, tag=3):
    """A long string, bytes, or list or tuple of plain values: msgpack in the payload."""

    kind: str
    offset: int
    size: int


class SequenceNode(_Base, frozen=True, tag=4):
    """A list or tuple of anything."""

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
    """Everything of a message but the bytes of its buffers."""

    version: int
    size: int
    tree: Node


def is_named_tuple(kind: type) -> bool:
    """Whether a type goes as `Named`, being a tuple."""
    return issubclass(kind, tuple) and kind is not tuple and hasattr(kind, "_fields")


def is_record(item: Any) -> bool:
    """Whether something goes as `Named`, being a dataclass that is nothing but its fields.

    One with further attributes (from `__post_init__`, or given later), or that is a dict or list too, would lose them.
    """
    if not dataclasses.is_dataclass(item) or isinstance(item, type) or type(item).__new__ is not object.__new__:
        return False
    names = [field.name for field in dataclasses.fields(item)]
    return getattr(item, "__dict__", {}).keys() <= set(names) and all(hasattr(item, name) for name in names)


def type_name(kind: type) -> str:
    """What a type is called in a header."""
    return f"{kind.__module__}.{kind.__qualname__}"
