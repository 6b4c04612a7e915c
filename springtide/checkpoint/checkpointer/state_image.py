"""The bytes of one saved state, equal in memory, in a file and in an object store. Nothing is ever unpickled.

head      64 bytes (saver.py)
index     msgpack: skeleton, and dtype, shape and offset of every tensor
tensors   each at a multiple of 64
"""

import collections
import concurrent.futures
import contextlib
import ctypes
import functools
import io
import math
import mmap
import os
import pathlib
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
import torch

from springtide import errors
from springtide.checkpoint.checkpointer import saver
from springtide.domain.core.validation import UNDECODABLE

ALIGN = 64
CHUNK = 8 << 20
INT_BYTES = 9
"""Bytes of the longest number in msgpack, and bytes of the header of the longest array."""
PLACE_BYTES = 64
"""Bytes of a `TensorPlace` in msgpack without its shape: two headers, two numbers, and a name of up to 32 letters."""


class TensorPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Location and layout of one tensor."""

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

    head: saver.ImageHead
    index: bytes
    places: tuple[TensorPlace, ...]
    tensors: tuple[torch.Tensor, ...]


def plan_image(state: Any, *, step: int, sequence: int) -> ImagePlan:
    """Lay out a state, without copying tensors."""
    skeleton, tensors = split_state(state)
    shapes = [(_name(tensor.dtype), tuple(tensor.shape), tensor.nbytes) for tensor in tensors]
    # Offsets are part of the index, so the index gets room for the longest encoding of the offsets.
    longest = len(msgspec.msgpack.encode(ImageIndex(skeleton, ()))) + INT_BYTES
    longest += sum(PLACE_BYTES + INT_BYTES * len(shape) for _, shape, _ in shapes)
    laid, at = [], (first := _aligned(saver.BYTES + longest))
    for dtype, shape, size in shapes:
        laid.append(TensorPlace(dtype, shape, at, size))
        at = _aligned(at + size)
    index = msgspec.msgpack.encode(ImageIndex(skeleton, tuple(laid)))
    end = laid[-1].offset + laid[-1].size if laid else first
    return ImagePlan(saver.ImageHead(len(index), end, sequence, step, zlib.crc32(index)), index, tuple(laid), tensors)


def read_image(file: BinaryIO, *, summed: bool = True) -> tuple[saver.ImageHead, Any, int]:
    """Read an image: the header, the state (in separate memory), and the CRC-32 of the whole image (0 if not
    `summed`).
    """
    stream = _ImageStream(file, summed)
    head = saver.decode_head(stream.exactly(saver.BYTES))
    packed = stream.exactly(head.index_bytes)
    if zlib.crc32(packed) != head.index_crc:
        raise errors.BadInput("its index is damaged")
    try:
        index = msgspec.msgpack.decode(packed, type=ImageIndex)
    except UNDECODABLE as error:
        raise errors.BadInput(f"its index cannot be read: {error}") from None
    tensors = []
    for place in index.tensors:
        if place.offset < stream.at or place.offset + place.size > head.image_bytes:
            raise errors.BadInput(f"its index points outside of its {head.image_bytes} bytes")
        stream.exactly(place.offset - stream.at)
        dtype = getattr(torch, place.dtype, None)
        if not isinstance(dtype, torch.dtype) or math.prod(place.shape) * dtype.itemsize != place.size:
            raise errors.BadInput(f"its index has {place.size} bytes for a {place.dtype} tensor of shape {place.shape}")
        tensor = torch.empty(place.shape, dtype=dtype)
        stream.into(memoryview(cast(Any, tensor.reshape(-1).view(torch.uint8).numpy())))
        tensors.append(tensor)
    stream.exactly(head.image_bytes - stream.at)
    try:
        return head, join_state(index.skeleton, tensors), stream.crc
    except Exception as error:  # a state of tuples, arrays and generators can be wrong in many ways
        raise errors.BadInput(f"its state cannot be built: {type(error).__name__}: {error}") from error


class _ImageStream:
    """A file that is read once from front to back, with the checksum of the bytes read so far."""

    def __init__(self, file: BinaryIO, summed: bool) -> None:
        self._file = cast(Any, file)
        self._summed = summed
        self.at = 0
        self.crc = 0

    def exactly(self, size: int) -> bytes:
        parts = []
        for first in range(0, size, CHUNK):  # a wrong size takes no more memory than there are bytes
            parts.append(bytearray(min(CHUNK, size - first)))
            self.into(memoryview(parts[-1]))
        return b"".join(parts)

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
    """Encode a state with all its tensors. Raise BadInput for a value that cannot be saved; the error names the value's
    place in the state."""
    plan = plan_image(state, step=0, sequence=0)
    image = bytearray(plan.head.image_bytes)
    image[: saver.BYTES] = saver.encode_head(plan.head)
    image[saver.BYTES : saver.BYTES + len(plan.index)] = plan.index
    for place, tensor in zip(plan.places, plan.tensors, strict=True):
        content = tensor.cpu().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
        image[place.offset : place.offset + place.size] = memoryview(cast(Any, content.numpy()))
    return bytes(image)


def decode_state(content: bytes) -> Any:
    return read_image(io.BytesIO(content), summed=False)[1]


Skeleton = Any
"""Values of type None, bool, int, float, str or bytes stay unchanged; all other values become [tag, ...]."""

LARGEST_INT = 2**63 - 1
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

_Places = dict[int, list[int]]
"""Positions of the tensors in the list, by the address of their first element."""


def split_state(state: Any) -> tuple[Skeleton, tuple[torch.Tensor, ...]]:
    """Split a state into skeleton and tensors. BadInput names the place of any unsupported value.

    Tensors that view the same memory in the same way are stored once.
    """
    tensors: list[torch.Tensor] = []
    places: _Places = {}
    try:
        skeleton = _skeleton(state, "state", tensors, places)
    except RecursionError:
        raise errors.BadInput("state: a part of it contains itself, or it is nested too deeply to be saved") from None
    return skeleton, tuple(tensors)


def join_state(skeleton: Skeleton, tensors: Sequence[torch.Tensor]) -> Any:
    if not isinstance(skeleton, list):
        return skeleton
    tag, *rest = skeleton
    return _MAKERS[tag](rest, tensors)


def _skeleton(value: Any, at: str, tensors: list[torch.Tensor], places: _Places) -> Skeleton:
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int:
        return value if -LARGEST_INT <= value <= LARGEST_INT else ["int", str(value)]
    if isinstance(value, torch.Tensor):
        return ["tensor", _place(value, at, tensors, places)]
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject or value.dtype.kind in "USVmM":
            raise _unfit(at, f"a NumPy array of {value.dtype}")
        tag = "array" if isinstance(value, np.ndarray) else "scalar"
        raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), dtype=np.uint8).copy()
        place = _place(torch.from_numpy(raw), at, tensors, places)
        return [tag, place, value.dtype.str, list(value.shape)]
    if isinstance(value, torch.Size):
        return ["size", *value]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, dict):
        tag = "ordered" if kind is collections.OrderedDict else "counter" if kind is collections.Counter else "dict"
        return [tag, *_pairs(value, at, tensors, places)]
    if kind in (list, tuple, set, frozenset):
        return [kind.__name__, *(_skeleton(item, f"{at}[{i}]", tensors, places) for i, item in enumerate(value))]
    raise _unfit(at, f"{kind.__module__}.{kind.__qualname__}")


def _pairs(value: dict[Any, Any], at: str, tensors: list[torch.Tensor], places: _Places) -> Any:
    for key, item in value.items():
        inner = f"{at}[{key!r}]"
        yield [_skeleton(key, f"key {inner}", tensors, places), _skeleton(item, inner, tensors, places)]


def _place(tensor: torch.Tensor, at: str, tensors: list[torch.Tensor], places: _Places) -> int:
    """Return the index of a tensor in the list. The checks of this function must be cheap, because the caller waits and
    there may be thousands of tensors.
    """
    if type(tensor) not in PLAIN:
        raise _unfit(at, f"a {type(tensor).__name__}", "Take its local tensor first.")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise _unfit(at, f"a {tensor.layout} tensor on {tensor.device}", "Only dense tensors with data can be saved.")
    address = tensor.data_ptr()
    there = places.get(address)
    if there is None:
        there = places[address] = []
    elif tensor.numel():
        for place in there:
            if _shows_the_same(tensors[place], tensor):
                return place
    there.append(len(tensors))
    tensors.append(tensor.detach() if tensor.requires_grad else tensor)
    return there[-1]


def _shows_the_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    alike = tensor.dtype == other.dtype and tensor.shape == other.shape and tensor.stride() == other.stride()
    return (
        alike
        and tensor.device == other.device
        and tensor.is_neg() == other.is_neg()
        and tensor.is_conj() == other.is_conj()
    )


def _unfit(
    at: str, got: str, what_to_do: str = "Save its state_dict(), or the numbers it is made of."
) -> errors.BadInput:
    expected = "tensors, arrays, numbers, strings, bytes, None, and dicts, lists, tuples and sets of them"
    return errors.BadInput(f"{at} is {got}, which a checkpoint cannot hold; expected: {expected}. {what_to_do}")


def _array(rest: list[Any], tensors: Sequence[torch.Tensor]) -> Any:
    place, dtype, shape = rest
    return np.frombuffer(bytearray(tensors[place].numpy()), dtype=dtype).reshape(shape)


_Maker = Callable[[list[Any], Sequence[torch.Tensor]], Any]


def _each(make: Callable[[list[Any]], Any]) -> _Maker:
    return lambda rest, tensors: make([join_state(item, tensors) for item in rest])


def _mapping(make: Callable[[dict[Any, Any]], Any]) -> _Maker:
    return lambda rest, tensors: make({join_state(k, tensors): join_state(v, tensors) for k, v in rest})


_MAKERS: dict[str, _Maker] = {
    "tensor": lambda rest, tensors: tensors[rest[0]],
    "array": _array,
    "scalar": lambda rest, tensors: _array(rest, tensors)[()],
    "int": lambda rest, _: int(rest[0]),
    "size": lambda rest, _: torch.Size(rest),
    "dtype": lambda rest, _: getattr(torch, rest[0]),
    "dict": _mapping(lambda pairs: pairs),
    "ordered": _mapping(collections.OrderedDict),
    "counter": _mapping(collections.Counter),
    "list": _each(list),
    "tuple": _each(tuple),
    "set": _each(set),
    "frozenset": _each(frozenset),
}


PIECE = 4 << 20
"""Bytes in one piece of a copy; a free thread takes the next piece."""
SMALL = 1 << 16
"""Largest tensor, in bytes, that the caller copies itself; switching to a thread would take longer."""


class ImageFile:
    """One image in memory. The file of an image grows and never shrinks. One process writes the file, and any process
    may read it.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._bytes: torch.Tensor | None = None

    def fill(self, plan: ImagePlan, copiers: concurrent.futures.ThreadPoolExecutor, threads: int) -> None:
        """Copy the state into the file. While the copy runs, the file has no valid image."""
        memory, view = self._make_room(plan.head.image_bytes)
        memory[: saver.BYTES] = bytes(saver.BYTES)
        memory[saver.BYTES : saver.BYTES + len(plan.index)] = plan.index
        pieces: list[tuple[int, int, int]] = []
        rest: list[tuple[TensorPlace, torch.Tensor]] = []
        first = view.data_ptr()
        for place, tensor in zip(plan.places, plan.tensors, strict=True):
            if place.size > SMALL and _lies_straight(tensor):
                pieces += _pieces(first + place.offset, tensor.data_ptr(), place.size)
            else:
                rest.append((place, tensor))
        with _copied(pieces, copiers, threads):
            for place, tensor in rest:
                if _lies_straight(tensor):
                    ctypes.memmove(first + place.offset, tensor.data_ptr(), place.size)
                elif place.size:
                    room = view[place.offset : place.offset + place.size]
                    room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        memory[: saver.BYTES] = saver.encode_head(plan.head)

    def _make_room(self, size: int) -> tuple[mmap.mmap, torch.Tensor]:
        """Grow the file to at least this many bytes, and return it as a map and as a tensor. Raise DiskFull if the disk
        has no room."""
        if self._map is None or len(self._map) < size:
            self.close()
            self._map = _mapped(self.path, size)
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        assert self._bytes is not None
        return self._map, self._bytes

    def close(self) -> None:
        self._bytes = None
        if self._map is not None:
            with contextlib.suppress(BufferError):  # torch may still hold the buffer, and releases it a little later
                self._map.close()
        self._map = None


