"""Row caches of a worker. In a bsp group (`RowCache`), a cache executes the schedule's plans step by step.

In: coordinator.py, around every step. Out: plans set on `CachedBackend` before the pulls and pushes that they apply
to. In an async job (`StaleRowCache`), a cache uses a copy of a row until the copy misses too many updates by other
workers. Servers see every push, so training stays exactly once. Design: docs/design/caching.md.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from springtide import _native, errors
from springtide.domain.model.cache_rules import CachedTable, CacheRules, CacheUse, Way, size_in_bytes, words
from springtide.embedding.lookup.table_client import native_spec
from springtide.embedding.lookup.tables import ServedTable
from springtide.embedding.schedule import scheduler
from springtide.embedding.schedule.scheduler import FeatureIds, RowSize
from springtide.worker.bsp.allreduce import noticing_loss
from springtide.worker.bsp.group import GroupPlace
from springtide.worker.input.batch_plan import AllottedBatch

Parcel = tuple[int, NDArray[np.float32]]
"""Rank of the peer, and the floats that this rank sends to the peer or receives from it."""


class Planner:
    """Scheduler with the durations of recent schedules."""

    def __init__(self, settings: scheduler.ScheduleSettings) -> None:
        self._scheduler = scheduler.Scheduler(settings)
        # a loop that ends or accumulates may flush while the next batch is being scheduled
        self._lock = threading.Lock()
        self._searches = settings.policy == "anneal"
        self._tables = len(settings.tables or ())
        self._took: list[scheduler.ScheduleTime] = []

    def schedule(self, features: Sequence[FeatureIds], samples: int, *, effort: int) -> _native.Scheduled:
        """Schedule the next batch. `effort` limits the number of sweeps, or of tables to score; 0 means the default."""
        how: dict[str, Any] = {"effort": effort} if self._searches else {"best_tables": effort or None}
        with self._lock:
            made = self._scheduler.schedule(features, samples, **how)
        units = effort or (scheduler.DEFAULT_SWEEPS if self._searches else self._tables)
        self._took = [*self._took[1 - scheduler.MEMORY :], scheduler.took(made.seconds, units=units)]
        return made

    def effort_within(self, seconds: float) -> int:
        if self._searches:
            return scheduler.units_within(seconds, self._took, most=scheduler.MOST_SWEEPS, least=1)
        return scheduler.units_within(seconds, self._took, most=max(self._tables, 1))

    def flushed(self, step: int) -> None:
        with self._lock:
            self._scheduler.flushed(step)


def cached_tables(backend: Any, chosen: Sequence[ServedTable]) -> tuple[CachedTable, ...]:
    size = backend.image_bytes
    return tuple(
        CachedTable(id=table.spec.id, row_bytes=size(table.spec.id), rows=table.request.rows) for table in chosen
    )


class RowCache:
    """Controls `CachedBackend` around each step, and tracks what this rank's cache contains."""

    def __init__(self, backend: _native.CachedBackend, *, most_dirty: int, gloo: Callable[[], Any], p2p: Way) -> None:
        """Create the controller. `gloo` returns the current group, for traffic between ranks."""
        self.backend = backend
        self.clean = True
        self._most_dirty, self._gloo, self._p2p = most_dirty, gloo, p2p
        self._planner: Planner | None = None
        self._expected: dict[int, AllottedBatch] = {}
        self._kept: frozenset[int] = frozenset()
        self._trained = 0
        """Last batch of the schedule that was pushed."""
        self._flushing = self._postponed = False
        self._planned = 0
        """Last step that was pushed with a plan."""

    def check_read(self, tables: Sequence[int]) -> None:
        if not self.clean and (kept := self._kept.intersection(tables)):
            raise errors.BadInput(
                f"rows of table {min(kept)} are read in the middle of a pass, while workers hold newer values in "
                f"their caches. Call job.flush() on every worker before it, right after optimizer.step(), or wait for "
                'the end of the pass; cache="off" caches no rows'
            )

    @property
    def crowded(self) -> bool:
        return not self.clean and self.backend.stats()["dirty_bytes"] > self._most_dirty

    def tables(self, chosen: Sequence[ServedTable]) -> tuple[CachedTable, ...]:
        self._kept = frozenset(table.spec.id for table in chosen)
        self.backend.cache_tables(sorted(self._kept))
        return cached_tables(self.backend, chosen)

    def begin(self, planner: Planner, place: GroupPlace) -> None:
        self.close()
        self._planner, self._rank, self._trained = planner, place.rank, 0

    def expect(self, number: int, allotted: AllottedBatch) -> None:
        """Announce that step `number` trains this batch, unless `before_push` has announced the batch."""
        if number not in self._expected:
            self._expected[number] = allotted
            self.backend.set_plan(number, allotted.made.plans[self._rank])

    def before_push(
        self, number: int, now: AllottedBatch | None, following: AllottedBatch | None, *, flush: bool
    ) -> None:
        """Announce the batch after step `number`, so that the push includes the rows that other ranks need for this
        batch."""
        self._expected.pop(number, None)
        if now is not None:
            self._trained, self._planned, self.clean = now.made.step, number, False
        if following is not None:
            self.expect(number + 1, following)
        if self.clean or self._planner is None:
            return
        if flush:
            self.backend.flush_next()
        if flush or not self._expected:
            self._planner.flushed(self._trained)
            self._flushing = True

    def after_push(self, number: int) -> None:
        """Exchange rows and values between ranks for the next step, unless this was done before a flush."""
        self.clean |= self._flushing
        postponed, self._flushing, self._postponed = self._postponed, False, False
        if self._p2p != "off" and number + 1 in self._expected and not postponed:
            sizes = self.backend.receives(number + 1)
            for peer, floats in exchange(self._gloo(), self.backend.sends(number + 1), sizes):
                self.backend.received(number + 1, peer, floats)

    def share_gradients(self, number: int, parts: Sequence[Any]) -> None:
        """Send gradients of step `number` to the ranks that hold the rows. `parts` are those of the next push."""
        if self._p2p == "gradients" and number == self._planned:
            sizes = self.backend.gradient_receives(number)
            for peer, floats in exchange(self._gloo(), self.backend.gradient_sends(number, list(parts)), sizes):
                self.backend.gradients_received(number, peer, floats)

    def postpone(self, number: int) -> None:
        """Move the batch of step `number` to the next step, because step `number` only flushes."""
        if number in self._expected:
            self._expected[number + 1] = self._expected.pop(number)
            self.backend.move_plan(number, number + 1)
            self._postponed = True

    def use(self) -> CacheUse:
        stats = self.backend.stats()
        return CacheUse(
            rows=stats["rows"],
            size=stats["bytes"],
            dirty=stats["dirty_bytes"],
            hits=stats["hits"],
            pulled=stats["pulled_values"] + stats["pulled_images"],
            pushed=stats["pushed_gradients"] + stats["pushed_images"],
            passed=stats["received_rows"],
            flushes=stats["flushes"],
        )

    def close(self) -> None:
        self.backend.clear()
        self._planner, self._planned, self.clean = None, 0, True
        self._flushing = self._postponed = False
        self._expected.clear()


