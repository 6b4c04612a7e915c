"""A job with data workers in virtual time: its observed rates for any number and size of workers, with noise.

The rates follow from costs in core seconds. The tuner observes intervals, and its targets take effect at once or an
interval later. Used by test_feeding.py.
"""

import random
from dataclasses import dataclass, field

from springtide.domain.data.data_workers import FeedSeen, FeedTarget, StageSeen, StageTarget


@dataclass(kw_only=True)
class Program:
    """The cost of a mini-batch, and its bottleneck."""

    make_s: float = 0.1
    """Core seconds to make one."""
    compute_s: float = 0.02
    """Seconds to train one, on the trainer's device."""
    take_s: float = 0.002
    """Core seconds of a trainer to take one that others made, and to drive its device."""
    parallel: float = 64.0
    """Cores that making one batch can use at once: 1 for plain Python."""
    wire_per_s: float = 1e9
    """Batches a second that can be carried to all trainers together."""


@dataclass(kw_only=True)
class World:
    """A cluster with one job."""

    program: Program
    cores: float = 32.0
    trainers: int = 1
    trainer_cpu: float = 8.0
    share_cpu: float = 8.0
    noise: float = 0.03
    late: bool = False
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    data_workers: int = 0
    data_worker_cpu: float = 0.0
    first_trainer_cpu: float = 0.0
    _ordered: FeedTarget | None = None

    def __post_init__(self) -> None:
        self.first_trainer_cpu = self.trainer_cpu

    @property
    def free(self) -> float:
        return self.cores - self.trainers * self.trainer_cpu - self.data_workers * self.data_worker_cpu

    def capable(self) -> float:
        """Steps per second of one trainer whose queue is never empty."""
        return min(1.0 / self.program.compute_s, self.trainer_cpu / self.program.take_s)

    def unfed(self) -> tuple[float, float]:
        """Steps per second of a trainer without data workers, and its share of time spent on batches."""
        make = self.program.make_s / min(self.first_trainer_cpu, self.program.parallel)
        compute = max(self.program.compute_s, self.program.take_s / self.first_trainer_cpu)
        return 1.0 / (make + compute), make / (make + compute)

    def could_make(self) -> float:
        """Batches per second of all data workers if none waits."""
        one = min(self.data_worker_cpu, self.program.parallel) / self.program.make_s
        return min(self.data_workers * one, self.program.wire_per_s)

    def speed(self) -> float:
        """Return the steps per second of all trainers."""
        if self.data_workers == 0:
            return self.trainers * self.unfed()[0]
        return min(self.could_make(), self.trainers * self.capable())

    def ideal(self) -> float:
        """Upper bound on the speed with these cores: enough data workers of one core, trainers as at first."""
        fed = (self.cores - self.trainers * self.first_trainer_cpu) / self.program.make_s
        capable = min(1.0 / self.program.compute_s, self.first_trainer_cpu / self.program.take_s)
        return max(self.trainers * self.unfed()[0], min(fed, self.trainers * capable, self.program.wire_per_s))

    def see(self, at: float) -> FeedSeen:
        if self._ordered is not None:
            self._carry_out(self._ordered)
            self._ordered = None
        steps = self._noisy(self.speed())
        could, capable = self.could_make(), self.trainers * self.capable()
        fed = self.data_workers > 0
        waits = max(0.0, 1.0 - could / capable) if fed else 0.0
        own = 0.0 if fed else self.unfed()[1]
        busy = min(1.0, capable / could) if fed else 0.0
        capable_per_s = steps / (1.0 - waits) if fed else steps / max(1.0 - own, 1e-6)
        stage = StageSeen(
            consumers=self.trainers,
            workers=self.data_workers,
            cpu=self.data_worker_cpu,
            cpu_used=self._noisy(busy * min(self.data_worker_cpu, self.program.parallel)),
            made_per_s=steps if fed else 0.0,
            capable_per_s=capable_per_s,
            fill=min(1.0, max(0.0, self._noisy(0.95 if could > 1.05 * capable else 0.5 if could >= capable else 0.05))),
            wait_share=min(1.0, self._noisy(waits)),
        )
        return FeedSeen(
            at=at,
            trainers=self.trainers,
            stages=(stage,),
            trainer_cpu=self.trainer_cpu,
            trainer_cpu_used=min(self.trainer_cpu, self._noisy(self.speed() / self.trainers * self.program.take_s)),
            steps_per_s=steps,
            capable_per_s=capable_per_s,
            own_share=min(1.0, self._noisy(own)),
            free_cpu=self.free,
            share_cpu=self.share_cpu,
        )

    def order(self, target: FeedTarget) -> None:
        if self.late:
            self._ordered = target
        else:
            self._carry_out(target)

    def _carry_out(self, target: FeedTarget) -> None:
        self.data_workers = target.data_workers
        self.data_worker_cpu = (target.data_worker_cpu or 0.0) if target.data_workers else 0.0
        self.trainer_cpu = target.trainer_cpu or self.trainer_cpu
        assert self.free >= -1e-6, f"{target} takes more cores than there are: {self.free:g} left"

    def _noisy(self, value: float) -> float:
        return value * self.chance.uniform(1.0 - self.noise, 1.0 + self.noise)