def _mapped(path: pathlib.Path, size: int) -> mmap.mmap:
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        before = os.fstat(file.fileno()).st_size
        size = max(before, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        try:
            # allocate all pages now: without room for a page, a later write would raise SIGBUS
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            os.ftruncate(file.fileno(), before)
            free = shutil.disk_usage(path.parent).free
            raise errors.DiskFull(
                f"no room for an image of {size / 2**20:,.0f} MB in {path.parent}: {free / 2**20:,.0f} MB are free "
                f"({error.strerror}). Two images are kept; Checkpointer(memory=FOLDER) puts them elsewhere."
            ) from None
        return mmap.mmap(file.fileno(), size)


def _pieces(to: int, source: int, size: int) -> list[tuple[int, int, int]]:
    return [(to + at, source + at, min(PIECE, size - at)) for at in range(0, size, PIECE)]


def _lies_straight(tensor: torch.Tensor) -> bool:
    """Return True if the tensor's bytes are in CPU memory in the order of its elements."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


@contextlib.contextmanager
def _copied(
    pieces: Sequence[tuple[int, int, int]], copiers: concurrent.futures.ThreadPoolExecutor, threads: int
) -> Iterator[None]:
    """Copy large pieces with all threads. The other threads start immediately, while the caller continues with other
    work. memmove releases the GIL, so threads copy large pieces in parallel.
    """
    left = iter(pieces)

    def work() -> None:
        for to, source, size in left:  # all threads share this iterator, because next() on a list's iterator is atomic
            ctypes.memmove(to, source, size)

    others = [copiers.submit(work) for _ in range(threads - 1)] if len(pieces) > 1 else []
    try:
        yield
        work()
    finally:  # wait also after a failure, because no thread may write into an image that is being refilled
        concurrent.futures.wait(others)
    for other in others:
        other.result()
