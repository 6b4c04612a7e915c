"""Allocate samples of a batch to workers and plan their caches, with the native scheduler.

Every rank runs a scheduler with equal settings and equal batches. All ranks therefore reach the same result without
communication. In: ids of the whole next batch, by feature. Out: a rank for every sample, and a plan for every rank's
cache (`cpp/cache/cache_plan.h`). `embedding.schedule.sync_plan` counts the cost of a plan.
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
DEFAULT_SWEEPS, MOST_SWEEPS = (
    8,
    20,
)  # sweeps of `anneal`, by default and with time to spare; more sweeps save almost nothing
ALL_TABLES = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """Settings that must be equal on all ranks."""

    workers: int
    capacity_rows: int
    """Rows that each worker's cache holds; 0 disables caching."""
    tables: tuple[int, ...] | None = None
    """Ids of the cached tables; the scheduler ignores all other tables. None caches all tables."""
    policy: str = "laia"
    """Allocation policy. `anneal` searches for the fewest transmissions. `laia` is Herald's Algorithm 1. `random` and
    `contiguous` do no scheduling. `exhaustive` finds the minimum, for tiny batches only.
    """
    order: str = "lru"
    """Eviction order of a full cache: `lru` evicts the row trained longest ago, `lfu` the row trained least often."""
    seed: int = 0
    p2p: str = "off"
    """Direct traffic between workers. `off` sends nothing. `rows` sends a row to the only worker that trains it next.
    `gradients` also lets one of a few trainers keep a row and sum the gradients of the other trainers.
    """
    p2p_trainers: int = 4
    """Limit on the workers that train one row under `gradients`. With more trainers, the servers sum the gradients."""
    on_demand: bool = True
    """Whether write-backs wait until a row is needed. False writes every trained row back with its own step, as if the
    next batch were unknown.
    """
    threads: int = 1
    """Threads of this rank's scheduler. Several threads split samples and capacity before the allocation, so all ranks
    need the same number.
    """
    profile_every: int = 8
    """Batches between two measurements of the tables' degree of infrequency; 0 disables the measurement."""

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
    """Ids of one feature for every sample of a batch. Several features may use one table."""

    table: int
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64] | None = field(default=None)
    """Start of each sample's ids, then the end of the last sample's ids. None means one id per sample."""


class Scheduler:
    """Directory of all caches, and the scheduler of samples over them. Not thread-safe."""

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
        """Schedule the next batch of the stream. All earlier plans count as executed.

        `scored` names the tables whose keys count in the allocation; empty for all. `best_tables` limits them to the
        tables with the highest degree of infrequency; None for all (`budget` computes the limit). `effort` limits the
        search of a policy. All arguments must be equal on every rank.
        """
        tables = self.settings.tables
        looked_at = [(f.table, f.ids, f.offsets) for f in features if tables is None or f.table in tables]
        best = ALL_TABLES if best_tables is None else best_tables
        return self._native.schedule(looked_at, samples, scored=sorted(scored), best_tables=best, effort=effort)

    def consider(
        self, features: Sequence[FeatureIds], samples: int, policy: str, *, effort: int = 0
    ) -> _native.Considered:
        """Return the result of another policy for the next batch from the same state, without scheduling the batch."""
        if policy not in POLICIES:
            raise errors.UnknownName("allocation policy", policy, POLICIES)
        tables = self.settings.tables
        looked_at = [(f.table, f.ids, f.offsets) for f in features if tables is None or f.table in tables]
        return self._native.consider(looked_at, samples, policy, effort=effort)

    def flushed(self, step: int) -> None:
        """Note that all rows trained up to `step` are on the servers. The next step may already be scheduled."""
        self._native.flushed(step)

    def clear(self) -> None:
        self._native.clear()

    def cached(self, worker: int) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.bool_]]:
        """Return tables and keys of one worker's rows in eviction order, and which rows only this worker has."""
        tables, keys, dirty = self._native.cached(worker)
        return tables, keys, dirty.astype(bool)

    def infrequency(self, table: int) -> float:
        """Return Herald's degree of infrequency: the share of the table's used rows that occur less often than a worker
        trains samples.
        """
        return float(self._native.infrequency(table))

    @property
    def step(self) -> int:
        return int(self._native.step)
