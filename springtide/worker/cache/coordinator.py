"""Coordinates sample allocation and row caches of a bsp group around each step.

In: calls of worker/step/bsp_step.py, before and after every all-reduce and push. Out: flags for the other ranks, and
plans for the cache. If a condition for allocation or caching is violated, the coordinator ends both. Next:
sample_allocation.py, row_cache.py. Design: docs/design/caching.md.
"""

import itertools
import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from springtide import _native, errors
from springtide.domain.model.cache_rules import CachedTable, CacheRules, CacheUse, capacity, words
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.table_client import native_spec
from springtide.embedding.lookup.tables import ServedTable
from springtide.embedding.schedule import scheduler
from springtide.embedding.schedule.scheduler import RowSize
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.worker.bsp import allreduce
from springtide.worker.bsp.allreduce import Reducer
from springtide.worker.bsp.batch_order import ACROSS
from springtide.worker.bsp.group import BspGroup, GroupPlace
from springtide.worker.cache.auto_cache import CacheDecision, DecisionProbes
from springtide.worker.cache.row_cache import PaperSchedule, Planner, RowCache, paper_schedule
from springtide.worker.cache.sample_allocation import NOT_YET, SampleAllocator
from springtide.worker.input.batch_plan import ReadBatch
from springtide.worker.input.batch_rows import SamplePicker
from springtide.worker.link.progress import StepMeter

log = logging.getLogger(__name__)

DEFAULT_POLICY = "anneal"
# bytes that a cache counts per row in addition to the row's image; a test compares this number with row_cache.h
BOOKED = 56
FLOAT = 4  # bytes of a number on the network, for tables of any dtype
LATELY = 32  # number of recent steps from which the time budget of a schedule follows

DIFFERENT = (
    "ranks have read different samples at the same index: a data set must give all ranks the same samples (make "
    "random changes to ids in the model or in the files)"
)
ACCUMULATED = "gradients are accumulated over several batches, but a schedule covers only one batch"

READ_MIDWAY = "the script reads rows in the middle of a pass, which a cache allows only after job.flush()"
BY_IDS = "samples are assigned to workers by the ids of whole batches, which must be known before forward() runs"
ASKED = f'cache= or allocation= was asked for: {BY_IDS}. Use cache="off" to have forward() split'
KEPT = f"workers cache rows, because measurements showed a benefit: {BY_IDS}"
SPLIT = "data workers compute a part of forward(), so the ids of whole batches are not known in time"
NO_PASS = "no pass is under way"
FIRST_PASS = 'caching with cache="auto" could only start after a whole pass without reads in its middle'
MEASURING = "steps are being measured, to find out whether a cache pays"
PASSING = (NOT_YET, NO_PASS, FIRST_PASS, MEASURING)


