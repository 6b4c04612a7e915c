"""Pure. State and rules of the tuner: size and number of a stage's data workers, cores of a trainer, and the benefit
of data workers.

Each rule takes notes and measurements, and returns new notes with a reason. The result of each growth is checked. If
a removal makes consumers wait, the next interval undoes the removal, and it is not repeated.
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

from springtide.domain.data.data_workers import FeedRules, FeedSeen, StageSeen, StageTarget


class TuningPhase(StrEnum):
    """Phase of the tuning of a job."""

    BASELINE = "baseline"  # measure the job without data workers, for comparison
    TUNING = "tuning"  # tune first the sizes and then the numbers of data workers, stage by stage
    TRAINER = "trainer"  # data workers are tuned, so tune the cores of trainers
    STEADY = "steady"  # change something only if a problem appears
    OFF = "off"  # data workers do not pay off


class StageRate(NamedTuple):
    """Batches per second that all data workers of a stage make together, for a given number and size."""

    workers: int
    cpu: float
    made_per_s: float

    @property
    def per_core(self) -> float:
        return self.made_per_s / (self.workers * self.cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNotes:
    """Target for one stage, and the measurements that led to this target."""

    workers: int
    cpu: float
    sized: bool = False
    """True if the cores of each data worker are fixed."""
    linear: tuple[StageRate, ...] = ()
    """Sizes at which the rate grew linearly with the cores, smallest first."""
    rate: float = 0.0
    """Batches per second that one data worker of this size makes without waiting; 0 if not measured."""
    settled: bool = False
    """True if the number of data workers is fixed, because the stage keeps up, more data workers gain nothing, or no
    cores are left."""
    before: StageRate | None = None
    """State before the last increase, until the increase is judged."""
    cut_from: int = 0
    """Number of data workers before the last removal, until the removal is judged."""
    floor: int = 1
    """Smallest number of data workers that suffices, because a smaller number was too few."""
    ceiling: int | None = None
    """Largest number of data workers that is useful, because a larger number gained nothing."""
    short_for: int = 0
    spare_for: int = 0

    @property
    def target(self) -> StageTarget:
        return StageTarget(self.workers, self.cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerNotes:
    """Target for the cores of one trainer, and the measurements that led to it."""

    first: float | None = None
    """Cores of the trainer before any change."""
    cpu: float | None = None
    """CPU limit in cores; None means unchanged."""
    held: float = 0.0
    """Last number of cores with which the trainer ran at full speed, while tuning tries a different number."""
    speed: float = 0.0
    """Speed of the trainer in steps per second, with which trials are compared."""
    growing: bool = False
    in_vain: bool = False
    """True if more cores were tried and gained nothing."""
    lent_from: tuple[StageNotes, ...] = ()
    """The stages as they were before trainers lent them cores, until tuning judges the loan."""
    lent_in_vain: bool = False
    """True if lending was tried and gained nothing."""
    done: bool = False


class TrainerBehaviour(NamedTuple):
    """Speed of one trainer and its own share of the work, on which tuning based a conclusion."""

    per_s: float
    """Steps per second without data workers. If the job has data workers: the steps per second that the trainer would
    reach without waiting for data.
    """
    own_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Complete state of tuning for one job. `unit` is the number of cores in one size step."""

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
"""Data workers are started only if they can take over at least this share of a trainer's time. With a smaller share,
a job gains a ninth at most.
"""
WORTH = 1.05
"""Data workers stay only if they make the job this many times as fast. If the gain is below 5%, other jobs use the
cores better."""
WAITS_LITTLE = 0.05
"""The queue of a consumer is ideal if the consumer waits for at most this share of its time."""
WAITS = 0.1
"""A tuned job lacks data if its consumers spend this share of their time waiting. The value is twice WAITS_LITTLE, so
that noise triggers no change.
"""
FULL = 0.75
"""If a queue is filled to at least this share, more data workers cannot help. The remaining batches are in flight."""
LINEAR = 0.85
"""Scaling counts as linear if the rate per core is at least this share of the earlier rate, which leaves room for
noise."""
RETURNS = 0.5
"""Added data workers must bring at least this share of the expected gain in batches per second. A smaller gain means
that the bottleneck is elsewhere.
"""
MARGIN = 0.05
"""Production should exceed the need by this share, because batches differ. A consumer that waits for at most this share
of its time has enough data."""
SPARE = 0.25
"""Data workers are removed if production exceeds the need by this share. SPARE is larger than MARGIN to avoid
oscillation."""
FASTEST = 2.0
"""One step changes the number of data workers by at most this factor. The result of each step is checked before the
next.
"""
SLOWER = 0.05
"""A trainer has too few cores if it loses this share of its speed. The share is twice the noise of an interval."""
FASTER = 0.05
"""A trainer keeps an added core if it gains this share of its speed."""
HOT = 0.85
"""A trainer that uses more than this share of its cores may lack cores; with a lower usage, the trainer lacks network
bandwidth.
"""
PATIENCE = 2
"""A tuned job is changed only after this many consecutive intervals that agree."""
TUNE_FOR = 20
"""Most intervals for tuning; 20 intervals are 10 minutes. The longest tuning observed took 17 intervals."""
LATE = 4
"""Number of intervals to wait for data workers, before tuning continues with the data workers that have started."""
CHANGED = 2.0
"""The program counts as changed if its speed, or the share of its time that it spends on data, changes by this factor.
Busy machines cause factors of up to 1.5.
"""
STRANGE_FOR = 4
"""Tuning reacts after this many consecutive intervals with changed behaviour. A checkpoint takes fewer intervals."""
FRAGMENT = 0.25
"""Smallest size of the first data worker, as a share of a unit, if a whole unit is not free."""


