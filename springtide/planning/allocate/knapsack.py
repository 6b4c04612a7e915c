"""Pure. Solves the knapsack problem of the allocation: one option per job, all within the capacity, with the largest
total gain.

`greedy` is the weighted greedy algorithm of Eqns 12 and 13. `solve` is exact. Its result is used only if it arrives
within the time limit.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.shape import ResourceBudget

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LEAST_COST = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class KnapsackOptions:
    """Options of all jobs: one row per job, cheapest option first. Rows are padded with options that no job can
    choose."""

    value: Floats
    """Gain of each option on the job's own scale; the gain of the cheapest option is 0."""
    scale: Floats
    """Log of the factor that multiplies each job's values."""
    cost: Floats
    takes: Floats
    """Cores, bytes and GPUs of each option: an array of (3, jobs, options)."""

    @property
    def worth(self) -> Floats:
        """Return the values of all jobs on the scale of the job with the largest weight; padding is 0."""
        scale = np.exp(self.scale - np.max(self.scale, initial=-np.inf))[:, None] if len(self.scale) else 0.0
        return np.asarray(np.where(np.isfinite(self.cost), self.value, 0.0) * scale)

    def total(self, taken: Ints) -> float:
        return float(self.worth[np.arange(len(taken)), taken].sum())

    def used(self, taken: Ints) -> Floats:
        """Return the cores, bytes and GPUs that these options need together."""
        return np.asarray(self.takes[:, np.arange(len(taken)), taken].sum(axis=1))


def greedy(options: KnapsackOptions, limits: ResourceBudget) -> Ints | None:
    """Return the greedy solution. Return None if even the cheapest options exceed the capacity.

    Each job starts at its cheapest option. The job with the best gain per cost moves to its best option that still
    fits. From that option, the job competes again.
    """
    taken = np.zeros(len(options.scale), dtype=np.int64)
    if not limits.fits(*options.used(taken)):
        return None
    taken = _while_all_fits(options, limits)
    limit, used = np.array(limits.amounts), options.used(taken)
    queue: list[tuple[float, int, int]] = []

    def offer(job: int) -> None:
        step = _best_step(options, job, int(taken[job]), limit - used)
        if step is not None:
            heapq.heappush(queue, (-step[0], job, step[1]))

    for job in range(len(taken)):
        offer(job)
    while queue:
        _, job, option = heapq.heappop(queue)
        then = used + options.takes[:, job, option] - options.takes[:, job, taken[job]]
        if limits.fits(*then):
            taken[job], used = option, then
        offer(job)
    return taken


def _while_all_fits(options: KnapsackOptions, limits: ResourceBudget) -> Ints:
    """Run the greedy algorithm for all jobs in parallel, until the first step that does not fit. Until then, the steps
    of different jobs are independent."""
    jobs, rows = len(options.scale), np.arange(len(options.scale))
    at, steps = np.zeros(jobs, dtype=np.int64), []
    moving = rows
    while len(moving):
        here = at[moving]
        gain = options.value[moving] - options.value[moving, here][:, None]
        more = np.maximum(options.cost[moving] - options.cost[moving, here][:, None], LEAST_COST)
        ratio = np.where(gain > 0, gain, 0.0) / more
        best = ratio.argmax(axis=1)
        slope = ratio[np.arange(len(moving)), best]
        moving, here, best, slope = (part[slope > 0] for part in (moving, here, best, slope))
        steps.append((moving, best, options.scale[moving] + np.log(slope), here))
        at[moving] = best
    who, to, order, came = (np.concatenate(part) for part in zip(*steps, strict=True)) if steps else ([],) * 4
    # along a job's own steps, gains per cost decrease, so the sort keeps the order of its steps
    first = np.argsort(-np.asarray(order), kind="stable")
    who, to, came = (np.asarray(part, dtype=np.int64)[first] for part in (who, to, came))
    used = options.used(np.zeros(jobs, dtype=np.int64))[:, None]
    used = used + np.cumsum(options.takes[:, who, to] - options.takes[:, who, came], axis=1)
    over = (used > np.array(limits.amounts)[:, None]).any(axis=0)
    fitting = int(np.argmax(over)) if over.any() else len(who)
    taken = np.zeros(jobs, dtype=np.int64)
    taken[who[:fitting]] = to[:fitting]  # a later step of a job overwrites an earlier one
    return taken


def _best_step(options: KnapsackOptions, job: int, now: int, free: Floats) -> tuple[float, int] | None:
    """Return the log ratio and the index of the option with the best gain per cost that fits."""
    gain = options.value[job] - options.value[job, now]
    takes = options.takes[:, job]
    fits = (gain > 0) & (takes - takes[:, now, None] <= free[:, None]).all(axis=0)
    if not fits.any():
        return None
    (which,) = np.nonzero(fits)
    ratio = gain[which] / np.maximum(options.cost[job, which] - options.cost[job, now], LEAST_COST)
    best = int(np.argmax(ratio))
    return float(options.scale[job] + np.log(ratio[best])), int(which[best])


RELATIVE_GAP = 1e-4
"""The exact solver stops within this relative distance from the optimum."""
OPTIMAL = 0


def solve(options: KnapsackOptions, limits: ResourceBudget, *, seconds: float) -> Ints | None:
    """Return the optimal options. Return None if the solver found no proof within these seconds, or if nothing fits."""
    from scipy import optimize, sparse

    jobs, columns = np.nonzero(np.isfinite(options.cost))
    if not len(jobs):
        return None
    rows = np.arange(len(jobs))
    one_each = sparse.csr_array((np.ones(len(jobs)), (jobs, rows)), shape=(len(options.scale), len(jobs)))
    limited = np.isfinite(limits.amounts)
    taken_by, most = options.takes[limited][:, jobs, columns], np.array(limits.amounts)[limited]
    unit = np.maximum(most, 1e-12)
    answer = optimize.milp(
        -options.worth[jobs, columns],
        integrality=np.ones(len(jobs)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(one_each, 1, 1),
            optimize.LinearConstraint(sparse.csr_array(taken_by / unit[:, None]), -np.inf, most / unit),
        ],
        options={"time_limit": seconds, "mip_rel_gap": RELATIVE_GAP},
    )
    if answer.status != OPTIMAL or answer.x is None:
        return None
    chosen = answer.x > 0.5
    taken = np.zeros(len(options.scale), dtype=np.int64)
    taken[jobs[chosen]] = columns[chosen]
    return taken if limits.fits(*options.used(taken)) else None


def allot(
    options: KnapsackOptions, limits: ResourceBudget, *, exact_seconds: float, exact_options: int
) -> tuple[Ints, str] | None:
    """Return the best allocation found, and the solver that found it: `greedy` or `exact`. Return None if even the
    cheapest options exceed the capacity.

    The exact solver gets `exact_seconds` if all jobs together have at most `exact_options` options. With 0 seconds,
    only the greedy algorithm runs.
    """
    taken = greedy(options, limits)
    if taken is None:
        return None
    most = np.argmax(np.where(np.isfinite(options.cost), options.value, -np.inf), axis=1)
    if limits.fits(*options.used(most)):  # if the best options of all jobs fit together, every job gets its best option
        return most, "greedy"
    if exact_seconds > 0 and int(np.isfinite(options.cost).sum()) <= exact_options:
        best = solve(options, limits, seconds=exact_seconds)
        if best is not None and options.total(best) > options.total(taken):
            return best, "exact"
    return taken, "greedy"
