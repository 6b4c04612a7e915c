"""Interface of every stream, and `open_stream(url)`.

Kinds: log/stream.py (a folder: log:///path) and kafka/stream.py (a broker:
kafka://host:port[,host:port]/topic?option=value). Each is imported when a URL needs it. The reader decides its
position: no stream stores a consumer's position. Next: worker/online/ reads, produce.py appends.
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
    """Records that a reader found in a partition. The chunk covers every offset in ``first <= offset < next``."""

    partition: int
    first: int
    """Reader position before the chunk."""
    next: int
    """Reader position after the chunk."""
    records: Records
    """Records of the chunk. Missing offsets are gaps, which never get a record."""
    expired: int = 0
    """Number of gaps that retention deleted. Other gaps never were records: compaction, transactions."""


class StreamReader(Protocol):
    """A reader of some partitions. For a single thread."""

    def assign(self, positions: Mapping[int, int]) -> None:
        """Read these partitions from now on, each from this offset. A partition that is already at its offset
        continues.
        """

    def poll(self, timeout_s: float, most: int = 65536) -> list[Chunk]:
        """Return the available records, about `most`, from partitions in turn; wait only while there are none.

        Payloads may lie in mapped files, and stay valid while they are referenced. An empty list after `timeout_s` does
        not mean the end of the stream. An unavailable stream (a restarting broker) gives nothing. It raises
        TemporaryError if that lasts long.
        """

    def ends(self) -> Mapping[int, int]:
        """Return the known end offset (newest + 1) of each assigned partition, without a query."""

    def close(self) -> None:
        """Stop reading. Returned records stay valid."""


class StreamWriter(Protocol):
    """A producer. For a single thread."""

    def append(self, partition: int, payload: Buffer, ends: Ints) -> None:
        """Append records: record i is ``payload[ends[i-1]:ends[i]]`` (the first begins at 0)."""

    def flush(self) -> None:
        """Wait until the stream has stored all appended records, and readers can find them."""

    def close(self) -> None:
        """Flush, and append no more."""


class Stream(Protocol):
    """Partitions of records. Thread-safe; no method moves a reader."""

    @property
    def url(self) -> str:
        """The URL, without passwords."""

    @property
    def id(self) -> str:
        """Identity of this stream, which changes if the stream is recreated at the same URL. Empty if unknown."""

    def partitions(self) -> int:
        """Return the current number of partitions, which may grow. Cheap."""

    def bounds(self, start: str = "earliest") -> list[PartitionRange]:
        """Return the bounds of every partition: the job's start (`StreamCard.start`), the current end, and whether it
        is final.
        """

    def open(self) -> StreamReader:
        """Return a reader without assigned partitions."""

    def writer(self) -> StreamWriter:
        """Return a producer."""

    def close(self) -> None:
        """Release connections and files."""


KINDS = {"log": "springtide.data.stream.log.stream", "kafka": "springtide.data.stream.kafka.stream"}
"""URL schemes, and the modules whose `open_url(url)` opens such a stream."""


def open_stream(url: str) -> Stream:
    """Open the stream at this URL. Raise UserError if there is none."""
    scheme = urlsplit(url).scheme
    if not scheme or "://" not in url:
        raise errors.BadInput(
            f"{url!r} is no stream: give a URL such as log:///path/to/folder or kafka://host:9092/topic"
        )
    if scheme not in KINDS:
        raise errors.UnknownName("kind of stream", scheme, KINDS)
    stream: Stream = importlib.import_module(KINDS[scheme]).open_url(url)
    return stream
