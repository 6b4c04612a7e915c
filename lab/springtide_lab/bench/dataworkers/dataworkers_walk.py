"""Reproduce Fig. 13 of GoldMiner with real processes: tune a job's data workers, decision by decision.

In: a trainer and data workers in control groups (walk_process.py), and a job's own tuner with a shorter interval. Out:
the sequence of decisions, and the final speed against a trainer that never waits for data
(`walk_vs_ideal`).
"""

import contextlib
import os
import time
from collections.abc import Sequence
from concurrent import futures
from typing import Any, NamedTuple

import msgspec
import numpy as np

from springtide import errors
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.data.data_workers import FeedRules, FeedSeen, FeedState, FeedTarget
from springtide.planning.dataworkers import observation, tuner
from springtide.planning.dataworkers.observation import Cores, StageCores, TrainerReport
from springtide.planning.dataworkers.tuning_rules import TuningPhase
from springtide.platforms.local import process_group
from springtide.telemetry.host.control_groups import ControlGroup
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report
from springtide_lab.bench.dataworkers.text_clicks import LogLines


class TunedStep(NamedTuple):
    """One interval: its end in seconds, the observations in the interval, and the reason for the decision after it."""

    at: float
    seen: FeedSeen
    why: str


CPU = 0.02
"""Share of a core that the walk counts as one CPU. The share is so small that 8 CPUs for the trainer and for each of
three data workers fit.
"""
RESERVE = 3
"""Number of data workers that start with the trainer and are attached later, because starting one costs seconds of CPU
time."""
SHARES = 5
"""Number of equal shares of the machine, as if each share had a GPU: one share for the trainer, the others for data
workers.
"""
END_S = 10.0


class WalkProcess:
    """A process in a control group. The process may use a whole core until `hold_to` sets a lower quota."""

    def __init__(self, name: str, group: ControlGroup, options: dict[str, Any]) -> None:
        self.name, self.group = name, group
        self.worker = peers.Worker("dataworkers/walk_process", options=options, admit=group.admit)

    def hold_to(self, cpus: float) -> None:
        self.group.hold_to(ProcessLimits(cpu=cpus * CPU))

    @property
    def cpu_s(self) -> float:
        """CPU time used so far, in seconds of the walk's CPUs."""
        return self.group.usage().cpu_s / CPU


