"""Row cache of a worker in a bsp group, which executes the schedule's plans step by step.

In: coordinator.py, around every step. Out: plans set on `CachedBackend` before the pulls and pushes that they apply to,
and feedback to the schedule. Next: embedding/schedule/scheduler.py (the schedule). Design: docs/design/caching.md.
"""

import itertools
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from springtide import _native, errors
from springtide.data.source import SampleSource
from springtide.domain.model.cache_rules import CachedTable, CacheRules, CacheUse, Way, capacity, words
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.specs import native_spec
from springtide.embedding.lookup.tables import ServedTable
from springtide.embedding.schedule import budget, plan_bytes, scheduler
from springtide.embedding.schedule.plan_bytes import RowSize
from springtide.embedding.schedule.sample_ids import SampleIds
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.worker.bsp import allreduce
from springtide.worker.bsp.allreduce import Reducer
from springtide.worker.bsp.group import BspGroup, GroupPlace
from springtide.worker.cache.auto_cache import CacheDecision, CacheTraffic, JobSurroundings
from springtide.worker.cache.coordinator import CacheCoordinator
from springtide.worker.cache.sample_allocation import SampleAllocator
from springtide.worker.input.read_batch import AllottedBatch, ScheduledBatch
from springtide.worker.input.subset import SourcePicker
from springtide.worker.link.step_timer import StepMeter

DEFAULT_POLICY = "anneal"
LATELY = 32  # recent steps that determine the time budget of a schedule
ACROSS_SAMPLES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
FLOAT = 4  # bytes of a number on the network, for any dtype of the table
BOOKED = 64  # bytes that a cache counts per row beside its image; a test compares it with row_cache.h
Parcel = tuple[int, NDArray[np.float32]]
"""Rank of the peer, and the floats sent to it or received from it."""


class Planner:
    """Scheduler with the durations of its recent schedules."""

    def __init__(self, settings: scheduler.ScheduleSettings) -> None:
        self._scheduler = scheduler.Scheduler(settings)
        self._lock = (
            threading.Lock()
        )  # a loop that ends or accumulates may flush during the scheduling of the next batch
        self._searches = settings.policy == "anneal"
        self._tables = len(settings.tables or ())
        self._took: list[budget.ScheduleTime] = []

    def schedule(self, features: Sequence[SampleIds], samples: int, *, effort: int) -> ScheduledBatch:
        """Schedule the next batch. `effort` limits the sweeps of a search policy, or the tables that another policy
        scores; 0 for the default.
        """
        wanted = [scheduler.FeatureIds(one.table, one.ids, one.offsets) for one in features]
        how: dict[str, Any] = {"effort": effort} if self._searches else {"best_tables": effort or None}
        with self._lock:
            made = self._scheduler.schedule(wanted, samples, **how)
        units = effort or (scheduler.DEFAULT_SWEEPS if self._searches else self._tables)
        self._took = [*self._took[1 - budget.MEMORY :], budget.took(made.seconds, units=units)]
        return ScheduledBatch(made.step, np.asarray(made.rank_of_sample, dtype=np.int32), made.plans)

    def effort_within(self, seconds: float) -> int:
        """Return the effort that keeps the next schedules within this time."""
        if self._searches:
            return budget.units_within(seconds, self._took, most=scheduler.MOST_SWEEPS, least=1)
        return budget.units_within(seconds, self._took, most=max(self._tables, 1))

    def flushed(self, step: int) -> None:
        with self._lock:
            self._scheduler.flushed(step)