class StageLimits(NamedTuple):
    """Limits on the data workers of one stage."""

    cores: float
    size: float
    """Most cores of one data worker."""
    most: int | None
    """Most data workers, by the user's setting or the number of GPUs."""

    def workers(self, cpu: float) -> int:
        fit = int((self.cores + 1e-9) / cpu) if cpu > 0 else 0
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
    """Return True if the stage is so slow that even a tuned job must be changed."""
    return stage.wait_share > WAITS and stage.fill < FULL


def limit(seen: tuple[StageSeen, ...]) -> int | None:
    """Return the stage that limits the job: its consumers wait for its batches, but the stage does not wait for the
    stage before. None if all keep up.

    The search goes backwards from the trainers, because a stage that waits for its predecessor shows nothing about its
    own speed.
    """
    if keeps_up(seen[-1]):
        return None
    at = len(seen) - 1
    while at > 0 and not keeps_up(seen[at - 1]):
        at -= 1
    return at


_HAIR = 1e-9  # tolerance for sums of fractional cores
_IDLE = 0.05  # if a data worker uses less than this share of its cores, its CPU usage shows nothing about its speed


def tune_count(notes: StageNotes, seen: StageSeen, room: StageLimits) -> tuple[StageNotes, str]:
    """Take one step for a stage that does not wait for its predecessor."""
    if keeps_up(seen):
        return _release_spare(replace(notes, before=None, cut_from=0, short_for=0, settled=True), seen)
    if notes.cut_from:
        back = replace(notes, workers=notes.cut_from, floor=notes.cut_from, cut_from=0, spare_for=0)
        return back, f"{seen.workers} were too few (trainers wait {seen.wait_share:.0%}): {notes.cut_from} again"
    notes = replace(notes, spare_for=0, rate=seen.made_per_s / seen.workers)
    if notes.before is not None:
        judged = _judge(notes, notes.before, seen)
        if judged is not None:
            return judged
        notes = replace(notes, before=None)
    if notes.settled:
        if not is_short(seen):
            return replace(notes, short_for=0), f"trainers wait {seen.wait_share:.0%}: little enough"
        if notes.short_for + 1 < PATIENCE:
            return replace(notes, short_for=notes.short_for + 1), f"trainers wait {seen.wait_share:.0%}: if it lasts..."
    return _grow(notes, seen, room)