class WalkProcesses:
    """A trainer and its data workers. A `with` statement starts the trainer, and ends all processes."""

    def __init__(self, *, step_s: float, trainer_cpu: float, cpus: float) -> None:
        self._step_s, self._trainer_cpu, self._cpus = step_s, trainer_cpu, cpus
        self._secret = os.urandom(32).hex()
        self._complaints: list[str] = []
        self._groups = process_group.Groups(self._complaints.append)
        self._reports: list[TrainerReport] = []
        self._started: list[WalkProcess] = []
        self._reserve: list[WalkProcess] = []
        self._feeders: list[WalkProcess] = []
        self._feeder_cpu = 0.0
        self._used_before: tuple[float, dict[str, float]] = (0.0, {})
        """Time of the last mark, and the CPU seconds that each process had used by then."""

    def __enter__(self) -> "WalkProcesses":
        try:
            with futures.ThreadPoolExecutor() as pool:  # in parallel, because importing torch takes seconds
                trainer = pool.submit(self._start, "trainer", role="trainer", step_s=self._step_s)
                self._reserve = list(pool.map(self._feeder, range(RESERVE)))
                self._trainer = trainer.result()
            while not any(now.state.taken for now in self.words()):
                time.sleep(0.05)
            self._trainer.hold_to(self._trainer_cpu)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._started.copy():
            self._end(member)
        self._groups.close()

    def carry_out(self, target: FeedTarget) -> bool:
        """Apply the tuner's target; return True if it changed anything. New data workers start with a whole core."""
        cpu = target.data_worker_cpu or 0.0
        before = (len(self._feeders), self._feeder_cpu, self._trainer_cpu)
        while len(self._feeders) > target.data_workers:
            leaving = self._feeders.pop()
            leaving.group.hold_to(ProcessLimits(cpu=1.0))
            leaving.worker.ask("round", what="drain")
            self._end(leaving)
        fresh = [self._attach() for _ in range(target.data_workers - len(self._feeders))]
        self._feeders += fresh
        if fresh:
            self._until_fed()
        if fresh or cpu != self._feeder_cpu:
            for member in self._feeders:
                member.hold_to(cpu)
        self._feeder_cpu = cpu if self._feeders else 0.0
        if target.trainer_cpu is not None and target.trainer_cpu != self._trainer_cpu:
            self._trainer_cpu = target.trainer_cpu
            self._trainer.hold_to(self._trainer_cpu)
        return before != (len(self._feeders), self._feeder_cpu, self._trainer_cpu)

    def mark(self) -> None:
        self.words()
        self._reports.clear()
        used = {member.name: member.cpu_s for member in (self._trainer, *self._feeders)}
        self._used_before = (time.monotonic(), used)

    def words(self) -> list[TrainerReport]:
        """Return the trainer's reports since the mark."""
        for told in self._trainer.worker.ask("round", what="reports")["reports"]:
            self._reports.append(TrainerReport(told["at"], msgspec.convert(told["state"], FeedState)))
        return list(self._reports)

    def cores(self) -> Cores:
        marked_at, before = self._used_before
        seconds = time.monotonic() - marked_at
        used = [(member.cpu_s - before[member.name]) / seconds for member in self._feeders]
        return Cores(
            stages=(StageCores(len(self._feeders), self._feeder_cpu, sum(used) / len(used) if used else 0.0),),
            trainer_cpu=self._trainer_cpu,
            trainer_cpu_used=(self._trainer.cpu_s - before["trainer"]) / seconds,
            free_cpu=self._cpus - self._trainer_cpu - len(self._feeders) * self._feeder_cpu,
            share_cpu=self._cpus / SHARES,
        )

    def _start(self, name: str, **options: Any) -> WalkProcess:
        group = self._groups.make(name, ProcessLimits(cpu=1.0))
        if group is None or self._complaints:
            raise errors.BadInput(f"the walk needs CPU quotas; {' '.join(self._complaints)}")
        self._started.append(WalkProcess(name, group, {"secret": self._secret, **options}))
        return self._started[-1]

    def _feeder(self, number: int) -> WalkProcess:
        return self._start(f"data-worker-{number}", role="feeder")

    def _attach(self) -> WalkProcess:
        member = self._reserve.pop() if self._reserve else self._feeder(len(self._started) + RESERVE)
        address = member.worker.ask("round", what="address")["address"]
        self._trainer.worker.ask("round", what="attach", name=member.name, address=address)
        return member

    def _until_fed(self) -> None:
        """Wait until all data workers are connected and one has made a batch. Under the quota of the data workers, the
        first batch takes seconds."""
        until = time.monotonic() + END_S
        made = max((now.state.made for now in self.words()), default=0)
        while time.monotonic() < until:
            if any(now.state.workers == len(self._feeders) and now.state.made > made for now in self.words()[-3:]):
                return
            time.sleep(0.05)

    def _end(self, member: WalkProcess) -> None:
        with contextlib.suppress(OSError):
            member.group.hold_to(ProcessLimits(cpu=1.0))
        member.worker.close()
        self._groups.remove(member.group)
        self._started.remove(member)


TRAINER_CPU = 8.0
CPUS = 40.0
"""CPUs in total: 8 for the trainer as in the paper, and four times as many for data workers."""
WORKERS_NEEDED = 2.7
"""Number of data workers with 8 CPUs that match the device's speed: just under three, as the paper's ResNet18 needed
three."""
EVERY_S = 3.5
"""Seconds between decisions, instead of 30, so that the whole walk takes about a minute."""
MOST_STEPS = 24
LEAST = 0.9


