"""The first 64 bytes of a saved state: how long it is, which save it is. Free of torch, for the saver process.

In: counts. Out: bytes with a checksum, and back. Next: checkpoint/checkpointer/state_image.py, which lays out the rest.
"""

import struct
import zlib

import msgspec

from springtide import errors

MAGIC = b"SPTSTATE"
VERSION = 1
HEAD = struct.Struct("<8sIIQQqI16sI")
BYTES = HEAD.size
assert BYTES == 64


class Head(msgspec.Struct, frozen=True):
    """`sequence` numbers the saves of one checkpointer, over its restarts; `step` is the user's number."""

    index_bytes: int
    image_bytes: int
    sequence: int
    step: int
    index_crc: int


def encode(head: Head) -> bytes:
    """The head as bytes, checked."""
    fields = (MAGIC, VERSION, head.index_bytes, head.image_bytes, head.sequence, head.step, head.index_crc, b"")
    bare = HEAD.pack(*fields, 0)[:-4]
    return bare + struct.pack("<I", zlib.crc32(bare))


def decode(data: bytes) -> Head:
    """The head again; BadInput when these bytes are none."""
    if len(data) < BYTES or data[:8] != MAGIC:
        raise errors.BadInput(f"not a saved state: it begins with {bytes(data[:8])!r}, wanted {MAGIC!r}")
    _, version, index_bytes, image_bytes, sequence, step, index_crc, _, crc = HEAD.unpack_from(data)
    if crc != zlib.crc32(data[: BYTES - 4]):
        raise errors.BadInput("a saved state with a damaged head")
    if version != VERSION:
        raise errors.BadInput(f"a saved state of format {version}; this Springtide reads format {VERSION}")
    return Head(index_bytes, image_bytes, sequence, step, index_crc)
