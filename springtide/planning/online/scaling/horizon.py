"""Pure. Plans the number of workers for each future step, when a change pauses or slows the job.

In: one or more traffic scenarios ("versions"), the backlog, capacity by number of workers, and prices. Out: workers by
step, with the lowest cost of workers + lag + changes. Next: decision.py applies the first step and plans again.

The backlog is modelled as a fluid. Traffic adds to it and capacity drains it; nothing drains during a pause. A plan is
a chain of stretches, each with a constant number of workers. At each step, a new stretch with every number of workers
begins from the cheapest chain so far. Recent stretches are tracked separately, because they still catch up. Older
stretches with equal workers differ only in cost, so only the cheapest is kept.

For scenarios other than the likeliest, the cost is capped at the cost of noticing and changing (`HorizonPrices.again`),
because a plan can be revised later. The first axis of every array is jobs, so many jobs are planned about as fast as a
few.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
YOUNG = 8  # steps for which new stretches are tracked separately; 16 gives the same plans
DRAINS = 0.3  # assumed spare share of capacity that drains the backlog, for its cost beyond the current step
NEARLY = 0.9  # share of the SLO lag: a lag above it at the end of a step exceeds the SLO during part of the next


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonPrices:
    """Prices by job, in workers, so that a cost is in worker-steps."""

    slo_s: float
    lag: Array
    """Price of a lag of `slo_s`; other lags in proportion."""
    late: Array
    """Additional price of a lag above `slo_s`."""
    change: Array
    """Price of one change, in worker-steps."""
    again: Array | None = None
    """Largest extra cost of a plan over the best plan for a scenario, in worker-steps. Once the scenario is recognized,
    the job changes to its best plan. None means no limit."""
    known: int = 0
    """Steps after which the real scenario is known."""


class ChangeEffect(NamedTuple):
    """Effect of a change on the job."""

    pause_s: float
    """Seconds without training."""
    start_s: float
    """Seconds until new workers train, if nothing pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonJobs:
    """Jobs to plan, in equal time steps."""

    step_s: float
    traffic: Array
    """[jobs, scenarios, steps]: samples per second that may arrive."""
    shares: Array
    """[scenarios]: probability of each scenario; the sum is 1."""
    workers: Counts
    """[jobs]: current workers."""
    backlog: Array
    """[jobs]: samples that wait."""
    capacity: Array
    """[jobs, most + 1]: samples per second by number of workers."""


class WorkerPlan(NamedTuple):
    """Planned workers of one job, with the expected cost."""

    workers: Counts
    """Workers by step."""
    cost: float
    """Expected cost in worker-steps."""


def plan(jobs: HorizonJobs, *, fewest: int, prices: HorizonPrices, doing: ChangeEffect) -> list[WorkerPlan]:
    """Return the cheapest chain of stretches for each job, from its current workers and backlog."""
    each = np.arange(len(jobs.workers))
    counts, rates = np.arange(fewest, jobs.capacity.shape[1]), jobs.capacity[:, None, fewest:]
    usable = _usable(doing, jobs.step_s)
    young, numbers = len(usable), len(counts)
    seconds = (1 / np.maximum(jobs.traffic, 1e-9))[..., None, None]  # seconds of lag per waiting sample
    arrive = (jobs.traffic * jobs.step_s)[..., None, None]
    share = jobs.shares[None, :, None, None]
    by_lag, late = (one[:, None, None, None] for one in (prices.lag / (2 * prices.slo_s), prices.late))
    ahead = by_lag / (DRAINS * jobs.step_s)

    # Row 0 holds the cheapest settled stretch of each number of workers. The other rows hold stretches begun in the
    # last steps.
    waits = np.zeros((len(each), jobs.traffic.shape[1], young + 1, numbers))
    cost = np.full(waits.shape, np.inf)
    begun = np.full((len(each), young + 1, numbers), -1)
    waits[each, :, 0, jobs.workers - fewest] = jobs.backlog[:, None]
    cost[each, :, 0, jobs.workers - fewest] = 0.0
    takes = np.repeat(rates * jobs.step_s, young + 1, axis=1)
    came_from: list[
        tuple[Counts, Counts]
    ] = []  # by step: start and worker count of the stretch before each new stretch
    lag = waits * seconds[:, :, 0]
    for step in range(arrive.shape[2]):
        seen = (share * (cost + lag**2 * ahead)).sum(axis=1)
        row, place = np.divmod(seen.reshape(len(each), -1).argmin(axis=1), numbers)
        came_from.append((begun[each, row, place], place))
        so_far, waiting = cost[each, :, row, place], waits[each, :, row, place]
        newest = step % young + 1  # slot of the oldest young stretch, which now settles
        settled = seen[:, newest] < seen[:, 0]
        begun[:, 0] = np.where(settled, begun[:, newest], begun[:, 0])
        for one in (cost, waits):
            one[:, :, 0] = np.where(settled[:, None], one[:, :, newest], one[:, :, 0])
        waits[:, :, newest] = waiting[..., None]
        cost[:, :, newest], begun[:, newest] = (so_far + prices.change[:, None])[..., None], step
        cost[each, :, newest, place] = np.inf
        takes[:, 1:] = rates * usable[(step - np.arange(young)) % young, None]
        if doing.pause_s == 0:
            slower = np.minimum(rates[:, 0], rates[each, 0, place][:, None])
            takes[:, newest] += slower * (jobs.step_s - usable[0])
        lag = waits * seconds[:, :, step]
        waits = np.maximum(waits + arrive[:, :, step] - takes[:, None], 0)
        lag_after = waits * seconds[:, :, step]
        cost += counts + (lag + lag_after) * by_lag + (lag_after > NEARLY * prices.slo_s) * late
        lag = waits * seconds[:, :, min(step + 1, arrive.shape[2] - 1)]
        if prices.again is not None and step + 1 >= prices.known:
            _bound(cost, waits, lag, ahead, prices.again)
    seen = (share * (cost + lag**2 * ahead)).sum(axis=1).reshape(len(each), -1)
    last = seen.argmin(axis=1)
    return [
        WorkerPlan(
            _chain(job, int(begun[job].ravel()[last[job]]), int(last[job]) % numbers, came_from, counts),
            float(seen[job, last[job]]),
        )
        for job in range(len(each))
    ]


def _bound(cost: Array, waits: Array, lag: Array, ahead: Array, again: Array) -> None:
    """Limit the cost in every scenario except the first to the cost of the best chain plus a change."""
    whole = (cost + lag**2 * ahead)[:, 1:]
    if not whole.size:
        return
    most = whole.min(axis=(2, 3), keepdims=True) + again[:, None, None, None]
    dear = (whole > most) & np.isfinite(whole)
    cost[:, 1:] = np.where(dear, most, cost[:, 1:])
    for one in (waits, lag):
        one[:, 1:][dear] = 0.0


def _usable(doing: ChangeEffect, step_s: float) -> Array:
    """Return the training seconds of a stretch in its first steps, until it is settled."""
    young = max(YOUNG, int(np.ceil(doing.pause_s / step_s)) + 1)
    lost = doing.pause_s or min(doing.start_s, step_s)
    return np.clip((np.arange(young) + 1) * step_s - lost, 0, step_s)


def _chain(job: int, start: int, place: int, came_from: list[tuple[Counts, Counts]], counts: Counts) -> Counts:
    end = len(came_from)
    workers = np.zeros(end, dtype=np.int64)
    while True:
        workers[max(start, 0) : end] = counts[place]
        if start < 0:
            return workers
        end = start
        starts, places = came_from[start]
        start, place = int(starts[job]), int(places[job])
