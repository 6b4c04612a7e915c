"""Simulate one system on a cluster in virtual time: jobs wait, run and end, and their speeds are constant between two
events.

In: jobs, a `SharingSystem`, a `TracePreset`. Out: a `ClusterStory`, and its `Figures`. The tuner of real jobs first
tunes every job (`walk`: Fig. 13). Afterwards each job lends its unused trainer cores to other jobs.
"""

import functools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from springtide.domain.data.data_workers import FeedRules, FeedSeen, FeedTarget, StageSeen
from springtide.planning.dataworkers import allocation, tuner
from springtide.planning.dataworkers.allocation import ROUNDING, CoreAllotment, CoreRules, FedJob, Metric, allot
from springtide_lab.reproduce.goldminer import node_placement
from springtide_lab.reproduce.goldminer.jobs import GpuModel, Job, TracePreset
from springtide_lab.reproduce.goldminer.node_placement import Machine, PlacementRequest, Seat
from springtide_lab.reproduce.goldminer.systems import Held, Host, SharingSystem, start, take

DONE = 1e-9
INTERVALS = 80
"""Largest number of intervals of a walk; real walks are shorter."""
QUIET = 6
"""Number of intervals without a change after which a walk is over."""
FREE = 256.0
"""Cores that a tuned job may use in addition to its trainer's cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """State of a job in one interval of its walk."""

    data_workers: int
    data_worker_cpu: float
    trainer_cpu: float
    speed: float
    """Share of the job's ideal speed."""
    why: str = ""
    """Reason of the decision that led to the next interval."""

    @property
    def sizes(self) -> tuple[int, float, float]:
        return self.data_workers, self.data_worker_cpu, self.trainer_cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The tuning of one job, from the first interval to the last change."""

    stands: tuple[Stand, ...]
    spare: float = 0.0
    """Cores of the trainer that other jobs may use, if the walk ends without data workers."""

    @property
    def end(self) -> Stand:
        return self.stands[-1]


@functools.cache
def walk(model: GpuModel, share: float = 8.0) -> Walk:
    tuning = tuner.begin(FeedRules())
    stand = Stand(data_workers=0, data_worker_cpu=0.0, trainer_cpu=share, speed=model.alone(share))
    stands: list[Stand] = []
    target = FeedTarget(data_workers=0, data_worker_cpu=None, trainer_cpu=None, why="")
    spare = 0.0
    for interval in range(INTERVALS):
        seen = _seen(model, stand, 30.0 * (interval + 1), share)
        tuning, target = tuner.decide(tuning, seen)
        spare = max(0.0, seen.trainer_cpu - math.ceil(seen.trainer_cpu_used - 1e-9) - 1.0) * seen.trainers
        stands.append(replace(stand, why=target.why))
        stand = _carried_out(model, stand, target)
        if len(stands) > QUIET and len({one.sizes for one in (*stands[-QUIET:], stand)}) == 1:
            break
    last = max((place for place in range(1, len(stands)) if stands[place].sizes != stands[place - 1].sizes), default=0)
    return Walk(stands=tuple(stands[: last + 1]), spare=0.0 if target.data_workers else spare)


def _carried_out(model: GpuModel, stand: Stand, target: FeedTarget) -> Stand:
    count = target.data_workers
    cpu = (target.data_worker_cpu or stand.data_worker_cpu) if count else 0.0
    trainer = target.trainer_cpu or stand.trainer_cpu
    speed = min(model.fed(count * cpu), _takes(model, trainer)) if count else model.alone(trainer)
    return Stand(data_workers=count, data_worker_cpu=cpu, trainer_cpu=trainer, speed=speed)


def _takes(model: GpuModel, trainer: float) -> float:
    return trainer / (model.trainer - 0.5)


def _seen(model: GpuModel, stand: Stand, at: float, share: float) -> FeedSeen:
    fed = stand.data_workers > 0
    could = stand.data_workers * stand.data_worker_cpu / model.feeding
    capable = min(model.capable, _takes(model, stand.trainer_cpu)) if fed else 1.0
    waits = max(0.0, 1.0 - could / capable) if fed else 0.0
    uses = stand.speed * (model.trainer - 0.5 if fed else model.ratio)
    own = 0.0 if fed else 1.0 - stand.speed  # with all work in one process: the share of time lost to preprocessing
    stage = StageSeen(
        consumers=1,
        workers=stand.data_workers,
        cpu=stand.data_worker_cpu,
        cpu_used=stand.data_worker_cpu * min(1.0, capable / could) if could else 0.0,
        made_per_s=stand.speed if fed else 0.0,
        capable_per_s=capable,
        fill=0.0 if not fed else 0.95 if could > 1.05 * capable else 0.5 if could >= capable else 0.05,
        wait_share=waits,
    )
    return FeedSeen(
        at=at,
        trainers=1,
        stages=(stage,),
        trainer_cpu=stand.trainer_cpu,
        trainer_cpu_used=min(stand.trainer_cpu, uses),
        steps_per_s=stand.speed,
        capable_per_s=capable,
        own_share=own,
        free_cpu=FREE - stand.data_workers * stand.data_worker_cpu,
        share_cpu=share,
    )


@dataclass(slots=True)
class ClusterRun:
    """A running job."""

    job: Job
    held: Held
    speed: float
    started: float
    left: float


TRIES = 4


class TrainerCores(NamedTuple):
    """Number of trainers of one job, and the cores of each."""

    number: int
    needs: float
    """Cores of one trainer at full speed."""
    lends: bool = True
    """True if the need is known. A job that is still being tuned keeps its cores."""


class CoreSplit(NamedTuple):
    """Division of cores between data workers and trainers."""

    data_workers: CoreAllotment
    trainer_cpu: Mapping[str, float]
    """Cores of each trainer, by job."""


def keeps(trainers: TrainerCores, share: float, grain: float) -> float:
    """Return the cores that a trainer keeps at this share of its full speed."""
    if not trainers.lends:
        return trainers.needs
    wanted = math.ceil(trainers.needs * min(share, 1.0) / grain - ROUNDING) * grain
    return min(trainers.needs, max(wanted, grain))


def share(
    jobs: Sequence[FedJob],
    trainers: Mapping[str, TrainerCores],
    cpu: float,
    metric: Metric,
    rules: CoreRules,
) -> CoreSplit:
    """Divide the cores. If lending does not converge within TRIES rounds, no trainer lends."""
    kept = {job.name: keeps(trainers[job.name], _share(job, job.cpu), rules.grain) for job in jobs}
    for _ in range(TRIES):
        given = allot(jobs, max(0.0, cpu - _held(trainers, kept)), metric, rules)
        wanted = {job.name: keeps(trainers[job.name], _share(job, given.cores[job.name]), rules.grain) for job in jobs}
        if given.total + _held(trainers, wanted) <= cpu + ROUNDING:
            return CoreSplit(given, wanted)
        kept = {name: max(kept[name], wanted[name]) for name in kept}
    kept = {name: trainer.needs for name, trainer in trainers.items()}
    return CoreSplit(allot(jobs, max(0.0, cpu - _held(trainers, kept)), metric, rules), kept)


def _share(job: FedJob, cpu: float) -> float:
    return job.at(cpu) / job.capable if job.capable > 0 else 1.0


def _held(trainers: Mapping[str, TrainerCores], each: Mapping[str, float]) -> float:
    return sum(trainers[name].number * cpu for name, cpu in each.items())


class Feeding:
    """The data workers of a cluster."""

    def __init__(self, hosts: Sequence[Host], metric: Metric, preset: TracePreset, seed: int) -> None:
        self._hosts, self._metric, self._rules, self._preset = hosts, metric, CoreRules(seed=seed), preset
        self._share = preset.cpus / preset.gpus
        self._known: dict[str, FedJob] = {}
        self._walks: dict[str, Walk] = {}
        self._seats: tuple[Seat, ...] = ()
        self.local_share = 1.0

    def round(self, running: Sequence[ClusterRun], now: float, *, others: bool) -> bool:
        """Divide cores between jobs and place data workers; return True if anything changed and must be measured.

        `others` says that jobs have started or ended. Data workers whose number stays the same may then find better
        places.
        """
        for one in running:
            self._settle(one, now)
        cores = _cores(self._seats)
        fed = [one for one in running if self._tuned(one).end.data_workers]
        feds = [self._seen(one, cores.get(one.job.name, 0.0), now) for one in fed]
        trainers = {one.job.name: self._trainers(one, now) for one in fed}
        there = sum(host.cpus_free for host in self._hosts) + sum(cpus for one in fed for _, _, cpus in one.held)
        given, kept = share(feds, trainers, there, self._metric, self._rules)
        lent = self._lend(fed, kept)
        changed = lent or any(given.cores[one.name] != one.cpu for one in feds)
        self._known = {one.name: one for one in feds}
        if not changed and not others:
            return False
        wants = [PlacementRequest(job=one.job.name, cpu=given.cores[one.job.name], homes=_homes(one)) for one in fed]
        machines = [
            Machine(name=host.name, cpu=host.cpus_free, distributed=len(host.distributed)) for host in self._hosts
        ]
        self._seats = node_placement.place(wants, machines, self._seats)
        homes = {want.job: want.homes for want in wants}
        total = sum(seat.cpu for seat in self._seats)
        local = sum(seat.cpu for seat in self._seats if seat.machine in homes[seat.job])
        self.local_share = local / total if total else 1.0
        self._apply(running)
        return changed

    def _tuned(self, one: ClusterRun) -> Walk:
        name = one.job.model.name
        if name not in self._walks:
            self._walks[name] = walk(one.job.model, self._share)
        return self._walks[name]

    def _new(self, one: ClusterRun, now: float) -> bool:
        return now < one.started + len(self._tuned(one).stands) * self._preset.round_min - 1e-9

    def _settle(self, one: ClusterRun, now: float) -> None:
        """Take unneeded cores from the trainer of a tuned job without data workers; `_lend` handles other jobs."""
        tuned = self._tuned(one)
        if not self._new(one, now) and not tuned.end.data_workers:
            _hold(one, min(one.held[0][2], max(tuned.end.trainer_cpu - tuned.spare, self._preset.keep)))

    def _trainers(self, one: ClusterRun, now: float) -> TrainerCores:
        if self._new(one, now):
            return TrainerCores(one.job.gpus, one.held[0][2], lends=False)
        needs = max(self._tuned(one).end.trainer_cpu, self._preset.keep)
        return TrainerCores(one.job.gpus, needs, lends=not self._preset.keep)

    def _lend(self, fed: Sequence[ClusterRun], kept: Mapping[str, float]) -> bool:
        """Set the numbers of cores of trainers; return True if a number has changed."""
        changed = False
        for one in sorted(fed, key=lambda one: kept[one.job.name] - one.held[0][2]):  # first take cores, then give them
            before, wanted = one.held[0][2], kept[one.job.name]
            if wanted != before:
                _hold(one, wanted)
                changed = True
        return changed

    def _seen(self, one: ClusterRun, cpu: float, now: float) -> FedJob:
        name, gpus, end = one.job.name, one.job.gpus, self._tuned(one).end
        before = self._known.get(name)
        if before is None:
            before = FedJob(name=name, gpus=gpus, speed=0.0, capable=end.speed, cpu=0.0)
        least = (self._share if self._new(one, now) else 1.0) * gpus
        if before.least != least:
            before = replace(before, least=least)
        if not cpu:
            return replace(before, steps_left=one.left)
        return allocation.corrected(before, speed=one.speed, capable=end.speed, cpu=cpu, steps_left=one.left)

    def _apply(self, running: Sequence[ClusterRun]) -> None:
        cores = _cores(self._seats)
        on: dict[str, float] = {}
        for seat in self._seats:
            on[seat.machine] = on.get(seat.machine, 0.0) + seat.cpu
        for host in self._hosts:
            host.fed = on.get(host.name, 0.0)
        for one in running:
            end = self._tuned(one).end
            made = one.job.model.fed(cores.get(one.job.name, 0.0) / one.job.gpus)
            one.speed = min(made, end.speed) if end.data_workers else end.speed


def _hold(one: ClusterRun, cpus: float) -> None:
    for host, _, before in one.held:
        take(host, 0, cpus - before)
    one.held = [(host, gpus, cpus) for host, gpus, _ in one.held]


def _cores(seats: Sequence[Seat]) -> dict[str, float]:
    found: dict[str, float] = {}
    for seat in seats:
        found[seat.job] = found.get(seat.job, 0.0) + seat.cpu
    return found


def _homes(one: ClusterRun) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host.name for host, _, _ in one.held))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """A job that has ended; times are in minutes."""

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
    """State of the cluster from a time on, as shares of its resources."""

    at: float
    gpus: float
    cpus: float
    fragmentation: float
    local: float


@dataclass(slots=True, kw_only=True)
class ClusterStory:
    """Ended jobs and states of the cluster in one run."""

    ends: list[JobEnd] = field(default_factory=list)
    moments: list[ClusterMoment] = field(default_factory=list)


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
                take(host, -gpus, -cpus)
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
        before = len(self._running)
        while self._waiting:
            job = self._waiting[0]
            found = start(self._system, job, self._hosts, self._preset.cpus / self._preset.gpus)
            if found is None and not self._running:
                raise ValueError(f"{job.name} of {job.gpus} GPUs of {job.model.name} fits no empty cluster")
            if found is None:
                break
            held, speed = found
            for host, gpus, cpus in held:
                take(host, gpus, cpus)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one simulation: times in minutes, and shares."""

    jct: float
    queueing: float
    gpus: float
    """Allocated share of all GPUs in the measured minutes."""
    cpus: float
    fragmentation: float
    """Mean of |share of free cores - share of free GPUs| over machines and time, as defined in section 2."""
    local: float
    """Share of the data workers' cores that are on the same machine as one of their trainers."""


def figures(story: ClusterStory, until: float) -> Figures:
    count = len(story.ends)
    return Figures(
        jct=sum(end.jct for end in story.ends) / count,
        queueing=sum(end.queued for end in story.ends) / count,
        gpus=mean(story.moments, until, lambda one: one.gpus),
        cpus=mean(story.moments, until, lambda one: one.cpus),
        fragmentation=mean(story.moments, until, lambda one: one.fragmentation),
        local=mean(story.moments, until, lambda one: one.local),
    )


def mean(moments: Sequence[ClusterMoment], until: float, value: Callable[[ClusterMoment], float]) -> float:
    total, last = 0.0, 0.0
    for moment, following in zip(moments, [*moments[1:], None], strict=True):
        begin, end = min(moment.at, until), min(following.at if following else until, until)
        total += value(moment) * (end - begin)
        last = end
    return total / max(last, 1e-9) if moments else 0.0
