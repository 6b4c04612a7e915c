"""The interface of every stream, and `open_stream(url)`.

Kinds: log/stream.py (a folder: log:///path), kafka/stream.py (a broker:
kafka://host:port[,host:port]/topic?option=value); each is imported when a URL asks for it. The reader decides where to
read: no stream keeps a consumer's position for us. Next: worker/online/ reads, produce.py appends.
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
    """What a reader found in one partition: it covers every offset in ``first <= offset < next``."""

    partition: int
    first: int
    """Position of the reader before."""
    next: int
    """Position of the reader after."""
    records: Records
    """Offsets of the range that are missing here are gaps: they never come."""
    expired: int = 0
    """Gaps that the stream's retention deleted (others were never records: compaction, transactions)."""


class StreamReader(Protocol):
    """A reader of some partitions. For one thread."""

    def assign(self, positions: Mapping[int, int]) -> None:
        """Read these partitions from now on, each from this offset; one that is there already continues."""

    def poll(self, timeout_s: float, most: int = 65536) -> list[Chunk]:
        """Return what there is, about `most` records, taking partitions in turn; wait only while there is nothing.

        Payloads may lie in mapped files: they stay valid as long as something refers to them. An empty list after
        `timeout_s` does not mean that the stream is over. An unavailable stream (a restarting broker) gives nothing;
        TemporaryError when that lasts long.
        """

    def ends(self) -> Mapping[int, int]:
        """One more than the newest known offset of each assigned partition, without asking anyone."""

    def close(self) -> None:
        """Stop reading. Records that were returned stay valid."""


class StreamWriter(Protocol):
    """A producer. For one thread."""

    def append(self, partition: int, payload: Buffer, ends: Ints) -> None:
        """Append records: record i is ``payload[ends[i-1]:ends[i]]`` (the first begins at 0)."""

    def flush(self) -> None:
        """Return when the stream has stored everything appended, and readers find it."""

    def close(self) -> None:
        """Flush, and append no more."""


class Stream(Protocol):
    """Partitions of records. Thread-safe; nothing here moves a reader."""

    @property
    def url(self) -> str:
        """The URL, without passwords."""

    @property
    def id(self) -> str:
        """Identity of this stream: one that is recreated at the same URL has another. Empty: unknown."""

    def partitions(self) -> int:
        """How many there are now; the number may have grown. Cheap."""

    def bounds(self, start: str = "earliest") -> list[PartitionRange]:
        """Every partition: where a job begins (`StreamCard.start`), the end now, and whether that end is final."""

    def open(self) -> StreamReader:
        """A reader, with nothing assigned yet."""

    def writer(self) -> StreamWriter:
        """A producer."""

    def close(self) -> None:
        """Release connections and files."""


KINDS = {"log": "springtide.data.stream.log.stream", "kafka": "springtide.data.stream.kafka.stream"}
"""URL schemes, and the modules whose `open_url(url)` opens such a stream."""


def open_stream(url: str) -> Stream:
    """Open the stream at this URL. UserError if there is none."""
    scheme = urlsplit(url).scheme
    if not scheme or "://" not in url:
        raise errors.BadInput(
            f"{url!r} is no stream: give a URL such as log:///path/to/folder or kafka://host:9092/topic"
        )
    if scheme not in KINDS:
        raise errors.UnknownName("kind of stream", scheme, KINDS)
    stream: Stream = importlib.import_module(KINDS[scheme]).open_url(url)
    return stream
