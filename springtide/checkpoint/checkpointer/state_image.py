"""The bytes of one saved state: head, index, tensors. The same in memory, in a file, in an object store.

In: a state taken apart (checkpoint/checkpointer/state_tree.py). Out: a `Plan` that says how long the image is and where
each tensor goes, and `read`, which gives the state back. Next: checkpoint/checkpointer/state_memory.py fills it,
checkpoint/checkpointer/state_storage.py keeps it.

    head      64 bytes (checkpoint/checkpointer/state_head.py)
    index     msgpack: skeleton, and dtype, shape and offset of every tensor
    tensors   each at a multiple of 64
"""

import functools
import zlib
from typing import Any, BinaryIO, cast

import msgspec
import torch

from springtide import errors
from springtide.checkpoint.checkpointer import state_head, state_tree

ALIGN = 64
CHUNK = 8 << 20
INT_BYTES = 9
"""Of the longest number in msgpack, and of the head of the longest array."""
PLACE_BYTES = 64
"""Of a `TensorPlace` in msgpack but for its shape's numbers: two heads, two numbers, and a name of up to 32 letters."""


class TensorPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One tensor: how to read its bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    """From the beginning of the image."""
    size: int


class Index(msgspec.Struct, frozen=True, array_like=True):
    """What an image holds, in the order of its bytes."""

    skeleton: Any
    tensors: tuple[TensorPlace, ...]


class Plan(msgspec.Struct, frozen=True):
    """An image to be filled."""

    head: state_head.Head
    index: bytes
    places: tuple[TensorPlace, ...]
    tensors: tuple[torch.Tensor, ...]


def plan(state: Any, *, step: int, sequence: int) -> Plan:
    """Lay a state out. Copies no tensor."""
    taken = state_tree.take_apart(state)
    shapes = [(_name(tensor.dtype), tuple(tensor.shape), tensor.nbytes) for tensor in taken.tensors]
    # Offsets are part of the index, so room is left for its longest encoding.
    longest = len(msgspec.msgpack.encode(Index(taken.skeleton, ()))) + INT_BYTES
    longest += sum(PLACE_BYTES + INT_BYTES * len(shape) for _, shape, _ in shapes)
    laid, at = [], (first := _aligned(state_head.BYTES + longest))
    for dtype, shape, size in shapes:
        laid.append(TensorPlace(dtype, shape, at, size))
        at = _aligned(at + size)
    index = msgspec.msgpack.encode(Index(taken.skeleton, tuple(laid)))
    end = laid[-1].offset + laid[-1].size if laid else first
    return Plan(state_head.Head(len(index), end, sequence, step, zlib.crc32(index)), index, tuple(laid), taken.tensors)


def read(file: BinaryIO, *, summed: bool = True) -> tuple[state_head.Head, Any, int]:
    """Head, state in memory of its own, and the CRC-32 of the whole image (0 if not `summed`).

    BadInput says what is wrong with it.
    """
    stream = _Stream(file, summed)
    head = state_head.decode(stream.exactly(state_head.BYTES))
    packed = stream.exactly(head.index_bytes)
    if zlib.crc32(packed) != head.index_crc:
        raise errors.BadInput("its index is damaged")
    try:
        index = msgspec.msgpack.decode(packed, type=Index)
    except msgspec.DecodeError as error:
        raise errors.BadInput(f"its index cannot be read: {error}") from None
    tensors = []
    for place in index.tensors:
        if place.offset < stream.at or place.offset + place.size > head.image_bytes:
            raise errors.BadInput(f"its index points outside of its {head.image_bytes} bytes")
        stream.exactly(place.offset - stream.at)
        tensor = torch.empty(place.shape, dtype=getattr(torch, place.dtype))
        stream.into(memoryview(cast(Any, tensor.reshape(-1).view(torch.uint8).numpy())))
        tensors.append(tensor)
    stream.exactly(head.image_bytes - stream.at)
    return head, state_tree.put_together(index.skeleton, tensors), stream.crc


class _Stream:
    """A file read once from front to back, with the checksum of what has been read."""

    def __init__(self, file: BinaryIO, summed: bool) -> None:
        self._file = cast(Any, file)
        self._summed = summed
        self.at = 0
        self.crc = 0

    def exactly(self, size: int) -> bytes:
        data = bytearray(size)
        self.into(memoryview(data))
        return bytes(data)

    def into(self, room: memoryview) -> None:
        done = 0
        while done < len(room):
            got = self._file.readinto(room[done : done + CHUNK])
            if not got:
                raise errors.BadInput(f"it ends at byte {self.at}, before its tensors do")
            if self._summed:
                self.crc = zlib.crc32(room[done : done + got], self.crc)
            done += got
            self.at += got


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _aligned(offset: int) -> int:
    return (offset + ALIGN - 1) // ALIGN * ALIGN
