"""Pure. Builds profiles of a job from worker reports, and drops windows in which the job was not in a steady state.

In: `WorkerReading`s (the sums in heartbeats) and the history of shapes. Out: `ObservedProfiles`, with one `Profile` per
window and the dropped windows by reason. Next: `planning.perf_model.fit`.

The module drops the first steps of a worker (cold caches, compilation), spans during or shortly after a change of
shape, and windows without all workers. It also drops windows whose step time differs greatly from other windows of the
same shape. Causes are a noisy neighbour, a checkpoint, or an adjusted clock.
"""

import bisect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import SUM_FIELDS, Profile, TimingSum

LEAST_SPREAD = 0.03
"""Minimum spread of log seconds. Windows within a few of these are equal."""
COUNTED = 0.5
"""Minimum share of a window between its first and last core count. With less, the window has no core usage."""
FEWEST_WINDOWS = 4
"""Minimum number of windows of one shape to identify an odd window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReading:
    """Cumulative timing of one worker at one moment."""

    at: float
    worker: int
    timing: TimingSum
    """Sums since the worker started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSeconds:
    """Cumulative core-seconds of all workers and of all servers at one moment, for an unchanged set of processes."""

    at: float
    workers: float
    servers: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeChange:
    """Shape of the job from this moment on."""

    at: float
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRules:
    """Settings for the selection of windows."""

    warm_up_steps: int = 20
    """First steps of each worker that are ignored."""
    settle_s: float = 5.0
    """Seconds after a change of shape that are ignored."""
    window_s: float = 10.0
    fewest_steps: int = 5
    """Minimum number of steps in a window."""
    deviations: float = 5.0
    """Deviations from the median of its shape beyond which a window is odd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedProfiles:
    """Profiles, oldest first, and the number of dropped windows by reason."""

    profiles: tuple[Profile, ...]
    dropped: Mapping[str, int]


def observe(
    readings: Sequence[WorkerReading],
    changes: Sequence[ShapeChange],
    *,
    batch: int,
    rules: ProfileRules | None = None,
    spent: Sequence[CoreSeconds] = (),
) -> ObservedProfiles:
    """Return the profiles of all usable windows. `spent` has core counts, oldest first, if available."""
    rules = rules or ProfileRules()
    dropped: Counter[str] = Counter()
    since = sorted(changes, key=lambda change: change.at)
    starts = [change.at for change in since]
    found: dict[tuple[int, int], list[tuple[WorkerReading, WorkerReading]]] = {}
    last: dict[int, WorkerReading] = {}
    for reading in sorted(readings, key=lambda one: one.at):
        before, last[reading.worker] = last.get(reading.worker), reading
        if before is None:
            continue
        era = bisect.bisect_right(starts, reading.at) - 1
        why = _useless(before, reading, starts, era, rules)
        if why:
            dropped[why] += 1
        else:
            found.setdefault((era, int((reading.at - starts[era]) // rules.window_s)), []).append((before, reading))
    windows: dict[int, list[Profile]] = {}
    for (era, number), spans in sorted(found.items()):
        timing = sum((_between(*span) for span in spans), TimingSum())
        shape = since[era].shape
        if len({span[0].worker for span in spans}) < shape.workers:
            dropped["windows without all workers"] += 1
        elif timing.steps < rules.fewest_steps:
            dropped["windows of too few steps"] += 1
        else:
            at = max(span[1].at for span in spans)
            begin = starts[era] + number * rules.window_s
            workers, servers = _cores(spent, begin, begin + rules.window_s)
            windows.setdefault(era, []).append(
                Profile(shape=shape, batch=batch, timing=timing, at=at, worker_cores=workers, server_cores=servers)
            )
    kept: list[Profile] = []
    for some in windows.values():
        like_others = _without_odd(some, rules.deviations)
        dropped["odd windows"] += len(some) - len(like_others)
        kept += like_others
    return ObservedProfiles(profiles=tuple(kept), dropped={why: count for why, count in dropped.items() if count})


def _useless(
    before: WorkerReading, after: WorkerReading, starts: Sequence[float], era: int, rules: ProfileRules
) -> str:
    """Return the reason why a span between two readings is unusable; empty if it is usable."""
    if era < 0:
        return "spans before the first shape"
    if before.at < starts[era]:
        return "spans across a change of shape"
    if before.at < starts[era] + rules.settle_s:
        return "spans just after a change of shape"
    if before.timing.steps < rules.warm_up_steps:
        return "spans of a worker's first steps"
    if after.timing.steps < before.timing.steps:
        return "spans in which a worker began anew"
    return ""


def _cores(spent: Sequence[CoreSeconds], begin: float, end: float) -> tuple[float | None, float | None]:
    """Return the cores of workers and servers in a window, from its first to its last count; None if counts cover too
    little."""
    first = bisect.bisect_left(spent, begin, key=lambda one: one.at)
    last = bisect.bisect_right(spent, end, key=lambda one: one.at) - 1
    seconds = spent[last].at - spent[first].at if last > first else 0.0
    if seconds < COUNTED * (end - begin):
        return None, None
    return (spent[last].workers - spent[first].workers) / seconds, (
        spent[last].servers - spent[first].servers
    ) / seconds


def _between(before: WorkerReading, after: WorkerReading) -> TimingSum:
    return TimingSum(**{name: getattr(after.timing, name) - getattr(before.timing, name) for name in SUM_FIELDS})


def _without_odd(profiles: list[Profile], deviations: float) -> list[Profile]:
    """Return the profiles whose step time is close to the median."""
    logs = [math.log(one.step_s) if one.step_s > 0 else math.nan for one in profiles]
    known = [one for one in logs if math.isfinite(one)]
    if len(known) < FEWEST_WINDOWS:
        return profiles
    middle = median(known)
    spread = max(1.4826 * median(abs(one - middle) for one in known), LEAST_SPREAD)
    return [one for one, log in zip(profiles, logs, strict=True) if abs(log - middle) <= deviations * spread]
