"""Allocates samples of a batch to workers and plans their caches, with the native scheduler.

Every rank runs a scheduler with equal settings and equal batches, so all ranks reach the same result without
communication. In: the lookup calls of the whole next batch. Out: a rank for every sample, and a plan for every
rank's cache (cpp/cache/cache_plan.h). The module also computes the time budget of an allocation, and the bytes that
plans send.
"""

import ctypes
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide import _native, errors
from springtide.domain.core import validation
from springtide.embedding.lookup.calls import Bag, Ids, LookupCall, LookupFeature

POLICIES = ("anneal", "contiguous", "laia", "random")
P2P = ("gradients", "off", "rows")
MOST_WORKERS = 128
DEFAULT_SWEEPS, MOST_SWEEPS = 8, 20  # number of sweeps of `anneal`: the default, and the maximum if there is time
ALL_TABLES = 2**32 - 1
MARGIN = 0.1
"""Fraction of the budget to keep in reserve, because schedule times vary."""
LEAST = 4
"""Fewest units (tables to score, or sweeps). Fewer units save almost no schedule time and cause a tenth more
transmissions."""
MEMORY = 32
"""Number of recent schedules whose times are used. Older schedules ran under a different load."""
KEY = 10  # bytes that identify a row to a server: the row's key and table
SAID = 4  # bytes of the flag that tells, before each row or gradient between workers, whether it is present


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """Settings that must be equal on all ranks."""

    workers: int
    capacity_rows: int
    """Number of rows in each worker's cache; 0 disables caching. A full cache evicts the row trained longest ago."""
    tables: tuple[int, ...] | None = None
    """Ids of the cached tables; the scheduler ignores all other tables. None means that all tables are cached."""
    policy: str = "laia"
    """`anneal` searches for few transmissions, `laia` is Herald's Algorithm 1."""
    seed: int = 0
    p2p: str = "off"
    """`rows`: send a row directly to the only worker that trains it next. `gradients`: in addition, if a few workers
    train a row, one of these workers keeps the row and gets the other workers' gradients.
    """
    p2p_trainers: int = 4
    """Most workers that may train one row under `gradients`. If more workers train the row, the servers sum the
    gradients."""
    on_demand: bool = True
    """True if trained rows are written back only when another worker or a server needs them. If False, every trained
    row is written back with its own step.
    """
    threads: int = 1
    """Number of threads of this rank's scheduler. The number is equal on all ranks, because the threads split samples
    and capacity."""
    profile_every: int = 8
    """Batches between two measurements of the tables' degree of infrequency; 0 disables the measurement."""

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise errors.BadInput(f"a scheduler needs 1 to {MOST_WORKERS} workers, got {self.workers}")
        if self.capacity_rows < 0:
            raise errors.BadInput(f"capacity_rows={self.capacity_rows}: expected 0 or more")
        validation.choice(self.policy, "allocation policy", POLICIES)
        validation.choice(self.p2p, "transfer between workers", P2P)


@dataclass(frozen=True, slots=True)
class FeatureIds:
    """Ids of one feature for every sample of a batch. Several features may use one table."""

    table: int
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64] | None = field(default=None)
    """Start of each sample's ids, then the end of the last sample's ids. None means one id per sample."""


