"""A test policy that changes the shape whenever it may: more workers, more servers, other cores, and back."""

from dataclasses import replace

from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.spec.planning_config import PlanningStage
from springtide.planning.perf_model import measurements

NUMBERS = ((1, 1), (2, 1), (2, 2), (1, 2), (1, 1))
"""Workers and servers, one after the other; at the last it stays."""


def steps(view, config):
    """The next shape, once this one was measured."""
    (job,) = view.jobs
    if job.progress.unchanged_s(at=view.now) < config.between_changes_s or measurements.now(job) is None:
        return nothing("not yet")
    at = next_at(job)
    if at == len(NUMBERS):
        return nothing("that was all")
    workers, servers = NUMBERS[at]
    cpu = {"worker_cpu": 0.9, "server_cpu": 0.6} if at % 2 else {"worker_cpu": 1.0, "server_cpu": 0.5}
    if job.bounds.least.worker_cpu == job.bounds.most.worker_cpu:
        cpu = {}
    shape = replace(job.shape, workers=workers, servers=servers, **cpu)
    plan = ShapePlan(job=job.name, shape=shape, reason=f"step {at}: {shape}", stage=PlanningStage.ADJUSTING)
    return Decision(plans=(plan,), why="the next step")


def next_at(job):
    """The shape that follows those seen so far; a new master has seen only the newest."""
    had = [(one.shape.workers, one.shape.servers) for one in job.profiles]
    back = (1, 2) in had and had[-1] == (1, 1)
    return len(NUMBERS) if back else NUMBERS.index(had[-1]) + 1
