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
"""Of a record: where its bytes end, when it was appended. The last entry of an append also has the CRC-32 of all the
bytes of that append and how many records it had; the others have 0 there: a reader never finds half an append."""
HEADER = np.dtype([("magic", "S8"), ("format", "<u4"), ("entry", "<u4"), ("base", "<i8")])
"""Begins an index file; as long as an entry."""
MAGIC = b"sprtide\n"
WIDTH = ENTRY.itemsize
SEGMENT_BYTES = 64 * 2**20  # a segment is what retention deletes and what is checked after a crash: 64 MiB in ~0.1 s
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is the same for whoever opens the log."""

    format: int = FORMAT
    id: str = ""
    """Identity of the log, drawn when it is made."""
    partitions: int
    segment_bytes: int = SEGMENT_BYTES
    """A segment that has reached this is closed, and a new one begun."""
    retain_bytes: int | None = None
    """Bytes that a partition keeps; the oldest closed segments beyond are deleted. None: all."""
    retain_s: float | None = None
    """Seconds after which a closed segment is deleted, counted from its newest record. None: never."""
    sync: str = "segment"
    """When bytes are forced to disk: "segment" (when one is closed, and by `flush`) or "append" (each time)."""
    sealed: bool = False
    """Nothing will be appended any more."""


def check(settings: LogSettings) -> LogSettings:
    """The same, or BadInput."""
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
    """Settings of the log in a folder."""
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
    """Replace the settings: readers see the old ones or the new ones."""
    path = folder / "log.json.new"
    with path.open("wb") as file:
        file.write(msgspec.json.encode(check(settings)))
        file.flush()
        os.fsync(file.fileno())
    path.replace(folder / "log.json")


def partition_folder(folder: Path, partition: int) -> Path:
    """Where a partition lies."""
    return folder / f"p{partition:05d}"


def index_path(folder: Path, base: int) -> Path:
    """The index of a partition's segment that begins with this offset."""
    return folder / f"{base:020d}.index"


def data_path(folder: Path, base: int) -> Path:
    """The records of the same."""
    return folder / f"{base:020d}.data"


def bases(folder: Path) -> list[int]:
    """First offsets of the segments of a partition, oldest first."""
    return sorted(int(name[:20]) for name in os.listdir(folder) if name.endswith(".index") and name[:20].isdigit())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone among those who make, grow, seal or check this log. Freed when a process dies."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def boot_id() -> bytes:
    """Which run of the machine this is: what was not forced to disk may be gone in the next one."""
    try:
        return Path(BOOT_ID).read_bytes().strip()[:40]
    except OSError:
        return b"unknown"
