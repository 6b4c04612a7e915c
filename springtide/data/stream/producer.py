"""Appends records to a stream at a given pace, for `springtide produce`, tests and benchmarks.

In: a source of records (a counter, lines or fixed-size pieces of a file, clicks), a pace (steady, or along a traffic
trace), and a skew of partitions. Out: records in envelopes, and an exact count.
"""

import csv
import datetime
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from springtide import errors
from springtide.data.stream import records
from springtide.data.stream.records import Bytes, Floats, Ints
from springtide.data.stream.stream import Stream, StreamWriter

TRACE = "CSV file of times and counts"


@dataclass(frozen=True, slots=True)
class SteadyPace:
    """Constant number of records per second; infinity for as fast as possible."""

    rate: float

    def due(self, elapsed_s: float) -> float:
        """Return the number of records due in the first `elapsed_s` seconds; infinity if there is no limit."""
        return self.rate * elapsed_s if self.rate < float("inf") else self.rate

    @property
    def lasts_s(self) -> float:
        """Seconds after which no more records are due."""
        return float("inf")


@dataclass(frozen=True, slots=True)
class TrafficTrace:
    """Past traffic: records per second at some times, with linear interpolation."""

    at_s: Floats
    """Times of the trace in seconds since its first time, in ascending order."""
    rate: Floats
    begins_at: float = 0.0
    """First time of the trace: seconds since 1970, or the number in the file."""

    def between(self, first_s: float, end_s: float) -> "TrafficTrace":
        """Return a part of the trace, shifted to begin at 0."""
        inner = (self.at_s > first_s) & (self.at_s < end_s)
        at = np.concatenate([[first_s], self.at_s[inner], [min(end_s, float(self.at_s[-1]))]])
        return TrafficTrace(at - first_s, np.interp(at, self.at_s, self.rate), self.begins_at + first_s)


class TracePace:
    """Pace with the shape of a trace, at `speedup` times its speed, and with a maximum of `peak` records per second.

    Without `peak`, the rate is the rate of the trace, so a day that is replayed in five minutes has only five
    minutes' worth of records.
    """

    def __init__(self, trace: TrafficTrace, *, speedup: float = 1.0, peak: float | None = None) -> None:
        highest = float(trace.rate.max())
        for name, value in (("speedup", speedup), ("peak", 1.0 if peak is None else peak)):
            if not 0 < value < float("inf"):
                raise errors.BadInput(f"{name} {value:g}: expected a number, more than 0")
        if highest <= 0:
            raise errors.BadInput("this trace has no traffic, so the producer would send nothing")
        self._at = trace.at_s / speedup
        self._rate = trace.rate * (1.0 if peak is None else peak / highest)
        steps = np.diff(self._at) * (self._rate[1:] + self._rate[:-1]) / 2
        self._sent = np.concatenate([[0.0], np.cumsum(steps)])

    @property
    def lasts_s(self) -> float:
        return float(self._at[-1])

    def rate(self, elapsed_s: float) -> float:
        return float(np.interp(elapsed_s, self._at, self._rate))

    def due(self, elapsed_s: float) -> float:
        """Return the number of records due so far: the area under the rate curve."""
        elapsed_s = min(max(elapsed_s, 0.0), self.lasts_s)
        i = max(0, int(np.searchsorted(self._at, elapsed_s, side="right")) - 1)
        width = elapsed_s - float(self._at[i])
        return float(self._sent[i]) + width * (float(self._rate[i]) + self.rate(elapsed_s)) / 2


TrafficPace = SteadyPace | TracePace


