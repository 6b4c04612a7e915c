"""Implement the systems that `bench cache` compares in bsp: no cache, HET, static caching, Springtide's schedule.

In: the ids of every batch (known to all ranks) and a client of the servers. Out: `System`s, which choose a rank's
samples, read their rows and write their gradients. All systems use SGD, so that a cached copy stays exact while only
one worker trains the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from springtide import _native
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.schedule import scheduler
from springtide.worker.cache import row_cache

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One worker of the group and the data that it trains."""

    rank: int
    workers: int
    client: TableClient
    group: Any
    """The gloo process group."""
    batches: Sequence[Ids]
    """The whole batch of every step, of shape [samples, tables]; row numbers are unique over all tables."""
    starts: Ids
    """The first row of each table."""
    first_table: int
    dim: int
    lr: float
    capacity: int
    """Rows that a cache may hold."""

    def part(self, rows: Ids) -> Any:
        table = np.searchsorted(self.starts, rows, side="right") - 1
        return self.client.dense(self.first_table + table, rows - self.starts[table], self.dim)

    def even(self, step: int) -> Ids:
        """Return this rank's samples, for systems that do not allocate samples: an equal, contiguous part of the
        batch.
        """
        size = len(self.batch(step)) // self.workers
        return np.arange(self.rank * size, (self.rank + 1) * size)

    def batch(self, step: int) -> Ids:
        """Return the batch of a step; steps count from 0."""
        return self.batches[step % len(self.batches)]


class System(Protocol):
    """Interface to read and write a rank's rows. Steps count from 0; `number` is the step number on the servers."""

    def samples(self, step: int) -> Ids: ...

    def read(self, step: int, number: int, rows: Ids) -> Floats:
        """Return the latest values of these distinct rows, of shape [rows, dim]."""
        ...

    def write(self, step: int, number: int, rows: Ids, grads: Floats) -> Any:
        """Write the gradients of these rows; return an object to wait for."""
        ...


class NoCache:
    """System that pulls every row and pushes every gradient."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._part: Any = None

    def samples(self, step: int) -> Ids:
        return self._rank.even(step)

    def read(self, step: int, number: int, rows: Ids) -> Floats:
        self._part = pulled(self._rank, rows, number)
        return values(self._part, self._rank.dim)

    def write(self, step: int, number: int, rows: Ids, grads: Floats) -> Any:
        return pushed(self._rank, self._part, grads, number)


class Het:
    """HET in bsp: an LRU cache that pulls missing and outdated rows, pushes every update and prefetches rows.

    This variant of HET computes which rows have changed from the ids of all ranks' samples. Version checks therefore
    cost nothing here, which favours HET.
    """

    def __init__(self, rank: Rank) -> None:
        total = int(max(batch.max() for batch in rank.batches)) + 1
        self._rank = rank
        self._place = np.full(total, -1, dtype=np.int64)
        self._latest = np.zeros(total, dtype=bool)
        self._used = np.zeros(rank.capacity, dtype=np.int64)
        self._row_of = np.full(rank.capacity, -1, dtype=np.int64)
        self._values = np.zeros((rank.capacity, rank.dim), dtype=np.float32)
        self._early: tuple[int, Ids, Any] | None = None

    def samples(self, step: int) -> Ids:
        return self._rank.even(step)

    def read(self, step: int, number: int, rows: Ids) -> Floats:
        """Return current rows from the cache and others from the servers; then prefetch rows of the next step."""
        there = self._place[rows]
        self._used[there[there >= 0]] = step  # this call marks the rows as used, so that pulled rows do not evict them
        self._take_early(step)
        missing = rows[~self._has(rows)]
        self._enter(missing, values(pulled(self._rank, missing, number), self._rank.dim), step)
        self._prefetch(step)
        return self._values[self._place[rows]]

    def write(self, step: int, number: int, rows: Ids, grads: Floats) -> Any:
        """Push every update to the servers. A cached copy stays current if no other worker trained the row."""
        self._values[self._place[rows]] -= np.float32(self._rank.lr) * grads
        others = np.setdiff1d(np.arange(len(self._rank.batch(step))), self._rank.even(step), assume_unique=True)
        self._latest[self._rank.batch(step)[others].reshape(-1)] = False
        return pushed(self._rank, self._rank.part(rows), grads, number)

    def _has(self, rows: Ids) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = (self._place[rows] >= 0) & self._latest[rows]
        return known

    def _prefetch(self, step: int) -> None:
        mine = np.unique(self._rank.batch(step + 1)[self._rank.even(step + 1)])
        wanted = np.setdiff1d(mine[~self._has(mine)], self._rank.batch(step).reshape(-1))
        self._early = (step + 1, wanted, pulled(self._rank, wanted, 0))

    def _take_early(self, step: int) -> None:
        if self._early is not None and self._early[0] == step:
            self._enter(self._early[1], values(self._early[2], self._rank.dim), step)
        self._early = None

    def _enter(self, rows: Ids, fetched: Floats, step: int) -> None:
        known = self._place[rows] >= 0
        fresh = rows[~known]
        free = np.flatnonzero(self._row_of < 0)[: len(fresh)]
        if len(free) < len(fresh):
            short = len(fresh) - len(free)
            oldest = np.argpartition(np.where(self._row_of < 0, np.iinfo(np.int64).max, self._used), short)[:short]
            self._place[self._row_of[oldest]] = -1
            free = np.concatenate([free, oldest])
        self._row_of[free] = fresh
        self._place[fresh] = free
        self._used[free] = step
        self._values[self._place[rows]] = fetched
        self._latest[rows] = True


class Static:
    """Static caching like FAE's: every worker keeps the same most frequent rows and all-reduces all their gradients."""

    def __init__(self, rank: Rank, share: float = 0.01) -> None:
        count = np.bincount(np.concatenate([batch.reshape(-1) for batch in rank.batches]))
        hot = np.sort(np.argsort(count, kind="stable")[::-1][: max(int(share * rank.capacity * 10), 1)])
        self._rank = rank
        self._place = np.full(len(count), -1, dtype=np.int64)
        self._place[hot] = np.arange(len(hot))
        self._values = torch.from_numpy(values(pulled(rank, hot, 0), rank.dim).copy())
        self._grads = torch.zeros_like(self._values)

    def samples(self, step: int) -> Ids:
        return self._rank.even(step)

    def read(self, step: int, number: int, rows: Ids) -> Floats:
        hot = self._place[rows] >= 0
        out = np.empty((len(rows), self._rank.dim), dtype=np.float32)
        out[hot] = self._values.numpy()[self._place[rows[hot]]]
        out[~hot] = values(pulled(self._rank, rows[~hot], number), self._rank.dim)
        return out

    def write(self, step: int, number: int, rows: Ids, grads: Floats) -> Any:
        hot = self._place[rows] >= 0
        pending = pushed(self._rank, self._rank.part(rows[~hot]), grads[~hot], number)
        self._grads.zero_()
        self._grads.numpy()[self._place[rows[hot]]] = grads[hot]
        self._rank.group.allreduce([self._grads]).wait()
        self._values.add_(self._grads, alpha=-self._rank.lr)
        return pending


