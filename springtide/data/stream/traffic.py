"""Pure. Calculate how many records are due: as fast as possible, at a steady rate, or along a traffic trace.

In: options of `springtide produce`, lines of a CSV file. Out: `due(seconds since the beginning)`, a number of records.
Next: produce.py sends the due records.
"""

import csv
import datetime
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from springtide import errors
from springtide.data.stream.records import Floats

TRACE = "CSV file of moments and counts"
"""File type, for messages."""


class TrafficPace(Protocol):
    """Schedule of records."""

    def due(self, elapsed_s: float) -> float:
        """Return the number of records due in the first `elapsed_s` seconds; infinity for any number."""

    @property
    def lasts_s(self) -> float:
        """Seconds after which no more records are due."""


@dataclass(frozen=True, slots=True)
class SteadyPace:
    """Constant number of records per second; infinity for as fast as possible."""

    rate: float

    def due(self, elapsed_s: float) -> float:
        return self.rate * elapsed_s if self.rate < float("inf") else self.rate

    @property
    def lasts_s(self) -> float:
        return float("inf")


@dataclass(frozen=True, slots=True)
class TrafficTrace:
    """Past traffic: records per second at some times, with linear interpolation."""

    at_s: Floats
    """Seconds since the first time of the trace, rising."""
    rate: Floats
    begins_at: float = 0.0
    """First time of the trace: seconds since 1970, or the number in the file."""

    def between(self, first_s: float, end_s: float) -> "TrafficTrace":
        """Return a part of the trace, shifted to begin at 0."""
        inner = (self.at_s > first_s) & (self.at_s < end_s)
        at = np.concatenate([[first_s], self.at_s[inner], [min(end_s, float(self.at_s[-1]))]])
        return TrafficTrace(at - first_s, np.interp(at, self.at_s, self.rate), self.begins_at + first_s)


class TracePace:
    """The shape of a trace at `speedup` times its speed, scaled to `peak` records per second at its maximum.

    Without `peak`, each point keeps the trace's own rate. A day replayed in five minutes then has fewer records.
    """

    def __init__(self, trace: TrafficTrace, *, speedup: float = 1.0, peak: float | None = None) -> None:
        highest = float(trace.rate.max())
        for name, value in (("speedup", speedup), ("peak", 1.0 if peak is None else peak)):
            if not 0 < value < float("inf"):
                raise errors.BadInput(f"{name} {value:g}: wanted a number, more than 0")
        if highest <= 0:
            raise errors.BadInput("this trace has no traffic at all: nothing would be sent")
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
                f"{name}, line {number}: {','.join(row)!r} is not a moment and a count, as in 2014-07-01 00:30:00,8127"
            ) from None
        rises = math.isfinite(at[-1]) and (len(at) == 1 or at[-1] > at[-2])
        if not rises or not 0 <= counts[-1] < float("inf"):
            raise errors.MalformedRecord(f"{name}, line {number}: moments must rise, and counts be 0 or more")
    if len(at) < 2:
        raise errors.BadInput(f"{name} has {len(at)} lines of traffic; two are the least")
    moments = np.array(at) - at[0]
    steps = np.diff(moments)
    return TrafficTrace(moments, np.array(counts) / np.append(steps, steps[-1]), at[0])


def _rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with line numbers from 1; raise BadInput if the lines are not CSV."""
    try:
        yield from enumerate(csv.reader(lines), 1)
    except csv.Error as error:
        raise errors.BadInput(f"{name} is no {TRACE}: {error}") from None


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
