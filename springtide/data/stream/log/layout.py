"""File names and formats of a log, and its settings (log.json).

    FOLDER/log.json                            settings; replaced atomically
    FOLDER/lock                                lock for creating, growing or sealing the log
    FOLDER/heads                               current begin and end of each partition; rebuilt after a boot
    FOLDER/p00003/                             partition 3; a producer locks this folder to append
    FOLDER/p00003/00000000000000012000.index   entries from offset 12000 on: append time, end of bytes
    FOLDER/p00003/00000000000000012000.data    the bytes of the records, joined

In: calls of stream.py, writer.py and reader.py. Numbers are stored in little-endian order.
"""

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.core.validation import UNDECODABLE, FileVersion
from springtide.domain.data.streams import MOST_PARTITIONS

__all__ = ["LogSettings"]

FORMAT = 2
ENTRY = np.dtype([("end", "<i8"), ("at_us", "<i8"), ("crc", "<u4"), ("records", "<u4")])
"""An index entry: where a record's bytes end, and when the record was appended. The last entry of an append also has
the CRC-32 of the append's bytes and its number of records. All other entries have 0 in this field, so a reader never
sees half an append.
"""
HEADER = np.dtype([("magic", "S8"), ("format", "<u4"), ("entry", "<u4"), ("base", "<i8")])
"""Start of an index file, with the length of an entry."""
MAGIC = b"sprtide\n"
WIDTH = ENTRY.itemsize
# size of a segment. Retention deletes whole segments. After a crash only the newest segment is checked, which takes
# about 0.1 s for 64 MiB.
SEGMENT_BYTES = 64 * 2**20
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings shared by all users of the log."""

    format: int = FORMAT
    id: str = ""
    """Random identity of the log."""
    partitions: int
    segment_bytes: int = SEGMENT_BYTES
    """Size at which a segment is closed and a new one begins."""
    retain_bytes: int | None = None
    """Bytes that a partition keeps; older closed segments are deleted. None keeps all."""
    retain_s: float | None = None
    """Seconds for which a closed segment is kept, since its newest record; None means forever."""
    sync: str = "segment"
    """When the log forces bytes to disk: "segment" (when a segment is closed, and by `flush`) or "append" (after each
    append)."""
    sealed: bool = False
    """True if no more records will be appended."""


def check(settings: LogSettings) -> LogSettings:
    for name, value, least in (
        ("partitions", settings.partitions, 1),
        ("segment_bytes", settings.segment_bytes, 1),
        ("retain_bytes", settings.retain_bytes, 0),
        ("retain_s", settings.retain_s, 0),
    ):
        if value is not None and value < least:
            raise errors.BadInput(f"a log cannot have {name}={value}; expected {least} or more")
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
            f"there is no log at {folder}; create one with `springtide produce log://{folder}`"
        ) from None
    try:
        found = msgspec.json.decode(raw, type=FileVersion).format
        if found not in (None, FORMAT):
            raise errors.OtherVersion(
                f"the log at {folder}", found, FORMAT, "create the log again, or use the version that created it"
            )
        return msgspec.json.decode(raw, type=LogSettings)
    except UNDECODABLE as error:
        raise errors.BadInput(
            f"{path} is not the settings file of a log: {error}; check that {folder} is the log's folder"
        ) from None


def store(folder: Path, settings: LogSettings) -> None:
    path = folder / "log.json.new"
    with path.open("wb") as file:
        file.write(msgspec.json.encode(check(settings)))
        file.flush()
        os.fsync(file.fileno())
    path.replace(folder / "log.json")


def partition_folder(folder: Path, partition: int) -> Path:
    return folder / f"p{partition:05d}"


def index_path(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}.index"


def data_path(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}.data"


def bases(folder: Path) -> list[int]:
    """Return the first offsets of a partition's segments, oldest first."""
    return sorted(int(name[:20]) for name in os.listdir(folder) if name.endswith(".index") and name[:20].isdigit())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock this log in order to create, grow, seal or check the log. The kernel releases the lock of a dead process."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def boot_id() -> bytes:
    """Return the identity of this boot. Bytes that are not forced to disk may be lost in a reboot."""
    try:
        return Path(BOOT_ID).read_bytes().strip()[:40]
    except OSError:
        return b"unknown"


Entries: TypeAlias = NDArray[np.void]


def header(base: int) -> bytes:
    return np.array([(MAGIC, FORMAT, WIDTH, base)], HEADER).tobytes()


def entries(handle: int, first: int, count: int) -> Entries:
    """Return `count` entries from position `first`, or fewer if there are not enough complete entries."""
    raw = os.pread(handle, count * WIDTH, WIDTH + first * WIDTH)
    return np.frombuffer(raw, ENTRY, len(raw) // WIDTH)


def length(handle: int) -> int:
    """Return the number of whole entries in an index file, even if their append has not finished."""
    return max(0, os.fstat(handle).st_size // WIDTH - 1)


def check_header(handle: int, base: int, path: object) -> None:
    """Raise BadInput unless this file is the index of a segment that begins with this offset."""
    if os.pread(handle, WIDTH, 0) != header(base):
        raise errors.BadInput(
            f"{path} is not an index file of this version, so the log's folder is damaged; restore or delete the folder"
        )


def whole(handle: int) -> int:
    """Return the number of entries of complete appends."""
    count = length(handle)
    step = 1
    while count > 0:  # the last entry usually ends an append, so this loop usually runs only once
        step = min(step, count)
        ends = np.flatnonzero(entries(handle, count - step, step)["records"])
        if len(ends):
            return count - step + int(ends[-1]) + 1
        count, step = count - step, step * 64
    return 0


def sound(index: int, data: int, count: int) -> int:
    """Return how many of `count` entries come before the first append with a wrong checksum."""
    good, begin = 0, 0
    size = os.fstat(data).st_size
    whole_index = entries(index, 0, count)
    for last in np.flatnonzero(whole_index["records"]).tolist():
        end, crc, records = (int(whole_index[field][last]) for field in ("end", "crc", "records"))
        if last + 1 - good != records or not begin <= end <= size:
            break
        if np.any(np.diff(whole_index["end"][good : last + 1], prepend=begin) < 0):
            break
        if zlib.crc32(os.pread(data, end - begin, begin)) != crc:
            break
        good, begin = last + 1, end
    return good


class SegmentSize(NamedTuple):
    """Size and age of a segment, for retention."""

    bytes: int
    newest_at: float
    """Append time of the segment's newest record."""


def too_many(segments: Sequence[SegmentSize], *, retain_bytes: int | None, retain_s: float | None, at: float) -> int:
    """Return how many of the oldest segments retention deletes. The last segment always stays, because producers write
    to it.

    By size, delete a segment only if the remaining segments still have at least `retain_bytes`. By age, delete segments
    whose newest record is older than `retain_s`, up to the first younger segment.
    """
    closed = segments[:-1]
    by_age = 0
    while retain_s is not None and by_age < len(closed) and closed[by_age].newest_at < at - retain_s:
        by_age += 1
    by_size = 0
    left = sum(segment.bytes for segment in segments)
    while retain_bytes is not None and by_size < len(closed) and left - closed[by_size].bytes >= retain_bytes:
        left -= closed[by_size].bytes
        by_size += 1
    return max(by_age, by_size)
