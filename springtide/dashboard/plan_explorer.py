"""Computes for the dashboard what the planner decides about a job, and what it expects of a shape, by the planner's own
code. In: the views that the master saved for its planner. Blocks for a fraction of a second."""

from dataclasses import replace

from springtide import errors
from springtide.dashboard.documents import Candidate, PlanPage, TriedShape
from springtide.dashboard.job_reader import files_of
from springtide.domain.core.shape import Shape
from springtide.planning.policy import explain, registry
from springtide.planning.policy.explain import ShapeOption
from springtide.platforms.agent.job_handle import JobHandle
from springtide.telemetry import planner_views
from springtide.telemetry.planner_views import PlannerView


def explore(handle: JobHandle, epoch: int | None = None) -> PlanPage:
    """Return the decision about a job now, or at the plan of an epoch, with its alternatives."""
    shown = _view(handle, epoch)
    decision = registry.load(shown.config.policy)(shown.view, shown.config)
    outlook = explain.outlooks(shown.view, shown.config, decision)[0]
    bounds = shown.view.jobs[0].bounds
    return PlanPage(
        policy=shown.config.policy,
        why=outlook.plan.reason if outlook.plan is not None else decision.why,
        notes=decision.notes,
        measured=outlook.measured,
        model=outlook.model if isinstance(outlook.model, str) else outlook.model.why,
        shapes=outlook.why,
        candidates=tuple(_candidate(option) for option in outlook.options),
        least=bounds.least,
        most=bounds.most,
        now=shown.view.jobs[0].shape,
    )


def try_shape(handle: JobHandle, shape: Shape) -> TriedShape:
    """Return the expected throughput and cost of one shape."""
    shown = _view(handle, None)
    job = shown.view.jobs[0]
    if job.shape is not None:
        keep = {name: getattr(job.shape, name) for name in ("worker_memory", "server_memory", "worker_gpu")}
        shape = replace(shape, **keep)
    option = explain.predict(shown.view, shown.config, shape)
    if isinstance(option, str):
        return TriedShape(shape=shape, why=option)
    allowed = job.bounds.holds(shape)
    why = "" if allowed else f"the job may not have this shape: its quota is {job.bounds.quota.describe()}"
    return TriedShape(shape=shape, cost=option.cost, throughput=option.throughput, allowed=allowed, why=why)


def _view(handle: JobHandle, epoch: int | None) -> PlannerView:
    files = files_of(handle)
    if files is None:
        raise errors.MissingFile(f"job {handle.name} runs on {handle.platform}, where its planner's views are")
    return planner_views.read(planner_views.path_of(files, epoch))


def _candidate(option: ShapeOption) -> Candidate:
    return Candidate(
        shape=option.shape, cost=option.cost, throughput=option.throughput, chosen=option.chosen, now=option.now
    )
