"""Pure. Tunes the size and number of data workers of a stage: enough for the consumers, and no more.

In: the production rate of the stage and the rate that trainers could consume. Out: updated notes with a new number, or
with `settled` set. The result of each growth is checked. A removal that causes waiting is undone at once and not
repeated.
"""

import math
from dataclasses import replace
from statistics import fmean

from springtide.domain.data.data_workers import StageSeen
from springtide.planning.dataworkers.tuning import tuner_state
from springtide.planning.dataworkers.tuning.tuner_state import (
    FASTEST,
    LINEAR,
    MARGIN,
    PATIENCE,
    RETURNS,
    SLOWER,
    SPARE,
    StageLimits,
    StageNotes,
    StageRate,
)

_IDLE = 0.05  # share of cores in use below which usage says nothing about speed


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
