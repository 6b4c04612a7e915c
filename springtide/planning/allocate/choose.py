"""Pure. Chooses one shape per job within the capacity of the cluster (DLRover-RM, Eqns 8-14).

The decision maximizes the sum, over all jobs, of gain times weight (`PRIORITIES`). The gain is the mean throughput
over the samples in which the change must pay off, minus the current throughput.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.core.shape import ResourceBudget, Shape
from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.plan.view import LaunchTime
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.allocate import knapsack
from springtide.planning.candidates import switch_cost
from springtide.planning.perf_model import shape_columns
from springtide.planning.perf_model.shape_columns import ShapeColumns, columns

UNENDING_S = 7 * 86_400.0
"""Remaining time to assume for a job without an end: 7 days."""
LEAST_LOG_WEIGHT = -27.0
"""Smallest log weight of a candidate, relative to the job's largest weight."""


Floats = NDArray[np.float64]
LEAST_RATE = 1e-9
"""Smallest number of samples per second to assume, so that a stalled job has a long but finite remaining time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """Current shape and candidate shapes of one job, with their throughput, and the inputs of the job's priority."""

    job: str
    now: Shape
    throughput_now: float
    """Current samples per second, by the same model as the candidates; 0 if nothing runs."""
    shapes: ShapeColumns
    throughput: Floats
    samples_left: float
    waited_s: float = 0.0
    given: float = 1.0
    """Priority of the job for its user."""
    launches: tuple[LaunchTime, ...] = ()
    settled: bool = False
    """True if the job already has its planned size. A change must then gain clearly more than the error of
    predictions.
    """


SETTLED_GAIN = 2.0
"""A job that has its size must expect this many times `least_gain`, because the best of many predictions is usually too
high. With 20% noise, a steady job then stops changing after 0 to 4 changes, and is not slower."""


Priority = Callable[[Bid, Floats, float, float], Floats]
"""Function that weights the candidates of a job. The function gets the job, the throughput of its candidates, rho and
epsilon. The function returns the log weight of each candidate.
"""


def remaining(job: Bid, throughput: Floats, rho: float, epsilon: float) -> Floats:
    """Weight each candidate by the time that the job would still need with it (Eqn 14). rho > 0 favours jobs that end
    soon, and rho < 0 jobs that end late.
    """
    left_s = job.samples_left / np.maximum(throughput, LEAST_RATE)
    return -rho * np.log(np.maximum(left_s + epsilon, LEAST_RATE))


def remaining_now(job: Bid, throughput: Floats, rho: float, epsilon: float) -> Floats:
    """Weigh by the time that the job still needs at its current speed (Eqn 14). All candidates of a job then have the
    same weight, so diminishing gains distribute the capacity over several jobs."""
    now = job.throughput_now if job.throughput_now > 0 else float(np.min(throughput, initial=LEAST_RATE))
    return np.broadcast_to(remaining(job, np.array([now]), rho, epsilon), throughput.shape)


def equal(job: Bid, throughput: Floats, rho: float, epsilon: float) -> Floats:
    return np.zeros(throughput.shape)


def given(job: Bid, throughput: Floats, rho: float, epsilon: float) -> Floats:
    return np.full(throughput.shape, math.log(max(job.given, LEAST_RATE)))


def waiting(job: Bid, throughput: Floats, rho: float, epsilon: float) -> Floats:
    """Weigh by waiting time: jobs that were submitted earlier have more weight. A larger rho makes the effect
    stronger."""
    return np.full(throughput.shape, rho * math.log(max(job.waited_s, 0.0) + 1.0))


PRIORITIES: dict[str, Priority] = {
    "remaining": remaining,
    "remaining_now": remaining_now,
    "equal": equal,
    "given": given,
    "waiting": waiting,
}


def priority(name: str) -> Priority:
    if name not in PRIORITIES:
        raise errors.UnknownName("priority", name, PRIORITIES)
    return PRIORITIES[name]


Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Considered(NamedTuple):
    """Options of all jobs as a table with one row per job. Rows are padded with options that no job can choose."""

    there: Mask
    shapes: ShapeColumns
    cost: Floats
    throughput: Floats
    effective: Floats
    """Mean throughput over the samples in which a change must pay off (`switch_cost.mean_throughput`)."""
    stays: Ints
    """For each job, the index of the option that is the current shape; -1 if the current shape costs too much for its
    throughput.
    """
    cost_now: Floats


