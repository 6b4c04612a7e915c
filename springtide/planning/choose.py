"""Pure. Which shape each job gets, of all that each could have, within what the cluster has (DLRover-RM, Eqns 8-14).

In: a `Bid` a job: its candidates (`planning.candidates`) with what they would bring. Out: a `Decision`: plans for jobs
that change, and how good the choice is. Next: `planning.policies` hands it on.

    gain(A)  = mean throughput over the samples in which A has to pay, the change among them - throughput now   Eqn 8
    RE(A)    = gain(A) / cost(A), by which the greedy goes, times WG(A) (`planning.priorities`)            Eqns 11, 14
    maximize the sum of gain * WG over jobs, all of them within capacity                                   Eqns 12, 13

Before that, job by job: what costs more than it is worth is left out, and what differs too little from what runs now to
be worth a change. So nothing is chosen that does not pay for itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide.domain.plan import Decision, Plan, nothing
from springtide.domain.planning import PlanningConfig
from springtide.domain.shape import Capacity, Shape
from springtide.domain.stages import Stage
from springtide.domain.view import Launch
from springtide.planning import allotment, exact, priorities, switching
from springtide.planning.allotment import Limits
from springtide.planning.columns import Columns, columns, joined
from springtide.planning.priorities import Standing

Floats = NDArray[np.float64]
UNENDING_S = 7 * 86_400.0
"""A job without an end counts as one that has so long to go."""
LEAST_LOG_WEIGHT = -27.0
"""Within a job: candidates that weigh less than e^-27 of the weightiest count as that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """What one job could have, and what it has."""

    job: str
    now: Shape
    throughput_now: float
    """Samples a second, by the same model as the candidates'."""
    shapes: Columns
    throughput: Floats
    standing: Standing
    launches: tuple[Launch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job's options, by cost, of which one is what it has now (unless that is too much for what it brings)."""

    bid: Bid
    shapes: Columns
    cost: Floats
    throughput: Floats
    effective: Floats
    """Mean throughput over the samples in which a change has to pay (`switching.mean_throughput`)."""
    stays: int | None
    """The option that is the shape now."""
    cost_now: float

    def gain(self, option: int) -> float:
        """Eqn 8."""
        return float(self.effective[option] - self.bid.throughput_now)


def choose(bids: Sequence[Bid], capacity: Capacity, config: PlanningConfig) -> Decision:
    """Plans for the jobs that are to change. What the bidding jobs have now is part of the capacity."""
    if not bids:
        return nothing("no job is ready to be changed")
    rows = [row_of(bid, config) for bid in bids]
    weigh = priorities.priority(config.priority)
    listed, scale = [], np.zeros(len(rows))
    for at, row in enumerate(rows):
        logs = weigh(row.bid.standing, row.throughput, config.rho, config.epsilon)
        scale[at] = float(np.max(logs))
        weight = np.exp(np.maximum(logs - scale[at], LEAST_LOG_WEIGHT))
        listed.append(((row.effective - row.effective[0]) * weight, row.cost, row.shapes.cpu, row.shapes.memory))
    options = allotment.options_of(listed, scale)
    effort = exact.Effort(seconds=config.exact_seconds, most_options=config.exact_options)
    found = exact.allot(options, Limits(cpu=capacity.cpu, memory=capacity.memory), effort)
    if found is None:
        cpu, memory = options.used(np.zeros(len(rows), dtype=np.int64))
        return nothing(
            f"even the least of {len(rows)} jobs takes {cpu:,.0f} cores and {memory / 2**30:,.0f} GiB; there are "
            f"{capacity.cpu:,.0f} cores and {capacity.memory / 2**30:,.0f} GiB for them"
        )
    plans = [_plan(row, int(found.taken[at]), float(scale[at])) for at, row in enumerate(rows)]
    changed = tuple(plan for plan in plans if plan is not None)
    quality = f"choice by {found.by}; the greedy leaves {found.gap:.2%} of " + (
        "the optimum" if found.bound == found.value else "a bound on the optimum"
    )
    if not changed:
        return nothing(f"no change of {len(rows)} jobs would pay for itself", quality)
    return Decision(plans=changed, why=f"{len(changed)} of {len(rows)} jobs change", notes=(quality,))


def row_of(bid: Bid, config: PlanningConfig) -> Row:
    """The options of one job that are worth considering, the shape now among them, by cost."""
    shapes = joined(columns([bid.now]), bid.shapes)
    throughput = np.concatenate([[bid.throughput_now], bid.throughput])
    cost = shapes.cost(config.prices)
    soon = max(config.payback * bid.standing.samples_left, bid.throughput_now)
    effective = switching.mean_throughput(bid.now, shapes, bid.launches, bid.throughput_now, throughput, soon)
    effective[0] = throughput[0]
    gain, saving = effective - effective[0], cost[0] - cost
    apart = (gain >= config.least_gain * throughput[0]) | (saving >= config.least_saving * cost[0])
    keep = apart & (cost <= cost[worth_having(cost, effective, config.least_marginal)]) & np.isfinite(effective)
    keep[0] = not _too_much(cost, effective, saving, keep, config)
    (which,) = np.nonzero(keep)
    which = which[np.lexsort((-effective[which], cost[which]))]
    (stays,) = np.nonzero(which == 0)
    return Row(
        bid=bid, shapes=shapes.taken(which), cost=cost[which], throughput=throughput[which], cost_now=float(cost[0]),
        effective=effective[which], stays=int(stays[0]) if len(stays) else None,
    )  # fmt: skip


def worth_having(cost: Floats, throughput: Floats, least_marginal: float) -> int:
    """The largest candidate whose last step up brings, a unit of money, that part of the mean.

    Steps along the upper hull of throughput over cost: between two points of it nothing pays better.
    """
    order = np.lexsort((-throughput, cost))
    hull: list[tuple[float, float, int]] = []
    for x, y, which in zip(cost[order].tolist(), throughput[order].tolist(), order.tolist(), strict=True):
        if hull and not y > hull[-1][1]:
            continue  # dearer and not faster
        while hull and _turns_up(hull, x, y):
            hull.pop()
        hull.append((x, y, which))
    at = 0
    while at + 1 < len(hull):
        (x, y, _), (dearer, faster, _) = hull[at], hull[at + 1]
        if (faster - y) * x < least_marginal * y * (dearer - x):
            break
        at += 1
    return hull[at][2]


def _turns_up(hull: list[tuple[float, float, int]], x: float, y: float) -> bool:
    """Whether the last point lies under the line from the one before it (or from nothing) to a new one."""
    x0, y0 = (hull[-2][0], hull[-2][1]) if len(hull) > 1 else (0.0, 0.0)
    x1, y1, _ = hull[-1]
    return (y1 - y0) * (x - x0) <= (y - y0) * (x1 - x0)


def _too_much(cost: Floats, effective: Floats, saving: Floats, keep: NDArray[np.bool_], config: PlanningConfig) -> bool:
    """Whether another option saves a good deal, and what it would lose is less than that money brings elsewhere."""
    cheaper = keep & (saving >= config.least_saving * cost[0])
    cheaper[0] = False
    lost = effective[0] - effective
    mean = effective[0] / max(float(cost[0]), allotment.LEAST_COST)
    return bool((cheaper & (lost < config.least_marginal * mean * saving)).any())


def efficiency(gain: float, cost: float) -> float:
    """RE, Eqn 11: gain a unit of money that is spent more; of a saving, what is lost a unit of it (negative)."""
    return gain / cost if cost else (float("inf") if gain > 0 else 0.0)


def _plan(row: Row, option: int, log_weight: float) -> Plan | None:
    if option == row.stays:
        return None
    shape, gain = row.shapes.shape(option), row.gain(option)
    before, after, more = row.bid.throughput_now, float(row.throughput[option]), float(row.cost[option]) - row.cost_now
    share = f" ({after / before - 1:+.0%})" if before > 0 else ""
    reason = (
        f"{shape}: {before:,.0f} -> {after:,.0f} samples/s{share} at {row.cost_now:,.1f} -> {row.cost[option]:,.1f} an "
        f"hour; gain {gain:,.1f} after what the change costs, RE {efficiency(gain, more):,.2f}, log WG {log_weight:.1f}"
    )
    return Plan(
        job=row.bid.job, shape=shape, reason=reason, gain=gain, cost=float(row.cost[option]), throughput=after,
        stage=Stage.ADJUSTING,
    )  # fmt: skip
