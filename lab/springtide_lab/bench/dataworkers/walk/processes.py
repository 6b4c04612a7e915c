"""The real processes of the walk: one trainer and its data workers, each in a control group with its CPUs.

In: a `FeedTarget` of the tuner, to be carried out. Out: the trainer's words since, and what all have used, as the
master of a job would have them. A CPU here is a fraction of a core (`CPU`): the shape of the walk fits a small machine.
"""

import collections
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from springtide import errors
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.data.data_workers import FeedState, FeedTarget
from springtide.planning.dataworkers.tuning.observation import Cores, Told
from springtide.platforms.local import cgroups
from springtide.telemetry.host.cgroup_files import ControlGroup

CPU = 0.02
"""Of a core, called a CPU: 8 for the trainer and 8 each for three data workers are two thirds of a core."""
RESERVE = 3
"""Data workers that are started with the trainer and wait for their turn: starting one takes seconds of a core."""
SHARES = 5
"""Of the machine, as if it had a GPU for each: the trainer has one, data workers may have the others."""
END_S = 10.0


@dataclass(slots=True)
class Member:
    """One process and its group."""

    name: str
    process: "subprocess.Popen[str]"
    group: ControlGroup

    def hold_to(self, cpus: float) -> None:
        """So many CPUs from now on."""
        self.group.hold_to(ProcessLimits(cpu=cpus * CPU))

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far, in the walk's own measure."""
        return self.group.usage().cpu_s / CPU


class Company(Protocol):
    """What a walk goes with; tests have one without processes."""

    def carry_out(self, target: FeedTarget) -> bool:
        """What the tuner wants; whether that was a change."""
        ...

    def mark(self) -> None:
        """Count what is used and said from here on."""
        ...

    def words(self) -> list[Told]:
        """What the trainer has said since the mark."""
        ...

    def cores(self) -> Cores:
        """What everybody has, and has used since the mark."""
        ...


class Crew:
    """One trainer and its data workers; `with` starts the trainer and ends all."""

    def __init__(self, *, step_s: float, trainer_cpu: float, cpus: float) -> None:
        self._step_s, self._trainer_cpu, self._cpus = step_s, trainer_cpu, cpus
        self._secret = os.urandom(32)
        self._complaints: list[str] = []
        self._groups = cgroups.Groups(self._complaints.append)
        self._words: collections.deque[Told] = collections.deque()
        self._started: list[Member] = []
        self._feeders: list[Member] = []
        self._feeder_cpu = 0.0
        self._count = 0
        self._used: dict[str, float] = {}
        self._used_at = 0.0

    def __enter__(self) -> "Crew":
        try:
            self._trainer = self._start(
                "trainer", "springtide_lab.bench.dataworkers.walk.trainer", {"step_s": self._step_s}
            )
            self._reserve = [self._recruit() for _ in range(RESERVE)]
            threading.Thread(target=self._hear, daemon=True).start()
            while not self._words or self._words[-1].state.taken == 0:
                if self._trainer.process.poll() is not None:
                    raise errors.JobFailed(f"the walk's trainer has ended with {self._trainer.process.returncode}")
                time.sleep(0.05)
            self._addresses = {member.name: self._address(member) for member in self._reserve}
            self._trainer.hold_to(self._trainer_cpu)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._started:
            self._let_go(member)
        for member in self._started.copy():
            self._end(member)
        self._groups.close()

    def carry_out(self, target: FeedTarget) -> bool:
        """What the tuner wants; whether that was a change. Data workers that are new begin with a whole core."""
        cpu = target.data_worker_cpu or 0.0
        before = (len(self._feeders), self._feeder_cpu, self._trainer_cpu)
        while len(self._feeders) > target.data_workers:
            self._end(self._feeders.pop())
        fresh = [self._join() for _ in range(target.data_workers - len(self._feeders))]
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
        """Count what is used from here on."""
        self._words.clear()
        self._used = {member.name: member.cpu_s for member in (self._trainer, *self._feeders)}
        self._used_at = time.monotonic()

    def words(self) -> list[Told]:
        """What the trainer has said since the mark."""
        return list(self._words)

    def cores(self) -> Cores:
        """What everybody has and has used since the mark."""
        seconds = time.monotonic() - self._used_at
        used = [(member.cpu_s - self._used[member.name]) / seconds for member in self._feeders]
        return Cores(
            data_workers=len(self._feeders),
            data_worker_cpu=self._feeder_cpu,
            data_worker_cpu_used=sum(used) / len(used) if used else 0.0,
            trainer_cpu=self._trainer_cpu,
            trainer_cpu_used=(self._trainer.cpu_s - self._used["trainer"]) / seconds,
            free_cpu=self._cpus - self._trainer_cpu - len(self._feeders) * self._feeder_cpu,
            share_cpu=self._cpus / SHARES,
        )

    def _start(self, name: str, module: str, said: dict[str, float]) -> Member:
        group = self._groups.make(name, ProcessLimits(cpu=1.0))
        if group is None or self._complaints:
            raise errors.BadInput(f"the walk needs CPU quotas; {' '.join(self._complaints)}")
        process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        group.admit(process.pid)
        assert process.stdin is not None
        print(json.dumps({"secret": self._secret.hex(), **said}), file=process.stdin, flush=True)
        self._started.append(Member(name, process, group))
        return self._started[-1]

    def _until_fed(self) -> None:
        """All are connected and one has made something: greeting the trainer with a CPU would take seconds."""
        until, made = time.monotonic() + END_S, self._words[-1].state.made if self._words else 0
        while time.monotonic() < until:
            last = self._words[-1].state if self._words else FeedState()
            if last.workers == len(self._feeders) and last.made > made:
                return
            time.sleep(0.05)

    def _recruit(self) -> Member:
        """Start one more data worker, which will tell its address."""
        self._count += 1
        return self._start(f"data-worker-{self._count}", "springtide_lab.bench.dataworkers.walk.feeder", {})

    def _address(self, member: Member) -> str:
        assert member.process.stdout is not None
        line = member.process.stdout.readline()
        if not line:
            raise errors.JobFailed(f"{member.name} of the walk has ended with {member.process.wait()}")
        return str(json.loads(line)["address"])

    def _join(self) -> Member:
        """One more data worker feeds the trainer."""
        member = self._reserve.pop() if self._reserve else self._recruit()
        address = self._addresses.get(member.name) or self._address(member)
        assert self._trainer.process.stdin is not None
        print(json.dumps({"attach": member.name, "address": address}), file=self._trainer.process.stdin, flush=True)
        return member

    def _let_go(self, member: Member) -> None:
        """Its input ends: a data worker hands out what it has, the trainer stops. With all the CPU it wants."""
        assert member.process.stdin is not None
        with contextlib.suppress(OSError):
            member.group.hold_to(ProcessLimits(cpu=1.0))
            member.process.stdin.close()

    def _end(self, member: Member) -> None:
        """Gone, in order or not."""
        self._let_go(member)
        assert member.process.stdout is not None
        try:
            member.process.wait(END_S)
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()
        member.process.stdout.close()
        self._groups.remove(member.group)
        self._started.remove(member)

    def _hear(self) -> None:
        for word in _lines(self._trainer.process):
            self._words.append(word)


def _lines(process: "subprocess.Popen[str]") -> Iterator[Told]:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # closed at the end
        for line in process.stdout:
            said = json.loads(line)
            yield Told(said["at"], msgspec.convert(said["state"], FeedState))
