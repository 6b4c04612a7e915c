"""Pure. Builds profiles of a job from worker reports, and groups them by configuration for the fit.

The module drops first steps, the time just after a change of shape, windows without all workers, and odd windows.
"""

import bisect
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
import numpy

from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import SUM_FIELDS, Profile, TimingSum
from springtide.domain.spec.planning_config import PlanRules
from springtide.planning.perf_model import shape_columns
from springtide.planning.perf_model.equations import Array, Index

FEWEST_STEPS = 5
"""Fewest steps in a window."""
DEVIATIONS = 5.0
"""A window is dropped as an outlier if it is this many deviations away from the median of its shape."""
LEAST_SPREAD = 0.03
"""Smallest spread of log seconds to assume between windows, so that small differences do not make a window an
outlier."""
COUNTED = 0.5
"""The first and the last core count of a window must span at least this share of the window. Otherwise, the window has
no core usage."""
FEWEST_WINDOWS = 4
"""Fewest windows of one shape with which an outlier can be identified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReading:
    """Cumulative timing of one worker at one point in time."""

    at: float
    worker: int
    timing: TimingSum
    """Sums since the worker started."""


class CoreSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Cumulative core-seconds of all workers and of all servers at one moment, for an unchanged set of processes."""

    at: float
    workers: float
    servers: float


