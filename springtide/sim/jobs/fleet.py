"""Some jobs at once on one virtual cluster: a real policy sizes them, their real masters carry it out.

In: a world, jobs with their luck, a policy. Out: an `Outcome` a job, with its counts. Each job begins with the numbers
that the policy gives it, in pods of the size that its user asked for, and is shown to the policy every so often; a plan
reaches its master as `springtide scale` does. Pods take their time to come (`sim.cluster`), and are lost at the world's
rates.
"""

import asyncio
import pathlib
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from springtide import errors
from springtide.domain.cluster import WantedRole
from springtide.domain.plan import Plan
from springtide.domain.planning import PlanningConfig
from springtide.domain.shape import Bounds, Shape
from springtide.domain.stages import Stage
from springtide.domain.view import ClusterView, JobView, Launch
from springtide.sim import cluster as clusters
from springtide.sim import systems, views
from springtide.sim.cluster import Cluster
from springtide.sim.jobs.job import Outcome, Setup, VirtualJob
from springtide.sim.jobs.luck import Luck
from springtide.sim.jobs.shown import Shown, numbers_only
from springtide.sim.parameters import World
from springtide.sim.systems import System
from springtide.sim.world import Job

HEARTBEAT_S, STRIDE_S = 10.0, 5.0  # coarser than real ones, which cost more to simulate
Watch = Callable[[float, int], None]


@dataclass(slots=True)
class Fleet:
    """What became of the jobs."""

    outcomes: list[Outcome] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    """What went wrong, by kind."""
    decisions: int = 0
    plans: int = 0
    refused: int = 0
    """Plans that the cluster had no room for, or that a master would not carry out."""
    hours: float = 0.0
    """Of all jobs together."""


class _Waiting:
    """A job that nothing of runs yet."""

    def __init__(self, job: Job) -> None:
        self.job, self.planned = job, asyncio.Event()
        self.plan: Plan | None = None


