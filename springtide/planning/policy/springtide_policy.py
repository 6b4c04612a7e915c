"""Pure. Springtide's own policy: decides the next step of each job, and divides the cluster among the jobs.

Memory requests come first, then new jobs in order of submission, then measured sizes. While new jobs wait to start,
their minimum is reserved: other jobs may shrink but not grow.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from springtide.domain.core.shape import NOTHING, ResourceBudget, Shape, cost, resources_of
from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.allocate import bids as bid_rules
from springtide.planning.allocate import choose
from springtide.planning.allocate.choose import Bid
from springtide.planning.candidates import clamp
from springtide.planning.lifecycle import stages
from springtide.planning.lifecycle.stages import PlanRequest, ReadyJob
from springtide.planning.perf_model import fit, measurements


class FreeRoom:
    """Free capacity of the cluster while plans are made."""

    def __init__(self, view: ClusterView) -> None:
        held = [job.shape for job in view.jobs if job.shape is not None]
        used = sum(map(resources_of, held), NOTHING)
        self._free = np.array(view.capacity.amounts) - used.amounts  # below 0 if jobs hold more than the cluster has

    def beside(self, *now: Shape | None) -> ResourceBudget:
        """Return the resources that are free for jobs that now have these shapes."""
        has = sum(map(resources_of, now), NOTHING)
        cpu, memory, gpu = np.maximum(self._free + has.amounts, 0.0).tolist()
        return ResourceBudget(cpu=cpu, memory=memory, gpu=gpu)

    def change(self, now: Shape | None, then: Shape) -> None:
        self._free -= np.array(resources_of(then).amounts) - resources_of(now).amounts


def springtide(view: ClusterView, config: PlanningConfig) -> Decision:
    room, plans, notes = FreeRoom(view), [], []
    jobs = {job.name: job for job in view.jobs}
    wishes: list[PlanRequest] = []
    ready: list[ReadyJob] = []
    for job in view.jobs:
        step = stages.next_step(job, view, config)
        if isinstance(step, PlanRequest):
            wishes.append(step)
        elif isinstance(step, ReadyJob):
            ready.append(step)
        else:
            notes.append(f"{job.name}: {step}")
    waiting: list[JobView] = []
    for wish in sorted(wishes, key=lambda wish: (wish.rank, jobs[wish.plan.job].progress.submitted_at)):
        notes += [note for note in wish.notes if note not in notes]
        job = jobs[wish.plan.job]
        plan = _placed(wish, job, room, config)
        if isinstance(plan, ShapePlan):
            plans.append(plan)
            room.change(job.shape, plan.shape)
        else:
            notes.append(f"{job.name}: {plan}")
            if job.shape is None:
                waiting.append(job)
    with np.errstate(all="ignore"):  # measurements may hold any value, so the results are checked afterwards
        chosen, remarks = _shared_out(ready, view, room, waiting, config)
    plans += chosen
    notes += remarks
    if not plans:
        return nothing(f"none of {len(view.jobs)} jobs needs a change", *notes)
    return Decision(plans=tuple(plans), why=f"{len(plans)} of {len(view.jobs)} jobs change", notes=tuple(notes))


def _placed(wish: PlanRequest, job: JobView, room: FreeRoom, config: PlanningConfig) -> ShapePlan | str:
    beside = room.beside(job.shape)
    held = clamp.smaller(wish.plan.shape, job.bounds, beside)
    if held is None:
        return f"{wish.plan.reason}; but only {beside.describe()} are free"
    if held == wish.plan.shape:
        return wish.plan
    if wish.rank == stages.URGENT or (job.shape is not None and held.cpu <= job.shape.cpu):
        return f"{wish.plan.reason}; there is no room for it now"
    return replace(
        wish.plan, shape=held, cost=cost(held, config.prices), reason=f"{wish.plan.reason}; reduced to the free room"
    )


def _shared_out(
    ready: Sequence[ReadyJob], view: ClusterView, room: FreeRoom, waiting: Sequence[JobView], config: PlanningConfig
) -> tuple[list[ShapePlan], list[str]]:
    """Divide the remaining capacity among the jobs that have a model, by their bids."""
    notes: list[str] = []
    bids: list[Bid] = []
    found = [measurements.pace_of(bidder.job, bidder.measured.throughput) for bidder in ready]
    models = fit.fit_many([(bidder.job.profiles, bidder.job.facts) for bidder in ready], found)
    bidders = [
        bid_rules.Bidder(bidder, model, pace)
        for bidder, model, pace in zip(ready, models, found, strict=True)
        if isinstance(model, fit.FittedModel)
    ]
    made = iter(bid_rules.bids(bidders, view, config))
    for ready_job, model in zip(ready, models, strict=True):
        bid = next(made) if isinstance(model, fit.FittedModel) else model
        if isinstance(bid, str):
            notes.append(f"{ready_job.job.name}: {bid}")
        else:
            bids.append(bid)
    left = room.beside(*(bid.now for bid in bids))
    reserved = sum((resources_of(job.bounds.least) for job in waiting), NOTHING)
    decision = choose.choose(bids, left - reserved, config)
    if waiting and not decision.plans:
        decision = choose.choose(bids, left, config)
    return list(decision.plans), notes + ([decision.why, *decision.notes] if bids else [])
