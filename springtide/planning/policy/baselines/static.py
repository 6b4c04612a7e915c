"""Pure. Static policy: each job keeps the shape that its user requested. In: a view. Out: start plans only."""

from springtide.domain.plan.plan import Decision
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.policy.baselines import starts


def static(view: ClusterView, config: PlanningConfig) -> Decision:
    """Start each job with its user's shape (or a small shape without a request) and never change it."""

    def step(job: JobView) -> starts.Step:
        if job.shape is not None:
            return "stays as its user asked for"
        asked = starts.sizes(job, config)
        return starts.plan(job, asked, f"as its user asked for: {asked}", config, stage=PlanningStage.ADJUSTING)

    return starts.each(view, "users decide", step)
