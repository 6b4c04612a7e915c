"""Pure. State of the tuner between two decisions: job, stages of data workers, and trainers.

`tuner.begin` creates the state and `tuner.decide` updates it. Each neighbouring module updates its own part.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from springtide.domain.data.data_workers import FeedRules, FeedSeen, StageSeen, StageTarget


class TuningPhase(StrEnum):
    """Phase of the tuning of a job."""

    BASELINE = "baseline"  # measure without data workers, for comparison
    TUNING = "tuning"  # sizes, then numbers, stage by stage
    TRAINER = "trainer"  # data workers are tuned; tune the cores of trainers
    STEADY = "steady"  # changes only on problems
    OFF = "off"  # data workers do not pay off


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
    """True if the cores of each data worker are settled."""
    linear: tuple[StageRate, ...] = ()
    """Sizes that scaled linearly, smallest first."""
    rate: float = 0.0
    """Batches per second of one data worker at its size without waiting; 0 if not measured."""
    settled: bool = False
    """True if the number is settled: the stage keeps up, more data workers bring nothing, or no cores are left."""
    before: StageRate | None = None
    """State before the last growth, until the growth is judged."""
    cut_from: int = 0
    """Number of data workers before the last removal, until the removal is judged."""
    floor: int = 1
    """Minimum number of data workers; a smaller number was too few."""
    ceiling: int | None = None
    """Maximum number of data workers; a larger number brought nothing."""
    short_for: int = 0
    spare_for: int = 0

    @property
    def target(self) -> StageTarget:
        return StageTarget(self.workers, self.cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerNotes:
    """Target and measurements of the cores of one trainer."""

    first: float | None = None
    """Original cores, before any change."""
    cpu: float | None = None
    """CPU limit in cores; None means unchanged."""
    held: float = 0.0
    """Last number of cores that kept the speed, while another number is tried."""
    speed: float = 0.0
    """Reference speed of a trainer in steps per second."""
    growing: bool = False
    in_vain: bool = False
    """True if more cores were tried and brought nothing."""
    lent_from: tuple[StageNotes, ...] = ()
    """Stages before they got cores of the trainers, until the loan is judged."""
    lent_in_vain: bool = False
    """True if lending was tried and brought nothing."""
    done: bool = False


class TrainerBehaviour(NamedTuple):
    """Speed and own work of one trainer, on which a conclusion is based."""

    per_s: float
    """Steps per second without data workers. If the job has data workers, steps per second without waiting for data."""
    own_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Complete tuning state of a job. `unit` is the number of cores in one size step, which is 1 except on small
    machines."""

    rules: FeedRules
    unit: float = 1.0
    phase: TuningPhase = TuningPhase.BASELINE
    baseline: TrainerBehaviour | None = None
    settled_on: TrainerBehaviour | None = None
    """Behaviour of the job when its tuning ended."""
    trainers: int = 0
    stages: tuple[StageNotes, ...] = ()
    trainer: TrainerNotes = field(default_factory=TrainerNotes)
    tuned_for: int = 0
    doubted_for: int = 0
    late_for: int = 0
    strange_for: int = 0


LEAST_SHARE = 0.1
"""Minimum share of a trainer's time that data workers could take over. With a tenth of the time, the speedup is at most
one ninth."""
WORTH = 1.05
"""Minimum speedup by data workers. If the gain is below 5%, other jobs use the cores better."""
WAITS_LITTLE = 0.05
"""Largest share of a consumer's time spent waiting at which its queue is ideal."""
WAITS = 0.1
"""Share of time spent waiting at which a tuned job is short of data: twice WAITS_LITTLE, so that noise does not trigger
a change."""
FULL = 0.75
"""Fill level of a queue at which more data workers cannot help. The remaining batches are in flight."""
LINEAR = 0.85
"""Share of the earlier rate per core at which scaling counts as linear, with room for noise."""
RETURNS = 0.5
"""Share of the expected gain in batches per second that added data workers must bring. If they bring less, something
else is the limit."""
MARGIN = 0.05
"""Surplus of production over the need, as a share, because batches differ. A consumer that waits for at most this share
of its time is fed well enough."""
SPARE = 0.25
"""Surplus of production over the need, as a share, at which data workers are removed. It is larger than MARGIN to avoid
oscillation."""
FASTEST = 2.0
"""Largest factor by which the number of data workers changes in one step. The result of each step is checked before the
next."""
SLOWER = 0.05
"""Loss of speed at which a trainer has too few cores: twice the noise of an interval."""
FASTER = 0.05
"""Gain of speed at which a trainer keeps an added core."""
HOT = 0.85
"""Share of cores in use above which a trainer can be short of cores rather than network."""
PATIENCE = 2
"""Consecutive intervals that must agree before a tuned job is changed."""
TUNE_FOR = 20
"""Maximum number of intervals for tuning; 20 intervals are 10 minutes. The longest tuning observed took 17."""
LATE = 4
"""Intervals to wait for data workers before tuning continues with those that started."""
CHANGED = 2.0
"""Factor between earlier and current speed (or time share) at which the program counts as changed. Busy machines cause
factors of up to 1.5."""
STRANGE_FOR = 4
"""Number of consecutive intervals with changed behaviour that trigger a reaction, so that a checkpoint or an evaluation
does not."""
FRAGMENT = 0.25
"""Smallest first data worker, as a share of a unit, if a whole unit is not free."""


_HAIR = 1e-9  # tolerance for sums of fractional cores


class StageLimits(NamedTuple):
    """Limits on the data workers of one stage."""

    cores: float
    size: float
    """Maximum cores of one data worker."""
    most: int | None
    """Maximum number of data workers, by the user's setting or the number of GPUs."""

    def workers(self, cpu: float) -> int:
        fit = int((self.cores + _HAIR) / cpu) if cpu > 0 else 0
        return max(0, fit if self.most is None else min(fit, self.most))


def stage_limits(seen: FeedSeen, rules: FeedRules, at: int) -> StageLimits:
    stage = seen.stages[at]
    cores = stage.workers * stage.cpu + seen.free_cpu
    size = rules.cpu or seen.share_cpu or max(cores / max(stage.consumers, 1), 0.0)
    others = sum(other.workers for place, other in enumerate(seen.stages) if place != at)
    most = None if rules.most is None else max(1, rules.most - others)
    if stage.gpu:
        by_gpu = stage.workers + seen.free_gpu
        most = by_gpu if most is None else min(most, by_gpu)
    return StageLimits(cores, size, most)


def keeps_up(stage: StageSeen) -> bool:
    """Return True if data workers are as fast as their consumers."""
    return stage.wait_share <= WAITS_LITTLE or stage.fill >= FULL


def is_short(stage: StageSeen) -> bool:
    """Return True if the stage is clearly too slow, enough to change a tuned job."""
    return stage.wait_share > WAITS and stage.fill < FULL


def limit(seen: tuple[StageSeen, ...]) -> int | None:
    """Return the stage that limits the job: its consumers wait, and it does not wait itself. None if all keep up.

    The search goes backwards from the trainers, because a stage that waits for its predecessor cannot be judged.
    """
    if keeps_up(seen[-1]):
        return None
    at = len(seen) - 1
    while at > 0 and not keeps_up(seen[at - 1]):
        at -= 1
    return at
