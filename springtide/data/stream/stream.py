"""Defines the interface of every stream, `open_stream(url)`, and `springtide.stream(url, ...)`, which makes a stream a
job's data set.

There are two kinds: log/stream.py (a folder, log:///path) and kafka/stream.py (a broker). The module of a kind is
imported when a URL needs it. A reader tracks its own position: no stream stores the position of a consumer. Next:
worker/online/ reads, producer.py appends.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from springtide import errors
from springtide.data.stream.records import Buffer, Ints, Records
from springtide.domain.core.validation import takes_numbers
from springtide.domain.data.streams import PartitionRange, StreamCard

if TYPE_CHECKING:
    from springtide.data.stream.decode import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records that a reader found in a partition. A chunk covers every offset in ``first <= offset < next``."""

    partition: int
    first: int
    """Reader position before the chunk."""
    next: int
    """Reader position after the chunk."""
    records: Records
    """Records of the chunk. Missing offsets are gaps, which never get a record."""
    expired: int = 0
    """Number of offsets in the chunk whose records retention deleted. Offsets that are missing for a different reason
    (compaction, transactions) never were records.
    """


class StreamReader(Protocol):
    """A reader of some partitions. Only one thread may use a reader."""

    def assign(self, positions: Mapping[int, int]) -> None:
        """Start to read these partitions, each from its given offset. A partition that is already at its offset
        continues unchanged.
        """

    def poll(self, timeout_s: float, most: int = 65536) -> list[Chunk]:
        """Return the available records, about `most` of them, from the partitions in turn. Wait only if no records are
        available.

        Payloads may lie in mapped files. A payload stays valid as long as some object refers to it. An empty list after
        `timeout_s` does not mean that the stream has ended. A stream that is unavailable for a while (such as a
        restarting broker) also gives an empty list. If a stream is unavailable for long, `poll` raises TemporaryError.
        """

    def ends(self) -> Mapping[int, int]:
        """Return the known end offset (newest + 1) of each assigned partition, without a query."""

    def close(self) -> None:
        """Stop reading. Records that the reader has returned stay valid."""


class StreamWriter(Protocol):
    """A producer. Only one thread may use it."""

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
        """Identity of this stream. The identity changes if the stream is created again at the same URL. Empty if the
        identity is unknown.
        """

    def partitions(self) -> int:
        """Return the current number of partitions, which may grow. The call is cheap."""

    def bounds(self, start: str = "earliest") -> list[PartitionRange]:
        """Return the bounds of every partition: the offset at which the job starts (`StreamCard.start`), and the
        current end."""

    def open(self) -> StreamReader:
        """Return a reader without assigned partitions."""

    def writer(self) -> StreamWriter:
        """Return a producer."""

    def close(self) -> None:
        """Release connections and files."""


KINDS = {"log": "springtide.data.stream.log.stream", "kafka": "springtide.data.stream.kafka.stream"}
"""Module for each URL scheme. The module's function `open_url(url)` opens a stream with that scheme."""


def open_stream(url: str) -> Stream:
    """Open the stream at this URL. Raise UserError if the stream does not exist."""
    scheme = urlsplit(url).scheme
    if not scheme or "://" not in url:
        raise errors.BadInput(
            f"{url!r} is not the URL of a stream: give a URL such as log:///path/to/folder or kafka://host:9092/topic"
        )
    if scheme not in KINDS:
        raise errors.UnknownName("kind of stream", scheme, KINDS)
    try:
        opened: Stream = importlib.import_module(KINDS[scheme]).open_url(url)
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise errors.MissingExtra("a kafka:// stream", "kafka") from error
    return opened


STARTS = ("earliest", "latest")
STRATEGIES = ("none", "basic", "advanced")
LINGER_S = 1.0
MAX_RECORD_BYTES = 1 << 20  # largest record in bytes, which is Kafka's default limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDataset:
    """A stream that a job trains from, created by `springtide.stream`."""

    url: str
    decode: "Decoder | Callable[[list[bytes]], Any] | None"
    card: StreamCard
    linger_s: float
    max_record_bytes: int
    max_lateness_s: float | None
    dead_letters: str | None
    shuffle: str
    queue: tuple[int, int] | None