class CacheCoordinator:
    """Coordinator of allocation and cache. Each `job.prepare` in bsp mode has one coordinator."""

    def __init__(
        self,
        reducer: Reducer,
        allotting: SampleAllocator,
        cache: RowCache | None,
        *,
        save_due: Callable[[], bool],
        needed_s: Callable[[], float] = lambda: 0.0,
        why: str = "",
        deciding: CacheDecision | None = None,
        at_once: bool = False,
    ) -> None:
        """Create the coordinator. `needed_s` returns a step's time without waits; `why` is the reason for the cache.

        With `deciding`, the lowest rank decides during the job whether the group caches rows, and the other ranks
        follow. While the rows are cached, the script cannot read rows in the middle of a pass. Caching therefore starts
        after one whole pass without such a read; with `at_once`, caching may start immediately.
        """
        self._why, self._deciding = why, deciding
        self.allotting, self.cache = allotting, cache
        self._reducer, self._save_due, self._needed_s = reducer, save_due, needed_s
        self._now: ReadBatch | None = None
        self._following: ReadBatch | None = None
        self._in_pass = self._read_midway = self._split = False
        self._whole_passes = int(at_once)

    @property
    def forbids_split(self) -> str:
        """Return the reason why forward() must not be split now; empty if it may be split."""
        if self._deciding is None:
            return ASKED
        return KEPT if self.allotting.permitted else ""

    def give_up_cache(self) -> None:
        """Stop looking for a useful cache, because a part of forward() has moved to data workers."""
        self._split = True
        self.allotting.end(SPLIT, for_good=True)

    @property
    def clean(self) -> bool:
        """Return True if the servers have current values of all rows, so that a checkpoint of the servers is
        complete."""
        return self.cache is None or self.cache.clean

    @property
    def bound(self) -> bool:
        """Return True if the loss of any rank would lose the current step or rows that were trained earlier."""
        return not self.clean or (self._now is not None and self._now.plan is not None)

    def use(self) -> CacheUse | None:
        """Return cache statistics for users; None if the user chose that the job has no cache."""
        if self.cache is None:
            return None
        on, why = self.allotting.on, self.allotting.why
        if self._deciding is not None and (on or why == NOT_YET):
            why = self._found_out(self._deciding, on)
        elif on:
            why = self._why
        elif why == NOT_YET and not self._in_pass:
            why = NO_PASS
        return replace(self.cache.use(), on=on, why=why, passing=why in PASSING)

    def _found_out(self, deciding: CacheDecision, on: bool) -> str:
        """Return why the cache is on or off; an empty text if the cache is about to start."""
        if deciding.pays and not on:
            return "" if self._in_pass else NO_PASS
        return deciding.why or (READ_MIDWAY if self._read_midway else MEASURING if self._whole_passes else FIRST_PASS)

    def read(self, seconds: float) -> None:
        if self._deciding is not None and not self.allotting.wholes:
            self._deciding.note_read(seconds)

    def check_read(self, tables: Sequence[int]) -> None:
        ours = not set(self.allotting.tables).isdisjoint(tables)
        self._read_midway |= ours and self._in_pass and self._now is None
        if self.cache is not None:
            self.cache.check_read(tables)

    def end_pass(self, place: GroupPlace, *, early: bool) -> None:
        self._whole_passes += not early
        self._in_pass = False
        self.restart(place)

    def restart(self, place: GroupPlace) -> None:
        self._now = self._following = None
        if self._deciding is not None and place.generation != self.allotting.place.generation:
            self.allotting.permitted = False
            self._deciding.regrouped()
        self.allotting.restart(place)
        if self.cache is not None:
            self.cache.close()

    def hand_out(self, now: ReadBatch, number: int) -> None:
        """Give this batch to the loop for step `number`, before the worker requests the batch's rows."""
        self._now, self._in_pass = now, True
        if self.cache is not None and now.plan is not None:
            self.cache.expect(number, now.plan)

    def set_words(self, *, empty: bool = False) -> None:
        """Set this rank's flags for the next all-reduce. The call waits until the next batch is read."""
        lookups, tables = self.allotting.lookups, self.allotting.tables
        self._following = self._now.following() if self._now is not None and not empty else None
        coming = None if self._following is None else self._following.plan
        crowded = self.cache is not None and self.cache.crowded
        leads = self._deciding if not self.allotting.place.rank and not empty and not self._split else None
        wish = None if leads is None else leads.wish
        words = allreduce.RankWords(
            flush=empty or self._following is None or crowded or self._save_due(),
            empty=empty,
            last=self._following is None and not empty,
            ready=(lookups.settled or self._split)
            and not lookups.on_device
            and not (self._deciding is not None and self._read_midway),
            go=wish is True,
            stop=wish is False,
            paper=leads is not None and leads.trying,
            effort=0 if self.allotting.place.rank else self.allotting.effort_within(self._needed_s()),
            digest=0 if coming is None else coming.digest,
            refused=frozenset(tables if self._split else lookups.computed() & set(tables)),
        )
        numbers = allreduce.encode_words(words, tables)
        # this is enough room for the flags of all tables, including tables that cannot be cached
        self._reducer.words[: len(numbers)] = numbers

    def apply_verdict(self, number: int) -> None:
        """Act on the combined flags of all ranks before the push of step `number`."""
        tables = self.allotting.tables
        verdict = allreduce.decode_words(
            self._reducer.sums[: allreduce.words_needed(tables)], tables, self.allotting.place.workers
        )
        if verdict.torn:
            raise errors.JobFailed(
                "a rank has left its loop, or has called job.flush(), while other ranks still train: in a bsp group "
                "every rank must take the same steps"
            )
        if self._deciding is not None and not verdict.empty:
            self._deciding.on_request(asked=verdict.paper)
        now = None if self._now is None or verdict.empty else self._now.plan
        following = None if self._following is None else self._following.plan
        if verdict.last:  # on at least one rank, the pass ends, the group changes, or the job ends
            self.allotting.end(NOT_YET)
            self.allotting.permitted = (self.allotting.permitted or verdict.go) and not verdict.stop
        elif not verdict.alike:
            log.warning("each worker trains a contiguous run of each batch from now on: %s", DIFFERENT)
            self.allotting.end(DIFFERENT, for_good=True)
        elif verdict.stop or (now is not None and self._following is not None and following is None):
            self.allotting.end(NOT_YET)
            self.allotting.permitted = not verdict.stop
        elif not verdict.empty:
            self.allotting.apply_verdict(verdict)
        following = following if self.allotting.on else None
        if self.cache is not None and verdict.empty:
            self.cache.postpone(number)
        if self.cache is not None:
            self.cache.before_push(number, now, following, flush=verdict.flush)

    def share_gradients(self, number: int, parts: Sequence[Any]) -> None:
        """Share the gradients of step `number` before their push; `parts` is empty for a skipped step."""
        if self.cache is not None:
            self.cache.share_gradients(number, parts)

    def stepped(self, number: int, *, empty: bool = False) -> None:
        if self.cache is not None:
            self.cache.after_push(number)
        if self.cache is not None and not self.allotting.on:
            self.cache.close()
        if not empty:
            self._now = self._following = None
            if self._deciding is not None and self._whole_passes and not (self._read_midway or self._split):
                self._deciding.stepped(on=self.allotting.on)

    def accumulated(self) -> None:
        """End scheduling permanently, because the loop accumulates gradients over several batches and a schedule covers
        only one batch. All rows are now on the servers."""
        self.allotting.end(ACCUMULATED, for_good=True)
        log.warning("each worker trains a contiguous run of each batch from now on: %s", ACCUMULATED)
        self._now = None
        if self.cache is not None:
            self.cache.close()


