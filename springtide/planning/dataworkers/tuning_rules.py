"""Pure. Rules of the tuner: size and number of data workers of a stage, cores of a trainer, and whether they pay off.

Each rule takes notes and measurements, and returns new notes with a reason. The result of each growth is checked. A
removal that causes waiting is undone at once and not repeated.
"""

import math
from dataclasses import replace
from statistics import fmean

from springtide.domain.data.data_workers import FeedSeen, StageSeen
from springtide.planning.dataworkers import tuner_state
from springtide.planning.dataworkers.tuner_state import (
    CHANGED,
    FASTER,
    FASTEST,
    HOT,
    LEAST_SHARE,
    LINEAR,
    MARGIN,
    PATIENCE,
    RETURNS,
    SLOWER,
    SPARE,
    WORTH,
    StageLimits,
    StageNotes,
    StageRate,
    TrainerBehaviour,
    TrainerNotes,
)

_IDLE = 0.05  # share of cores in use below which the CPU usage says nothing about a data worker's speed


def tune_count(notes: StageNotes, seen: StageSeen, room: StageLimits) -> tuple[StageNotes, str]:
    """Take one step for a stage that does not wait for its predecessor."""
    if tuner_state.keeps_up(seen):
        return _let_go(replace(notes, before=None, cut_from=0, short_for=0, settled=True), seen)
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
        if not tuner_state.is_short(seen):
            return replace(notes, short_for=0), f"trainers wait {seen.wait_share:.0%}: little enough"
        if notes.short_for + 1 < PATIENCE:
            return replace(notes, short_for=notes.short_for + 1), f"trainers wait {seen.wait_share:.0%}: if it lasts..."
    return _grow(notes, seen, room)


def needed(capable_per_s: float, per_worker: float, margin: float) -> int:
    """Return the data workers that produce what trainers could consume, plus a margin."""
    return max(1, math.ceil(capable_per_s * (1.0 + margin) / per_worker - 1e-9)) if per_worker > 0 else 1


def _judge(notes: StageNotes, before: StageRate, seen: StageSeen) -> tuple[StageNotes, str] | None:
    """Check the result of the last growth; None if it brought enough."""
    hoped = seen.workers / before.workers - 1.0
    got = seen.made_per_s / before.made_per_s - 1.0 if before.made_per_s > 0 else math.inf
    if hoped <= 0 or got >= RETURNS * hoped:
        return None
    enough = math.ceil((1.0 - SLOWER) * seen.made_per_s / before.made_per_s * before.workers)
    enough = min(max(enough, before.workers), seen.workers)
    back = replace(notes, workers=enough, ceiling=enough, rate=before.made_per_s / before.workers)
    return replace(back, before=None, settled=True, short_for=0), (
        f"{seen.workers} data workers made {seen.made_per_s:.3g} batches/s, {before.workers} made "
        f"{before.made_per_s:.3g}: not their number is the limit; {enough} make as much"
    )


def _grow(notes: StageNotes, seen: StageSeen, room: StageLimits) -> tuple[StageNotes, str]:
    want = max(needed(seen.capable_per_s, notes.rate, MARGIN), seen.workers + 1)
    more = min(want, math.ceil(seen.workers * FASTEST), room.workers(notes.cpu), notes.ceiling or want)
    said = f"make {seen.made_per_s:.3g} of {seen.capable_per_s:.3g} batches/s that trainers could take"
    if notes.ceiling is not None and notes.ceiling <= seen.workers:
        return replace(notes, settled=True), f"{seen.workers} {said}; more brought nothing"
    if more <= seen.workers:
        return replace(notes, settled=True), f"{seen.workers} {said}; no more cores are free ({room.cores:g})"
    before = StageRate(seen.workers, seen.cpu, seen.made_per_s)
    grown = replace(notes, workers=more, before=before, settled=False, short_for=0)
    return grown, f"{seen.workers} {said}: {want} would keep up, now {more}"


