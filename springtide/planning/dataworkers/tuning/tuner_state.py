"""Pure. State of the tuner between two decisions: job, stages of data workers, and trainers.

`tuner.begin` creates the state and `tuner.decide` updates it. Each neighbouring module updates its own part.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from springtide.domain.data.data_workers import FeedRules, FeedSeen, StageSeen, StageTarget


class TuningPhase(StrEnum):
    """Phase of the tuning of a job."""

    BASELINE = "baseline"  # trains by itself, to be compared with
    TUNING = "tuning"  # sizes, then numbers, stage by stage
    TRAINER = "trainer"  # fed as well as can be: cores of the trainers
    STEADY = "steady"  # changed only when something is amiss
    OFF = "off"  # data workers do not pay


class StageRate(NamedTuple):
    """Batches per second of all data workers of a stage, for a given number and size."""

    workers: int
    cpu: float
    made_per_s: float

    @property
    def per_core(self) -> float:
        return self.made_per_s / (self.workers * self.cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNotes:
    """Target of one stage, and the measurements that led to it."""

    workers: int
    cpu: float
    sized: bool = False
    """Whether the cores of one are settled."""
    linear: tuple[StageRate, ...] = ()
    """Sizes that paid in full, smallest first."""
    rate: float = 0.0
    """Batches a second of one at its size, when nothing held it up; 0: not seen yet."""
    settled: bool = False
    """Whether the number is: it keeps up, or more bring nothing, or there are no more cores."""
    before: StageRate | None = None
    """What there was before the last growth, until that has been judged."""
    cut_from: int = 0
    """Their number before some were let go, until that has been judged."""
    floor: int = 1
    """Fewer were too few."""
    ceiling: int | None = None
    """More brought nothing."""
    short_for: int = 0
    spare_for: int = 0

    @property
    def target(self) -> StageTarget:
        return StageTarget(self.workers, self.cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerNotes:
    """Target and measurements of the cores of one trainer."""

    first: float | None = None
    """What it had before any were taken or given."""
    cpu: float | None = None
    """What it is held to; None: as it is."""
    held: float = 0.0
    """The last number of cores that held the speed, while fewer (or more) are tried."""
    speed: float = 0.0
    """Steps a second of a trainer that it is measured by."""
    growing: bool = False
    in_vain: bool = False
    """Whether more cores have been tried and brought nothing."""
    lent_from: tuple[StageNotes, ...] = ()
    """The stages before they got cores of the trainers, until that has been judged."""
    lent_in_vain: bool = False
    """Whether that has been tried and brought nothing."""
    done: bool = False


class TrainerBehaviour(NamedTuple):
    """Speed and own work of one trainer, on which a conclusion is based."""

    per_s: float
    """Steps without data workers; with them: the steps it could do if it never waited."""
    own_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Complete tuning state of a job. `unit` is the number of cores in one size step; it is 1 except on small
    machines."""

    rules: FeedRules
    unit: float = 1.0
    phase: TuningPhase = TuningPhase.BASELINE
    baseline: TrainerBehaviour | None = None
    settled_on: TrainerBehaviour | None = None
    """What the job was like when its tuning ended."""
    trainers: int = 0
    stages: tuple[StageNotes, ...] = ()
    trainer: TrainerNotes = field(default_factory=TrainerNotes)
    tuned_for: int = 0
    doubted_for: int = 0
    late_for: int = 0
    strange_for: int = 0


