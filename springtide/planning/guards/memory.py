"""Pure. Forecasts the memory of servers from the growth of their rows, and decides how many servers the job needs.

Of several growth laws, it uses the law that best predicted the newest third of the points.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

FEWEST = 6
"""With fewer measurements than this, growth is assumed to be steady. If growth slows down over time, this assumption is
a safe overestimate.
"""
HELD_OUT = 1 / 3
LEAST_MARGIN, LARGEST_MARGIN = 0.02, 0.5
REACH = 4.0
"""Growth is predicted for at most this many times the samples so far. Without this limit, forecasts from a job's first
seconds would be far too high, because nearly every id is new at first.
"""


class RowCount(NamedTuple):
    """Number of rows after a number of samples."""

    samples: float
    rows: float


Law = Callable[[Sequence[RowCount], float], float]
"""Growth law: a function of points and a later number of samples, which returns the expected number of rows."""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A growth law, and the points that it extrapolates."""

    law: str
    points: tuple[RowCount, ...]
    margin: float
    """Largest relative error of the predicted growth on the held-out points, within limits."""

    def rows(self, samples: float) -> float:
        """Return the expected number of rows after `samples` samples, but never fewer than now."""
        newest = self.points[-1]
        return newest.rows if samples <= newest.samples else max(newest.rows, LAWS[self.law](self.points, samples))

    def cautious(self, samples: float) -> float:
        now = self.points[-1].rows
        return now + (self.rows(samples) - now) * (1 + self.margin)


def horizon(points: Sequence[RowCount], end: float) -> float:
    """Return the number of samples up to which growth is predicted: the end of the job, or the limit REACH."""
    return max(points[-1].samples, min(end, REACH * points[-1].samples))


def fit(points: Sequence[RowCount]) -> Growth:
    """Return the law with the smallest error. Points are sorted by samples; at least one is needed."""
    kept = tuple(points)
    if len(kept) < FEWEST:
        return Growth(law="steady", points=kept, margin=LARGEST_MARGIN if len(kept) < 3 else LEAST_MARGIN)
    known = kept[: math.ceil(len(kept) * (1 - HELD_OUT))]
    held_out = kept[len(known) :]
    errors = {name: _error(law, known, held_out) for name, law in LAWS.items()}
    best = min(errors, key=lambda name: errors[name])
    return Growth(law=best, points=kept, margin=min(max(errors[best], LEAST_MARGIN), LARGEST_MARGIN))


def _error(law: Law, known: Sequence[RowCount], held_out: Sequence[RowCount]) -> float:
    came = max(held_out[-1].rows - known[-1].rows, 1.0)
    return max(abs(law(known, seen.samples) - seen.rows) / came for seen in held_out)


