"""Allocates samples of the group's batch to this rank, by a schedule that is equal on every rank.

In: whole batches, read one batch ahead, and the combined flags of the ranks. Out: this rank's part of each batch. A
schedule starts once every rank knows where its modules find their ids. A schedule ends with the pass or with the
group, or if two ranks read different samples at the same index. Design: docs/design/caching.md.
"""

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data import shards
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.schedule import scheduler
from springtide.embedding.schedule.scheduler import FeatureIds
from springtide.worker.bsp.allreduce import GroupVerdict
from springtide.worker.bsp.group import GroupPlace
from springtide.worker.cache.auto_cache import CacheDecision
from springtide.worker.cache.row_cache import Planner
from springtide.worker.input import batch_plan
from springtide.worker.input.batch_plan import AllottedBatch, ReadBatch
from springtide.worker.input.batch_rows import SamplePicker

log = logging.getLogger(__name__)

NOT_YET = "it is not known yet where the model finds its ids"
NO_IDS = "the ids of every table are computed inside the model, or by data workers, so they are not known in advance"


class SampleAllocator:
    """Allocator of samples. The reader's thread calls `make_ready`, and the loop's thread calls all other methods."""

    def __init__(
        self,
        lookups: Lookups,
        tables: Sequence[int],
        begin: Callable[[GroupPlace, Sequence[int]], Planner],
        picker: SamplePicker,
        *,
        deciding: CacheDecision | None = None,
        unit: int = 1,
    ) -> None:
        """Create the allocator. `begin` starts a schedule for some of `tables`. Groups of `unit` samples stay
        together.

        `deciding` decides when to schedule, and can request whole batches. Without `deciding`, scheduling is always
        allowed.
        """
        self._unit = unit
        self.lookups, self.tables = lookups, tuple(tables)
        self._begin = begin
        self._picker, self._deciding = picker, deciding
        self.place = GroupPlace(0, 1, 0)
        self.why = NOT_YET
        """Reason why nothing is scheduled."""
        self._schedule: Planner | None = None
        self._scheduled: frozenset[int] = frozenset()
        self._effort = 0
        self._refused = ""
        self._turn = 0
        self.permitted = deciding is None

    @property
    def wholes(self) -> bool:
        """Return True if the whole group's batches must be read. A rank with rows on its device trains alone."""
        return self.permitted and not self._refused and not self.lookups.on_device

    @property
    def on(self) -> bool:
        return self._schedule is not None

    def effort_within(self, seconds: float) -> int:
        return 0 if self._schedule is None else self._schedule.effort_within(seconds)

    def restart(self, place: GroupPlace) -> None:
        """End the schedule at the start of a pass or group, because ranks may disagree on where their modules find
        their ids."""
        self.end(self._refused or NOT_YET)
        self.place = place

    def end(self, why: str, *, for_good: bool = False) -> None:
        self._schedule, self.why, self._turn = None, why, self._turn + 1
        self._refused = why if for_good else self._refused
        self.lookups.fixed = False

    def apply_verdict(self, verdict: GroupVerdict) -> bool:
        self._effort = verdict.effort
        self.permitted = (self.permitted or verdict.go) and not verdict.stop
        if self._schedule is not None or self._refused or not verdict.ready or not self.permitted:
            return False
        tables = [table for table in self.tables if table not in verdict.refused]
        if not tables:
            self.end(NO_IDS, for_good=True)
            log.warning("each worker trains a contiguous run of each batch: %s", self.why)
            return False
        if verdict.refused:
            log.info("tables %s are not scheduled: their ids are computed inside the model", sorted(verdict.refused))
        self.lookups.fixed = True
        self._scheduled = frozenset(tables)
        self._schedule, self.why = self._begin(self.place, tables), ""
        return True

    def make_ready(self, handed: ReadBatch) -> ReadBatch:
        order, schedule, turn = handed.order, self._schedule, self._turn
        if order.whole is None or handed.empty:  # there are too few samples to divide, so every rank trains all of them
            return handed
        if handed.whole and len(order.whole) < self.place.workers:  # too few samples of the batch can be read
            return ReadBatch(replace(order, share=1 / self.place.workers), handed.batch)
        if schedule is None:
            self._show(handed)
            return self._in_runs(handed, handed.batch) if handed.whole else handed
        whole = self._whole(handed)
        if whole is None:
            return handed
        calls = self.lookups.announced(whole)
        features = scheduler.features_of(calls, len(order.whole))
        jagged = any(bag[3] for call in calls for bag in call.bags)
        if features is None:
            return self._in_runs(handed, whole)
        mine = self._in_units([feature for feature in features if feature.table in self._scheduled], len(order.whole))
        made = schedule.schedule(mine, -(-len(order.whole) // self._unit), effort=self._effort)
        rank_of_unit = np.asarray(made.rank_of_sample, dtype=np.int32)
        chosen = np.flatnonzero(np.repeat(rank_of_unit, self._unit)[: len(order.whole)] == self.place.rank)
        batch = self._picker.pick(whole, order.whole, chosen, jagged=jagged)
        digest = digest_of(mine, rank_of_unit)
        return ReadBatch(batch_plan.allotted(order, chosen), batch, plan=AllottedBatch(whole, made, digest, turn))

    def _show(self, handed: ReadBatch) -> None:
        deciding, whole = self._deciding, handed.order.whole
        if deciding is None or not deciding.asked or self._refused or whole is None or not self.lookups.settled:
            return
        if (batch := self._whole(handed)) is not None:
            features = scheduler.features_of(self.lookups.announced(batch), len(whole))
            mine = [feature for feature in features or () if feature.table in self.tables]
            deciding.observe(self._in_units(mine, len(whole)), -(-len(whole) // self._unit))

    def _whole(self, handed: ReadBatch) -> Any:
        """Return the group's batch; None if some samples cannot be read. All ranks get the same result."""
        if handed.whole or handed.order.whole is None:
            return handed.batch
        try:
            return self._picker.fetch(handed.order.whole)
        except errors.JobFailed:
            raise
        # a user's data set may raise anything; the rank that trains the samples reports the error
        except Exception as error:
            log.info("a batch is not scheduled: %s", error)
            return None

    def _in_units(self, features: Sequence[FeatureIds], samples: int) -> list[FeatureIds]:
        return scheduler.in_units(features, samples, self._unit)

    def review(self, handed: ReadBatch) -> ReadBatch:
        allotted = handed.plan
        return self._in_runs(handed, allotted.whole) if allotted is not None and allotted.turn != self._turn else handed

    def _in_runs(self, handed: ReadBatch, whole: Any) -> ReadBatch:
        order = handed.order
        assert order.whole is not None
        rank, workers, _ = self.place
        run = shards.rank_part(len(order.whole), rank=rank, workers=workers, unit=self._unit)
        chosen = np.arange(run.start, run.stop)
        return ReadBatch(batch_plan.allotted(order, chosen), self._picker.pick(whole, order.whole, chosen, jagged=True))


def digest_of(features: Sequence[FeatureIds], rank_of_sample: NDArray[np.int32]) -> int:
    sums = zlib.crc32(rank_of_sample.tobytes())
    for feature in features:
        sums = zlib.crc32(feature.ids.tobytes(), zlib.crc32(feature.table.to_bytes(4, "little"), sums))
        sums = sums if feature.offsets is None else zlib.crc32(feature.offsets.tobytes(), sums)
    return sums or 1