def observe(
    readings: Sequence[WorkerReading],
    shape: Shape,
    *,
    since: float,
    batch: int,
    rules: PlanRules,
    fewest_steps: int = FEWEST_STEPS,
    spent: Sequence[CoreSeconds] = (),
) -> tuple[Profile, ...]:
    """Return the profiles of all usable windows since the job has this shape. `spent` is sorted by time."""
    spans: dict[int, list[tuple[WorkerReading, WorkerReading]]] = {}
    last: dict[int, WorkerReading] = {}
    for reading in sorted(readings, key=lambda reading: reading.at):
        before, last[reading.worker] = last.get(reading.worker), reading
        if before is not None and _is_usable(before, reading, since, rules):
            spans.setdefault(int((reading.at - since) // rules.window_s), []).append((before, reading))
    profiles = []
    for number, some in sorted(spans.items()):
        timing = sum((_between(*span) for span in some), TimingSum())
        if len({before.worker for before, _ in some}) < shape.workers or timing.steps < fewest_steps:
            continue
        begin = since + number * rules.window_s
        workers, servers = _cores(spent, begin, begin + rules.window_s)
        at = max(after.at for _, after in some)
        profiles.append(
            Profile(shape=shape, batch=batch, timing=timing, at=at, worker_cores=workers, server_cores=servers)
        )
    return tuple(_without_odd(profiles))


def _is_usable(before: WorkerReading, after: WorkerReading, since: float, rules: PlanRules) -> bool:
    """Return True if the span begins after the job's last change of shape and after the worker's first steps, and the
    worker did not restart within the span.
    """
    settled = before.at >= since + rules.settle_s and before.timing.steps >= rules.warm_up_steps
    return settled and after.timing.steps >= before.timing.steps


def _cores(spent: Sequence[CoreSeconds], begin: float, end: float) -> tuple[float | None, float | None]:
    """Return the cores that workers and servers used in a window; None if the counts cover too little of the window."""
    first = bisect.bisect_left(spent, begin, key=lambda reading: reading.at)
    last = bisect.bisect_right(spent, end, key=lambda reading: reading.at) - 1
    seconds = spent[last].at - spent[first].at if last > first else 0.0
    if seconds < COUNTED * (end - begin):
        return None, None
    workers, servers = spent[last].workers - spent[first].workers, spent[last].servers - spent[first].servers
    return workers / seconds, servers / seconds


def _between(before: WorkerReading, after: WorkerReading) -> TimingSum:
    return TimingSum(**{name: getattr(after.timing, name) - getattr(before.timing, name) for name in SUM_FIELDS})


def _without_odd(profiles: list[Profile]) -> list[Profile]:
    logs = [math.log(profile.step_s) if profile.step_s > 0 else math.nan for profile in profiles]
    known = [log for log in logs if math.isfinite(log)]
    if len(known) < FEWEST_WINDOWS:
        return profiles
    middle = median(known)
    spread = max(1.4826 * median(abs(value - middle) for value in known), LEAST_SPREAD)
    return [profile for profile, log in zip(profiles, logs, strict=True) if abs(log - middle) <= DEVIATIONS * spread]


RECENT = 16
"""Most windows per configuration to use, newest first, because jobs change as their tables grow."""
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
"""The numbers of a profile: its configuration, and then its step times."""
SETTING = 5
"""Number of leading columns that define the configuration: workers, servers, cores of each, batch. The next fields are
the seconds per step of one worker and of its four terms.
"""
FAULTS = ("no steps", "times that are not numbers", "no time at all", "times below 0")


class ProfileTable(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Usable measurements of a job, one row per configuration."""

    settings: Array
    """Workers, servers, cores of a worker, cores of a server, batch."""
    times: Array
    """Seconds per step of one worker, and of its four terms: gradient, update, synchronization, lookup."""

    def __len__(self) -> int:
        return len(self.times)

    @property
    def timed(self) -> bool:
        return bool((self.times[:, 1:].sum(axis=1) > 0).all())


def tabulate(jobs: Sequence[Iterable[Profile]]) -> list[ProfileTable | str]:
    """Group the usable profiles of each job by configuration. For a job without usable profiles, return the reason."""
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
    settings, times, owner = read[good, :SETTING], times[good], rows.owner[good]
    group, first = _groups(owner, settings)
    counts = numpy.bincount(owner[first], minlength=len(given)).tolist()
    settings, times = settings[first], _middle(group, times, len(first))
    found: list[ProfileTable | str] = []
    start = 0
    for job, count in enumerate(counts):
        mine, start = slice(start, start + count), start + count
        if count:
            found.append(ProfileTable(settings=settings[mine], times=times[mine]))
        else:
            faults = Counter(FAULTS[why] for why in fault[rows.owner == job].tolist())
            listed = ", ".join(f"{many} with {why}" for why, many in faults.items())
            found.append(f"no usable profile{f': {listed}' if listed else ' yet'}")
    return found


def _read(jobs: Sequence[Sequence[Profile]]) -> Array:
    numbers = itertools.chain.from_iterable(map(operator.attrgetter(*READ), itertools.chain.from_iterable(jobs)))
    return numpy.fromiter(numbers, dtype=numpy.float64).reshape(-1, len(READ))


def _groups(owner: Index, settings: Array) -> tuple[Index, Index]:
    """Return the configuration of each window, and the first window of each configuration, in the order of first
    appearance."""
    whole = numpy.column_stack([owner, settings])
    begins = numpy.append(True, (whole[1:] != whole[:-1]).any(axis=1))[: len(whole)]
    (runs,) = numpy.nonzero(begins)  # a job stays in one configuration for a while, so few rows need sorting
    keys = whole[runs]
    order = numpy.lexsort(keys.T[::-1])
    new = numpy.append(True, (keys[order[1:]] != keys[order[:-1]]).any(axis=1))[: len(order)]
    first = order[new]  # the sort is stable, so this is the earliest window of each configuration
    came = numpy.argsort(first)
    rank = numpy.empty(len(first), dtype=numpy.int64)
    rank[came] = numpy.arange(len(first))
    group = numpy.empty(len(order), dtype=numpy.int64)
    group[order] = rank[numpy.cumsum(new) - 1]
    return group[numpy.cumsum(begins) - 1], runs[first[came]]


def _middle(group: Index, times: Array, groups: int) -> Array:
    """Return, for each configuration, the mean of its newest windows without the fastest and the slowest ones.

    A quarter of the windows is dropped at each end; of three windows or more, at least one at each end. Terms are
    noisier than their sum, so the mean of several windows is better than the terms of one median window.
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
