"""Data workers of running jobs in virtual time: each round they are shared out and placed anew.

In: running jobs and machines. Out: their speeds. What decides is `planning.dataworkers`. Every job is tuned first
(`walk`): so long it holds a machine's share of cores for each trainer and as many for a first data worker; then its
trainers keep what they need at the speed they have (`lending`). Jobs are known by what their queues show (`FedJob`):
the next cores are taken to bring what the last did, and the next round corrects that. Data workers come and go at once:
they are stateless, and rounds are 30 s apart. Next: `running`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from springtide.planning.dataworkers import allocation
from springtide.planning.dataworkers.allocation import ROUNDING, CoreAllotment, CoreRules, FedJob, Metric, allot
from springtide_lab.reproduce.goldminer.simulation import node_placement
from springtide_lab.reproduce.goldminer.simulation.cluster import Host
from springtide_lab.reproduce.goldminer.simulation.node_placement import Machine, PlacementRequest, Seat
from springtide_lab.reproduce.goldminer.simulation.systems import Held, take
from springtide_lab.reproduce.goldminer.simulation.trace import Job, TracePreset
from springtide_lab.reproduce.goldminer.tuning_walk import Walk, walk

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
    kept = {name: one.needs for name, one in trainers.items()}
    return CoreSplit(allot(jobs, max(0.0, cpu - _held(trainers, kept)), metric, rules), kept)


def _share(job: FedJob, cpu: float) -> float:
    return job.at(cpu) / job.capable if job.capable > 0 else 1.0


def _held(trainers: Mapping[str, TrainerCores], each: Mapping[str, float]) -> float:
    return sum(trainers[name].number * cpu for name, cpu in each.items())


class Running(Protocol):
    """What a running job must say and be told."""

    job: Job
    held: Held
    speed: float
    started: float
    left: float


class Feeding:
    """The data workers of a cluster."""

    def __init__(self, hosts: Sequence[Host], metric: Metric, preset: TracePreset, seed: int) -> None:
        self._hosts, self._metric, self._rules, self._preset = hosts, metric, CoreRules(seed=seed), preset
        self._share = preset.cpus / preset.gpus
        self._known: dict[str, FedJob] = {}
        self._walks: dict[str, Walk] = {}
        self._seats: tuple[Seat, ...] = ()
        self.moved = 0.0
        self.local_share = 1.0

    def round(self, running: Sequence[Running], now: float, *, others: bool) -> bool:
        """Share out and place; True: something changed, so that there is something to measure.

        `others`: jobs have come or gone, so that there may be better places even for what stays as it is.
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
        placed = node_placement.place(wants, machines, self._seats)
        self._seats = placed.seats
        self.moved += placed.moved
        total = sum(seat.cpu for seat in placed.seats)
        self.local_share = placed.local(wants) / total if total else 1.0
        self._apply(running)
        return changed

    def _tuned(self, one: Running) -> Walk:
        name = one.job.model.name
        if name not in self._walks:
            self._walks[name] = walk(one.job.model, self._share)
        return self._walks[name]

    def _new(self, one: Running, now: float) -> bool:
        return now < one.started + len(self._tuned(one).stands) * self._preset.round_min - 1e-9

    def _settle(self, one: Running, now: float) -> None:
        """A trainer whose job is tuned gives back what it does not need; one that is fed has it settled by `_lend`."""
        tuned = self._tuned(one)
        if not self._new(one, now) and not tuned.end.data_workers:
            _hold(one, min(one.held[0][2], max(tuned.end.trainer_cpu - tuned.spare, self._preset.keep)))

    def _trainers(self, one: Running, now: float) -> TrainerCores:
        """What its trainers need; while it is tuned they keep what they began with."""
        if self._new(one, now):
            return TrainerCores(one.job.gpus, one.held[0][2], lends=False)
        needs = max(self._tuned(one).end.trainer_cpu, self._preset.keep)
        return TrainerCores(one.job.gpus, needs, lends=not self._preset.keep)

    def _lend(self, fed: Sequence[Running], kept: Mapping[str, float]) -> bool:
        """Trainers have so many cores from now on, where their machines have them. Whether anything changed."""
        changed = False
        for one in sorted(fed, key=lambda one: kept[one.job.name] - one.held[0][2]):  # those that give back first
            before, wanted = one.held[0][2], kept[one.job.name]
            if wanted != before:
                _hold(one, wanted)
                changed = True
        return changed

    def _seen(self, one: Running, cpu: float, now: float) -> FedJob:
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

    def _apply(self, running: Sequence[Running]) -> None:
        """What they make is what is trained, until a trainer can take no more."""
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


def _hold(one: Running, cpus: float) -> None:
    """Each of its trainers has so many cores."""
    for host, _, before in one.held:
        take(host, 0, cpus - before)
    one.held = [(host, gpus, cpus) for host, gpus, _ in one.held]


def _cores(seats: Sequence[Seat]) -> dict[str, float]:
    found: dict[str, float] = {}
    for seat in seats:
        found[seat.job] = found.get(seat.job, 0.0) + seat.cpu
    return found


def _homes(one: Running) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host.name for host, _, _ in one.held))
