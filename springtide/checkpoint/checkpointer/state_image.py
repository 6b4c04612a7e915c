"""The bytes of one saved state, the same in memory, in a file and in an object store. Nothing is ever unpickled.

In: a split state (checkpoint/checkpointer/state_tree.py). Out: an `ImagePlan` with the size of the image and the place
of each tensor; `read_image` gives the state back. `encode_state` makes one `bytes` of a small state, for
`job.register`. Next: state_memory.py fills an image, state_storage.py stores it.

    head      64 bytes (checkpoint/checkpointer/state_folder.py)
    index     msgpack: skeleton, and dtype, shape and offset of every tensor
    tensors   each at a multiple of 64
"""

import functools
import io
import zlib
from typing import Any, BinaryIO, cast

import msgspec
import torch

from springtide import errors
from springtide.checkpoint.checkpointer import state_folder, state_tree

ALIGN = 64
CHUNK = 8 << 20
INT_BYTES = 9
"""Bytes of the longest number in msgpack, and of the header of the longest array."""
PLACE_BYTES = 64
"""Bytes of a `TensorPlace` in msgpack without its shape: two headers, two numbers, a name of up to 32 letters."""


class TensorPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where and how one tensor is stored."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Offset from the beginning of the image, in bytes."""
    size: int


class ImageIndex(msgspec.Struct, frozen=True, array_like=True):
    """Contents of an image, in the order of its bytes."""

    skeleton: Any
    tensors: tuple[TensorPlace, ...]


class ImagePlan(msgspec.Struct, frozen=True):
    """Layout of an image that is not filled yet."""

    head: state_folder.ImageHead
    index: bytes
    places: tuple[TensorPlace, ...]
    tensors: tuple[torch.Tensor, ...]


def plan_image(state: Any, *, step: int, sequence: int) -> ImagePlan:
    """Lay out a state, without copying tensors."""
    taken = state_tree.split_state(state)
    shapes = [(_name(tensor.dtype), tuple(tensor.shape), tensor.nbytes) for tensor in taken.tensors]
    # Offsets are part of the index, so room is left for its longest encoding.
    longest = len(msgspec.msgpack.encode(ImageIndex(taken.skeleton, ()))) + INT_BYTES
    longest += sum(PLACE_BYTES + INT_BYTES * len(shape) for _, shape, _ in shapes)
    laid, at = [], (first := _aligned(state_folder.BYTES + longest))
    for dtype, shape, size in shapes:
        laid.append(TensorPlace(dtype, shape, at, size))
        at = _aligned(at + size)
    index = msgspec.msgpack.encode(ImageIndex(taken.skeleton, tuple(laid)))
    end = laid[-1].offset + laid[-1].size if laid else first
    return ImagePlan(
        state_folder.ImageHead(len(index), end, sequence, step, zlib.crc32(index)), index, tuple(laid), taken.tensors
    )


def read_image(file: BinaryIO, *, summed: bool = True) -> tuple[state_folder.ImageHead, Any, int]:
    """Read the header, the state (in its own memory) and the CRC-32 of the whole image (0 if not `summed`)."""
    stream = _ImageStream(file, summed)
    head = state_folder.decode_head(stream.exactly(state_folder.BYTES))
    packed = stream.exactly(head.index_bytes)
    if zlib.crc32(packed) != head.index_crc:
        raise errors.BadInput("its index is damaged")
    try:
        index = msgspec.msgpack.decode(packed, type=ImageIndex)
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
    return head, state_tree.join_state(index.skeleton, tensors), stream.crc


class _ImageStream:
    """A file read once from front to back, with the checksum of the bytes read."""

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


def encode_state(state: Any) -> bytes:
    """Encode a state with all its tensors. BadInput names the place of a value that cannot be saved."""
    plan = plan_image(state, step=0, sequence=0)
    image = bytearray(plan.head.image_bytes)
    image[: state_folder.BYTES] = state_folder.encode_head(plan.head)
    image[state_folder.BYTES : state_folder.BYTES + len(plan.index)] = plan.index
    for place, tensor in zip(plan.places, plan.tensors, strict=True):
        content = tensor.cpu().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
        image[place.offset : place.offset + place.size] = memoryview(cast(Any, content.numpy()))
    return bytes(image)


def decode_state(content: bytes) -> Any:
    return read_image(io.BytesIO(content), summed=False)[1]