def bench(options: Options) -> report.Result:
    if why := process_group.why_not():
        return report.not_measured([("walk_vs_ideal", LEAST, "higher")], f"needs CPU quotas: {why}")
    every_s = 1.5 if options.quick else EVERY_S
    batch_s = cost()
    step_s = batch_s / (WORKERS_NEEDED * TRAINER_CPU * CPU)
    with WalkProcesses(step_s=step_s, trainer_cpu=TRAINER_CPU, cpus=CPUS) as crew:
        taken = walk(crew, every_s, most=6 if options.quick else MOST_STEPS)
    first, last = taken[0].seen, taken[-1].seen
    best = ideal(taken)
    return report.Result(
        goals=(report.goal("walk_vs_ideal", best and last.steps_per_s / best, target=LEAST, why="never well fed"),),
        rounds=1,
        columns=("s", "data workers", "CPUs each", "trainer's CPUs", "steps/s", "waits"),
        rows=tuple(
            (
                f"{one.at:.0f}",
                float(one.seen.last.workers),
                one.seen.last.cpu,
                one.seen.trainer_cpu,
                one.seen.steps_per_s,
                f"{one.seen.last.wait_share:.0%}",
            )
            for one in taken
        ),
        notes=(
            f"without data workers {first.steps_per_s:.0f} steps/s, in the end {last.steps_per_s:.0f}, "
            f"{last.steps_per_s / first.steps_per_s:.2f} times as many; a trainer with all its CPUs "
            f"that never waits for data would do {best or 0.0:.0f}, the device alone {1 / step_s:.0f}",
            f"a CPU is {CPU:g} of a core; a batch of {LogLines.BATCH} clicks costs {1e3 * batch_s:.1f} ms of a core; "
            f"the device is a wait of {1e3 * step_s:.1f} ms a step, so that {WORKERS_NEEDED:g} data workers of "
            f"{TRAINER_CPU:g} CPUs would just feed it",
            *(f"{one.at:.0f} s: {one.why}" for one in taken),
        ),
        details={
            "cpu": CPU,
            "data_workers": last.last.workers,
            "data_worker_cpu": last.last.cpu,
            "trainer_cpu": last.trainer_cpu,
        },
    )


def walk(crew: WalkProcesses, every_s: float, *, most: int) -> list[TunedStep]:
    """Observe an interval, decide and apply the decision, again and again until the tuner wants no more changes."""
    tuning = tuner.begin(FeedRules(every_s=every_s))
    began, taken, content = time.monotonic(), list[TunedStep](), False
    while len(taken) < most and not content:
        time.sleep(observation.WARM_UP * every_s)
        crew.mark()
        since = time.monotonic()
        time.sleep((1.0 - observation.WARM_UP) * every_s)
        at = time.monotonic()
        cores = crew.cores()
        seen = observation.see({"trainer": crew.words()}, cores, at=at, since=since)
        if seen is None:
            continue
        tuning, target = tuner.decide(tuning, seen)
        changed = crew.carry_out(target)
        content = not changed and tuning.phase in (TuningPhase.STEADY, TuningPhase.OFF)
        taken.append(TunedStep(at - began, seen, target.why))
        size = f"{seen.last.workers} x {seen.last.cpu:g}, trainer {seen.trainer_cpu:g}"
        harness.say(f"{at - began:5.0f} s  {size}: {target.why}")
    return taken


def ideal(taken: Sequence[TunedStep]) -> float | None:
    """Return the steps per second that the trainer would reach with all its CPUs without waiting for data.

    The figure comes from intervals in which the trainer waited little. Without data workers, return None.
    """
    seen = [one.seen for one in taken]
    fed = [
        one.capable_per_s
        for one in seen
        if one.last.workers and one.trainer_cpu == TRAINER_CPU and one.last.wait_share < 0.2
    ]
    return max(fed, default=None)


def cost(times: int = 30) -> float:
    """Return the CPU seconds of making one mini-batch."""
    make, indices = LogLines(), np.arange(LogLines.BATCH, dtype=np.int64)
    make(indices)
    began = time.process_time()
    for turn in range(times):
        make(indices + turn * LogLines.BATCH)
    return (time.process_time() - began) / times
