"""What every stream can do, whoever keeps the records: partitions, where they begin and end, reading, appending.

In: `open.open_stream(url)` makes one. Kinds: log/stream.py (a folder on disk), kafka/stream.py (a broker). Who reads
decides where: no stream keeps a consumer's position for us. Next: worker/online/ reads, produce.py appends.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from springtide import errors
from springtide.data.stream.records import Buffer, Ints, Records
from springtide.domain.data.streams import PartitionRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What was found in one partition from `first` on: every offset in ``first <= offset < next`` is told of."""

    partition: int
    first: int
    """Where the reader stood."""
    next: int
    """Where it stands now."""
    records: Records
    """Offsets of the range that are not here are gaps: they never come."""
    expired: int = 0
    """How many of the gaps the stream's retention has deleted (others were never records: compaction, transactions)."""


class StreamReader(Protocol):
    """One reader of some partitions. Used by one thread."""

    def assign(self, positions: Mapping[int, int]) -> None:
        """From now on read these partitions, each from this offset. One that stands there already just goes on."""

    def poll(self, timeout_s: float, most: int = 65536) -> list[Chunk]:
        """What there is, about `most` records in all and every partition in turn; waits only while there is nothing.

        Payloads may lie in mapped files: they stay valid as long as something refers to them. An empty list after
        `timeout_s` says nothing about the stream being over. A stream that is away (a broker restarts) is nothing
        to read, not an error; TemporaryError when that has lasted long.
        """

    def ends(self) -> Mapping[int, int]:
        """One more than the newest offset, of each partition assigned, as far as is known without asking anyone."""

    def close(self) -> None:
        """Read no more. Records that were given out stay valid."""


class StreamWriter(Protocol):
    """One producer. Used by one thread."""

    def append(self, partition: int, payload: Buffer, ends: Ints) -> None:
        """Append records: record i is ``payload[ends[i-1]:ends[i]]`` (the first begins at 0)."""

    def flush(self) -> None:
        """When it returns, all that was appended is kept by the stream, and readers find it."""

    def close(self) -> None:
        """Flush, and append no more."""


class Stream(Protocol):
    """Partitions of records. Any thread may ask; nothing here moves a reader."""

    @property
    def url(self) -> str:
        """Where it is, without passwords."""

    @property
    def id(self) -> str:
        """Identity of this stream: one that is made anew at the same URL has another. Empty: nobody can tell."""

    def partitions(self) -> int:
        """How many there are now: may have grown. Cheap."""

    def bounds(self, start: str = "earliest") -> list[PartitionRange]:
        """Every partition: where a job begins (`StreamCard.start`), the end now, and whether that end is final."""

    def open(self) -> StreamReader:
        """A reader, with nothing assigned yet."""

    def writer(self) -> StreamWriter:
        """A producer."""

    def close(self) -> None:
        """Let go of connections and files."""


KINDS = {"log": "springtide.data.stream.log.stream", "kafka": "springtide.data.stream.kafka.stream"}
"""Scheme of a URL, and the module whose `open_url(url)` makes the stream."""


def open_stream(url: str) -> Stream:
    """The stream at this URL. UserError when there is none."""
    scheme = urlsplit(url).scheme
    if not scheme or "://" not in url:
        raise errors.BadInput(
            f"{url!r} is no stream: give a URL such as log:///path/to/folder or kafka://host:9092/topic"
        )
    if scheme not in KINDS:
        raise errors.UnknownName("kind of stream", scheme, KINDS)
    stream: Stream = importlib.import_module(KINDS[scheme]).open_url(url)
    return stream