def pulled(rank: Rank, rows: Ids, number: int) -> Any:
    """Request the rows as they are after step `number` - 1; with 0, their present values."""
    part = rank.part(rows)
    if len(rows):
        rank.client.pull([part], after_step=max(number - 1, 0))
    return part


def values(part: Any, dim: int) -> Floats:
    rows: Floats = part.rows().reshape(-1, dim)
    return rows


def pushed(rank: Rank, part: Any, grads: Floats, number: int) -> Any:
    part.grads()[:] = grads.reshape(-1)
    tables = range(rank.first_table, rank.first_table + len(rank.starts))
    hyper = [(table, rank.lr, 0.0, number) for table in tables]
    return rank.client.push([part] if len(grads) else [], step=number, bsp=True, hyper=hyper)


class Scheduled:
    """Springtide's system: workers cache rows by a plan and send rows to each other."""

    def __init__(self, rank: Rank) -> None:
        inner: Any = rank.client.backend
        self._cache = _native.CachedBackend(inner)
        client = TableClient(self._cache)
        tables = tuple(range(rank.first_table, rank.first_table + len(rank.starts)))
        client.declare(spec for spec in rank.client.specs if spec.id in tables)
        self._cache.cache_tables(list(tables))
        self._rank = replace(rank, client=client)
        settings = scheduler.ScheduleSettings(
            workers=rank.workers, capacity_rows=rank.capacity, tables=tables, policy="anneal", p2p="rows"
        )
        self._scheduler = scheduler.Scheduler(settings)
        self._mine: dict[int, Ids] = {}
        self._planned: tuple[int, int] | None = None
        """The step that is planned ahead, and the step number under which its plan was set."""
        self._part: Any = None

    def samples(self, step: int) -> Ids:
        """Return the scheduled samples; before the first step, schedule it."""
        if step not in self._mine:
            self._plan(step, 0)
        return self._mine[step]

    def read(self, step: int, number: int, rows: Ids) -> Floats:
        """Return rows from the cache or the servers, as planned; plan the next step."""
        assert self._planned is not None
        if self._planned[1] != number:  # the other systems have used step numbers since this plan was made
            self._move(number)
        self._part = pulled(self._rank, rows, number)
        self._mine.pop(step - 1, None)
        self._plan(step + 1, number + 1)
        return values(self._part, self._rank.dim)

    def write(self, step: int, number: int, rows: Ids, grads: Floats) -> Any:
        """Train rows that only this worker has, push gradients of shared rows, and send rows to their next workers."""
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

    def _exchange(self, number: int) -> None:
        group = self._rank.group
        for peer, rows in row_cache.exchange(group, self._cache.sends(number), self._cache.receives(number)):
            self._cache.received(number, peer, rows)
