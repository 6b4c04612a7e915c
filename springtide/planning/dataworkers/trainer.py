"""Pure. Cores of a trainer that is fed: the fewest that hold its speed; more only where it takes no more batches.

In: a job whose queues are ideal (fewer), or one where more data workers brought nothing (more). Out: its notes with
another number of cores, or done. What it does not need is said as spare: others get it when they ask, not before.
"""

import math
from dataclasses import replace

from springtide.domain.feeding import FeedSeen
from springtide.planning.dataworkers.notes import TrainerNotes
from springtide.planning.dataworkers.thresholds import FASTER, HOT, SLOWER

_HAIR = 1e-9


def speed(seen: FeedSeen) -> float:
    """Steps a second of one trainer."""
    return seen.steps_per_s / max(seen.trainers, 1)


def shrink(notes: TrainerNotes, seen: FeedSeen, unit: float) -> tuple[TrainerNotes, str]:
    """One step down, or one step back and done."""
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
    """The next number of cores to try: one step down, or at once to one step above what is used."""
    above_used = (math.ceil(seen.trainer_cpu_used / unit - _HAIR) + 1) * unit
    fewer = min(seen.trainer_cpu - unit, max(above_used, unit))
    return fewer if fewer >= unit - _HAIR else None


def may_grow(notes: TrainerNotes, seen: FeedSeen, unit: float) -> bool:
    """Whether it may be the trainer's cores that hold up a job which more data workers did not help."""
    hot = seen.trainer_cpu > 0 and seen.trainer_cpu_used >= HOT * seen.trainer_cpu
    return hot and not notes.in_vain and seen.free_cpu >= unit * seen.trainers - _HAIR


def grow(notes: TrainerNotes, seen: FeedSeen, unit: float) -> tuple[TrainerNotes, str]:
    """One step up, to be judged by `judge` next time."""
    more = seen.trainer_cpu + unit
    grown = replace(
        notes, first=notes.first or seen.trainer_cpu, cpu=more, held=seen.trainer_cpu, speed=speed(seen), growing=True
    )
    return grown, (
        f"more data workers bring nothing and trainers use {seen.trainer_cpu_used:.2g} of {seen.trainer_cpu:g} cores: "
        f"try {more:g}"
    )


def judge(notes: TrainerNotes, seen: FeedSeen) -> tuple[TrainerNotes, str]:
    """Whether the step up brought anything; else it is taken back."""
    now = speed(seen)
    said = f"{seen.trainer_cpu:g} cores a trainer: {now:.3g} steps/s, {notes.speed:.3g} before"
    if now >= (1.0 + FASTER) * notes.speed:
        return replace(notes, growing=False, held=0.0, speed=0.0), f"{said}: kept"
    back = replace(notes, growing=False, in_vain=True, cpu=notes.held, held=0.0, speed=0.0)
    return back, f"{said}: back to {notes.held:g}, it is something else"


def spare(notes: TrainerNotes, trainers: int) -> float:
    """Cores that trainers had at first and do not need."""
    if not notes.done or notes.first is None or notes.cpu is None:
        return 0.0
    return max(0.0, notes.first - notes.cpu) * trainers
