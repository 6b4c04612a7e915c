"""What a policy is shown of a virtual job: what its master and its agent have measured, and no more.

In: a `VirtualJob` that runs. Out: a `JobView`. Profiles are differences of what workers have reported, over windows in
which the job's shape stayed as it was. Next: a policy, asked by `fleet`.
"""

from collections.abc import Mapping
from dataclasses import replace

from springtide.domain.cluster import Life, RoleKind
from springtide.domain.profile import SUM_FIELDS, Profile, TimingSum
from springtide.domain.shape import Bounds, Shape
from springtide.domain.stages import Stage
from springtide.domain.view import JobView, Launch, RoleUse
from springtide.job import rollout
from springtide.job.nodes import NodeState
from springtide.rpc.messages import Report
from springtide.sim import views
from springtide.sim.jobs.job import VirtualJob

PROFILES = 24


class Shown:
    """One job, as it is measured from time to time."""

    def __init__(self, job: VirtualJob, shape: Shape, stage: Stage | None, at: float) -> None:
        self._job, self.shape = job, shape
        self.stage = stage or Stage.OPTIMIZING
        self.submitted_at = self.started_at = self.changed_at = at
        self._profiles: list[Profile] = []
        self._window: tuple[float, dict[Life, Report], dict[Life, float]] | None = None
        self._used: dict[Life, float] = {}
        self.launches: list[Launch] = []

    def plan(self, shape: Shape, stage: Stage | None, at: float) -> None:
        """It is to have another shape."""
        self.shape, self.stage, self.changed_at = shape, stage or self.stage, at
        self._window = None

    @property
    def settled(self) -> bool:
        """Whether all of its shape is at work, and nothing else."""
        desk = self._job.masters.desk
        if desk is None or desk.state.healing or not desk.record.owners:
            return False
        state = desk.state
        workers = [node for node in state.of_kind(RoleKind.WORKER) if node.state is NodeState.JOINED]
        serving = set(desk.record.owners)
        return (
            len(workers) == self.shape.workers
            and serving == set(rollout.staying(state.nodes))
            and len(serving) == self.shape.servers
        )

    def look(self, at: float) -> None:
        """Measure: from the last look to this one, if the job was settled at both."""
        before, self._window = self._window, None
        if not self.settled:
            return
        processes = self._job.machines.processes
        now = at, self._reports(), {life: process.cpu_s for life, process in processes.items()}
        self._window = now
        if before is None or at <= before[0]:
            return
        timing = _between(before[1], now[1])
        if timing.steps:
            self._profiles.append(Profile(shape=self.shape, batch=self._job.card.batch_size, timing=timing, at=at))
            del self._profiles[:-PROFILES]
        self._used = {
            life: (cpu_s - before[2][life]) / (at - before[0]) for life, cpu_s in now[2].items() if life in before[2]
        }

    def view(self, bounds: Bounds) -> JobView:
        """As it is now."""
        job, processes = self._job.setup.job, self._job.machines.processes
        uses = tuple(
            RoleUse(role=life.role, cpu_used=used, cpu=processes[life].cpu, memory_used=int(processes[life].memory))
            for life, used in sorted(self._used.items())
            if life in processes
        )
        return JobView(
            name=job.name, user=job.user, facts=job.facts, bounds=bounds, features=views.features(job),
            shape=self.shape, requested=job.requested, submitted_at=job.arrives_at, started_at=self.started_at,
            last_change_at=self.changed_at, samples_done=float(self._job.samples_done), samples_total=job.samples,
            stage=self.stage, profiles=tuple(self._profiles), uses=uses, launches=tuple(self.launches[-10:]),
        )  # fmt: skip

    def _reports(self) -> dict[Life, Report]:
        status = self._job.machines.status
        members = status.members if status is not None else ()
        return {
            Life(one.role, one.incarnation): one.report
            for one in members
            if one.role.kind is RoleKind.WORKER and one.joined
        }


def _between(before: Mapping[Life, Report], now: Mapping[Life, Report]) -> TimingSum:
    """What all workers that were there all the time have done."""
    total = TimingSum()
    for life, report in now.items():
        then = before.get(life)
        if then is None or report.step <= then.step:
            continue
        seconds = {
            name: report.seconds.get(name.removesuffix("_s"), 0.0) - then.seconds.get(name.removesuffix("_s"), 0.0)
            for name in SUM_FIELDS
            if name.endswith("_s")
        }
        total += TimingSum(steps=report.step - then.step, samples=report.samples - then.samples, **seconds)
    return total


def numbers_only(bounds: Bounds, size: Shape) -> Bounds:
    """Bounds within which only the numbers of workers and servers are free: a running pod keeps its size."""

    def sized(shape: Shape) -> Shape:
        return replace(size, workers=shape.workers, servers=shape.servers)

    return replace(bounds, least=sized(bounds.least), most=sized(bounds.most))