def needed(capable_per_s: float, per_worker: float, margin: float) -> int:
    return max(1, math.ceil(capable_per_s * (1.0 + margin) / per_worker - 1e-9)) if per_worker > 0 else 1


def _judge(notes: StageNotes, before: StageRate, seen: StageSeen) -> tuple[StageNotes, str] | None:
    """Check whether the last increase brought enough. Return None if the increase brought enough."""
    hoped = seen.workers / before.workers - 1.0
    got = seen.made_per_s / before.made_per_s - 1.0 if before.made_per_s > 0 else math.inf
    if hoped <= 0 or got >= RETURNS * hoped:
        return None
    enough = math.ceil((1.0 - SLOWER) * seen.made_per_s / before.made_per_s * before.workers)
    enough = min(max(enough, before.workers), seen.workers)
    back = replace(notes, workers=enough, ceiling=enough, rate=before.made_per_s / before.workers)
    return replace(back, before=None, settled=True, short_for=0), (
        f"{seen.workers} data workers made {seen.made_per_s:.3g} batches/s, {before.workers} made "
        f"{before.made_per_s:.3g}: their number is not the limit; {enough} make as much"
    )


def _grow(notes: StageNotes, seen: StageSeen, room: StageLimits) -> tuple[StageNotes, str]:
    want = max(needed(seen.capable_per_s, notes.rate, MARGIN), seen.workers + 1)
    more = min(want, math.ceil(seen.workers * FASTEST), room.workers(notes.cpu), notes.ceiling or want)
    reason = f"make {seen.made_per_s:.3g} of {seen.capable_per_s:.3g} batches/s that trainers could take"
    if notes.ceiling is not None and notes.ceiling <= seen.workers:
        return replace(notes, settled=True), f"{seen.workers} {reason}; more brought no gain"
    if more <= seen.workers:
        return replace(notes, settled=True), f"{seen.workers} {reason}; no more cores are free ({room.cores:g})"
    before = StageRate(seen.workers, seen.cpu, seen.made_per_s)
    grown = replace(notes, workers=more, before=before, settled=False, short_for=0)
    return grown, f"{seen.workers} {reason}: {want} would keep up, now {more}"


def _release_spare(notes: StageNotes, seen: StageSeen) -> tuple[StageNotes, str]:
    enough = max(needed(seen.capable_per_s, _per_worker(notes, seen), SPARE), notes.floor)
    reason = f"{seen.workers} of {seen.cpu:g} cores keep up with {seen.capable_per_s:.3g} batches/s"
    if enough >= seen.workers:
        return replace(notes, spare_for=0), reason
    if notes.spare_for + 1 < PATIENCE:
        return replace(notes, spare_for=notes.spare_for + 1), f"{reason}; {enough} may do"
    fewer = max(enough, math.ceil(seen.workers / FASTEST))
    return replace(
        notes, workers=fewer, cut_from=seen.workers, spare_for=0
    ), f"{reason}, and {enough} should: now {fewer}"


def _per_worker(notes: StageNotes, seen: StageSeen) -> float:
    """Return the batches per second that one data worker makes without waiting: measured, or extrapolated from its CPU
    usage.
    """
    busy = min(1.0, seen.cpu_used / seen.cpu) if seen.cpu > 0 else 0.0
    per_worker = seen.made_per_s / seen.workers
    return max(notes.rate, per_worker / busy if busy > _IDLE else 0.0, per_worker)