def considered(bids: Sequence[Bid], config: PlanningConfig) -> Considered:
    """Return the options of each job that are worth considering, including the current shape, sorted by cost."""
    rows = shape_columns.of_lengths([len(bid.throughput) for bid in bids])
    now, here = columns(bid.now for bid in bids), np.array([bid.throughput_now for bid in bids])
    there = np.arange(int(rows.lengths.max()) + 1) <= rows.lengths[:, None]
    listed = [np.concatenate(parts) for parts in zip(*(bid.shapes for bid in bids), strict=True)]
    shapes = ShapeColumns(*(_table(rows, first, rest) for first, rest in zip(now, listed, strict=True)))
    throughput = _table(rows, here, np.concatenate([bid.throughput for bid in bids]))
    cost = np.where(there, shapes.cost(config.prices), np.inf)
    soon = np.maximum(config.payback * np.array([bid.samples_left for bid in bids]), here)
    effective = switch_cost.mean_throughput(
        ShapeColumns(*(column[:, None] for column in now)),
        shapes,
        switch_cost.starts_of_many([bid.launches for bid in bids]),
        here[:, None],
        throughput,
        soon[:, None],
        stay=config.workers_stay,
    )
    effective[:, 0] = here
    gain, saving = effective - here[:, None], cost[:, :1] - cost
    least_gain = config.least_gain * np.where([bid.settled for bid in bids], SETTLED_GAIN, 1.0)
    apart = (gain >= (least_gain * here)[:, None]) | (saving >= config.least_saving * cost[:, :1])
    worth = worth_having(cost, np.where(there, effective, -np.inf), config.least_marginal)
    keep = there & apart & (cost <= np.take_along_axis(cost, worth[:, None], axis=1)) & np.isfinite(effective)
    keep[:, 0] = ~_too_much(cost, effective, saving, keep, config)
    order = np.lexsort((-effective, np.where(keep, cost, np.inf)))[:, : int(keep.sum(axis=1).max())]
    there = np.take_along_axis(keep, order, axis=1)
    same = there & (order == 0)
    return Considered(
        there=there,
        shapes=ShapeColumns(*(np.take_along_axis(column, order, axis=1) for column in shapes)),
        cost=np.where(there, np.take_along_axis(cost, order, axis=1), np.inf),
        throughput=np.take_along_axis(throughput, order, axis=1),
        effective=np.take_along_axis(effective, order, axis=1),
        stays=np.where(same.any(axis=1), same.argmax(axis=1), -1),
        cost_now=cost[:, 0],
    )


def _table(rows: shape_columns.RaggedRows, first: Floats, rest: Floats) -> Floats:
    """Return a table with one row per job: first the job's `first` option, then its other options, with padding
    of 1.
    """
    whole = np.ones((len(first), int(rows.lengths.max()) + 1))
    whole[:, 0] = first
    whole[rows.owner, rows.place + 1] = rest
    return whole


def worth_having(cost: Floats, throughput: Floats, least_marginal: float) -> Ints:
    """Return, for each row, the largest candidate to which the last step still gains enough: at least `least_marginal`
    times the mean throughput per cost. Steps follow the upper convex hull of throughput over cost. For each row, the
    search starts at zero and moves to the point with the steepest slope, as long as the move gains enough.
    """
    at = _steepest(cost, throughput, np.zeros((len(cost), 1)), np.zeros((len(cost), 1)), throughput > -np.inf)
    moving = np.arange(len(cost))
    while len(moving):
        x, y = (part[moving, at[moving]][:, None] for part in (cost, throughput))
        costs, speeds = cost[moving], throughput[moving]
        beyond = (costs > x) & (speeds > y) & (costs < np.inf)
        to = _steepest(costs, speeds, x, y, beyond)
        dearer, faster = (np.take_along_axis(part, to[:, None], axis=1) for part in (costs, speeds))
        pays = beyond.any(axis=1) & ~((faster - y) * x < least_marginal * y * (dearer - x))[:, 0]
        moving, to = moving[pays], to[pays]
        at[moving] = to
    return at


