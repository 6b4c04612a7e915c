"""A log in a folder as a `Stream`: creates, opens, grows and seals it, and finds the bounds of its partitions.

In: calls of `open_stream("log:///path")` and producer.py. Next: writer.py appends, reader.py reads.
"""

import os
import secrets
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np

from springtide import errors
from springtide.data.stream.log import heads, layout
from springtide.data.stream.log.heads import LogHeads
from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.reader import LogReader
from springtide.data.stream.log.writer import LogWriter, PartitionAppender
from springtide.domain.core.validation import plain
from springtide.domain.data.streams import PartitionRange

__all__ = ["create"]


class LogStream:
    """The log in a folder. Any thread and any process of this machine may open the log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id: str = layout.load(folder).id
        self._heads = LogHeads(_heads_file(folder))
        if not self._heads.of_this_boot:
            _rebuild_heads(folder, self._heads)

    @property
    def url(self) -> str:
        return f"log://{self.folder}"

    @property
    def sealed(self) -> bool:
        return self._heads.sealing == heads.SEALED

    def partitions(self) -> int:
        return self._heads.partitions

    def bounds(self, start: str = "earliest") -> list[PartitionRange]:
        """Return the bounds of every partition: the job's `start`, the current end, and whether the end is final."""
        self._check_same()
        final = self.sealed  # read `sealed` before the ends, so that no record in between is missed
        rows = self._heads.rows[: self.partitions()]
        ends = rows[:, heads.END].tolist()
        if start == "earliest":
            starts = rows[:, heads.START].tolist()
        elif start == "latest":
            starts = list(ends)
        else:
            starts = [self._since(partition, float(start), end) for partition, end in enumerate(ends)]
        return [PartitionRange(i, min(a, b), b, final) for i, (a, b) in enumerate(zip(starts, ends, strict=True))]

    def kept_bytes(self) -> list[int]:
        return [int(count) for count in self._heads.rows[: self.partitions(), heads.BYTES]]

    def open(self) -> LogReader:
        return LogReader(self.folder, self._heads)

    def writer(self) -> LogWriter:
        return LogWriter(self.folder, self._heads)

    def grow(self, partitions: int) -> None:
        """Add partitions until the log has this number."""
        with layout.locked(self.folder):
            settings = layout.load(self.folder)
            if partitions < settings.partitions:
                raise errors.BadInput(
                    f"the log at {self.folder} has {settings.partitions} partitions; it cannot shrink to {partitions}"
                )
            if settings.sealed:
                raise errors.BadInput(f"the log at {self.folder} is sealed: it cannot grow")
            grown = layout.check(msgspec.structs.replace(settings, partitions=partitions))
            _make_partitions(self.folder, range(settings.partitions, partitions), grown, self._heads)
            layout.store(self.folder, grown)
            self._heads.partitions = partitions

    def seal(self) -> None:
        """Seal the log. Jobs that read a sealed log end after they have trained all its records."""
        with layout.locked(self.folder):
            settings = layout.load(self.folder)
            layout.store(self.folder, msgspec.structs.replace(settings, sealed=True))
            if self._heads.sealing == heads.OPEN:
                self._heads.sealing = heads.CLOSING
            for partition in range(settings.partitions):  # the lock of each partition waits for an append in progress
                _repair(self.folder, partition, settings, self._heads)
            self._heads.sealing = heads.SEALED

    def close(self) -> None:
        """Do nothing: the mapped memory is freed with the object."""

    def _check_same(self) -> None:
        """Raise an error if the log in this folder was deleted and recreated."""
        try:
            now = layout.load(self.folder).id
        except errors.MissingFile:  # the log was deleted, but a reader may still read the remaining records
            return
        if now != self.id:
            raise errors.StreamReplaced(
                f"the log at {self.folder} was recreated while it was read: its id was {self.id}, and is {now}. Bring "
                "the original log back and continue with --resume, or begin a new run"
            )

    def _since(self, partition: int, at: float, end: int) -> int:
        """Return the offset of the first record appended at this time or later, assuming monotonic clocks."""
        folder = layout.partition_folder(self.folder, partition)
        for base in reversed(layout.bases(folder)):
            try:
                index = os.open(layout.index_path(folder, base), os.O_RDONLY)
            except FileNotFoundError:
                break
            try:
                times = layout.entries(index, 0, layout.whole(index))["at_us"]
            finally:
                os.close(index)
            if len(times) and int(times[0]) < at * 1e6:
                return base + int(np.argmax(times >= at * 1e6)) if int(times.max()) >= at * 1e6 else end
            end = base
        return end


def create(folder: Path, settings: LogSettings) -> LogStream:
    """Create a log in a folder. The folder may exist, but must not contain a log."""
    settings = layout.check(msgspec.structs.replace(settings, **plain(msgspec.structs.asdict(settings))))
    settings = msgspec.structs.replace(settings, id=secrets.token_hex(8))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "heads").touch()
    except OSError as error:
        raise errors.BadInput(
            f"a log cannot be created at {folder}: {error.strerror}; give a writable folder"
        ) from None
    with layout.locked(folder):
        if (folder / "log.json").exists():
            raise errors.BadInput(f"{folder} already contains a log; append to it, or delete the folder")
        heads_file = LogHeads(_heads_file(folder))
        heads_file.rows[: settings.partitions] = 0
        heads_file.sealing = heads.OPEN
        _make_partitions(folder, range(settings.partitions), settings, heads_file)
        heads_file.begin(settings.partitions)
        layout.store(folder, settings)
    return LogStream(folder)


def open_url(url: str) -> LogStream:
    return LogStream(folder_of(url))


def folder_of(url: str) -> Path:
    """Return the folder that a URL names; ``log://folder`` is relative to the current folder."""
    parts = urlsplit(url)
    path = unquote(parts.netloc + parts.path)
    if not path or parts.query or parts.fragment:
        raise errors.BadInput(f"{url!r} names no folder; a log's URL is like log:///path/to/folder, without options")
    return Path(path).absolute()


def _heads_file(folder: Path) -> Path:
    heads.make(folder / "heads")
    return folder / "heads"


def _make_partitions(folder: Path, which: range, settings: LogSettings, heads_file: LogHeads) -> None:
    for partition in which:
        layout.partition_folder(folder, partition).mkdir(exist_ok=True)
        heads_file.rows[partition] = 0
        _repair(folder, partition, settings, heads_file)


def _repair(folder: Path, partition: int, settings: LogSettings, heads_file: LogHeads) -> None:
    tail = PartitionAppender(folder, partition, settings, heads_file)
    try:
        tail.open()
    finally:
        tail.close()


def _rebuild_heads(folder: Path, heads_file: LogHeads) -> None:
    """After a reboot, rebuild the heads file from the other files, and repair each partition."""
    with layout.locked(folder):
        if heads_file.of_this_boot:
            return
        settings = layout.load(folder)
        heads_file.forget(settings.partitions)
        for partition in range(settings.partitions):
            _repair(folder, partition, settings, heads_file)
        heads_file.sealing = heads.SEALED if settings.sealed else heads.OPEN
        heads_file.begin(settings.partitions)