def _let_go(notes: StageNotes, seen: StageSeen) -> tuple[StageNotes, str]:
    enough = max(needed(seen.capable_per_s, _per_worker(notes, seen), SPARE), notes.floor)
    said = f"{seen.workers} of {seen.cpu:g} cores keep up with {seen.capable_per_s:.3g} batches/s"
    if enough >= seen.workers:
        return replace(notes, spare_for=0), said
    if notes.spare_for + 1 < PATIENCE:
        return replace(notes, spare_for=notes.spare_for + 1), f"{said}; {enough} may do"
    fewer = max(enough, math.ceil(seen.workers / FASTEST))
    return replace(
        notes, workers=fewer, cut_from=seen.workers, spare_for=0
    ), f"{said}, and {enough} should: now {fewer}"


def _per_worker(notes: StageNotes, seen: StageSeen) -> float:
    """Return the batches per second of one data worker without waiting, measured or extrapolated from its CPU usage."""
    busy = min(1.0, seen.cpu_used / seen.cpu) if seen.cpu > 0 else 0.0
    each = seen.made_per_s / seen.workers
    return max(notes.rate, each / busy if busy > _IDLE else 0.0, each)


_HAIR = 1e-9


def tune_size(notes: StageNotes, seen: StageSeen, room: StageLimits, unit: float) -> tuple[StageNotes, str]:
    """Take one step in size. After the last step, the notes are `sized` and hold the size."""
    if seen.gpu:
        return replace(notes, sized=True), "has a GPU each: cores as they are"
    now = StageRate(seen.workers, seen.cpu, seen.made_per_s)
    if tuner_state.keeps_up(seen):
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
        return kept, f"{now.cpu:g} cores each make {now.made_per_s:.3g} batches/s; larger ones may not be had ({why})"
    return replace(notes, cpu=larger, linear=linear), (
        f"{now.cpu:g} cores each make {now.made_per_s:.3g} of {seen.capable_per_s:.3g} batches/s wanted: try {larger:g}"
    )


def _of_linear(linear: tuple[StageRate, ...], now: StageRate) -> float:
    """Return the rate per core relative to the mean of the linear sizes. The mean reduces noise."""
    usual = fmean(one.per_core for one in linear)
    return now.per_core / usual if usual > 0 else 1.0


def speed(seen: FeedSeen) -> float:
    return seen.steps_per_s / max(seen.trainers, 1)


def shrink(notes: TrainerNotes, seen: FeedSeen, unit: float) -> tuple[TrainerNotes, str]:
    now = speed(seen)
    if seen.trainer_cpu <= 0:
        return replace(notes, done=True), "trainers are not held to cores"
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
    said = f"{now:.3g} steps/s a trainer with {seen.trainer_cpu:g} cores, {seen.trainer_cpu_used:.2g} used"
    return replace(notes, cpu=fewer), f"{said}: try {fewer:g}"


def _fewer(seen: FeedSeen, unit: float) -> float | None:
    """Return the next number of cores to try: one step down, or one step above the usage if that is lower; None at the
    minimum."""
    fewer = min(seen.trainer_cpu - unit, _above_used(seen, unit))
    return fewer if fewer >= unit - _HAIR else None


def _above_used(seen: FeedSeen, unit: float) -> float:
    return (math.ceil(seen.trainer_cpu_used / unit - _HAIR) + 1) * unit


def may_grow(notes: TrainerNotes, seen: FeedSeen, unit: float) -> bool:
    """Return True if a trainer may be short of cores, for a job that did not become faster with more data workers."""
    hot = seen.trainer_cpu > 0 and seen.trainer_cpu_used >= HOT * seen.trainer_cpu
    return hot and not notes.in_vain and seen.free_cpu >= unit * seen.trainers - _HAIR