def _steepest(cost: Floats, throughput: Floats, x: Floats, y: Floats, among: Mask) -> Ints:
    """Return the point of each row to which the line from (x, y) is steepest. Of equally steep points, return the
    farthest."""
    with np.errstate(all="ignore"):
        slope = np.where(among, (throughput - y) / (cost - x), -np.inf)
    steepest = slope == slope.max(axis=1, keepdims=True)
    fast = np.where(steepest, throughput, -np.inf)
    farthest = steepest & (fast == fast.max(axis=1, keepdims=True))
    return np.asarray(np.where(farthest, cost, np.inf).argmin(axis=1))


def _too_much(cost: Floats, effective: Floats, saving: Floats, keep: Mask, config: PlanningConfig) -> Mask:
    """Return True for an option if another option saves enough cost, and loses throughput that is worth less than the
    saved cost."""
    cheaper = keep & (saving >= config.least_saving * cost[:, :1])
    cheaper[:, 0] = False
    lost = effective[:, :1] - effective
    mean = effective[:, :1] / np.maximum(cost[:, :1], knapsack.LEAST_COST)
    return np.asarray((cheaper & (lost < config.least_marginal * mean * saving)).any(axis=1))


def choose(bids: Sequence[Bid], capacity: ResourceBudget, config: PlanningConfig) -> Decision:
    """Return plans for the jobs that should change. `capacity` includes the resources that the bidding jobs have
    now."""
    if not bids:
        return nothing("no job is ready for a change")
    table = considered(bids, config)
    weigh = priority(config.priority)
    logs = np.full(table.cost.shape, -np.inf)
    for at, (bid, count) in enumerate(zip(bids, table.there.sum(axis=1).tolist(), strict=True)):
        logs[at, :count] = weigh(bid, table.throughput[at, :count], config.rho, config.epsilon)
    scale = logs.max(axis=1)
    weight = np.exp(np.maximum(logs - scale[:, None], LEAST_LOG_WEIGHT))
    options = knapsack.KnapsackOptions(
        value=np.where(table.there, (table.effective - table.effective[:, :1]) * weight, -np.inf),
        scale=scale,
        cost=table.cost,
        takes=np.where(table.there, (table.shapes.cpu, table.shapes.memory, table.shapes.gpus), np.inf),
    )
    found = knapsack.allot(options, capacity, exact_seconds=config.exact_seconds, exact_options=config.exact_options)
    if found is None:
        cpu, memory, gpu = options.used(np.zeros(len(bids), dtype=np.int64))
        least = ResourceBudget(cpu=cpu, memory=memory, gpu=gpu).describe()
        return nothing(f"even the least of {len(bids)} jobs takes {least}; there are {capacity.describe()} for them")
    taken, solver = found
    plans = [_plan(table, at, bid, int(taken[at])) for at, bid in enumerate(bids)]
    changed = tuple(plan for plan in plans if plan is not None)
    note = f"chosen by the {solver} algorithm"
    if not changed:
        return nothing(f"for {len(bids)} jobs, no change is worth its cost", note)
    return Decision(plans=changed, why=f"{len(changed)} of {len(bids)} jobs change", notes=(note,))


def _plan(table: Considered, at: int, bid: Bid, option: int) -> ShapePlan | None:
    if option == table.stays[at]:
        return None
    shape = ShapeColumns(*(column[at] for column in table.shapes)).shape(option)
    before, after, gain = bid.throughput_now, float(table.throughput[at, option]), float(table.effective[at, option])
    gain, now, then = gain - before, float(table.cost_now[at]), float(table.cost[at, option])
    share = f" ({after / before - 1:+.0%})" if before > 0 else ""
    reason = (
        f"{before:,.0f} -> {after:,.0f} samples/s{share} at {now:,.1f} -> {then:,.1f} an hour; after the time that the "
        f"change takes, the gain is {gain:,.0f} samples/s"
    )
    return ShapePlan(
        job=bid.job, shape=shape, reason=reason, gain=gain, cost=then, throughput=after, stage=PlanningStage.ADJUSTING
    )