def needed_s(meter: StepMeter) -> float:
    """Return the median time of recent steps without waits. Scheduling costs no time if it runs beside a step and
    takes no longer than the step.
    """
    lately = itertools.islice(reversed(meter.steps), LATELY)
    needed = [step.total_s - step.pull_wait_s - step.push_wait_s for step in lately]
    return statistics.median(needed) if needed else 0.0


def for_model(rules: CacheRules, model: nn.Module) -> CacheRules:
    """If a layer looks across samples (such as batch norm) and the user chose no policy, allocate contiguous runs of
    samples."""
    across = rules.policy is None and any(isinstance(module, ACROSS) for module in model.modules())
    return replace(rules, policy="contiguous") if across else rules


def open_coordinator(
    rules: CacheRules,
    model: nn.Module,
    picker: SamplePicker,
    lookups: Lookups,
    served: Sequence[ServedTable],
    reducer: Reducer,
    group: BspGroup,
    meter: StepMeter,
    welcome: WorkerWelcome,
    unit: int = 1,
) -> CacheCoordinator | None:
    """Build the coordinator that allocates the group's batches and caches rows. Return None if the job wants neither
    allocation nor a cache.
    """
    rules = for_model(rules, model)
    if rules.idle or (rules.auto and welcome.spec.workers > scheduler.MOST_WORKERS):
        return None
    by_id = {table.spec.id: table for table in served}
    cache: RowCache | None = None
    tables = list(by_id)
    backend = lookups.client.backend
    if isinstance(backend, _native.CachedBackend):
        tables = [table for table in tables if backend.cacheable(native_spec(by_id[table].spec))]
        cache = RowCache(backend, most_dirty=rules.dirty, gloo=lambda: reducer.group, p2p=rules.p2p)

    def planner(place: GroupPlace, chosen: Sequence[int]) -> Planner:
        seen = () if cache is None else cache.tables([by_id[table] for table in chosen])
        return Planner(schedule_settings(rules, cache, seen, place, seed=welcome.spec.seed, tables=tuple(chosen)))

    def begin(place: GroupPlace, chosen: Sequence[int]) -> Planner:
        made = planner(place, chosen)
        if cache is not None:
            cache.begin(made, place)
        return made

    def paper() -> PaperSchedule:
        chosen = [table for table in tables if table not in lookups.computed()]
        made = planner(group.place, chosen)
        return paper_schedule(made, row_sizes(backend, [by_id[table] for table in chosen]))

    probes = DecisionProbes(
        group.risk, lambda: bytes_moved(lookups), paper, lambda: group.round_trip_s(lookups.after_step)
    )
    deciding = CacheDecision(meter.steps, probes) if rules.auto else None
    return CacheCoordinator(
        reducer,
        SampleAllocator(lookups, tables, begin, picker, deciding=deciding, unit=unit),
        cache,
        save_due=lambda: group.save_due,
        needed_s=lambda: needed_s(meter),
        why=f"asked for: {words(rules)}",
        deciding=deciding,
        at_once=rules.at_once,
    )


def schedule_settings(
    rules: CacheRules, cache: RowCache | None, seen: tuple[CachedTable, ...], place: GroupPlace, **same: Any
) -> scheduler.ScheduleSettings:
    return scheduler.ScheduleSettings(
        workers=place.workers,
        capacity_rows=capacity(rules, seen),
        policy=rules.policy or DEFAULT_POLICY,
        p2p="off" if cache is None else rules.p2p,
        **same,
    )


def bytes_moved(lookups: Lookups) -> int:
    stats = lookups.client.stats()
    return int(stats.get("bytes_in", 0) + stats.get("bytes_out", 0))


def row_sizes(backend: Any, chosen: Sequence[ServedTable]) -> dict[int, RowSize]:
    """Return the size of these tables' rows on the network. Without a cache, the image of a row counts as large as the
    row's value."""
    keeps = isinstance(backend, _native.CachedBackend)
    sizes = {}
    for table in chosen:
        value = FLOAT * table.spec.dim
        image = backend.image_bytes(table.spec.id) - BOOKED if keeps else value
        sizes[table.spec.id] = RowSize(value, image)
    return sizes
