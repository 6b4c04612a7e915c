"""Names and formats of the files of a log, and its settings (log.json).

    FOLDER/log.json                            settings; replaced as a whole
    FOLDER/lock                                who makes, grows or seals the log holds this
    FOLDER/heads                               where each partition begins and ends now; made anew after a boot
    FOLDER/p00003/                             partition 3; who appends holds a lock on the folder itself
    FOLDER/p00003/00000000000000012000.index   an entry a record, from offset 12000 on: when, and where its bytes end
    FOLDER/p00003/00000000000000012000.data    the bytes of the records, one after the other

In: stream.py, writer.py, reader.py. Sizes are little-endian.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from springtide import errors
from springtide.domain.data.streams import MOST_PARTITIONS

FORMAT = 2
ENTRY = np.dtype([("end", "<i8"), ("at_us", "<i8"), ("crc", "<u4"), ("records", "<u4")])
"""Of a record: where its bytes end, and when it was appended. The last entry of an append also has the CRC-32 of its
bytes and its number of records; the others have 0 there, so a reader never sees half an append.
"""
HEADER = np.dtype([("magic", "S8"), ("format", "<u4"), ("entry", "<u4"), ("base", "<i8")])
"""Begins an index file; as long as an entry."""
MAGIC = b"sprtide\n"
WIDTH = ENTRY.itemsize
SEGMENT_BYTES = 64 * 2**20  # retention deletes whole segments, and a crash checks one: 64 MiB take ~0.1 s
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all users of the log share."""

    format: int = FORMAT
    id: str = ""
    """Random identity of the log."""
    partitions: int
    segment_bytes: int = SEGMENT_BYTES
    """A segment of this size is closed, and a new one begun."""
    retain_bytes: int | None = None
    """Bytes that a partition keeps; older closed segments are deleted. None: all."""
    retain_s: float | None = None
    """Seconds after its newest record when a closed segment is deleted. None: never."""
    sync: str = "segment"
    """When bytes are forced to disk: "segment" (when one is closed, and by `flush`) or "append" (each time)."""
    sealed: bool = False
    """True if nothing will be appended any more."""


def check(settings: LogSettings) -> LogSettings:
    for name, value, least in (
        ("partitions", settings.partitions, 1),
        ("segment_bytes", settings.segment_bytes, 1),
        ("retain_bytes", settings.retain_bytes, 0),
        ("retain_s", settings.retain_s, 0),
    ):
        if value is not None and value < least:
            raise errors.BadInput(f"a log with {name}={value} is not possible; give {least} or more")
    if settings.partitions > MOST_PARTITIONS:
        raise errors.BadInput(f"a log has at most {MOST_PARTITIONS} partitions, not {settings.partitions}")
    if settings.sync not in ("segment", "append"):
        raise errors.UnknownName("way to sync", settings.sync, ("segment", "append"))
    return settings


def load(folder: Path) -> LogSettings:
    path = folder / "log.json"
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise errors.MissingFile(
            f"there is no log at {folder}; make one with `springtide produce log://{folder}`"
        ) from None
    try:
        settings = msgspec.json.decode(raw, type=LogSettings)
    except msgspec.MsgspecError as error:
        raise errors.BadInput(f"{path} is not the description of a log: {error}; is {folder} another folder?") from None
    if settings.format != FORMAT:
        raise errors.BadInput(
            f"the log at {folder} has format {settings.format}, from another version of Springtide; this one reads "
            f"{FORMAT}: make the log anew, or use the version that made it"
        )
    return settings


def store(folder: Path, settings: LogSettings) -> None:
    """Replace the settings atomically."""
    path = folder / "log.json.new"
    with path.open("wb") as file:
        file.write(msgspec.json.encode(check(settings)))
        file.flush()
        os.fsync(file.fileno())
    path.replace(folder / "log.json")


def partition_folder(folder: Path, partition: int) -> Path:
    return folder / f"p{partition:05d}"


def index_path(folder: Path, base: int) -> Path:
    """The index of the segment that begins with this offset."""
    return folder / f"{base:020d}.index"


def data_path(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}.data"


def bases(folder: Path) -> list[int]:
    """First offsets of a partition's segments, oldest first."""
    return sorted(int(name[:20]) for name in os.listdir(folder) if name.endswith(".index") and name[:20].isdigit())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock for creating, growing, sealing or checking this log. A dying process releases it."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def boot_id() -> bytes:
    """Identity of this boot: bytes that were not forced to disk may be lost in the next one."""
    try:
        return Path(BOOT_ID).read_bytes().strip()[:40]
    except OSError:
        return b"unknown"