def tune_size(notes: StageNotes, seen: StageSeen, room: StageLimits, unit: float) -> tuple[StageNotes, str]:
    """Take one step in the search for the size. After the last step, the notes are `sized` and hold the size."""
    if seen.gpu:
        return replace(notes, sized=True), "each has a GPU, so its cores stay"
    now = StageRate(seen.workers, seen.cpu, seen.made_per_s)
    if keeps_up(seen):
        kept = replace(notes, sized=True, linear=(*notes.linear, now))
        return kept, f"{now.cpu:g} cores each are enough: trainers wait {seen.wait_share:.0%} of their time"
    if notes.linear and (share := _of_linear(notes.linear, now)) < LINEAR:
        best = notes.linear[-1]
        rate = best.made_per_s / best.workers
        back = replace(notes, sized=True, cpu=best.cpu, rate=rate, before=None)
        return back, (
            f"{now.cpu:g} cores each made {now.made_per_s:.3g} batches/s, {share:.0%} of linear: back to {best.cpu:g}"
        )
    linear = (*notes.linear, now)
    larger = now.cpu + unit
    if larger > room.size + _HAIR or room.workers(larger) < notes.workers:
        kept = replace(notes, sized=True, linear=linear, rate=now.made_per_s / now.workers)
        why = f"{room.size:g} for one" if larger > room.size + _HAIR else f"{room.cores:g} in all"
        return kept, f"{now.cpu:g} cores each make {now.made_per_s:.3g} batches/s; larger ones are not possible ({why})"
    return replace(notes, cpu=larger, linear=linear), (
        f"{now.cpu:g} cores each make {now.made_per_s:.3g} of {seen.capable_per_s:.3g} batches/s wanted: try {larger:g}"
    )


def _of_linear(linear: tuple[StageRate, ...], now: StageRate) -> float:
    """Return the rate per core, relative to the mean over the linear sizes. The mean reduces noise."""
    usual = fmean(trial.per_core for trial in linear)
    return now.per_core / usual if usual > 0 else 1.0


def speed(seen: FeedSeen) -> float:
    return seen.steps_per_s / max(seen.trainers, 1)


def shrink(notes: TrainerNotes, seen: FeedSeen, unit: float) -> tuple[TrainerNotes, str]:
    now = speed(seen)
    if seen.trainer_cpu <= 0:
        return replace(notes, done=True), "trainers have no CPU limit"
    if notes.held and now < (1.0 - SLOWER) * notes.speed:
        back = replace(notes, cpu=notes.held, done=True)
        return back, (
            f"{now:.3g} steps/s a trainer with {seen.trainer_cpu:g} cores, {notes.speed:.3g} before: "
            f"back to {notes.held:g} cores"
        )
    if not notes.held:
        notes = replace(notes, first=notes.first or seen.trainer_cpu, speed=now)
    notes = replace(notes, held=seen.trainer_cpu, cpu=seen.trainer_cpu)
    fewer = _fewer(seen, unit)
    if fewer is None:
        return replace(notes, done=True), f"{seen.trainer_cpu:g} cores are the fewest for a trainer"
    reason = f"{now:.3g} steps/s a trainer with {seen.trainer_cpu:g} cores, {seen.trainer_cpu_used:.2g} used"
    return replace(notes, cpu=fewer), f"{reason}: try {fewer:g}"


def _fewer(seen: FeedSeen, unit: float) -> float | None:
    """Return the next number of cores to try: one step less, or one step above the usage. Return None at the
    minimum."""
    fewer = min(seen.trainer_cpu - unit, _above_used(seen, unit))
    return fewer if fewer >= unit - _HAIR else None


def _above_used(seen: FeedSeen, unit: float) -> float:
    return (math.ceil(seen.trainer_cpu_used / unit - _HAIR) + 1) * unit


def may_grow(notes: TrainerNotes, seen: FeedSeen, unit: float) -> bool:
    """Return True if a trainer may lack cores, in a job that did not become faster with more data workers."""
    hot = seen.trainer_cpu > 0 and seen.trainer_cpu_used >= HOT * seen.trainer_cpu
    return hot and not notes.in_vain and seen.free_cpu >= unit * seen.trainers - _HAIR