class RowCache:
    """Driver of `CachedBackend` around each step, with this rank's view of the cache."""

    def __init__(self, backend: _native.CachedBackend, *, most_dirty: int, gloo: Callable[[], Any], p2p: Way) -> None:
        """Create the driver. `gloo` returns the current group, for traffic between ranks."""
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
        """Raise BadInput for a read outside a step while servers lack current values of these tables."""
        if not self.clean and (kept := self._kept.intersection(tables)):
            raise errors.BadInput(
                f"rows of table {min(kept)} are read in the middle of a pass, while workers keep rows that servers do "
                "not have yet. Call job.flush() on every worker before it, right after optimizer.step(), or wait for "
                'the end of the pass; cache="off" keeps none'
            )

    @property
    def crowded(self) -> bool:
        return not self.clean and self.backend.stats()["dirty_bytes"] > self._most_dirty

    def tables(self, chosen: Sequence[ServedTable]) -> tuple[CachedTable, ...]:
        self._kept = frozenset(table.spec.id for table in chosen)
        self.backend.cache_tables(sorted(self._kept))
        size = self.backend.image_bytes
        return tuple(
            CachedTable(id=table.spec.id, row_bytes=size(table.spec.id), rows=table.request.rows) for table in chosen
        )

    def begin(self, planner: Planner, place: GroupPlace) -> None:
        """Cache rows from now on, by this schedule's plans for this rank."""
        self.close()
        self._planner, self._rank, self._trained = planner, place.rank, 0

    def expect(self, number: int, allotted: AllottedBatch) -> None:
        """Expect this batch in step `number`, unless it is already expected after a scheduled batch."""
        if number not in self._expected:
            self._expected[number] = allotted
            self.backend.set_plan(number, allotted.made.plans[self._rank])

    def before_push(
        self, number: int, now: AllottedBatch | None, following: AllottedBatch | None, *, flush: bool
    ) -> None:
        """Announce the batch after step `number`, so that the push includes the rows that other ranks need for it."""
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
        """Exchange rows and values between ranks for the next step, unless they were exchanged before a flush."""
        self.clean |= self._flushing
        postponed, self._flushing, self._postponed = self._postponed, False, False
        if self._p2p != "off" and number + 1 in self._expected and not postponed:
            sizes = self.backend.receives(number + 1)
            for peer, floats in exchange(self._gloo(), self.backend.sends(number + 1), sizes):
                self.backend.received(number + 1, peer, floats)

    def share_gradients(self, number: int, parts: Sequence[Any]) -> None:
        """Send gradients of step `number` to the ranks that hold the rows; `parts` is the next push."""
        if self._p2p == "gradients" and number == self._planned:
            sizes = self.backend.gradient_receives(number)
            for peer, floats in exchange(self._gloo(), self.backend.gradient_sends(number, list(parts)), sizes):
                self.backend.gradients_received(number, peer, floats)

    def postpone(self, number: int) -> None:
        """Move the batch expected in step `number` to the next step, because step `number` only flushes."""
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
    """Send these parcels, and receive parcels of these sizes (rank, floats). Both sides know the sizes from the
    plan.
    """
    coming = [(peer, torch.empty(floats)) for peer, floats in sizes]
    try:
        arriving = [gloo.recv([tensor], peer, 0) for peer, tensor in coming]
        leaving = [(peer, torch.from_numpy(floats)) for peer, floats in parcels]
        going = [gloo.send([tensor], peer, 0) for peer, tensor in leaving]
        for one in (*arriving, *going):
            one.wait()
    except RuntimeError as error:
        raise errors.GroupChanged(f"a member of the group is lost: {allreduce.said(error)}") from None
    return [(peer, tensor.numpy()) for peer, tensor in coming]


class PaperSchedule:
    """Simulated schedule that measures the bytes a cache would save."""

    def __init__(self, planner: Planner, sizes: Mapping[int, RowSize]) -> None:
        self._planner, self._sizes = planner, sizes

    def look(self, features: Sequence[SampleIds], samples: int) -> CacheTraffic:
        """Simulate the next batch. Without caches, every row is pulled and its gradient pushed."""
        plans = self._planner.schedule(features, samples, effort=0).plans
        sent = plan_bytes.volume(plans, self._sizes)
        return CacheTraffic(sent.with_caches / len(plans), sent.without / len(plans))


