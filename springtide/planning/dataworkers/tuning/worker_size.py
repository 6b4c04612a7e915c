"""Pure. Cores of one data worker: from one upward while the rate grows with them, one data worker for each trainer.

Large ones cost less in connections and memory, small ones scale better where the user's code does not run in parallel.
In: what the stage that is the limit was seen to make. Out: its notes with another size, or settled on the largest
that paid in full. Next: `number`.
"""

from dataclasses import replace
from statistics import fmean

from springtide.domain.data.data_workers import StageSeen
from springtide.planning.dataworkers.tuning import queue_balance
from springtide.planning.dataworkers.tuning.limits import StageLimits
from springtide.planning.dataworkers.tuning.thresholds import LINEAR
from springtide.planning.dataworkers.tuning.tuner_state import StageNotes, StageRate

_HAIR = 1e-9


def tune(notes: StageNotes, seen: StageSeen, room: StageLimits, unit: float) -> tuple[StageNotes, str]:
    """One step. The notes are `sized` when it was the last, and say the size then."""
    if seen.gpu:
        return replace(notes, sized=True), "has a GPU each: cores as they are"
    now = StageRate(seen.workers, seen.cpu, seen.made_per_s)
    if queue_balance.keeps_up(seen):
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
    """Batches a second of a core, against those of the sizes that paid; their mean, as each is a noisy interval."""
    usual = fmean(one.per_core for one in linear)
    return now.per_core / usual if usual > 0 else 1.0
