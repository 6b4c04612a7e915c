"""Simulates several jobs on one virtual cluster; each real master plans its job with a real policy.

In: a world, jobs with their faults, and a policy. Out: a `VirtualOutcome` per job, with its counts. Each job starts
with the policy's plan for an unknown job. Its master then asks the policy, checks the plans and carries them out step
by step (`master.autoscale.loop`). Pods take time to start (`sim.world.world`) and fail at the world's rates
(`faults.Luck`).
"""

import asyncio
import pathlib
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from springtide.domain.core.roles import WantedRole
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.plan.plan import Advice, ShapePlan
from springtide.domain.plan.view import ClusterView, JobView, PastJob, TrainingProgress
from springtide.domain.spec.planning_config import PlanningConfig, PlanningIdentity, PlanningStage, PlanRules
from springtide.sim.engine import running_job
from springtide.sim.engine.systems import System
from springtide.sim.world.parameters import ClusterWorld
from springtide.sim.world.world import Cluster, TrueJob, pending_s
from tests.virtual_jobs.faults import Luck
from tests.virtual_jobs.job import Setup, VirtualJob, VirtualOutcome

HEARTBEAT_S, STRIDE_S = 10.0, 5.0  # coarser than in real jobs, to save simulation time
Watch = Callable[[float, int], None]


@dataclass(slots=True)
class Fleet:
    """Results of all jobs."""

    outcomes: list[VirtualOutcome] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    """Number of faults by kind."""
    decisions: int = 0
    plans: Counter[str] = field(default_factory=Counter)
    """Number of plans by outcome: taken, refused, done."""
    hours: float = 0.0
    """Hours of all jobs together."""


class FleetRun:
    """All jobs of one simulation."""

    def __init__(
        self,
        world: ClusterWorld,
        jobs: Iterable[TrueJob],
        system: System,
        folder: pathlib.Path,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        stride_s: float = STRIDE_S,
        watch: Watch | None = None,
    ) -> None:
        self._world, self._jobs, self._system, self._folder = world, tuple(jobs), system, folder
        self._heartbeat_s, self._stride_s, self._watch = heartbeat_s, stride_s, watch
        self._loop = asyncio.get_running_loop()
        self._config = PlanningConfig(exact_seconds=0.0)
        self._bounds = without_memory(running_job.bounds(world, elastic=True))
        self._capacity = Cluster(world).capacity
        self._running: dict[str, VirtualJob] = {}
        self.fleet = Fleet()

    async def run(self) -> Fleet:
        living = {self._loop.create_task(self._live(job)) for job in self._jobs}
        try:
            while living:
                done, living = await asyncio.wait(living, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in living:
                task.cancel()
        return self.fleet

    def room(self) -> ResourceBudget:
        held = sum(running.machines.cpu for running in self._running.values())
        return replace(self._capacity, cpu=max(0.0, self._capacity.cpu - held))

    async def _live(self, job: TrueJob) -> None:
        await asyncio.sleep(job.arrives_at - self._loop.time())
        adviser = PolicyAdviser(self._system, self._config, self.room)
        setup = self._setup(job)
        running = self._running[job.name] = VirtualJob(setup, self._folder / job.name.replace("~", "-"), adviser)
        luck = Luck(running, self._world, random.Random(job.seed))
        going_wrong = self._loop.create_task(luck.run())
        try:
            outcome = await running.run()
        finally:
            going_wrong.cancel()
        del self._running[job.name]
        fleet = self.fleet
        fleet.outcomes.append(replace(outcome, name=job.name, jct_s=self._loop.time() - job.arrives_at))
        fleet.happened.update(luck.done)
        fleet.hours += outcome.jct_s / 3600
        fleet.decisions += adviser.asked
        fleet.plans.update(str(line["outcome"]) for _, kind, line in outcome.story if kind == "plan")
        if self._watch is not None:
            self._watch(self._loop.time(), len(fleet.outcomes))

    def _setup(self, job: TrueJob) -> Setup:
        """Return the job with its first shape and its planning rules."""
        plan, chance = first_plan(job, self._bounds, self._system, self._config, self.room()), _luck_of(job)
        elastic = self._system.mechanisms.elastic
        beat, config = self._heartbeat_s, self._config
        rules = PlanRules(
            bounds=self._bounds,
            config=config,
            stage=plan.stage or PlanningStage.SAMPLING,
            why=plan.reason,
            every_s=self._system.every_s,
            settle_s=2 * beat,
            window_s=max(2 * beat, config.sample_s / 3),
        )
        return Setup(
            job=job,
            shape=replace(plan.shape, worker_memory=0, server_memory=0),
            seed=job.seed,
            heartbeat_s=beat,
            stride_s=self._stride_s,
            save_every_s=self._world.changes.save_every_s,
            planning=rules if elastic else PlanRules(),
            starts_s=lambda wanted, _: self._starts_s(wanted, chance),
        )

    def _starts_s(self, wanted: WantedRole, chance: np.random.Generator) -> float:
        pending = pending_s(self._world, wanted.cpu or 1.0, 1, chance)
        return pending + self._world.pods.launch_s + self._world.pods.init_s


def _luck_of(job: TrueJob) -> np.random.Generator:
    return np.random.default_rng(job.seed)


def without_memory(bounds: ShapeBounds) -> ShapeBounds:
    """Return the bounds without memory limits: this simulation does not limit memory."""
    return replace(
        bounds,
        least=replace(bounds.least, worker_memory=0, server_memory=0),
        most=replace(bounds.most, worker_memory=0, server_memory=0),
    )


class PolicyAdviser:
    """The policy as an adviser of one job. `room` returns the free resources of the cluster."""

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
        decision = self._system.policy(seen, self._config)
        plan = decision.plan_for(view.name)
        self.planned += plan is not None
        return Advice(epoch=epoch, why=decision.why, plan=plan, notes=decision.notes)

    async def conclude(self, past: PastJob) -> None: ...

    async def close(self) -> None: ...


def first_plan(
    job: TrueJob, bounds: ShapeBounds, system: System, config: PlanningConfig, capacity: ResourceBudget
) -> ShapePlan:
    """Return the policy's plan for an unknown job, or the user's request if the policy has no plan."""
    view = JobView(
        name=job.name,
        identity=PlanningIdentity(user=job.user, features=running_job.features(job)),
        facts=job.facts,
        bounds=bounds,
        requested=job.requested,
        progress=TrainingProgress(submitted_at=job.arrives_at, samples_total=job.samples),
        stage=PlanningStage.WAITING,
    )
    decision = system.policy(ClusterView(now=job.arrives_at, capacity=capacity, jobs=(view,)), config)
    wish = job.requested
    asked = Shape(workers=wish.workers, servers=wish.servers, worker_cpu=wish.worker_cpu, server_cpu=wish.server_cpu)
    return decision.plan_for(job.name) or ShapePlan(
        job=job.name, shape=asked, reason=decision.why, stage=PlanningStage.ADJUSTING
    )