def read_trace(lines: Iterable[str], name: str) -> TrafficTrace:
    """Read lines of two columns: a time (date or seconds), and the count until the next line."""
    at: list[float] = []
    counts: list[float] = []
    for number, row in _rows(lines, name):
        if not row or (number == 1 and not _is_number(row[-1])):
            continue
        try:
            at.append(_moment(row[0]))
            counts.append(float(row[1]))
        except (ValueError, IndexError):
            raise errors.MalformedRecord(
                f"{name}, line {number}: {','.join(row)!r} is not a time and a count, such as 2014-07-01 00:30:00,8127"
            ) from None
        rises = math.isfinite(at[-1]) and (len(at) == 1 or at[-1] > at[-2])
        if not rises or not 0 <= counts[-1] < float("inf"):
            raise errors.MalformedRecord(f"{name}, line {number}: times must rise, and counts must be 0 or more")
    if len(at) < 2:
        raise errors.BadInput(f"{name} has {len(at)} lines of traffic; expected at least two")
    moments = np.array(at) - at[0]
    steps = np.diff(moments)
    return TrafficTrace(moments, np.array(counts) / np.append(steps, steps[-1]), at[0])


def _rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with line numbers from 1; raise BadInput if the lines are not CSV."""
    try:
        yield from enumerate(csv.reader(lines), 1)
    except csv.Error as error:
        raise errors.BadInput(f"{name} is not a {TRACE}: {error}") from None


def _moment(text: str) -> float:
    if _is_number(text):
        return float(text)
    moment = datetime.datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class RecordSource(Protocol):
    """A source of records."""

    def take(self, first: int, count: int) -> Bytes | list[bytes]:
        """Return records `first` to ``first + count``, as rows of equal size or as a list of bytes.

        Calls come in order. If the source returns fewer than `count` records, it has ended.
        """


KEYS = 1000  # number of different keys of `CounterRecords`


class CounterRecords:
    """Source of records that contain their number, and the number modulo `KEYS`, so that a reader can count keys
    exactly.
    """

    def take(self, first: int, count: int) -> Bytes:
        serial = np.arange(first, first + count, dtype="<i8")
        both = np.stack([serial % KEYS, serial], axis=1)
        return np.ascontiguousarray(both).view(np.uint8).reshape(count, 16)


class LineRecords:
    """One record for each line of a text file, without the line end."""

    def __init__(self, path: Path) -> None:
        self._lines = _lines(_found(path))

    def take(self, first: int, count: int) -> list[bytes]:
        return [line for _, line in zip(range(count), self._lines, strict=False)]


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\r\n")


def _found(path: Path) -> Path:
    if not path.is_file():
        raise errors.MissingFile(f"there is no file {path}; give a file whose lines are the records")
    return path


def check(skew: float) -> None:
    """Raise BadInput if `skew` is invalid."""
    if not 0 < skew < float("inf"):
        raise errors.BadInput(
            f"skew {skew:g}: expected the ratio of the first partition's records to each other partition's, more than 0"
        )


def shares(partitions: int, skew: float = 1.0) -> Floats:
    """Return the share of each partition: the first has `skew` times the share of every other partition."""
    check(skew)
    weights = np.ones(partitions)
    weights[0] = skew
    return np.asarray(weights / weights.sum(), np.float64)


def deal(count: int, sent: Ints, share: Floats) -> Ints:
    """Split `count` records over partitions, which have got `sent` records so far. Partitions that lag furthest
    behind their share get more records.
    """
    lack = np.maximum((int(sent.sum()) + count) * share - sent, 0.0)
    total = float(lack.sum())
    whole = np.floor(lack * (count / total)) if total > 0 else np.zeros(len(share))
    dealt = whole.astype(np.int64)
    rest = count - int(dealt.sum())
    order = np.argsort(-(lack - dealt), kind="stable")
    dealt[order[:rest]] += 1
    return dealt


MOST_AT_ONCE = 16384  # most records between two reads of the clock
TICK_S = 0.005  # seconds to sleep while no record is due


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOrder:
    """Options of a production run."""

    records: int | None = None
    """Number of records; None to continue until the source or the pace ends."""
    seconds: float | None = None
    """Most seconds to produce records."""
    pace: TrafficPace = field(default_factory=lambda: SteadyPace(float("inf")))
    skew: float = 1.0
    """Ratio of the first partition's records to the records of each other partition."""
    enveloped: bool = True

    def __post_init__(self) -> None:
        check(self.skew)


