"""What the header of a batch is made of: one node for each thing in a tree.

In: prep/codec.py walks over a tree. Out: msgpack, small and typed, so that what comes over a socket is either a header
or refused as a whole. The tags are the format: whoever changes them raises `VERSION`.
"""

from typing import Any

import msgspec

VERSION = 1
PLAIN = (bool, int, float, str, bytes, type(None))
Value = Any  # one of PLAIN: msgspec cannot tell strings from bytes in one field, so codec.py checks


class _Base(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Something in a tree. The order of these classes' tags is the format; see `VERSION`."""


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


class Plain(_Base, frozen=True, tag=2):
    """A value that the header carries itself."""

    value: Value


class Long(_Base, frozen=True, tag=3):
    """A long string, bytes, or list or tuple of plain values: msgpack in the payload."""

    kind: str
    offset: int
    size: int


class Several(_Base, frozen=True, tag=4):
    """A list or tuple of anything."""

    kind: str
    items: "list[Node]"


class Plains(_Base, frozen=True, tag=5):
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
    """Of a type that torch's pytree can take apart: its parts, and what else is needed to put them together."""

    name: str
    items: "list[Node]"
    context: "Node"


Node = Tensor | Array | Plain | Long | Several | Plains | Dict | Named | Registered


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All there is to say of a message but the bytes of its buffers."""

    version: int
    size: int
    tree: Node