def for_model(rules: CacheRules, model: nn.Module) -> CacheRules:
    """Keep batches in contiguous runs if a layer looks across samples and the user chose no policy."""
    across = rules.policy is None and any(isinstance(module, ACROSS_SAMPLES) for module in model.modules())
    return replace(rules, policy="contiguous") if across else rules


def needed_s(meter: StepMeter) -> float:
    """Return the median time of recent steps without waits. A schedule that runs beside a step in this time costs
    nothing.
    """
    lately = itertools.islice(reversed(meter.steps), LATELY)
    needed = [step.total_s - step.pull_wait_s - step.push_wait_s for step in lately]
    return statistics.median(needed) if needed else 0.0


def share_out(
    rules: CacheRules,
    source: SampleSource,
    lookups: Lookups,
    served: Sequence[ServedTable],
    reducer: Reducer,
    group: BspGroup,
    meter: StepMeter,
    welcome: WorkerWelcome,
    unit: int = 1,
) -> CacheCoordinator | None:
    """Build the coordinator that allocates the group's batches and caches rows; None for contiguous runs without a
    cache.
    """
    if rules.idle or (rules.auto and welcome.workers > scheduler.MOST_WORKERS):
        return None
    by_id = {table.spec.id: table for table in served}
    cache: RowCache | None = None
    tables = list(by_id)
    backend = lookups.client.backend
    if isinstance(backend, _native.CachedBackend):
        tables = [table for table in tables if backend.cacheable(native_spec(by_id[table].spec))]
        cache = RowCache(backend, most_dirty=rules.dirty, gloo=lambda: reducer.group, p2p=rules.p2p)

    def planner(place: GroupPlace, chosen: Sequence[int]) -> Planner:
        seen = cache.tables([by_id[table] for table in chosen]) if cache is not None else ()
        settings = scheduler.ScheduleSettings(
            workers=place.workers, capacity_rows=capacity(rules, seen), tables=tuple(chosen), seed=welcome.seed,
            policy=rules.policy or DEFAULT_POLICY, order=rules.order, p2p=rules.p2p if cache is not None else "off",
        )  # fmt: skip
        return Planner(settings)

    def begin(place: GroupPlace, chosen: Sequence[int]) -> Planner:
        made = planner(place, chosen)
        if cache is not None:
            cache.begin(made, place)
        return made

    allotting = SampleAllocator(lookups, tables, begin, SourcePicker(source), permitted=not rules.auto, unit=unit)
    sharing = CacheCoordinator(
        reducer, allotting, cache, save_due=lambda: group.save_due, needed_s=lambda: needed_s(meter),
        why=f"asked for: {words(rules)}",
    )  # fmt: skip
    if not rules.auto:
        return sharing

    def paper() -> PaperSchedule:
        chosen = [table for table in tables if table not in lookups.computed()]
        made = planner(group.place, chosen)
        return PaperSchedule(made, row_sizes(backend, [by_id[table] for table in chosen]))

    decides = CacheDecision(
        meter.steps, lambda: around(group, lookups, sharing), paper, lambda: group.round_trip_s(lookups.after_step),
    )  # fmt: skip
    sharing.decide_by(decides, at_once=rules.at_once)
    return sharing


def around(group: BspGroup, lookups: Lookups, sharing: CacheCoordinator) -> JobSurroundings:
    """Return the inputs of a decision beside step times: crash risk, read time and bytes moved."""
    stats = lookups.client.stats()
    moved = stats.get("bytes_in", 0) + stats.get("bytes_out", 0)
    return JobSurroundings(risk=group.risk(), read_s=sharing.read_s, moved=moved)


def row_sizes(backend: Any, chosen: Sequence[ServedTable]) -> dict[int, RowSize]:
    """Return the network size of these tables' rows. Without a cache, the image counts like the value."""
    keeps = isinstance(backend, _native.CachedBackend)
    sizes = {}
    for table in chosen:
        value = FLOAT * table.spec.dim
        image = backend.image_bytes(table.spec.id) - BOOKED if keeps else value
        sizes[table.spec.id] = RowSize(value, image)
    return sizes
