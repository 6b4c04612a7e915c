"""Pure. Which shape each job gets, of all that each could have, within what the cluster has (DLRover-RM, Eqns 8-14).

In: a `Bid` a job: its candidates (`planning.candidates.pareto`) with what they would bring. Out: a `Decision`: plans
for jobs that change, and how good the choice is. Next: `planning.policy.registry` hands it on.

    gain(A)  = mean throughput over the samples in which A has to pay, the change among them - throughput now   Eqn 8
    RE(A)    = gain(A) / cost(A), by which the greedy goes, times WG(A) (`priorities`)            Eqns 11, 14
    maximize the sum of gain * WG over jobs, all of them within capacity                                   Eqns 12, 13

Before that, job by job, what cannot pay for itself is left out (`planning.allocate.options`).
"""

from collections.abc import Sequence

import numpy as np

from springtide.domain.core.shape import ResourceBudget
from springtide.domain.core.stages import PlanningStage
from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.allocate import ilp, knapsack, priorities
from springtide.planning.allocate import options as weighing
from springtide.planning.allocate.knapsack import KnapsackCapacity
from springtide.planning.allocate.options import Bid, Considered
from springtide.planning.perf_model.shape_columns import ShapeColumns

UNENDING_S = 7 * 86_400.0
"""A job without an end counts as one that has so long to go."""
LEAST_LOG_WEIGHT = -27.0
"""Within a job: candidates that weigh less than e^-27 of the weightiest count as that."""


def choose(bids: Sequence[Bid], capacity: ResourceBudget, config: PlanningConfig) -> Decision:
    """Plans for the jobs that are to change. What the bidding jobs have now is part of the capacity."""
    if not bids:
        return nothing("no job is ready to be changed")
    table = weighing.considered(bids, config)
    weigh = priorities.priority(config.priority)
    logs = np.full(table.cost.shape, -np.inf)
    for at, (bid, count) in enumerate(zip(bids, table.there.sum(axis=1).tolist(), strict=True)):
        logs[at, :count] = weigh(bid.standing, table.throughput[at, :count], config.rho, config.epsilon)
    scale = logs.max(axis=1)
    weight = np.exp(np.maximum(logs - scale[:, None], LEAST_LOG_WEIGHT))
    options = knapsack.KnapsackOptions(
        value=np.where(table.there, (table.effective - table.effective[:, :1]) * weight, -np.inf),
        scale=scale,
        cost=table.cost,
        cpu=np.where(table.there, table.shapes.cpu, np.inf),
        memory=np.where(table.there, table.shapes.memory, np.inf),
    )
    effort = ilp.Effort(seconds=config.exact_seconds, most_options=config.exact_options)
    found = ilp.allot(options, KnapsackCapacity(cpu=capacity.cpu, memory=capacity.memory), effort)
    if found is None:
        cpu, memory = options.used(np.zeros(len(bids), dtype=np.int64))
        return nothing(
            f"even the least of {len(bids)} jobs takes {cpu:,.5g} cores and {memory / 2**30:,.5g} GiB; there are "
            f"{capacity.cpu:,.5g} cores and {capacity.memory / 2**30:,.5g} GiB for them"
        )
    plans = [_plan(table, at, bid, int(found.taken[at]), float(scale[at])) for at, bid in enumerate(bids)]
    changed = tuple(plan for plan in plans if plan is not None)
    quality = f"choice by {found.by}; the greedy leaves {found.gap:.2%} of " + (
        "the optimum" if found.bound == found.value else "a bound on the optimum"
    )
    if not changed:
        return nothing(f"no change of {len(bids)} jobs would pay for itself", quality)
    return Decision(plans=changed, why=f"{len(changed)} of {len(bids)} jobs change", notes=(quality,))


def efficiency(gain: float, cost: float) -> float:
    """RE, Eqn 11: gain a unit of money that is spent more; of a saving, what is lost a unit of it (negative)."""
    return gain / cost if abs(cost) > knapsack.LEAST_COST else (float("inf") if gain > 0 else 0.0)


def _plan(table: Considered, at: int, bid: Bid, option: int, log_weight: float) -> ShapePlan | None:
    """The plan of one job; None: it stays as it is."""
    if option == table.stays[at]:
        return None
    shape = ShapeColumns(*(column[at] for column in table.shapes)).shape(option)
    before, after, gain = bid.throughput_now, float(table.throughput[at, option]), float(table.effective[at, option])
    gain, now, then = gain - before, float(table.cost_now[at]), float(table.cost[at, option])
    share = f" ({after / before - 1:+.0%})" if before > 0 else ""
    bought = f", RE {efficiency(gain, then - now):,.2f}" if then > now else ""
    reason = (
        f"{before:,.0f} -> {after:,.0f} samples/s{share} at {now:,.1f} -> {then:,.1f} an hour; gain {gain:,.1f} after "
        f"what the change costs{bought}, log WG {log_weight:.1f}"
    )
    return ShapePlan(
        job=bid.job, shape=shape, reason=reason, gain=gain, cost=then, throughput=after, stage=PlanningStage.ADJUSTING
    )
