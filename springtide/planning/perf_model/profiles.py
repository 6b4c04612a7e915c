"""Pure. Builds profiles of a job from worker reports, and groups them by configuration for the fit.

In: `WorkerReading`s (sums in heartbeats) and the history of shapes. Out: `ObservedProfiles`, then a `ProfileTable`.
The module drops the first steps of workers, spans around a change of shape, windows in which a worker is missing, and
outliers.
"""

import bisect
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy

from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import SUM_FIELDS, Profile, TimingSum
from springtide.planning.perf_model import shape_columns
from springtide.planning.perf_model.equations import Array, Index

LEAST_SPREAD = 0.03
"""Minimum spread of log seconds that is assumed between windows, so that small differences do not make a window an
outlier."""
COUNTED = 0.5
"""Minimum share of a window between its first and last core count. With less, the window has no core usage."""
FEWEST_WINDOWS = 4
"""Minimum number of windows of one shape that are needed to identify an outlier."""


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
    """Number of deviations from the median of its shape beyond which a window is dropped as an outlier."""


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


RECENT = 16
"""Maximum number of windows per configuration, newest first, because jobs change as their tables grow."""
READ = (
    "shape.workers",
    "shape.servers",
    "shape.worker_cpu",
    "shape.server_cpu",
    "batch",
    "timing.total_s",
    "timing.gradient_s",
    "timing.update_s",
    "timing.synchronization_s",
    "timing.lookup_s",
    "timing.steps",
)
"""Fields of a profile: its configuration, and its step times."""
SETTING = 5
"""Number of leading fields that define the configuration: workers, servers, cores of each, batch. The next fields are
the seconds per step of one worker and of its four terms."""
FAULTS = ("no steps", "times that are no numbers", "no time at all", "times below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedProfiles:
    """Reason why a job has no model, as a value instead of an exception, because the planning loop must continue."""

    why: str
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Dropped profiles by reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfileTable:
    """Usable measurements of a job, one row per configuration."""

    settings: Array
    """Workers, servers, cores of a worker, cores of a server, batch."""
    times: Array
    """Seconds per step of one worker, and of its four terms: gradient, update, synchronization, lookup."""
    windows: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def timed(self) -> bool:
        return bool((self.times[:, 1:].sum(axis=1) > 0).all())


def tabulate(jobs: Sequence[Iterable[Profile]]) -> list[ProfileTable | RefusedProfiles]:
    """Drop unusable profiles and group the rest by configuration, for each job."""
    given = [list(profiles) for profiles in jobs]
    rows = shape_columns.of_lengths([len(profiles) for profiles in given])
    read = _read(given)
    steps, batch = read[:, 2 * SETTING], read[:, SETTING - 1]
    with numpy.errstate(all="ignore"):
        times = read[:, SETTING : 2 * SETTING] / steps[:, None]
        fault = numpy.select(
            [~((steps > 0) & (batch > 0)), ~numpy.isfinite(times.sum(axis=1)), times[:, 0] <= 0, times.min(axis=1) < 0],
            [0, 1, 2, 3],
            -1,
        )
    (good,) = numpy.nonzero(fault < 0)
    dropped = _counted(rows.owner, fault, len(given))
    settings, times, owner = read[good, :SETTING], times[good], rows.owner[good]
    group, first = _groups(owner, settings)
    counts = numpy.bincount(owner[first], minlength=len(given)).tolist()
    windows = numpy.bincount(owner, minlength=len(given)).tolist()
    settings, times = settings[first], _middle(group, times, len(first))
    found: list[ProfileTable | RefusedProfiles] = []
    start = 0
    for count, window, odd in zip(counts, windows, dropped, strict=True):
        mine, start = slice(start, start + count), start + count
        if count:
            found.append(ProfileTable(settings=settings[mine], times=times[mine], windows=window, dropped=odd))
        else:
            said = ", ".join(f"{many} with {why}" for why, many in odd.items())
            found.append(RefusedProfiles(why=f"no usable profile{f': {said}' if said else ' yet'}", dropped=odd))
    return found


def _read(jobs: Sequence[Sequence[Profile]]) -> Array:
    """Return one row per profile, one column per field."""
    numbers = itertools.chain.from_iterable(map(operator.attrgetter(*READ), itertools.chain.from_iterable(jobs)))
    return numpy.fromiter(numbers, dtype=numpy.float64).reshape(-1, len(READ))


def _counted(owner: Index, fault: Index, jobs: int) -> list[dict[str, int]]:
    """Return the number of dropped profiles by reason, for each job."""
    dropped: list[dict[str, int]] = [{} for _ in range(jobs)]
    (bad,) = numpy.nonzero(fault >= 0)
    for job, why in zip(owner[bad].tolist(), fault[bad].tolist(), strict=True):
        dropped[job][FAULTS[why]] = dropped[job].get(FAULTS[why], 0) + 1
    return dropped


def _groups(owner: Index, settings: Array) -> tuple[Index, Index]:
    """Return the configuration of each window, and the first window of each configuration, in order of appearance."""
    whole = numpy.column_stack([owner, settings])
    begins = numpy.append(True, (whole[1:] != whole[:-1]).any(axis=1))[: len(whole)]
    (runs,) = numpy.nonzero(begins)  # a job stays in one configuration for a while, so few rows need sorting
    keys = whole[runs]
    order = numpy.lexsort(keys.T[::-1])
    new = numpy.append(True, (keys[order[1:]] != keys[order[:-1]]).any(axis=1))[: len(order)]
    first = order[new]  # the sort is stable, so this is the earliest of each
    came = numpy.argsort(first)
    rank = numpy.empty(len(first), dtype=numpy.int64)
    rank[came] = numpy.arange(len(first))
    group = numpy.empty(len(order), dtype=numpy.int64)
    group[order] = rank[numpy.cumsum(new) - 1]
    return group[numpy.cumsum(begins) - 1], runs[first[came]]


def _middle(group: Index, times: Array, groups: int) -> Array:
    """Return the mean of the middle windows of each configuration, by step time, among the newest.

    A quarter at each end is dropped, and at least one of three windows or more. Terms are noisier than their sum, so
    the mean of several windows is better than the terms of the median window.
    """
    order = numpy.argsort(group, kind="stable")
    counts = numpy.bincount(group, minlength=groups)
    place = numpy.arange(len(order)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
    recent = order[place >= (counts - RECENT)[group[order]]]
    recent = recent[numpy.lexsort((times[recent, 0], group[recent]))]
    counts = numpy.minimum(counts, RECENT)
    place = numpy.arange(len(recent)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
    ends = numpy.where(counts > 2, numpy.maximum(counts // 4, 1), 0)
    owner = group[recent]
    inside = (place >= ends[owner]) & (place < (counts - ends)[owner])
    owner, kept = owner[inside], times[recent[inside]]
    means = [numpy.bincount(owner, weights=column, minlength=groups) / (counts - 2 * ends) for column in kept.T]
    return numpy.column_stack(means)
