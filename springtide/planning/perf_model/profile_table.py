"""Pure. Groups the profiles of each job by configuration, and drops and counts unusable profiles.

In: unvalidated `Profile`s. Out: one `ProfileTable` per job, or `RefusedProfiles` with the reason. Next:
`planning.perf_model.fit`.

A configuration measured for hours must not outweigh a configuration probed for a minute. So all windows of one
configuration become one row, the mean of the middle windows. An odd window among several changes nothing. Windows of
all jobs are processed in one array, because a brain has hundreds of windows per job.
"""

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy

from springtide.domain.plan.profile import Profile
from springtide.planning.perf_model import shape_columns
from springtide.planning.perf_model.equations import Array, Index

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
    """Reason why a job has no model. It is a value, not an exception, because the planning loop must continue."""

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

    def without(self, row: int) -> "ProfileTable":
        return ProfileTable(
            settings=numpy.delete(self.settings, row, axis=0), times=numpy.delete(self.times, row, axis=0)
        )


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
