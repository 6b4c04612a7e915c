"""Allocate samples of a batch to workers and plan their caches, with the native scheduler.

Every rank makes one with the same settings and gives it the same batches, so all come to the same answer and nobody
asks anybody. In: ids of the whole next batch, feature by feature. Out: a rank for every sample, and a plan for every
rank that its cache executes (`cpp/cache/cache_plan.h`). What a plan costs is counted in `syncplan`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from springtide import _native, errors

POLICIES = ("anneal", "contiguous", "exhaustive", "laia", "random")
ORDERS = ("lfu", "lru")
P2P = ("gradients", "off", "rows")
MOST_WORKERS = 128
DEFAULT_SWEEPS, MOST_SWEEPS = 8, 20  # of `anneal`, by itself and where there is time: more save next to nothing
ALL_TABLES = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """What all ranks must agree on."""

    workers: int
    capacity_rows: int
    """Rows that each worker's cache holds; 0 caches nothing."""
    tables: tuple[int, ...] | None = None
    """Tables that are cached; ids of others are not looked at. None: all that come."""
    policy: str = "laia"
    """How samples are shared out: `anneal` (fewest transmissions that a search finds), `laia` (Herald's Algorithm 1),
    `random` or `contiguous` (no scheduling), `exhaustive` (fewest there are; tiny batches only)."""
    order: str = "lru"
    """What a full cache gives up first: `lru`, the row trained longest ago; `lfu`, the one trained least often."""
    seed: int = 0
    p2p: str = "off"
    """What goes straight from worker to worker: nothing (`off`); `rows`, to the one that trains them next alone; or
    `gradients`, which also lets one of a few workers that train a row keep it and sum what the others send."""
    p2p_trainers: int = 4
    """With `gradients`: the most workers that do so; where more train a row the servers sum."""
    on_demand: bool = True
    """False writes every trained row back with its own step, as if no next batch were ever known."""
    threads: int = 1
    """Threads of this rank's scheduler. With more than one, samples and room are split before they are allocated, so
    the number is one that ranks must agree on."""
    profile_every: int = 8
    """Batches from one look at the tables' keys to the next; 0: the degree of infrequency is not measured."""

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise errors.BadInput(f"a scheduler needs 1 to {MOST_WORKERS} workers, got {self.workers}")
        if self.capacity_rows < 0:
            raise errors.BadInput(f"a cache holds 0 rows or more, got capacity_rows={self.capacity_rows}")
        if self.policy not in POLICIES:
            raise errors.UnknownName("allocation policy", self.policy, POLICIES)
        if self.order not in ORDERS:
            raise errors.UnknownName("order of eviction", self.order, ORDERS)
        if self.p2p not in P2P:
            raise errors.UnknownName("way from worker to worker", self.p2p, P2P)


@dataclass(frozen=True, slots=True)
class FeatureIds:
    """Ids of one feature for every sample of a batch; several features may look into one table."""

    table: int
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64] | None = field(default=None)
    """Where each sample's ids begin, and after the last one where they end. None: one id a sample."""


class Scheduler:
    """The directory of all caches, and the decisions that follow from it. Not to be called from two threads at once."""

    def __init__(self, settings: ScheduleSettings) -> None:
        self.settings = settings
        self._native = _native.Scheduler(
            workers=settings.workers,
            capacity_rows=settings.capacity_rows,
            order=settings.order,
            policy=settings.policy,
            seed=settings.seed,
            p2p=settings.p2p,
            p2p_trainers=settings.p2p_trainers,
            on_demand=settings.on_demand,
            threads=settings.threads,
            profile_every=settings.profile_every,
        )

    def schedule(
        self,
        features: Sequence[FeatureIds],
        samples: int,
        *,
        scored: Collection[int] = (),
        best_tables: int | None = None,
        effort: int = 0,
    ) -> _native.Scheduled:
        """The next batch of the stream. The plans before it count as executed.

        `scored` names the tables whose keys count in the allocation (none: all), `best_tables` how many of them: those
        with the highest degree of infrequency (None: all; `budget` finds the number), `effort` how long a policy may
        search. All must be the same on every rank.
        """
        tables = self.settings.tables
        looked_at = [(f.table, f.ids, f.offsets) for f in features if tables is None or f.table in tables]
        best = ALL_TABLES if best_tables is None else best_tables
        return self._native.schedule(looked_at, samples, scored=sorted(scored), best_tables=best, effort=effort)

    def consider(
        self, features: Sequence[FeatureIds], samples: int, policy: str, *, effort: int = 0
    ) -> _native.Considered:
        """What another policy would do with the next batch, from the same state; nothing is scheduled."""
        if policy not in POLICIES:
            raise errors.UnknownName("allocation policy", policy, POLICIES)
        tables = self.settings.tables
        looked_at = [(f.table, f.ids, f.offsets) for f in features if tables is None or f.table in tables]
        return self._native.consider(looked_at, samples, policy, effort=effort)

    def flushed(self, step: int) -> None:
        """All rows trained up to `step` are on the servers. The step after it may have been scheduled already."""
        self._native.flushed(step)

    def clear(self) -> None:
        self._native.clear()

    def cached(self, worker: int) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.bool_]]:
        """Tables and keys of one worker's rows, the next to be evicted first, and which of them only it has."""
        tables, keys, dirty = self._native.cached(worker)
        return tables, keys, dirty.astype(bool)

    def infrequency(self, table: int) -> float:
        """Herald's degree of infrequency: of the table's rows in use, the share that comes less often than a worker
        trains samples."""
        return float(self._native.infrequency(table))

    @property
    def step(self) -> int:
        return int(self._native.step)