@dataclass(slots=True)
class ProduceReport:
    """Exact counts of appended records."""

    records: int = 0
    bytes: int = 0
    partitions: list[int] = field(default_factory=list)
    """Number of records appended to each partition."""
    seconds: float = 0.0
    behind_s: float = 0.0
    """Delay of the last record that was sent, in seconds; a large value means that the producer could not keep the
    pace."""
    interrupted: bool = False


def produce(
    stream: Stream,
    maker: RecordSource,
    order: ProduceOrder,
    *,
    tell: Callable[[ProduceReport], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> ProduceReport:
    """Append until done, or until `stop` returns True; call `tell` from time to time."""
    writer = stream.writer()
    try:
        return _Production(stream, writer, maker, order).run(tell, stop)
    finally:
        writer.close()


class _Production:
    def __init__(self, stream: Stream, writer: StreamWriter, maker: RecordSource, order: ProduceOrder) -> None:
        self._stream, self._writer, self._maker, self._order = stream, writer, maker, order
        self._done = ProduceReport()
        self._sent: Ints = np.zeros(0, np.int64)
        self._share = np.zeros(0)

    def run(self, tell: Callable[[ProduceReport], None], stop: Callable[[], bool]) -> ProduceReport:
        order, done = self._order, self._done
        begun = time.monotonic()
        lasts_s = min(order.pace.lasts_s, float("inf") if order.seconds is None else order.seconds)
        most = float("inf") if order.records is None else order.records
        while not stop():
            done.seconds = time.monotonic() - begun
            paced = order.pace.due(min(done.seconds, lasts_s))
            if paced == float("inf") and done.seconds >= lasts_s:
                break
            due = min(paced, most) - done.records
            if due >= 1:
                count = int(min(due, MOST_AT_ONCE))
                done.behind_s = self._behind(done.seconds)
                if self._send(count) < count:
                    break
            elif done.records >= most or done.seconds >= lasts_s:
                break
            else:
                time.sleep(TICK_S)
            tell(done)
        else:
            done.interrupted = True
        self._writer.flush()
        done.seconds = time.monotonic() - begun
        done.partitions = self._sent.tolist()
        return done

    def _behind(self, elapsed_s: float) -> float:
        """Return the seconds since the next record was due. The search is a bisection, because a pace only gives
        counts."""
        low, high, wanted = 0.0, elapsed_s, self._done.records + 1
        if self._order.pace.due(elapsed_s) == float("inf"):
            return 0.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (low, middle) if self._order.pace.due(middle) >= wanted else (middle, high)
        return elapsed_s - high

    def _send(self, count: int) -> int:
        """Make and append the next records; return their number."""
        if len(self._sent) != self._stream.partitions():  # the number of partitions has grown
            self._sent = np.concatenate([self._sent, np.zeros(self._stream.partitions() - len(self._sent), np.int64)])
            self._share = shares(len(self._sent), self._order.skew)
        made = self._maker.take(self._done.records, count)
        dealt = deal(len(made), self._sent, self._share)
        at = 0
        for partition in np.flatnonzero(dealt).tolist():
            part = made[at : at + int(dealt[partition])]
            payload, ends = self._packed(part)
            self._writer.append(partition, payload, ends)
            self._done.bytes += int(ends[-1])
            at += len(part)
        self._sent += dealt
        self._done.records += len(made)
        return len(made)

    def _packed(self, part: Bytes | list[bytes]) -> tuple[Bytes | bytes, Ints]:
        now_us = round(time.time() * 1e6)
        if isinstance(part, np.ndarray):
            if self._order.enveloped:
                return records.seal_rows(part, np.full(len(part), now_us))
            return np.ascontiguousarray(part).reshape(-1), np.arange(1, len(part) + 1) * part.shape[1]
        bodies = records.seal(part, [now_us / 1e6] * len(part)) if self._order.enveloped else part
        return b"".join(bodies), np.cumsum([len(body) for body in bodies], dtype=np.int64)