LEAST_SHARE = 0.1
"""Of a trainer's time in what data workers could do. With less they bring a ninth at most: not worth the cores."""
WORTH = 1.05
"""Times the speed without data workers: for less than a twentieth their cores are better left to others."""
WAITS_LITTLE = 0.05
"""Share of a consumer's time spent waiting up to which its queue is ideal: the producer is as fast as the consumer."""
WAITS = 0.1
"""Share from which a job that was tuned counts as short of data: twice the other, so that noise starts nothing."""
FULL = 0.75
"""Fill of a queue from which more data workers cannot help: batches wait, not the consumer; the rest is under way."""
LINEAR = 0.85
"""Of the rate a core seen so far: as many batches a core as smaller sizes made, less what an interval's noise is."""
RETURNS = 0.5
"""Of the growth that more data workers should have brought: with less something else is the limit."""
MARGIN = 0.05
"""Made beyond what is needed: batches are not all alike. No more: who waits as little as that is fed well."""
SPARE = 0.25
"""Made beyond what is needed before data workers are let go: more than MARGIN, so that none goes as soon as it came."""
FASTEST = 2.0
"""Times as many data workers at one step: the next is assumed to bring what the last did, then it is looked at."""
SLOWER = 0.05
"""Loss of speed from which a trainer has too few cores: twice the noise of an interval."""
FASTER = 0.05
"""Gain of speed for which a trainer keeps a core that it was given more."""
HOT = 0.85
"""Of its cores in use: only then is a trainer that takes no more batches short of cores, and not of the network."""
PATIENCE = 2
"""Intervals in a row that must say the same before a job that was tuned is changed."""
TUNE_FOR = 20
"""Intervals after which tuning must have brought something: 10 minutes; the largest walk seen took 17."""
LATE = 4
"""Intervals that data workers may take to come before tuning goes on with those that did."""
CHANGED = 2.0
"""Times another speed, or another share of time: the program does something else now. Busy machines make it 1.5."""
STRANGE_FOR = 4
"""Intervals in a row that it must do so: a checkpoint or an evaluation is no other program."""
FRAGMENT = 0.25
"""Of a unit of cores: the least that a first data worker is started with where a whole unit is not free."""


_HAIR = 1e-9  # sums of fractions of cores


class StageLimits(NamedTuple):
    """Limits on the data workers of one stage."""

    cores: float
    size: float
    """Cores of one data worker at most."""
    most: int | None
    """Data workers at most, by the user's word or by the number of GPUs."""

    def workers(self, cpu: float) -> int:
        fit = int((self.cores + _HAIR) / cpu) if cpu > 0 else 0
        return max(0, fit if self.most is None else min(fit, self.most))


def stage_limits(seen: FeedSeen, rules: FeedRules, at: int) -> StageLimits:
    seen_stages = stages(seen)
    stage = seen_stages[at]
    cores = stage.workers * stage.cpu + seen.free_cpu
    size = rules.cpu or seen.share_cpu or max(cores / max(stage.consumers, 1), 0.0)
    others = sum(other.workers for place, other in enumerate(seen_stages) if place != at)
    most = None if rules.most is None else max(1, rules.most - others)
    if stage.gpu:
        by_gpu = stage.workers + seen.free_gpu
        most = by_gpu if most is None else min(most, by_gpu)
    return StageLimits(cores, size, most)


def stages(seen: FeedSeen) -> tuple[StageSeen, ...]:
    """First to last; where only one is spoken of, that one."""
    if seen.stages:
        return seen.stages
    only = StageSeen(
        consumers=seen.trainers,
        workers=seen.data_workers,
        cpu=seen.data_worker_cpu,
        cpu_used=seen.data_worker_cpu_used,
        made_per_s=seen.made_per_s,
        capable_per_s=seen.capable_per_s,
        fill=seen.fill,
        wait_share=seen.wait_share,
    )
    return (only,)


def keeps_up(stage: StageSeen) -> bool:
    """The ideal state: data workers are as fast as those who take from them."""
    return stage.wait_share <= WAITS_LITTLE or stage.fill >= FULL


def is_short(stage: StageSeen) -> bool:
    """Clearly not ideal: what it takes for a job that was tuned to be changed."""
    return stage.wait_share > WAITS and stage.fill < FULL


def limit(seen: tuple[StageSeen, ...]) -> int | None:
    """The stage that holds up the job: waited for, and not waiting itself. None: all keep up.

    Looked for from the trainers backwards: a stage that waits for the one before cannot be judged, nor helped.
    """
    if keeps_up(seen[-1]):
        return None
    at = len(seen) - 1
    while at > 0 and not keeps_up(seen[at - 1]):
        at -= 1
    return at
