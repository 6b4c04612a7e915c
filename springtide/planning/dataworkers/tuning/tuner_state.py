"""Pure. What tuning remembers between two decisions: of the job, of each stage of data workers, of its trainers.

Made by `tune.begin`, carried on by `tune.decide`; the files beside this one each write their part of it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from springtide.domain.data.data_workers import FeedRules, StageTarget


class TuningPhase(StrEnum):
    """Where the tuning of a job is."""

    BASELINE = "baseline"  # trains by itself, to be compared with
    TUNING = "tuning"  # sizes, then numbers, stage by stage
    TRAINER = "trainer"  # fed as well as can be: cores of the trainers
    STEADY = "steady"  # changed only when something is amiss
    OFF = "off"  # data workers do not pay


class StageRate(NamedTuple):
    """Batches a second of all data workers of a stage, so many of them with so many cores each."""

    workers: int
    cpu: float
    made_per_s: float

    @property
    def per_core(self) -> float:
        return self.made_per_s / (self.workers * self.cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNotes:
    """One stage: what is wanted of it, and what was learned on the way."""

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
    """The cores of one trainer."""

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
    """What a conclusion rests on: of one trainer."""

    per_s: float
    """Steps without data workers; with them: the steps it could do if it never waited."""
    own_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All that tuning knows of a job. `unit`: cores of one step of size, 1 but in small worlds."""

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
