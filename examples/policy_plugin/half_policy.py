"""A policy in a package of its own: every job begins with half the workers that its user asked for, and stays so.

pip install ./examples/policy_plugin      # its pyproject.toml names the policy
springtide ... policy = "half"            # or, without installing it, "half_policy:half" from its folder

And a metric by which cores of data workers are shared out among jobs:

springtide reproduce goldminer --metric soonest
"""

from dataclasses import replace

from springtide.domain.plan.plan import Decision, ShapePlan
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.dataworkers.allocation import CoreStep


def half(view: ClusterView, config: PlanningConfig) -> Decision:
    """Users ask for twice of what they need. What does not fit the job or the cluster, Springtide refuses by itself."""
    plans = tuple(
        ShapePlan(
            job=job.name,
            shape=replace(job.requested, workers=max(1, job.requested.workers // 2)),
            reason=f"half of the {job.requested.workers} workers that {job.identity.user or 'its user'} asked for",
        )
        for job in view.jobs
        if job.shape is None and job.requested is not None
    )
    return Decision(plans=plans, why=f"{len(plans)} new jobs get half of their workers")


def soonest(step: CoreStep) -> float:
    """The job that would end first gets the next data worker, whatever it takes: the smallest n / (t + Δt)."""
    return step.job.steps_left / max(step.speed + step.faster, 1e-9)
