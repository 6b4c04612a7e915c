"""Pure. Tunes the cores of a trainer: as few as keep its speed, and more only if data workers do not help.

In: one of three cases. Queues are ideal: try fewer cores. More data workers brought nothing: try more cores. The job
waits for data and no cores are free: trainers lend unused cores. Out: updated notes with the new number of cores, or
with `done` set. Unneeded cores are reported as spare. Other jobs get them only on request.
"""

import math
from dataclasses import replace

from springtide.domain.data.data_workers import FeedSeen
from springtide.planning.dataworkers.tuning.tuner_state import FASTER, HOT, SLOWER, StageNotes, TrainerNotes

_HAIR = 1e-9


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
    """Return True if the trainer's cores may be the bottleneck of a job that more data workers did not help."""
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

    `feeding` is the current cores of data workers. Their output is assumed to grow in proportion, and the trainer's
    usage with it. The trainer keeps this usage plus one step.
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