def exchange(gloo: Any, parcels: Sequence[Parcel], sizes: Sequence[tuple[int, int]]) -> list[Parcel]:
    """Send these parcels, and receive parcels of the given sizes (rank, floats). Both sides know the sizes from the
    plan.
    """
    coming = [(peer, torch.empty(floats, device="cpu")) for peer, floats in sizes]
    with noticing_loss():
        arriving = [gloo.recv([tensor], peer, 0) for peer, tensor in coming]
        leaving = [(peer, torch.from_numpy(floats)) for peer, floats in parcels]
        going = [gloo.send([tensor], peer, 0) for peer, tensor in leaving]
        for transfer in (*arriving, *going):
            transfer.wait()
    return [(peer, tensor.numpy()) for peer, tensor in coming]


@dataclass(frozen=True, slots=True)
class CacheTraffic:
    """Mean bytes that a rank sends and receives per batch, with and without caches."""

    with_caches: float
    without: float
    seconds: float = 0.0
    """Seconds that the simulation took."""


PaperSchedule = Callable[[Sequence[FeatureIds], int], CacheTraffic]


def paper_schedule(planner: Planner, sizes: Mapping[int, RowSize]) -> PaperSchedule:
    """Return a function that simulates the next batch, to measure how many bytes a cache would save."""

    def simulate(features: Sequence[FeatureIds], samples: int) -> CacheTraffic:
        began = time.perf_counter()
        plans = planner.schedule(features, samples, effort=0).plans
        with_caches, without = scheduler.volume(plans, sizes)
        return CacheTraffic(with_caches / len(plans), without / len(plans), time.perf_counter() - began)

    return simulate


class StaleRowCache:
    """Row cache with bounded staleness. `wrap` puts the cache before the tables, and then `keep` chooses the tables to
    cache."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._backend: _native.VersionedBackend | None = None
        self._why = ""

    def wrap(self, tables: _native.Backend) -> _native.Backend:
        rules = self._rules
        self._backend = _native.VersionedBackend(tables, capacity_bytes=0, staleness=rules.staleness)
        return self._backend

    def keep(self, served: Sequence[ServedTable]) -> None:
        """Cache the rows of those tables that can be cached. The tables must already be declared."""
        assert self._backend is not None
        chosen = [table for table in served if _native.CachedBackend.cacheable(native_spec(table.spec))]
        self._backend.cache_tables([table.spec.id for table in chosen])
        self._backend.resize(size_in_bytes(self._rules, cached_tables(self._backend, chosen)))
        left = [table.name for table in served if table not in chosen]
        self._why = f"asked for, {words(self._rules)} a worker" if chosen else ""
        if left:
            self._why += (
                f"{'; ' if chosen else ''}no rows of {', '.join(left)}, because servers admit or drop these rows"
            )

    def use(self) -> CacheUse:
        assert self._backend is not None
        stats = self._backend.stats()
        mean = stats["staleness_sum"] / max(1, stats["hits"])
        lacked = (
            f"cached rows lacked {mean:.2f} updates on average and {stats['staleness_max']} at most; "
            f"the limit is {self._rules.staleness}"
        )
        return CacheUse(
            on=True,
            why=f"{self._why}; {lacked}",
            rows=stats["rows"],
            size=stats["bytes"],
            hits=stats["hits"],
            pulled=stats["misses"] + stats["stale"],
            pushed=stats["pushed_gradients"],
        )


def for_async(rules: CacheRules, *, max_staleness: int | None) -> StaleRowCache | None:
    """Return a cache if the user gave a size; otherwise return None. Without a given size, only bsp groups measure
    whether a cache is worth its cost.
    """
    if rules.auto or rules.off:
        return None
    if max_staleness is not None:
        raise errors.BadInput(
            f"max_staleness={max_staleness} and a cache of {words(rules)}: max_staleness does not cover cached rows. "
            "Use only one of them; cache_staleness limits the updates that a cached row may lack"
        )
    return StaleRowCache(rules)