class Scheduler:
    """Directory of all caches, and the scheduler that assigns samples to them. Not thread-safe."""

    def __init__(self, settings: ScheduleSettings) -> None:
        self.settings = settings
        options = asdict(settings)
        del options["tables"]
        self._native = _native.Scheduler(**options)

    def schedule(
        self,
        features: Sequence[FeatureIds],
        samples: int,
        *,
        scored: Collection[int] = (),
        best_tables: int | None = None,
        effort: int = 0,
    ) -> _native.Scheduled:
        """Schedule the next batch of the stream. The call assumes that all earlier plans were executed.

        `scored` names the tables whose keys count in the allocation; empty for all. `best_tables` is the maximum
        number of scored tables; tables with the highest degree of infrequency come first. `effort` limits a search. All
        arguments must be equal on every rank.
        """
        tables = self.settings.tables
        looked_at = [(f.table, f.ids, f.offsets) for f in features if tables is None or f.table in tables]
        best = ALL_TABLES if best_tables is None else best_tables
        return self._native.schedule(looked_at, samples, scored=sorted(scored), best_tables=best, effort=effort)

    def flushed(self, step: int) -> None:
        """Record that all rows trained up to `step` are on the servers. The next step may already be scheduled."""
        self._native.flushed(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTime:
    """Duration of one schedule."""

    units: int
    """Number of tables scored, or of sweeps."""
    allocate_s: float
    rest_s: float
    """Seconds of all stages except the allocation."""


def took(seconds: Mapping[str, float], *, units: int) -> ScheduleTime:
    return ScheduleTime(units=units, allocate_s=seconds["allocate"], rest_s=sum(seconds.values()) - seconds["allocate"])


def units_within(budget_s: float, history: Sequence[ScheduleTime], *, most: int, least: int = LEAST) -> int:
    """Return how many units, from `least` to `most`, keep the next schedule within `budget_s`.

    Without a history the result is `most`, so that the first schedules show their cost. The time is assumed
    proportional to the units, until schedules with different numbers of units show otherwise.
    """
    recent = history[-MEMORY:]
    if not recent:
        return most
    left_s = budget_s * (1 - MARGIN) - high(step.rest_s for step in recent)
    base_s, unit_s = line(recent)
    if unit_s <= 0:
        return most
    return min(most, max(least, math.floor((left_s - base_s) / unit_s)))


def line(recent: Sequence[ScheduleTime]) -> tuple[float, float]:
    """Fit a line to the allocation times. Return the line's intercept (seconds) and its slope (seconds per unit)."""
    by_units: dict[int, list[float]] = {}
    for step in recent:
        by_units.setdefault(step.units, []).append(step.allocate_s)
    points = {units: high(seconds) for units, seconds in by_units.items()}
    most = max(points)
    if len(points) == 1:
        return (0.0, points[most] / most) if most else (points[most], 0.0)
    fit = statistics.linear_regression(list(points), list(points.values()))
    slope = max(fit.slope, 0.0)
    base = max(fit.intercept, 0.0)
    return (base, slope) if slope else (0.0, points[most] / max(most, 1))


def high(seconds: Iterable[float]) -> float:
    ordered = sorted(seconds)
    return ordered[math.ceil(0.9 * len(ordered)) - 1]


class RowSize(NamedTuple):
    """Bytes of a row of one table, without its key."""

    value: int
    """Bytes of the weights of a row, or of their gradient."""
    image: int
    """Bytes of the weights and the optimizer state of a row."""


def volume(plans: Sequence[Any], sizes: Mapping[int, RowSize]) -> tuple[int, int]:
    """Return the bytes that these `_native.CachePlan`s send, and the bytes of the same samples without caches."""
    tables = max(sizes, default=-1) + 1
    value, image = (np.array([sizes.get(id, RowSize(0, 0))[kind] for id in range(tables)], np.int64) for kind in (0, 1))

    def count(named: Iterable[tuple[Any, Any]]) -> NDArray[np.int64]:
        total = np.zeros(tables, np.int64)
        for ids, _ in named:
            total += np.bincount(np.asarray(ids, np.int64), minlength=tables)
        return total

    def rows(name: str) -> NDArray[np.int64]:
        return count(getattr(plan, name) for plan in plans)

    def passed(name: str) -> NDArray[np.int64]:
        return count(keys for plan in plans for _, keys in getattr(plan, name))

    read = rows("pass_hit") + rows("pass_pull")
    valued, given = passed("value_receives"), passed("gradient_sends")
    pushed = read - (given - valued)
    held = rows("hold_hit") + rows("hold_pull") + passed("receives")
    sums = (
        ((rows("hold_pull") + rows("write_back")) * (KEY + image)).sum()
        + ((rows("pass_pull") + pushed) * (KEY + value)).sum()
        + (passed("sends") * (SAID + image)).sum()
        + (passed("value_sends") * value).sum()
        + (given * (SAID + value)).sum()
    )
    return int(sums), int((2 * (held + valued + read) * (KEY + value)).sum())


def features_of(calls: Iterable[LookupCall], samples: int) -> list[FeatureIds] | None:
    """Return the ids of all features of these calls. Return None if ids cannot be assigned to samples (the rows of the
    batch)."""
    found = []
    for call in calls:
        for feature, ids, bag, place in zip(call.features, call.ids, call.bags, call.places, strict=True):
            ids_of_feature = _of_feature(feature, ids, bag, call.shapes[place[0]][0], samples)
            if ids_of_feature is None:
                return None
            found.append(ids_of_feature)
    return found


def in_units(features: Iterable[FeatureIds], samples: int, unit: int) -> list[FeatureIds]:
    """Group every `unit` samples into one sample; the last group may be smaller."""
    if unit == 1:
        return list(features)
    bounds = np.append(np.arange(0, samples, unit), samples)
    return [
        FeatureIds(feature.table, feature.ids, bounds if feature.offsets is None else feature.offsets[bounds])
        for feature in features
    ]


def _of_feature(feature: LookupFeature, ids: Ids, bag: Bag, rows: int, samples: int) -> FeatureIds | None:
    """Return the ids of one feature by sample. `rows` is the output's first dimension, which is not always the
    batch."""
    values = _at(*ids)
    _, bags, _, address, closed, _ = bag
    if address:
        if bags != samples:
            return None
        begins = _at(address, bags + closed, 1)
        offsets: NDArray[np.int64] | None = begins if closed else np.append(begins, len(values))
    elif samples and rows == samples:
        width = len(values) // samples
        offsets = None if width == 1 else np.arange(samples + 1, dtype=np.int64) * width
    else:
        return None
    if feature.padding is not None and not feature.pull_padding:
        return _without(feature.table.spec.id, values, offsets, feature.padding)
    return FeatureIds(feature.table.spec.id, values, offsets)


def _without(table: int, values: NDArray[np.int64], offsets: NDArray[np.int64] | None, padding: int) -> FeatureIds:
    kept = values != padding
    if kept.all():
        return FeatureIds(table, values, offsets)
    before = np.concatenate([[0], np.cumsum(kept)])
    ends = np.arange(len(values) + 1) if offsets is None else offsets
    return FeatureIds(table, values[kept], before[ends])


def _at(address: int, count: int, stride: int) -> NDArray[np.int64]:
    if not count:
        return np.empty(0, dtype=np.int64)
    cells = (ctypes.c_int64 * ((count - 1) * stride + 1)).from_address(address)
    lying = np.frombuffer(memoryview(cells), dtype=np.int64)
    return lying[::stride].copy() if stride else np.repeat(lying, count)