@takes_numbers("decode")
def stream(
    url: str,
    *,
    decode: "Decoder | Callable[[list[bytes]], Any] | None" = None,
    start: str | float = "earliest",
    until: str | None = None,
    linger_s: float = LINGER_S,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_lateness_s: float | None = None,
    dead_letters: str | None = None,
    shuffle: str = "advanced",
    queue: tuple[int, int] | None = None,
) -> StreamDataset:
    """Define a stream to train from; pass it to `job.prepare` as the data set. Records are trained exactly once.

    url: `log:///path/to/folder` or `kafka://host:port[,host:port]/topic`.
    decode: makes a batch of records: `Fixed` or `Json` of springtide.data.stream.decode, or a function of a list of
        bytes. None: the batch is the list of bytes.
    start: first record of a partition that the job has not begun: "earliest", "latest", or seconds since 1970.
    until: "now": the job ends after the records that exist at its start. None: the job ends at the stream's final end.
    linger_s: longest time in seconds that a record waits for its batch to fill.
    max_record_bytes: larger records become dead letters.
    max_lateness_s: records appended more than this many seconds after their event time become dead letters. Records
        that `decode` cannot read also become dead letters.
    dead_letters: destination of dead letters: a folder, or the URL of a stream. None: dead letters are only counted.
    shuffle: how workers share the batches of busy partitions: "none", "basic" or "advanced".
    queue: lower and upper bound of a worker's queue, in batches, before it gives batches to peers. None: automatic.
    """
    began = start if isinstance(start, str) else repr(float(start))
    if isinstance(start, str) and start not in STARTS:
        raise errors.UnknownName("start of a stream", start, [*STARTS, "a time in seconds"])
    if not isinstance(start, str) and not math.isfinite(start):
        raise errors.BadInput(f"start={start}: expected a time in seconds since 1970, or one of {', '.join(STARTS)}")
    if until not in (None, "now"):
        raise errors.UnknownName("end of a stream", until, ["now", "None"])
    if decode is not None and not callable(decode) and not hasattr(decode, "parse"):
        raise errors.BadInput(
            f"decode is a {type(decode).__name__}: expected Fixed(...), Json(...) or a function of bytes"
        )
    if not (linger_s >= 0 and math.isfinite(linger_s)):
        raise errors.BadInput(f"linger_s={linger_s}: expected seconds, 0 or more")
    if max_record_bytes < 1:
        raise errors.BadInput(f"max_record_bytes={max_record_bytes}: expected 1 or more")
    if max_lateness_s is not None and not max_lateness_s >= 0:
        raise errors.BadInput(f"max_lateness_s={max_lateness_s}: expected seconds, 0 or more, or None")
    if shuffle not in STRATEGIES:
        raise errors.UnknownName("way to shuffle", shuffle, STRATEGIES)
    if queue is not None and not 0 <= queue[0] < queue[1]:
        raise errors.BadInput(f"queue={queue}: expected (at least, at most), such as (2, 8)")
    return StreamDataset(
        url=url,
        decode=decode,
        card=StreamCard(url=without_password(url), start=began, until=until or ""),
        linger_s=linger_s,
        max_record_bytes=max_record_bytes,
        max_lateness_s=max_lateness_s,
        dead_letters=dead_letters,
        shuffle=shuffle,
        queue=queue,
    )


def without_password(url: str) -> str:
    """Return the URL without password and options, for display and the journal."""
    scheme, found, rest = url.partition("://")
    place, options, _ = rest.partition("?")
    hosts, slash, path = place.partition("/")
    return f"{scheme}{found}{hosts.rpartition('@')[2]}{slash}{path}" + ("?..." if options else "")