@dataclass(kw_only=True)
class Staged:
    """A job whose data workers form CPU-only stages in sequence."""

    make_s: tuple[float, ...]
    """Core seconds of each stage for a batch."""
    capable: float
    """Batches a second that the trainer would take."""
    cores: float = 64.0
    noise: float = 0.03
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    stages: tuple[StageTarget, ...] = ()

    def could_make(self) -> list[float]:
        return [workers * cpu / make for (workers, cpu), make in zip(self.stages, self.make_s, strict=True)]

    def speed(self) -> float:
        if not self.stages or self.stages[-1].workers == 0:
            return 1.0 / (sum(self.make_s) + 1.0 / self.capable)
        return min(*self.could_make(), self.capable)

    def see(self, at: float) -> FeedSeen:
        fed = bool(self.stages)
        now = self.stages or tuple(StageTarget(0, 0.0) for _ in self.make_s)
        steps, rates = self.speed(), [*(self.could_make() if fed else ()), self.capable]
        held = self.cores - sum(workers * cpu for workers, cpu in now)
        stages = []
        for i, (workers, cpu) in enumerate(now):
            upstream_is_the_limit = fed and min(rates[: i + 1]) <= steps * 1.0001 and steps < rates[i + 1]
            waits = 1.0 - steps / rates[i + 1] if upstream_is_the_limit else 0.0
            used = cpu * min(1.0, steps / rates[i]) if fed else 0.0
            stages.append(
                StageSeen(
                    consumers=now[i + 1].workers if i + 1 < len(now) else 1,
                    workers=workers,
                    cpu=cpu,
                    cpu_used=self._noisy(used),
                    made_per_s=self._noisy(steps) if fed else 0.0,
                    capable_per_s=self._noisy(self.capable),
                    fill=0.05 if upstream_is_the_limit else 0.95,
                    wait_share=self._noisy(waits),
                )
            )
        return FeedSeen(
            at=at,
            trainers=1,
            stages=tuple(stages),
            trainer_cpu=0.0,
            trainer_cpu_used=0.0,
            steps_per_s=self._noisy(steps),
            capable_per_s=stages[-1].capable_per_s,
            own_share=0.0 if fed else 1.0 - steps / self.capable,
            free_cpu=held,
            share_cpu=8.0,
        )

    def order(self, target: FeedTarget) -> None:
        self.stages = target.stages
        assert sum(workers * cpu for workers, cpu in self.stages) <= self.cores + 1e-6, target

    def _noisy(self, value: float) -> float:
        return value * self.chance.uniform(1.0 - self.noise, 1.0 + self.noise)