def grow(notes: TrainerNotes, seen: FeedSeen, unit: float) -> tuple[TrainerNotes, str]:
    """Add one step of cores. `judge` checks the result in the next interval."""
    more = seen.trainer_cpu + unit
    grown = replace(
        notes, first=notes.first or seen.trainer_cpu, cpu=more, held=seen.trainer_cpu, speed=speed(seen), growing=True
    )
    return grown, (
        f"more data workers bring nothing and trainers use {seen.trainer_cpu_used:.2g} of {seen.trainer_cpu:g} cores: "
        f"try {more:g}"
    )


def judge(notes: TrainerNotes, seen: FeedSeen) -> tuple[TrainerNotes, str]:
    """Keep the added cores if the trainer became faster; otherwise return them."""
    now = speed(seen)
    said = f"{seen.trainer_cpu:g} cores a trainer: {now:.3g} steps/s, {notes.speed:.3g} before"
    if now >= (1.0 + FASTER) * notes.speed:
        return replace(notes, growing=False, held=0.0, speed=0.0), f"{said}: kept"
    back = replace(notes, growing=False, in_vain=True, cpu=notes.held, held=0.0, speed=0.0)
    return back, f"{said}: back to {notes.held:g}, it is something else"


def lendable(seen: FeedSeen, feeding: float, unit: float) -> float:
    """Return the cores that each waiting trainer can lend without becoming slower.

    `feeding` is the current cores of data workers. With the lent cores, their output is assumed to grow in proportion,
    and the trainer's CPU usage with it. The trainer keeps this usage plus one step of cores.
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
    """Lend `cpu` cores of each trainer to data workers. `lent` checks the result in the next interval. `stages` is the
    current state."""
    first, left = notes.first or seen.trainer_cpu, seen.trainer_cpu - cpu
    return replace(notes, first=first, cpu=left, held=seen.trainer_cpu, speed=speed(seen), lent_from=stages)


def lent(notes: TrainerNotes, seen: FeedSeen) -> tuple[TrainerNotes, str]:
    """Keep the loan if the trainers became faster; otherwise return the cores."""
    now = speed(seen)
    said = f"{seen.trainer_cpu:g} cores a trainer, the others lent to data workers: {now:.3g} steps/s"
    judged = replace(notes, lent_from=(), held=0.0, speed=0.0)
    if now >= (1.0 + FASTER) * notes.speed:
        return judged, f"{said}, {notes.speed:.3g} before: kept"
    return replace(judged, cpu=notes.held, lent_in_vain=True), f"{said}, {notes.speed:.3g} before: taken back"


def unused(seen: FeedSeen, unit: float) -> float:
    """Return the trainers' cores beyond one step above their usage, for a job that reads its own data."""
    return max(0.0, seen.trainer_cpu - _above_used(seen, unit)) * seen.trainers


def spare(notes: TrainerNotes, trainers: int) -> float:
    """Return the cores that trainers had at first and no longer need."""
    if not notes.done or notes.first is None or notes.cpu is None:
        return 0.0
    return max(0.0, notes.first - notes.cpu) * trainers


def unfed(seen: FeedSeen) -> TrainerBehaviour:
    return TrainerBehaviour(speed(seen), seen.own_share)


def fed(seen: FeedSeen) -> TrainerBehaviour:
    """Return the behaviour of a job with data workers. Only its possible speed counts, because tuning changes the
    rest."""
    return TrainerBehaviour(seen.capable_per_s / max(seen.trainers, 1), 0.0)


def may_pay(found: TrainerBehaviour) -> bool:
    """Return True if data workers could take over enough of the time."""
    return found.own_share >= LEAST_SHARE


def pays(found: TrainerBehaviour, seen: FeedSeen) -> bool:
    """Return True if the job is faster with data workers by at least the factor WORTH."""
    return speed(seen) >= WORTH * found.per_s


def is_another(was: TrainerBehaviour, now: TrainerBehaviour) -> bool:
    """Return True if the program behaves differently than at the last conclusion."""
    if was.per_s > 0 and not 1.0 / CHANGED <= now.per_s / was.per_s <= CHANGED:
        return True
    return now.own_share >= CHANGED * was.own_share + LEAST_SHARE / 2 and may_pay(now)
