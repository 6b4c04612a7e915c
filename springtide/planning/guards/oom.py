"""Pure. Predicts whether a server runs out of memory, and how many servers prevent it.

In: memory reports of servers (`ServerMemory`), the growth of rows (`planning.guards.growth`), and the remaining
samples. Out: one `MemoryForecast` per server, and a decision with its reason: no change, or a number of servers. Next:
the master requests the servers.

Current usage is measured. The forecast adds the bytes of rows at the end of the job, or at the growth horizon
(`growth.horizon`). It includes the slack of tables and room for slot copies, for a checkpoint or another server. It
subtracts the memory that tables already hold, used or free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from springtide.planning.guards.growth import Growth

SPARE = 0.10
"""Share of the limit that stays free, for memory that the kernel counts besides the process."""
SLACK = 1.35
"""Bytes that tables hold per byte of rows: arenas grow in steps of 1.25, and slot copies need more."""
SOON = 0.5
"""Share of the remaining samples within which a predicted shortage is acted on. Later shortages are checked again
first."""
MOST_SERVERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """Current memory of one server."""

    server: int
    live: float
    """Bytes of rows: weights, state, index cells."""
    held: float
    """Bytes that tables hold, including free space."""
    used: float
    """Bytes that count against the limit."""
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """Memory of one server at the forecast horizon, at most the end of the job, if nothing changes."""

    server: int
    law: str
    static: float
    """Bytes besides tables."""
    live_at_end: float
    peak: float
    limit: float
    until: float
    """Samples of the job at the forecast horizon."""
    crosses_at: float | None
    """Samples of the job at which usable memory runs out; None if it lasts until the horizon."""

    def __str__(self) -> str:
        rows = f"rows grow to {_mb(self.live_at_end)} ({self.law})"
        fits = f"server-{self.server}: {rows}, in all {_mb(self.peak)} of {_mb(self.limit)} "
        fits += f"at {self.until:,.0f} samples"
        return fits if self.crosses_at is None else f"{fits}, full after {self.crosses_at:,.0f} samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCountDecision:
    """Wanted number of servers, with the reason. The current number means no change."""

    servers: int
    why: str


def room(used: float, limit: float | None) -> float:
    """Return the bytes that a server may still take within its limit."""
    return math.inf if limit is None else max(0.0, limit * (1 - SPARE) - used)


def forecast(now: ServerMemory, rows: Growth, *, samples_at_end: float) -> MemoryForecast:
    """Forecast one server. Its rows grow like those of the whole job, because slots get about equal shares of new
    ids."""
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
    """Return the number of servers that can hold the job to its end. Rows spread evenly; static memory is per
    server."""
    now = len(forecasts)
    worst = max(forecasts, key=lambda one: one.peak / one.limit)
    if worst.crosses_at is None:
        return ServerCountDecision(servers=now, why=f"memory is enough: {worst}")
    if samples >= samples_at_end:  # another pass over the data is checked when it begins
        return ServerCountDecision(servers=now, why=f"no sample is left that could add rows: {worst}")
    if worst.crosses_at - samples > SOON * (samples_at_end - samples):
        return ServerCountDecision(servers=now, why=f"memory is enough for now: {worst}")
    room = min(one.limit * (1 - SPARE) - one.static for one in forecasts)
    if room <= 0:
        return ServerCountDecision(servers=now, why=f"more servers do not help, none has room for rows: {worst}")
    live = sum(one.live_at_end for one in forecasts)
    wanted = min(MOST_SERVERS, max(now + 1, math.ceil(SLACK * live / room)))
    return ServerCountDecision(servers=wanted, why=f"memory would run out: {worst}")


def _mb(amount: float) -> str:
    return f"{amount / 2**20:,.0f} MB"