def grow(notes: TrainerNotes, seen: FeedSeen, unit: float) -> tuple[TrainerNotes, str]:
    """Add one step of cores to the trainer. `judge` checks the result in the next interval."""
    more = seen.trainer_cpu + unit
    grown = replace(
        notes, first=notes.first or seen.trainer_cpu, cpu=more, held=seen.trainer_cpu, speed=speed(seen), growing=True
    )
    return grown, (
        f"more data workers bring no gain, and trainers use {seen.trainer_cpu_used:.2g} of {seen.trainer_cpu:g} cores: "
        f"try {more:g}"
    )


def judge(notes: TrainerNotes, seen: FeedSeen) -> tuple[TrainerNotes, str]:
    """If the trainer became faster, confirm the change of its cores; otherwise undo the change."""
    now = speed(seen)
    given = ", the others lent to data workers" if notes.lent_from else ""
    reason = f"{seen.trainer_cpu:g} cores a trainer{given}: {now:.3g} steps/s, {notes.speed:.3g} before"
    judged = replace(notes, growing=False, lent_from=(), held=0.0, speed=0.0)
    if now >= (1.0 + FASTER) * notes.speed:
        return judged, f"{reason}: kept"
    back = replace(judged, cpu=notes.held, in_vain=notes.growing or notes.in_vain)
    return replace(
        back, lent_in_vain=not notes.growing or notes.lent_in_vain
    ), f"{reason}: back to {notes.held:g} cores"


def lendable(seen: FeedSeen, feeding: float, unit: float) -> float:
    """Return the cores that each waiting trainer can lend without becoming slower.

    `feeding` is the number of cores that data workers have now. The function assumes that lent cores raise the data
    workers' output in proportion, and the trainer's CPU usage with it. The trainer needs cores for this usage plus one
    step of cores.
    """
    keep = unit
    while keep < seen.trainer_cpu - _HAIR and feeding > 0:
        lent = (seen.trainer_cpu - keep) * seen.trainers
        faster = min(1.0 + lent / feeding, seen.capable_per_s / seen.steps_per_s)
        if seen.trainer_cpu_used * faster <= keep - unit + _HAIR:
            return seen.trainer_cpu - keep
        keep += unit
    return 0.0


def lend(notes: TrainerNotes, seen: FeedSeen, cpu: float, stages: tuple[StageNotes, ...]) -> TrainerNotes:
    """Lend `cpu` cores of each trainer to data workers. `judge` checks the result in the next interval."""
    first, left = notes.first or seen.trainer_cpu, seen.trainer_cpu - cpu
    return replace(notes, first=first, cpu=left, held=seen.trainer_cpu, speed=speed(seen), lent_from=stages)


def unfed(seen: FeedSeen) -> TrainerBehaviour:
    return TrainerBehaviour(speed(seen), seen.own_share)


def fed(seen: FeedSeen) -> TrainerBehaviour:
    """Return the behaviour of a job with data workers. Only the speed that the job could reach counts, because tuning
    changes everything else."""
    return TrainerBehaviour(seen.capable_per_s / max(seen.trainers, 1), 0.0)


def may_pay(found: TrainerBehaviour) -> bool:
    return found.own_share >= LEAST_SHARE


def pays(found: TrainerBehaviour, seen: FeedSeen) -> bool:
    return speed(seen) >= WORTH * found.per_s


def is_another(was: TrainerBehaviour, now: TrainerBehaviour) -> bool:
    """Return True if the program behaves differently from how it behaved at the last conclusion."""
    if was.per_s > 0 and not 1.0 / CHANGED <= now.per_s / was.per_s <= CHANGED:
        return True
    return now.own_share >= CHANGED * was.own_share + LEAST_SHARE / 2 and may_pay(now)
