"""Pure. How many workers to have at each step to come, when changing them stops or slows the job.

In: traffic to come in one or more versions (`Traffic`), how much waits now, what so many workers train, and prices.
Out: workers by step, the cheapest by workers + lag + changes. Next: deciding.py does the first step, and plans again.

What waits is a fluid: it grows by traffic and shrinks by capacity, and stands still while a change pauses the job. A
plan is a chain of stretches with one number of workers each. Step by step, a stretch is begun with every number from
the cheapest chain so far; those begun of late are kept apart, as they still catch up; older ones with the same number
differ in nothing but their cost, so the cheapest of them is kept.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
YOUNG = 8  # stretches that are kept apart: those begun in so many steps. With 16 plans are the same
DRAINS = 0.3  # spare part of capacity by which what waits is taken to be worked off, where its cost is looked at ahead
NEARLY = 0.9  # of the lag that was promised: seen at the end of a step, it was above for part of the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """All in workers, so that a cost is worker-steps."""

    slo_s: float
    lag: float
    """While the lag is `slo_s`, and in proportion."""
    late: float
    """While it is longer."""
    change: float
    """Of one change, in worker-steps."""


class Traffic(NamedTuple):
    """What may come."""

    versions: Array
    """[versions, steps], samples a second."""
    shares: Array
    """[versions], how much each is believed; together 1."""


class Doing(NamedTuple):
    """What a change does to the job."""

    pause_s: float
    """Nothing is trained for so long."""
    start_s: float
    """Where nothing pauses: new workers train after so long."""


class Plan(NamedTuple):
    """What to do."""

    workers: NDArray[np.int64]
    """By step."""
    cost: float
    """Expected, in worker-steps."""


def plan(
    traffic: Traffic, *, step_s: float, workers: int, backlog: float, capacity: Array, fewest: int, prices: Prices,
    doing: Doing,
) -> Plan:  # fmt: skip
    """The cheapest chain of stretches from `workers` with `backlog` on; `capacity[w]` up to the most workers."""
    counts, rates = np.arange(fewest, len(capacity)), capacity[fewest:]
    usable = _usable(doing, step_s)
    young = len(usable)
    seconds = 1 / np.maximum(traffic.versions, 1e-9)  # of lag, by a sample that waits
    arrive = traffic.versions * step_s
    share = traffic.shares[:, None, None]
    by_lag, late = share * (prices.lag / (2 * prices.slo_s)), share * prices.late
    ahead = share * (prices.lag / (2 * DRAINS * prices.slo_s * step_s))

    # Row 0 holds the cheapest settled stretch of each number of workers, the others those begun in the last steps.
    waits = np.zeros((len(arrive), young + 1, len(counts)))
    cost = np.full((young + 1, len(counts)), np.inf)
    begun = np.full((young + 1, len(counts)), -1)
    waits[:, 0, workers - fewest], cost[0, workers - fewest] = backlog, 0.0
    takes = np.tile(rates * step_s, (young + 1, 1))
    came_from: list[tuple[int, int]] = []  # of the stretches begun at each step: when the one before was, and its place
    for step in range(arrive.shape[1]):
        lag = seconds[:, step, None, None]
        seen = cost + ((waits * lag) ** 2 * ahead).sum(0)
        row, place = divmod(int(seen.argmin()), len(counts))
        came_from.append((int(begun[row, place]), place))
        so_far, waiting = cost[row, place], waits[:, row, place].copy()
        newest = step % young + 1  # where the oldest of the young was, which settles
        settled = seen[newest] < seen[0]
        cost[0, settled], begun[0, settled] = cost[newest, settled], begun[newest, settled]
        waits[:, 0, settled] = waits[:, newest, settled]
        cost[newest], begun[newest], waits[:, newest] = so_far + prices.change, step, waiting[:, None]
        cost[newest, place] = np.inf
        ages = (step - np.arange(young)) % young
        takes[1:] = rates * usable[ages, None]
        if doing.pause_s == 0:
            takes[newest] += np.minimum(rates, rates[place]) * (step_s - usable[0])
        left = np.maximum(waits + arrive[:, step, None, None] - takes, 0)
        lag_after = left * lag
        cost += counts + ((waits * lag + lag_after) * by_lag + (lag_after > NEARLY * prices.slo_s) * late).sum(0)
        waits = left
    seen = cost + ((waits * seconds[:, -1, None, None]) ** 2 * ahead).sum(0)
    return Plan(_chain(begun, came_from, counts, int(seen.argmin())), float(seen.min()))


def _usable(doing: Doing, step_s: float) -> Array:
    """Seconds that a stretch trains in its first step, its second..., until it is no longer young."""
    young = max(YOUNG, int(np.ceil(doing.pause_s / step_s)) + 1)
    lost = doing.pause_s or min(doing.start_s, step_s)
    return np.clip((np.arange(young) + 1) * step_s - lost, 0, step_s)


def _chain(
    begun: NDArray[np.int64], came_from: list[tuple[int, int]], counts: NDArray[np.int64], last: int
) -> NDArray[np.int64]:
    """Workers by step, from the last stretch back."""
    end = len(came_from)
    workers = np.zeros(end, dtype=np.int64)
    start, place = int(begun.ravel()[last]), last % len(counts)
    while True:
        workers[max(start, 0) : end] = counts[place]
        if start < 0:
            return workers
        end = start
        start, place = came_from[start]
