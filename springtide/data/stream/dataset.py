"""`springtide.stream(url, ...)`: a stream as the data set of a job, with the options for reading it.

In: the user's arguments, checked here. Out: a `StreamDataset` for `job.prepare`. Next: worker/online/ reads it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from springtide import errors
from springtide.domain.core.validation import takes_numbers
from springtide.domain.data.streams import StreamCard

if TYPE_CHECKING:
    from springtide.data.stream.decode import Decoder

STARTS = ("earliest", "latest")
STRATEGIES = ("none", "basic", "advanced")
LINGER_S = 1.0
MAX_RECORD_BYTES = 1 << 20  # Kafka's default limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDataset:
    """A stream that a job trains from; made by `springtide.stream`."""

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
    """A stream to train from: pass it to `job.prepare` as the data set. Records are trained exactly once.

    url: `log:///path/to/folder` or `kafka://host:port[,host:port]/topic`.
    decode: makes a batch of records: `Fixed` or `Json` of springtide.data.stream.decode, or a function of a list of
        bytes. None: the batch is the list of bytes itself.
    start: where a job that has not begun a partition begins: "earliest", "latest", or a time in seconds since 1970.
    until: "now": the job ends where the stream ended when it began. None: it ends where the stream does, if ever.
    linger_s: how long a record may wait for others to fill its batch.
    max_record_bytes, max_lateness_s: records that are larger, or were appended later than that after their event time,
        are not trained but dead-lettered; so are records that `decode` cannot read.
    dead_letters: where they go: a folder, or the URL of a stream. None: they are counted only.
    shuffle: how workers help each other with partitions that are fuller than others: "none", "basic" or "advanced".
    queue: batches that a worker keeps at least and at most before it gives some to others; None: found by itself.
    """
    began = start if isinstance(start, str) else repr(float(start))
    if isinstance(start, str) and start not in STARTS:
        raise errors.UnknownName("start of a stream", start, [*STARTS, "a time in seconds"])
    if not isinstance(start, str) and not math.isfinite(start):
        raise errors.BadInput(f"start={start}: wanted a time in seconds since 1970, or one of {', '.join(STARTS)}")
    if until not in (None, "now"):
        raise errors.UnknownName("end of a stream", until, ["now", "None"])
    if decode is not None and not callable(decode) and not hasattr(decode, "parse"):
        raise errors.BadInput(
            f"decode is a {type(decode).__name__}: wanted Fixed(...), Json(...) or a function of bytes"
        )
    if not (linger_s >= 0 and math.isfinite(linger_s)):
        raise errors.BadInput(f"linger_s={linger_s}: wanted seconds, 0 or more")
    if max_record_bytes < 1:
        raise errors.BadInput(f"max_record_bytes={max_record_bytes}: wanted 1 or more")
    if max_lateness_s is not None and not max_lateness_s >= 0:
        raise errors.BadInput(f"max_lateness_s={max_lateness_s}: wanted seconds, 0 or more, or None")
    if shuffle not in STRATEGIES:
        raise errors.UnknownName("way to shuffle", shuffle, STRATEGIES)
    if queue is not None and not 0 <= queue[0] < queue[1]:
        raise errors.BadInput(f"queue={queue}: wanted (at least, at most), such as (2, 8)")
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
    """The URL without password and options, as it may be shown and journaled."""
    scheme, found, rest = url.partition("://")
    place, options, _ = rest.partition("?")
    hosts, slash, path = place.partition("/")
    return f"{scheme}{found}{hosts.rpartition('@')[2]}{slash}{path}" + ("?..." if options else "")