def steady(points: Sequence[RowCount], samples: float) -> float:
    newest = points[-1]
    return newest.rows + _rate(points[len(points) // 2 :], points) * (samples - newest.samples)


def heaps(points: Sequence[RowCount], samples: float) -> float:
    """Extrapolate with a power of the samples. The exponent comes from the newer half of the points."""
    newest = points[-1]
    middle = points[len(points) // 2]
    if middle.samples <= 0 or middle.rows <= 0 or newest.samples <= middle.samples:
        return steady(points, samples)
    exponent = math.log(newest.rows / middle.rows) / math.log(newest.samples / middle.samples)
    return newest.rows * math.pow(samples / newest.samples, min(max(exponent, 0.0), 1.0))


def running_out(points: Sequence[RowCount], samples: float) -> float:
    """Extrapolate with a rate of new rows that falls by a constant factor for each further number of samples. The
    two halves of the points give the factor.
    """
    newest, span = points[-1], (points[-1].samples - points[0].samples) / 2
    middle = _rows_at(points, points[0].samples + span)
    older, newer = middle - points[0].rows, newest.rows - middle
    if span <= 0 or older <= 0 or newer <= 0 or newer >= older:
        return steady(points, samples)
    share = newer / older
    spans = (samples - newest.samples) / span
    return newest.rows + newer * share * (1 - math.pow(share, spans)) / (1 - share)


LAWS: dict[str, Law] = {"steady": steady, "heaps": heaps, "running out": running_out}


def _rows_at(points: Sequence[RowCount], samples: float) -> float:
    for before, after in itertools.pairwise(points):
        if before.samples <= samples <= after.samples and after.samples > before.samples:
            share = (samples - before.samples) / (after.samples - before.samples)
            return before.rows + share * (after.rows - before.rows)
    return points[-1].rows


def _rate(points: Sequence[RowCount], fallback: Sequence[RowCount]) -> float:
    for some in (points, fallback):
        gone = some[-1].samples - some[0].samples
        if gone > 0:
            return max(0.0, (some[-1].rows - some[0].rows) / gone)
    only = fallback[-1]
    return only.rows / only.samples if only.samples > 0 else 0.0


SPARE = 0.10
"""Share of the memory limit to keep free, for memory that the kernel counts in addition to the process."""
SLACK = 1.35
"""Bytes that tables occupy per byte of rows, because arenas grow by a factor of 1.25 and copies of slots need memory
too."""
SOON = 0.5
"""If a shortage is predicted within this share of the remaining samples, the guard acts now. Later shortages can
wait for the guard's next forecasts.
"""
MOST_SERVERS = 64


class ServerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Current memory of one server."""

    server: int
    live: float
    """Bytes of rows: weights, state, index cells."""
    held: float
    """Bytes that tables occupy, including free space."""
    used: float
    """Bytes that count against the memory limit."""
    limit: float


class MemoryForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one server will have at the end of the forecast, if the job's shape stays the same. The forecast ends
    with the job at the latest.
    """

    server: int
    law: str
    static: float
    """Bytes that are not in tables."""
    live_at_end: float
    peak: float
    limit: float
    until: float
    """Samples of the job at the end of the forecast."""
    crosses_at: float | None
    """Samples of the job at which the usable memory runs out; None if the memory suffices for the whole forecast."""

    def __str__(self) -> str:
        rows = f"rows grow to {_mb(self.live_at_end)} ({self.law})"
        fits = f"server-{self.server}: {rows}, in all {_mb(self.peak)} of {_mb(self.limit)} "
        fits += f"at {self.until:,.0f} samples"
        return fits if self.crosses_at is None else f"{fits}, full after {self.crosses_at:,.0f} samples"


class ServerCountDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Number of servers that the job should have, with the reason. The current number means no change."""

    servers: int
    why: str


def room(used: float, limit: float | None) -> float:
    return math.inf if limit is None else max(0.0, limit * (1 - SPARE) - used)


def forecast(now: ServerMemory, rows: Growth, *, samples_at_end: float) -> MemoryForecast:
    """Forecast one server. The rows of a server are assumed to grow as the rows of the whole job do."""
    present = rows.points[-1]

    def live(samples: float) -> float:
        return now.live * rows.cautious(samples) / present.rows if present.rows else now.live

    def needs(samples: float) -> float:
        return now.used + max(0.0, SLACK * live(samples) - now.held)

    usable = now.limit * (1 - SPARE)
    peak = needs(samples_at_end)
    crosses = None
    if peak > usable:
        low, high = present.samples, max(samples_at_end, present.samples)
        for _ in range(40):  # growth is monotonic, so bisection finds the crossing
            middle = (low + high) / 2
            low, high = (low, middle) if needs(middle) > usable else (middle, high)
        crosses = high
    return MemoryForecast(
        server=now.server,
        law=rows.law,
        static=max(0.0, now.used - now.held),
        live_at_end=live(samples_at_end),
        peak=peak,
        limit=now.limit,
        until=samples_at_end,
        crosses_at=crosses,
    )


def decide(forecasts: Sequence[MemoryForecast], *, samples: float, samples_at_end: float) -> ServerCountDecision:
    """Return the number of servers that can hold the job to its end. Rows are assumed to spread evenly."""
    now = len(forecasts)
    worst = max(forecasts, key=lambda forecast: forecast.peak / forecast.limit)
    if worst.crosses_at is None:
        return ServerCountDecision(servers=now, why=f"memory is enough: {worst}")
    if samples >= samples_at_end:  # nothing is left to train; check again if another pass begins
        return ServerCountDecision(servers=now, why=f"no sample is left that could add rows: {worst}")
    if worst.crosses_at - samples > SOON * (samples_at_end - samples):
        return ServerCountDecision(servers=now, why=f"memory is enough for now: {worst}")
    room = min(forecast.limit * (1 - SPARE) - forecast.static for forecast in forecasts)
    if room <= 0:
        return ServerCountDecision(
            servers=now, why=f"more servers do not help, because none has room for rows: {worst}"
        )
    live = sum(forecast.live_at_end for forecast in forecasts)
    wanted = min(MOST_SERVERS, max(now + 1, math.ceil(SLACK * live / room)))
    return ServerCountDecision(servers=wanted, why=f"memory would run out: {worst}")


def _mb(amount: float) -> str:
    return f"{amount / 2**20:,.0f} MB"
