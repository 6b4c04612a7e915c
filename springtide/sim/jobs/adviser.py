"""A planner for virtual jobs: a policy as an `Adviser`, for masters that plan for themselves.

In: the view that a master makes of its own job (`master.autoscale.job_view`, from what members have told). Out: advice,
which the master checks and carries out (`master.autoscale.loop`, `job.scaling.plan`), as it does with a real
brain's.
"""

from collections.abc import Callable

from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.core.stages import PlanningStage
from springtide.domain.plan.advice import Advice
from springtide.domain.plan.plan import ShapePlan
from springtide.domain.plan.view import ClusterView, JobView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.sim.engine import systems, views
from springtide.sim.engine.systems import System
from springtide.sim.world.world import TrueJob


class PolicyAdviser:
    """One job's. `room`: what its cluster has free, beside what the job holds."""

    def __init__(self, system: System, config: PlanningConfig, room: Callable[[], ResourceBudget]) -> None:
        self._system, self._config, self._room = system, config, room
        self.asked = self.planned = 0

    async def advise(self, view: JobView, *, epoch: int, now: float) -> Advice:
        self.asked += 1
        free, held = self._room(), view.shape
        capacity = ResourceBudget(
            cpu=free.cpu + (held.cpu if held is not None else 0.0),
            memory=free.memory + (held.memory if held is not None else 0),
        )
        seen = ClusterView(now=now, capacity=capacity, jobs=(view,), launches=view.launches)
        decision = systems.check(self._system.policy(seen, self._config), self._system.name)
        plan = decision.plan_for(view.name)
        self.planned += plan is not None
        return Advice(epoch=epoch, why=decision.why, plan=plan, notes=decision.notes)

    async def conclude(self, past: PastJob) -> None: ...

    async def close(self) -> None: ...


def first_plan(
    job: TrueJob, bounds: ShapeBounds, system: System, config: PlanningConfig, capacity: ResourceBudget
) -> ShapePlan:
    """What a job begins with: as the policy says of one that it knows nothing of yet, else as its user asked."""
    view = JobView(
        name=job.name,
        user=job.user,
        facts=job.facts,
        bounds=bounds,
        features=views.features(job),
        requested=job.requested,
        submitted_at=job.arrives_at,
        samples_total=job.samples,
        stage=PlanningStage.WAITING,
    )
    decision = systems.check(
        system.policy(ClusterView(now=job.arrives_at, capacity=capacity, jobs=(view,)), config), system.name
    )
    wish = job.requested
    asked = Shape(workers=wish.workers, servers=wish.servers, worker_cpu=wish.worker_cpu, server_cpu=wish.server_cpu)
    return decision.plan_for(job.name) or ShapePlan(
        job=job.name, shape=asked, reason=decision.why, stage=PlanningStage.ADJUSTING
    )
