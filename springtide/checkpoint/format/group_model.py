"""Encodes a bsp group's model in a checkpoint: dense parameters, buffers and optimizers as rows of one table.

Key 0 holds the number of bytes and the checksum of the encoded model. The bytes themselves follow in rows of 4 KiB,
which no optimizer updates. Nothing is unpickled. `worker.bsp.group` and `export.exporter` use this module.
"""

import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from springtide import errors
from springtide.domain.core.validation import UNDECODABLE, FileVersion

TABLE = "group:state"
ROW = 1024  # floats: 4 KiB
FORMAT = 1
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_HEAD = struct.Struct("<8sQI")  # magic, number of bytes, CRC-32
_MAGIC = b"ST-GROUP"

Flat = tuple[str, list[int], bytes]
"""Data type, shape and values of a tensor."""


class GroupPosition(msgspec.Struct, frozen=True):
    """Progress of a group: a step, the next sample, and the number of steps of each optimizer."""

    step: int
    shard: int
    first: int
    counts: list[int]


class SavedGroup(msgspec.Struct, frozen=True):
    """The model of a bsp group in a checkpoint."""

    format: int
    place: GroupPosition
    dense: list[Flat]
    plan: list[Any]
    """States of the optimizers, which refer to tensors by number."""
    tensors: list[Flat]


def rows_of(body: bytes) -> npt.NDArray[np.float32]:
    """Convert bytes to rows, for the keys from 0 on."""
    head = _HEAD.pack(_MAGIC, len(body), zlib.crc32(body))
    whole = head.ljust(4 * ROW, b"\0") + body + b"\0" * (-len(body) % (4 * ROW))
    return np.frombuffer(whole, dtype=np.float32).reshape(-1, ROW)


def rows_after(first: npt.NDArray[np.float32]) -> int | None:
    """Return how many rows follow the row of key 0. Return None if that row is not a header row."""
    magic, size, _ = _HEAD.unpack_from(first.tobytes())
    return -(-size // (4 * ROW)) if magic == _MAGIC else None


def body_of(rows: npt.NDArray[np.float32]) -> bytes:
    content = rows.tobytes()
    _, size, check = _HEAD.unpack_from(content)
    body = content[4 * ROW : 4 * ROW + size]
    if len(body) != size or zlib.crc32(body) != check:
        raise errors.BadInput("the dense parameters of the bsp group are damaged")
    return body


def decode(body: bytes) -> SavedGroup:
    try:
        found = msgspec.msgpack.decode(body, type=FileVersion).format
        if found not in (None, FORMAT):
            raise errors.OtherVersion("the model of the bsp group", found, FORMAT)
        return msgspec.msgpack.decode(body, type=SavedGroup, strict=False)
    except UNDECODABLE as error:
        raise errors.BadInput(f"the model of the bsp group cannot be read: {error}") from None


def flat(tensor: torch.Tensor) -> Flat:
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return str(tensor.dtype), list(tensor.shape), values.numpy().tobytes()


def shaped(dtype: str, shape: list[int], values: bytes) -> torch.Tensor:
    if not values:
        return torch.zeros(shape, dtype=DTYPES[dtype], device="cpu")
    return torch.frombuffer(bytearray(values), dtype=DTYPES[dtype]).reshape(shape)
