"""Pure. One job tuned in virtual time, by the code that tunes real ones (`planning.dataworkers.tuner`): Fig.
13's walk.

In: a model. Out: a `Walk`: every interval's sizes and speed, with the tuner's reasons. Cores make mini-batches in
proportion, a trainer's cores take them; the job has a machine's share of cores for its trainer, and as many more as it
asks for. Next: `rows` has ResNet18's, `elastic` what each model comes to.
"""

import functools
from dataclasses import dataclass, replace

from springtide.domain.data.data_workers import FeedRules, FeedSeen, FeedTarget, StageSeen
from springtide.planning.dataworkers import tuner
from springtide_lab.reproduce.goldminer.simulation.models import GpuModel

INTERVALS = 80
"""No walk is so long."""
QUIET = 6
"""Intervals without a change after which it is over."""
FREE = 256.0
"""Cores that it may have beside its trainer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """One interval."""

    data_workers: int
    data_worker_cpu: float
    trainer_cpu: float
    speed: float
    """Of its ideal."""
    why: str = ""
    """What led to the next."""

    @property
    def sizes(self) -> tuple[int, float, float]:
        return self.data_workers, self.data_worker_cpu, self.trainer_cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """From the first interval to the one after which nothing changed."""

    stands: tuple[Stand, ...]
    spare: float = 0.0
    """Cores of its trainer that others may have, of a job that ends without data workers."""

    @property
    def end(self) -> Stand:
        return self.stands[-1]


@functools.cache
def walk(model: GpuModel, share: float = 8.0) -> Walk:
    tuning = tuner.begin(FeedRules())
    stand = Stand(data_workers=0, data_worker_cpu=0.0, trainer_cpu=share, speed=model.alone(share))
    stands: list[Stand] = []
    target = FeedTarget(data_workers=0, data_worker_cpu=None, trainer_cpu=None, why="")
    for interval in range(INTERVALS):
        tuning, target = tuner.decide(tuning, _seen(model, stand, 30.0 * (interval + 1), share))
        stands.append(replace(stand, why=target.why))
        stand = _carried_out(model, stand, target)
        if len(stands) > QUIET and len({one.sizes for one in (*stands[-QUIET:], stand)}) == 1:
            break
    last = max((place for place in range(1, len(stands)) if stands[place].sizes != stands[place - 1].sizes), default=0)
    return Walk(stands=tuple(stands[: last + 1]), spare=0.0 if target.data_workers else target.spare_cpu)


def _carried_out(model: GpuModel, stand: Stand, target: FeedTarget) -> Stand:
    count = target.data_workers
    cpu = (target.data_worker_cpu or stand.data_worker_cpu) if count else 0.0
    trainer = target.trainer_cpu or stand.trainer_cpu
    speed = min(model.fed(count * cpu), _takes(model, trainer)) if count else model.alone(trainer)
    return Stand(data_workers=count, data_worker_cpu=cpu, trainer_cpu=trainer, speed=speed)


def _takes(model: GpuModel, trainer: float) -> float:
    """Of its ideal speed, what a trainer with so many cores can take: the least that is enough is the model's."""
    return trainer / (model.trainer - 0.5)


def _seen(model: GpuModel, stand: Stand, at: float, share: float) -> FeedSeen:
    fed = stand.data_workers > 0
    could = stand.data_workers * stand.data_worker_cpu / model.feeding
    capable = min(model.capable, _takes(model, stand.trainer_cpu)) if fed else 1.0
    waits = max(0.0, 1.0 - could / capable) if fed else 0.0
    uses = stand.speed * (model.trainer - 0.5 if fed else model.ratio)
    own = 0.0 if fed else 1.0 - stand.speed  # overlapped in one process: what it loses to preprocessing
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
