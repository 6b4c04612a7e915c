"""Pure. What each job could have that is worth considering: options of all jobs in one table, cheapest first.

In: a `Bid` a job: its candidates with what they would bring. Out: `Considered`, a row a job, a column an option, what
the job has now among them. Next: `planning.allocate.choose` picks one a row.

Left out, job by job, is what costs more than it is worth, and what differs too little from what runs now to be worth a
change. So nothing is chosen that does not pay for itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.shape import Shape
from springtide.domain.plan.view import LaunchTime
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.allocate import knapsack
from springtide.planning.allocate.priorities import Standing
from springtide.planning.candidates import switch_cost
from springtide.planning.perf_model import ragged
from springtide.planning.perf_model.shape_columns import ShapeColumns, columns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """What one job could have, and what it has."""

    job: str
    now: Shape
    throughput_now: float
    """Samples a second, by the same model as the candidates'."""
    shapes: ShapeColumns
    throughput: Floats
    standing: Standing
    launches: tuple[LaunchTime, ...] = ()


class Considered(NamedTuple):
    """Options by row and column; rows are filled up with options that no one can take."""

    there: Mask
    shapes: ShapeColumns
    cost: Floats
    throughput: Floats
    effective: Floats
    """Mean throughput over the samples in which a change has to pay (`switching.mean_throughput`)."""
    stays: Ints
    """The option that is the shape now, a number a row; -1: that is too much for what it brings."""
    cost_now: Floats


def considered(bids: Sequence[Bid], config: PlanningConfig) -> Considered:
    """The options of each job that are worth considering, the shape now among them, by cost."""
    rows = ragged.of_lengths([len(bid.throughput) for bid in bids])
    now, here = columns(bid.now for bid in bids), np.array([bid.throughput_now for bid in bids])
    there = np.arange(int(rows.lengths.max()) + 1) <= rows.lengths[:, None]
    listed = [np.concatenate(parts) for parts in zip(*(bid.shapes for bid in bids), strict=True)]
    shapes = ShapeColumns(*(_table(rows, first, rest) for first, rest in zip(now, listed, strict=True)))
    throughput = _table(rows, here, np.concatenate([bid.throughput for bid in bids]))
    cost = np.where(there, shapes.cost(config.prices), np.inf)
    soon = np.maximum(config.payback * np.array([bid.standing.samples_left for bid in bids]), here)
    effective = switch_cost.mean_throughput(
        ShapeColumns(*(column[:, None] for column in now)),
        shapes,
        _starts(bids),
        here[:, None],
        throughput,
        soon[:, None],
        stay=config.workers_stay,
    )
    effective[:, 0] = here
    gain, saving = effective - here[:, None], cost[:, :1] - cost
    apart = (gain >= config.least_gain * here[:, None]) | (saving >= config.least_saving * cost[:, :1])
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


def _table(rows: ragged.RaggedRows, first: Floats, rest: Floats) -> Floats:
    """One option of each job, then its others; 1 where there are no more."""
    whole = np.ones((len(first), int(rows.lengths.max()) + 1))
    whole[:, 0] = first
    whole[rows.owner, rows.place + 1] = rest
    return whole


def _starts(bids: Sequence[Bid]) -> switch_cost.StartTimes:
    """How long roles take to start, a column, a row a job."""
    worker, server = switch_cost.starts_of_many([bid.launches for bid in bids])
    return switch_cost.StartTimes(
        switch_cost.StartLine(*(np.asarray(part)[:, None] for part in worker)),
        switch_cost.StartLine(*(np.asarray(part)[:, None] for part in server)),
    )


def worth_having(cost: Floats, throughput: Floats, least_marginal: float) -> Ints:
    """Of each row the largest candidate whose last step up brings, a unit of money, that part of the mean.

    Steps along the upper hull of throughput over cost: between two points of it nothing pays better. All rows go from
    nothing to what pays best, from there to what pays best beyond it, and so on, each as long as it pays.
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
    """Of each row the point to which the line from (x, y) is steepest; the farthest of several."""
    with np.errstate(all="ignore"):
        slope = np.where(among, (throughput - y) / (cost - x), -np.inf)
    steepest = slope == slope.max(axis=1, keepdims=True)
    fast = np.where(steepest, throughput, -np.inf)
    farthest = steepest & (fast == fast.max(axis=1, keepdims=True))
    return np.asarray(np.where(farthest, cost, np.inf).argmin(axis=1))


def _too_much(cost: Floats, effective: Floats, saving: Floats, keep: Mask, config: PlanningConfig) -> Mask:
    """Whether another option saves a good deal, and what it would lose is less than that money brings elsewhere."""
    cheaper = keep & (saving >= config.least_saving * cost[:, :1])
    cheaper[:, 0] = False
    lost = effective[:, :1] - effective
    mean = effective[:, :1] / np.maximum(cost[:, :1], knapsack.LEAST_COST)
    return np.asarray((cheaper & (lost < config.least_marginal * mean * saving)).any(axis=1))
