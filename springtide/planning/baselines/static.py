"""Pure. What the user asked for, from beginning to end. In: a view. Out: starts, and nothing after."""

from springtide.domain.plan import Decision
from springtide.domain.planning import PlanningConfig
from springtide.domain.stages import Stage
from springtide.domain.view import ClusterView, JobView
from springtide.planning.baselines import beginning


def static(view: ClusterView, config: PlanningConfig) -> Decision:
    """Each job starts as its user asked for (small, where nothing was asked for) and stays so."""

    def step(job: JobView) -> beginning.Step:
        if job.shape is not None:
            return "stays as its user asked for"
        asked = beginning.sizes(job, config)
        return beginning.plan(job, asked, f"as its user asked for: {asked}", config, stage=Stage.ADJUSTING)

    return beginning.each(view, "users decide", step)
