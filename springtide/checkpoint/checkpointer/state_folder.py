"""The image files of a checkpointer: their 64-byte heads, which of them are whole, and the lock. Free of torch.

In: the checkpointer's URL. Out: a folder that a relaunched process finds again, heads of whole images, a lock.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import struct
import tempfile
import time
import zlib

import msgspec

from springtide import errors

MAGIC = b"SPTSTATE"
VERSION = 1
HEAD = struct.Struct("<8sIIQQqI16sI")
BYTES = HEAD.size
assert BYTES == 64


class ImageHead(msgspec.Struct, frozen=True):
    """Header of an image. `sequence` numbers the saves of one checkpointer across restarts; `step` is the user's
    number.
    """

    index_bytes: int
    image_bytes: int
    sequence: int
    step: int
    index_crc: int


def encode_head(head: ImageHead) -> bytes:
    fields = (MAGIC, VERSION, head.index_bytes, head.image_bytes, head.sequence, head.step, head.index_crc, b"")
    bare = HEAD.pack(*fields, 0)[:-4]
    return bare + struct.pack("<I", zlib.crc32(bare))


def decode_head(data: bytes) -> ImageHead:
    if len(data) < BYTES or data[:8] != MAGIC:
        raise errors.BadInput(f"not a saved state: it begins with {bytes(data[:8])!r}, wanted {MAGIC!r}")
    _, version, index_bytes, image_bytes, sequence, step, index_crc, _, crc = HEAD.unpack_from(data)
    if crc != zlib.crc32(data[: BYTES - 4]):
        raise errors.BadInput("a saved state with a damaged head")
    if version != VERSION:
        raise errors.BadInput(f"a saved state of format {version}; this Springtide reads format {VERSION}")
    return ImageHead(index_bytes, image_bytes, sequence, step, index_crc)


log = logging.getLogger(__name__)

NAMES = ("a.image", "b.image")
SHARED = pathlib.Path("/dev/shm")
POLL_S = 0.05


def folder_for(url: str, chosen: str | os.PathLike[str] | None) -> pathlib.Path:
    """Return the folder for a URL and user. A relaunched process gets the same folder."""
    root = pathlib.Path(chosen) if chosen else (SHARED if SHARED.is_dir() else pathlib.Path(tempfile.gettempdir()))
    return root / f"springtide-{os.getuid()}" / hashlib.sha256(url.encode()).hexdigest()[:16]


def read_head(path: pathlib.Path) -> ImageHead | None:
    """Return the header of a complete image, or None."""
    try:
        with open(path, "rb") as file:
            head = decode_head(file.read(BYTES))
            return head if os.fstat(file.fileno()).st_size >= head.image_bytes else None
    except (OSError, errors.BadInput):
        return None


def whole_images(folder: pathlib.Path) -> list[tuple[ImageHead, pathlib.Path]]:
    """Return the complete images in memory, newest first."""
    images = [(head, folder / name) for name in NAMES if (head := read_head(folder / name))]
    return sorted(images, key=lambda image: -image[0].sequence)


def lock(folder: pathlib.Path, *, within_s: float) -> int:
    """Lock the folder for writing, and return the descriptor. A child process that inherits it holds the lock too."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + within_s
    logged = False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        if time.monotonic() >= deadline:
            os.close(descriptor)
            raise errors.BadInput(
                f"another process saves to this URL ({folder} is locked; waited {within_s:g} s). "
                "Give every process a URL of its own, such as URL/rank-0."
            )
        if not logged:
            log.info("waiting for the last process that saved to this URL: its saver is still writing")
            logged = True
        time.sleep(POLL_S)
