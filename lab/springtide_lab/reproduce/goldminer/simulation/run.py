"""One run of one system in virtual time: jobs wait, run and end; between two events every speed is constant.

In: jobs, a `System`, a `Preset`. Out: a `Story`: when each job began and ended, and what was allocated over time.
Next: `measured` makes figures of it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from springtide.planning.dataworkers import allocation
from springtide_lab.reproduce.goldminer.simulation import systems
from springtide_lab.reproduce.goldminer.simulation.cluster import Host
from springtide_lab.reproduce.goldminer.simulation.elastic import Feeding
from springtide_lab.reproduce.goldminer.simulation.systems import Held, SharingSystem
from springtide_lab.reproduce.goldminer.simulation.trace import Job, TracePreset

DONE = 1e-9


@dataclass(slots=True)
class ClusterRun:
    """A job that runs."""

    job: Job
    held: Held
    speed: float
    started: float
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """A job that has ended."""

    job: Job
    started: float
    ended: float

    @property
    def jct(self) -> float:
        return self.ended - self.job.at

    @property
    def queued(self) -> float:
        return self.started - self.job.at


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMoment:
    """How the cluster was from a moment on: shares of what there is."""

    at: float
    gpus: float
    cpus: float
    fragmentation: float
    local: float


@dataclass(slots=True, kw_only=True)
class ClusterStory:
    """What happened."""

    ends: list[JobEnd] = field(default_factory=list)
    moments: list[ClusterMoment] = field(default_factory=list)
    moved: float = 0.0
    """Cores of data workers that changed machines."""


def run(jobs: Sequence[Job], system: SharingSystem, preset: TracePreset, seed: int = 0) -> ClusterStory:
    return _World(jobs, system, preset, seed).live()


class _World:
    def __init__(self, jobs: Sequence[Job], system: SharingSystem, preset: TracePreset, seed: int) -> None:
        self._coming, self._waiting, self._running = deque(jobs), deque[Job](), list[ClusterRun]()
        self._system, self._preset = system, preset
        self._hosts = [Host(f"m{place}", preset.gpus, float(preset.cpus)) for place in range(preset.machines)]
        self._now, self._next_round, self._story = 0.0, float("inf"), ClusterStory()
        self._feeding = None
        if system.elastic:
            metric = allocation.load(system.metric)
            self._feeding = Feeding(self._hosts, metric, preset, seed)

    def live(self) -> ClusterStory:
        while self._coming or self._waiting or self._running:
            self._pass_to(self._next())
            changed = self._end() | self._arrive()
            changed |= self._start()
            if self._feeding is not None and (changed or self._now >= self._next_round - DONE):
                self._share(changed)
            self._note()
        if self._feeding is not None:
            self._story.moved = self._feeding.moved
        return self._story

    def _next(self) -> float:
        ends = [self._now + one.left / one.speed for one in self._running if one.speed > 0]
        arrival = [self._coming[0].at] if self._coming else []
        return min([*ends, *arrival, self._next_round])

    def _pass_to(self, at: float) -> None:
        for one in self._running:
            one.left -= one.speed * (at - self._now)
        self._now = at

    def _end(self) -> bool:
        over = [one for one in self._running if one.left <= DONE * max(one.job.minutes, 1.0)]
        for one in over:
            for host, gpus, cpus in one.held:
                systems.take(host, -gpus, -cpus)
                host.distributed.discard(one.job.name)
            self._story.ends.append(JobEnd(job=one.job, started=one.started, ended=self._now))
        self._running = [one for one in self._running if one not in over] if over else self._running
        return bool(over)

    def _arrive(self) -> bool:
        before = len(self._waiting)
        while self._coming and self._coming[0].at <= self._now:
            self._waiting.append(self._coming.popleft())
        return len(self._waiting) > before

    def _start(self) -> bool:
        """First come, first served: who is first and does not fit keeps all others waiting."""
        before = len(self._running)
        while self._waiting:
            job = self._waiting[0]
            found = systems.start(self._system, job, self._hosts, self._preset.cpus / self._preset.gpus)
            if found is None and not self._running:
                raise ValueError(f"{job.name} of {job.gpus} GPUs of {job.model.name} fits no empty cluster")
            if found is None:
                break
            held, speed = found
            for host, gpus, cpus in held:
                systems.take(host, gpus, cpus)
            if len({host.name for host, gpus, _ in held if gpus}) > 1:
                for host, _, _ in held:
                    host.distributed.add(job.name)
            self._running.append(ClusterRun(job, held, speed, self._now, job.minutes))
            self._waiting.popleft()
        return len(self._running) > before

    def _share(self, changed: bool) -> None:
        assert self._feeding is not None
        news = self._feeding.round(self._running, self._now, others=changed) or changed
        if not news and not self._coming and not any(one.speed > 0 for one in self._running):
            raise ValueError(f"{self._system.name}: {len(self._running)} jobs stand still for want of cores")
        wait = self._preset.round_min if news else self._preset.quiet_min
        self._next_round = self._now + wait if self._running else float("inf")

    def _note(self) -> None:
        gpus = sum(host.gpus for host in self._hosts)
        cpus = sum(host.cpus for host in self._hosts)
        self._story.moments.append(
            ClusterMoment(
                at=self._now,
                gpus=1 - sum(host.gpus_free for host in self._hosts) / gpus,
                cpus=1 - sum(host.cpus_free - host.fed for host in self._hosts) / cpus,
                fragmentation=sum(host.fragmentation for host in self._hosts) / len(self._hosts),
                local=self._feeding.local_share if self._feeding else 1.0,
            )
        )
