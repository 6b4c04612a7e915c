"""Pure. The policy `static`: each job has the shape that its user requested until the job ends."""

from springtide.domain.core.shape import cost
from springtide.domain.plan.plan import Decision, ShapePlan
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.candidates import clamp
from springtide.planning.lifecycle import warm_start


def static(view: ClusterView, config: PlanningConfig) -> Decision:
    """Start each job with the shape that its user requested (or with a small shape), and never change the shape."""
    steps = [
        (job, _start(job, config) if job.shape is None else "keeps the size that its user requested")
        for job in view.jobs
    ]
    plans = tuple(step for _, step in steps if isinstance(step, ShapePlan))
    notes = tuple(f"{job.name}: {step}" for job, step in steps if isinstance(step, str))
    return Decision(plans=plans, why=f"users decide: {len(plans)} of {len(view.jobs)} jobs change", notes=notes)


def _start(job: JobView, config: PlanningConfig) -> ShapePlan | str:
    asked = job.requested or warm_start.cold(job, config, "nothing was requested").shape
    reason = f"as its user requested: {asked}"
    held = clamp.smaller(clamp.clipped(asked, job.bounds, config), job.bounds, job.bounds.quota)
    if held is None:
        return f"{reason}; its bounds allow no change"
    return ShapePlan(
        job=job.name, shape=held, reason=reason, cost=cost(held, config.prices), stage=PlanningStage.ADJUSTING
    )
