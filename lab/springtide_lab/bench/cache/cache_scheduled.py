"""Worker caches with a schedule, one of the ways that `bench cache` compares: the native scheduler and cache of jobs,
driven by hand.

In: a `Rank` whose client reaches the servers. Out: `Scheduled`. Every rank schedules the whole batch one step ahead and
carries out its own plan; rows that go from worker to worker go over gloo.
"""

from typing import Any

import numpy as np

from springtide import _native
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.schedule import scheduler
from springtide.worker.cache import row_cache
from springtide_lab.bench.cache.cache_systems import Floats, Ids, Rank, pulled, pushed, values


class Scheduled:
    """Ours. `settings` are those of the scheduler beside workers and capacity."""

    def __init__(self, rank: Rank, **settings: Any) -> None:
        inner: Any = rank.client.backend
        self._cache = _native.CachedBackend(inner)
        client = TableClient(self._cache)
        tables = tuple(range(rank.first_table, rank.first_table + len(rank.starts)))
        client.declare(spec for spec in rank.client.specs if spec.id in tables)
        self._cache.cache_tables(list(tables))
        self._rank = rank.with_client(client)
        self._scheduler = scheduler.Scheduler(
            scheduler.ScheduleSettings(workers=rank.workers, capacity_rows=rank.capacity, tables=tables, **settings)
        )
        self._mine: dict[int, Ids] = {}
        self._planned: tuple[int, int] | None = None
        """The step that is planned ahead, and the number that its plan was set for."""
        self._keeps_shared = settings.get("p2p") == "gradients"
        self._part: Any = None

    def samples(self, step: int) -> Ids:
        """As scheduled; the first step of all is scheduled now."""
        if step not in self._mine:
            self._plan(step, 0)
        return self._mine[step]

    def read(self, step: int, number: int, rows: Ids) -> Floats:
        """From the cache what the plan says, else from the servers; the next step is planned meanwhile."""
        assert self._planned is not None
        if self._planned[1] != number:  # other ways took the numbers between
            self._move(number)
        self._part = pulled(self._rank, rows, number)
        self._mine.pop(step - 1, None)
        self._plan(step + 1, number + 1)
        return values(self._part, self._rank.dim)

    def write(self, step: int, number: int, rows: Ids, grads: Floats) -> Any:
        """Rows of its own are trained here; gradients of shared rows go to the servers, rows to who needs them next."""
        if self._keeps_shared:
            self._part.grads()[:] = grads.reshape(-1)
            self._give_gradients(number)
        pending = pushed(self._rank, self._part, grads, number)
        self._exchange(number + 1)
        return pending

    def _plan(self, step: int, number: int) -> None:
        batch = self._rank.batch(step) - self._rank.starts
        features = [
            scheduler.FeatureIds(self._rank.first_table + at, np.ascontiguousarray(column))
            for at, column in enumerate(batch.T)
        ]
        scheduled = self._scheduler.schedule(features, len(batch))
        self._mine[step] = np.flatnonzero(np.asarray(scheduled.rank_of_sample) == self._rank.rank)
        self._first = scheduled.plans[self._rank.rank] if not number else None
        if number:
            self._cache.set_plan(number, scheduled.plans[self._rank.rank])
        self._planned = (step, number)

    def _move(self, number: int) -> None:
        assert self._planned is not None
        if self._first is not None:
            self._cache.set_plan(number, self._first)
        else:
            self._cache.move_plan(self._planned[1], number)
        self._planned = (self._planned[0], number)

    def _give_gradients(self, number: int) -> None:
        """Of rows that a few workers train, to the one of them that keeps the row."""
        cache, group = self._cache, self._rank.group
        if group is not None:
            parcels, sizes = cache.gradient_sends(number, [self._part]), cache.gradient_receives(number)
            for peer, floats in row_cache.exchange(group, parcels, sizes):
                cache.gradients_received(number, peer, floats)

    def _exchange(self, number: int) -> None:
        group = self._rank.group
        if group is not None:
            for peer, rows in row_cache.exchange(group, self._cache.sends(number), self._cache.receives(number)):
                self._cache.received(number, peer, rows)


def herald(rank: Rank) -> Scheduled:
    """The paper's: LAIA and on-demand pushes."""
    return Scheduled(rank, policy="laia")


def ours(rank: Rank) -> Scheduled:
    """Our own allocator, and rows from worker to worker where that is less."""
    return Scheduled(rank, policy="anneal", p2p="rows")


def ours_gradients(rank: Rank) -> Scheduled:
    """Our own allocator; rows that a few workers train are kept by one of them, who gets the others' gradients."""
    return Scheduled(rank, policy="anneal", p2p="gradients")
