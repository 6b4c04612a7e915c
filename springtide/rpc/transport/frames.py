"""Encodes and decodes frames: four bytes of length, then msgpack. Sizes are checked before allocation."""

import asyncio
import struct
from typing import Any, TypeVar

import msgspec

from springtide import errors
from springtide.domain.core.validation import UNDECODABLE

LENGTH = struct.Struct(">I")
# most bytes of a frame; the largest legitimate frame is a placement of 65536 slots, about 200 KB
MAX_BYTES = 16 * 2**20
MAX_HANDSHAKE_BYTES = 1024

T = TypeVar("T")


class BadFrame(errors.SpringtideError):
    """The received bytes are not a valid message. The connection is unusable."""


def pack(message: Any, *, limit: int = MAX_BYTES) -> bytes:
    try:
        body = msgspec.msgpack.encode(message)
    except OverflowError as error:
        raise errors.BadInput(f"a number in {message} does not fit into 64 bits") from error
    if len(body) > limit:
        raise errors.BadInput(
            f"{type(message).__name__} of {len(body)} bytes is over the control plane's limit of {limit} bytes"
        )
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes, decoder: "msgspec.msgpack.Decoder[T]") -> T:
    try:
        return decoder.decode(body)
    except (*UNDECODABLE, errors.BadInput) as error:
        raise BadFrame(f"not a message: {error}") from error


async def read(reader: asyncio.StreamReader, decoder: "msgspec.msgpack.Decoder[T]", *, limit: int = MAX_BYTES) -> T:
    """Wait for the next message. Raise EOFError if the peer closed the connection between two frames."""
    head = await reader.read(1)
    if not head:
        raise EOFError("the other side closed the connection")
    try:
        (size,) = LENGTH.unpack(head + await reader.readexactly(LENGTH.size - 1))
        if size > limit:
            raise BadFrame(f"the peer announced a frame of {size} bytes; the limit is {limit}")
        body = await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise BadFrame("the other side closed the connection within a frame") from error
    return unpack(body, decoder)