class Running:
    """All jobs of one simulation."""

    def __init__(
        self, world: World, jobs: Iterable[Job], system: System, folder: pathlib.Path, *,
        heartbeat_s: float = HEARTBEAT_S, stride_s: float = STRIDE_S, watch: Watch | None = None,
    ) -> None:  # fmt: skip
        self._world, self._jobs, self._system, self._folder = world, tuple(jobs), system, folder
        self._heartbeat_s, self._stride_s, self._watch = heartbeat_s, stride_s, watch
        self._loop = asyncio.get_running_loop()
        self._config = PlanningConfig(exact_seconds=0.0)
        self._bounds = views.bounds(world)
        self._cluster = Cluster(world)
        self._waiting: dict[str, _Waiting] = {}
        self._shown: dict[str, Shown] = {}
        self._running: dict[str, VirtualJob] = {}
        self._launches: list[Launch] = []
        self.fleet = Fleet()

    async def run(self) -> Fleet:
        """Until the last job is over."""
        asking = self._loop.create_task(self._ask_now_and_then())
        living = {self._loop.create_task(self._live(job)) for job in self._jobs}
        try:
            while living:
                done, _ = await asyncio.wait({asking, *living}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                living -= done
        finally:
            for task in (asking, *living):
                task.cancel()
        return self.fleet

    # ---- one job ----

    async def _live(self, job: Job) -> None:
        await asyncio.sleep(job.arrives_at - self._loop.time())
        waiting = self._waiting[job.name] = _Waiting(job)
        self._ask()
        await waiting.planned.wait()
        assert waiting.plan is not None
        plan, chance = waiting.plan, np.random.default_rng(job.seed)
        setup = Setup(
            job=job, shape=plan.shape, seed=job.seed, heartbeat_s=self._heartbeat_s, stride_s=self._stride_s,
            save_every_s=self._world.save_every_s,
            starts_s=lambda wanted, _: self._starts_s(job.name, wanted, chance),
        )  # fmt: skip
        folder = self._folder / job.name.replace("~", "-")
        running = self._running[job.name] = VirtualJob(setup, folder)
        self._shown[job.name] = Shown(running, plan.shape, plan.stage, self._loop.time())
        luck = Luck(running, self._world, random.Random(job.seed))
        going_wrong = self._loop.create_task(luck.run())
        try:
            outcome = await running.run()
        finally:
            going_wrong.cancel()
        held = self._shown.pop(job.name).shape
        del self._running[job.name]
        self._cluster.take(-held.cpu, -held.memory)
        self.fleet.outcomes.append(replace(outcome, name=job.name, jct_s=self._loop.time() - job.arrives_at))
        self.fleet.happened.update(luck.done)
        self.fleet.hours += outcome.jct_s / 3600
        if self._watch is not None:
            self._watch(self._loop.time(), len(self.fleet.outcomes))

    def _starts_s(self, name: str, wanted: WantedRole, chance: np.random.Generator) -> float:
        cpu, memory = wanted.cpu or 1.0, wanted.memory or 0
        seconds = clusters.pending_s(self._world, cpu, 1, chance) + self._world.launch_s + self._world.init_s
        launch = Launch(kind=wanted.role.kind, cpu=cpu, memory=memory, seconds=seconds)
        self._launches.append(launch)
        del self._launches[:-50]
        if name in self._shown:
            self._shown[name].launches.append(launch)
        return seconds

    # ---- the policy ----

    async def _ask_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._system.every_s)
            self._ask()

    def _ask(self) -> None:
        """One decision about all jobs that wait, or have been measured since they last changed."""
        now, seen = self._loop.time(), []
        held_cpu, held_memory = 0.0, 0.0
        for waiting in self._waiting.values():
            seen.append(_unborn(waiting.job, self._bounds_of(waiting.job)))
        for name, shown in self._shown.items():
            shown.look(now)
            if shown.settled and now - shown.changed_at >= self._config.sample_s:
                held_cpu, held_memory = held_cpu + shown.shape.cpu, held_memory + shown.shape.memory
                seen.append(shown.view(self._bounds_of(self._running[name].setup.job)))
        if not seen:
            return
        free = self._cluster.free
        capacity = replace(free, cpu=free.cpu + held_cpu, memory=free.memory + held_memory)
        view = ClusterView(now=now, capacity=capacity, jobs=tuple(seen), launches=tuple(self._launches))
        decision = systems.check(self._system.policy(view, self._config), self._system.name)
        self.fleet.decisions += 1
        for plan in sorted(decision.plans, key=lambda plan: plan.shape.cpu):
            self._carry_out(plan, now)

    def _bounds_of(self, job: Job) -> Bounds:
        return numbers_only(self._bounds, job.requested)

    def _carry_out(self, plan: Plan, now: float) -> None:
        shown, waiting = self._shown.get(plan.job), self._waiting.get(plan.job)
        before = shown.shape if shown is not None else None
        if (before is not None and _numbers(before) == _numbers(plan.shape)) or (shown is None and waiting is None):
            if shown is not None:
                shown.stage = plan.stage or shown.stage
            return
        cpu = plan.shape.cpu - (before.cpu if before is not None else 0.0)
        memory = plan.shape.memory - (before.memory if before is not None else 0)
        if (cpu > 0 or memory > 0) and not self._cluster.fits(max(cpu, 0.0), max(memory, 0.0)):
            self.fleet.refused += 1
            return
        self._cluster.take(cpu, memory)
        self.fleet.plans += 1
        if waiting is not None:
            waiting.plan = plan
            del self._waiting[plan.job]
            waiting.planned.set()
        elif shown is not None:
            shown.plan(plan.shape, plan.stage, now)
            self._loop.create_task(self._scale(self._running[plan.job], plan))

    async def _scale(self, job: VirtualJob, plan: Plan) -> None:
        try:
            await job.scale(workers=plan.shape.workers, servers=plan.shape.servers, why=plan.reason)
        except errors.SpringtideError:
            self.fleet.refused += 1


def _numbers(shape: Shape) -> tuple[int, int]:
    return shape.workers, shape.servers


def _unborn(job: Job, bounds: Bounds) -> JobView:
    return JobView(
        name=job.name, user=job.user, facts=job.facts, bounds=bounds, features=views.features(job),
        requested=job.requested, submitted_at=job.arrives_at, samples_total=job.samples, stage=Stage.WAITING,
    )  # fmt: skip
