"""Pure. What a measured job could have: its fitted model over the shapes worth having, as a `Bid`.

In: jobs that are `Ready`, each with its model (`planning.fit`). Out: a `Bid` each, or why there is none. Next:
`planning.choose`. All jobs go through the same few array operations.

A model is trusted near what was measured, and nowhere beyond what cores can do (`planning.paces`).
"""

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.planning import PlanningConfig
from springtide.domain.shape import Bounds, MemoryNeed, Shape
from springtide.domain.view import ClusterView
from springtide.planning import candidates, equations, evidence, fitting_in, paces, ragged
from springtide.planning.asking import Ask
from springtide.planning.choose import UNENDING_S
from springtide.planning.columns import Columns, columns, joined
from springtide.planning.equations import Models, Shapes
from springtide.planning.fit import Fitted
from springtide.planning.paces import Pace
from springtide.planning.priorities import Standing
from springtide.planning.ragged import Index, Rows
from springtide.planning.stages import Ready
from springtide.planning.weighing import Bid

Floats = NDArray[np.float64]
CPUS = ("worker_cpu", "server_cpu")
OPTIONS = 48
"""Of one job, at most; the front is thinned to so many."""
ROOM_TO_GROW = 1.25
"""Memory for rows in a new plan, against what they are expected to need: forecasts err, and plans are for long."""
NEAR = 2.0
"""As long as a model is unclear it is trusted for so many times as much of anything as was measured, or as little."""
STEPS_NEAR = 8
"""Numbers of workers, up and down to `NEAR`, that what runs now is looked at with."""
TOO_MUCH = 1.5
"""Memory of a role against what it needs, up to which it is left as it is."""
COUNTS, SIZES = 8, 3
"""Numbers of a role and sizes of it that are looked at near what was measured."""


class Bidder(NamedTuple):
    """One job that is to bid."""

    ready: Ready
    fitted: Fitted
    pace: Pace

    @property
    def need(self) -> MemoryNeed:
        """What its roles need, with room for rows to come."""
        need = self.ready.job.need
        return MemoryNeed(worker=need.worker, server=need.server, rows=math.ceil(ROOM_TO_GROW * need.rows))

    @property
    def near(self) -> bool:
        """Whether its model is trusted only near what was measured."""
        return bool(self.fitted.unclear) and not self.ready.first


class Held(NamedTuple):
    """What a job has now and needs: numbers for one job, columns for many."""

    worker_cpu: Floats | float
    server_cpu: Floats | float
    worker_memory: Floats | float
    server_memory: Floats | float
    worker_known: Floats | bool
    """Whether it is known what workers need, and servers."""
    server_known: Floats | bool


def bids(bidders: Sequence[Bidder], view: ClusterView, config: PlanningConfig) -> list[Bid | str]:
    """The candidates of each job, and what each would bring; or why there are none."""
    if not bidders:
        return []
    needs = [one.need for one in bidders]
    shapes, rows = _looked_at(bidders, needs, config)
    speed = _speed(bidders, shapes, rows.owner)
    kept = _thinned(shapes.cost(config.prices), speed, rows)
    others, beside = _other_workers(bidders, needs, config)
    owner = np.concatenate([rows.owner[kept], beside.owner])
    order = np.argsort(owner, kind="stable")
    whole = joined(shapes.taken(kept), others).taken(order)
    speeds = np.concatenate([speed[kept], _speed(bidders, others, beside.owner)])[order]
    both = ragged.of_owners(owner[order], len(bidders))
    found: list[Bid | str] = []
    for one, first, length in zip(bidders, both.starts.tolist(), both.lengths.tolist(), strict=True):
        mine = slice(first, first + length)
        found.append(_bid(one, Columns(*(column[mine] for column in whole)), speeds[mine], view))
    return found


def _bid(one: Bidder, shapes: Columns, speed: Floats, view: ClusterView) -> Bid | str:
    if not len(speed):
        return "no shape within its bounds is worth having"
    job, now = one.ready.job, one.ready.measured.shape
    here = min(float(one.fitted.predict(now)), paces.ceiling_of(one.pace, now))
    left = job.remaining if math.isfinite(job.remaining) else here * UNENDING_S
    return Bid(
        job=job.name, now=now, throughput_now=here, shapes=shapes, throughput=speed,
        standing=Standing(
            samples_left=left, throughput=here, waited_s=max(0.0, view.now - job.submitted_at), given=job.priority
        ),
        launches=view.launches or job.launches,
    )  # fmt: skip


def _looked_at(bidders: Sequence[Bidder], needs: Sequence[MemoryNeed], config: PlanningConfig) -> tuple[Columns, Rows]:
    """All shapes of each job that may be worth having, and whose they are."""
    asks = [
        Ask(
            coefficients=one.fitted.coefficients, facts=one.fitted.facts, bounds=allowed(one.ready.job.bounds, config),
            now=one.ready.measured.shape, need=need, prices=config.prices, pace=one.pace,
        )
        for one, need in zip(bidders, needs, strict=True) if not one.near
    ]  # fmt: skip
    fronts = iter(candidates.fronts(asks))
    parts = []
    for one, need in zip(bidders, needs, strict=True):
        parts.append(_nearby(one.ready, need, config) if one.near else next(fronts).shapes)
    rows = ragged.of_lengths([len(part.workers) for part in parts])
    shapes = joined(*parts)
    held = [_held(one.ready.measured.shape, need) for one, need in zip(bidders, needs, strict=True)]
    return _with_memory(shapes, Held(*np.array(held, dtype=float).T[:, rows.owner])), rows


def _held(now: Shape, need: MemoryNeed) -> Held:
    return Held(
        now.worker_cpu, now.server_cpu, now.worker_memory, now.server_memory, need.worker > 0,
        need.server > 0 or need.rows > 0,
    )  # fmt: skip


def allowed(bounds: Bounds, config: PlanningConfig) -> Bounds:
    """A job's bounds with C_total and C_max in them."""
    most = bounds.most
    cpus = {name: max(getattr(bounds.least, name), min(getattr(most, name), config.node_cpu)) for name in CPUS}
    return replace(bounds, most=replace(most, **cpus), quota=fitting_in.quota(bounds, config))


def _nearby(ready: Ready, need: MemoryNeed, config: PlanningConfig) -> Columns:
    """Shapes within the bounds and near what was measured: for a model that cannot tell everything apart yet."""
    job, now = ready.job, ready.measured.shape
    seen = evidence.shapes(job) or {now}
    limits = allowed(job.bounds, config)
    axes = []
    for name in ("workers", "servers", *CPUS):
        values = [getattr(one, name) for one in seen]
        low, high = getattr(limits.least, name), getattr(limits.most, name)
        low, high = min(max(low, min(values) / NEAR), high), max(min(high, max(values) * NEAR), low)
        if name in CPUS:
            sizes = [low * (high / low) ** (at / (SIZES - 1)) for at in range(SIZES)]
            axes.append(tuple(sorted({*sizes, min(max(getattr(now, name), low), high)})))
        else:
            first, last = math.ceil(low), math.floor(high)
            axes.append(tuple(sorted({round(first + (last - first) * at / (COUNTS - 1)) for at in range(COUNTS)})))
    workers, servers, worker_cpu, server_cpu = _crossed(tuple(axes))
    none = np.zeros(workers.shape)
    rows = np.ceil(need.rows / servers)
    shapes = Columns(workers, servers, worker_cpu, server_cpu, none + need.worker, need.server + rows)
    shapes = _with_memory(shapes, _held(now, need))
    fits = (shapes.cpu <= limits.quota.cpu) & (shapes.memory <= limits.quota.memory)
    for name in ("worker_memory", "server_memory"):
        column = getattr(shapes, name)
        fits &= (column >= getattr(limits.least, name)) & (column <= getattr(limits.most, name))
    return shapes.taken(fits)


@functools.lru_cache(maxsize=256)
def _crossed(axes: tuple[tuple[float, ...], ...]) -> tuple[Floats, ...]:
    """All combinations, a column an axis; jobs that were measured alike share them."""
    return tuple(axis.ravel() for axis in np.meshgrid(*(np.array(axis, dtype=np.float64) for axis in axes)))


def _speed(bidders: Sequence[Bidder], shapes: Columns, owner: Index) -> Floats:
    """Samples a second of shapes, each by the model of its owner, and no more than cores allow."""
    known = np.array([
        (*_coefficients(one.fitted.coefficients), *_facts(one.fitted.facts), *one.pace) for one in bidders
    ], dtype=float).T[:, owner]  # fmt: skip
    predicted = equations.throughputs(Models(*known[:-2]), Shapes(*shapes[:4]))
    return np.minimum(predicted, paces.ceiling(known[-2:], shapes))


_coefficients = operator.attrgetter("grad", "upd", "sync", "emb", "beta")
_facts = operator.attrgetter("dense_bytes", "bandwidth", "dim", "batch")


def _thinned(cost: Floats, speed: Floats, rows: Rows) -> Index:
    """Of each job, shapes of which none is both cheaper and faster than another, and not too many of them."""
    order = np.lexsort((-speed, cost, rows.owner))
    kept = order[speed[order] > rows.best_before(speed[order])]
    left = ragged.of_owners(rows.owner[kept], len(rows.lengths))
    many = np.flatnonzero(left.lengths > OPTIONS)
    if not len(many):
        return kept
    even = np.arange(OPTIONS) * ((left.lengths[many] - 1) / (OPTIONS - 1))[:, None]
    even[:, -1] = left.lengths[many] - 1
    chosen = left.lengths[left.owner] <= OPTIONS
    chosen[(left.starts[many][:, None] + even.round().astype(np.int64)).ravel()] = True
    return np.asarray(kept[chosen])


def _with_memory(shapes: Columns, held: Held) -> Columns:
    """Memory as it is needed; as it is now, where nobody knows what is needed.

    Roles of the size they have keep their memory where it is enough and not far more: nobody begins anew for that.
    """
    worker = np.where(held.worker_known, shapes.worker_memory, held.worker_memory)
    server = np.where(held.server_known, shapes.server_memory, held.server_memory)
    worker = _kept(worker, held.worker_memory, shapes.worker_cpu == held.worker_cpu)
    server = _kept(server, held.server_memory, shapes.server_cpu == held.server_cpu)
    return shapes._replace(worker_memory=worker, server_memory=server)


def _kept(needed: Floats, held: Floats | float, same: NDArray[np.bool_]) -> Floats:
    return np.where(same & (needed <= held) & (held <= TOO_MUCH * needed), held, needed)


def _other_workers(
    bidders: Sequence[Bidder], needs: Sequence[MemoryNeed], config: PlanningConfig
) -> tuple[Columns, Rows]:
    """What runs now with more or fewer workers, the change that costs least; and with just the memory that it needs."""
    numbers: list[int] = []
    lengths, quotas, bases, lasts = [], [], [], []
    for one, need in zip(bidders, needs, strict=True):
        now, bounds = one.ready.measured.shape, one.ready.job.bounds
        fewest, most = bounds.least.workers, bounds.most.workers
        quota = fitting_in.quota(bounds, config)
        quotas.append((quota.cpu, quota.memory))
        if not bounds.holds(replace(now, workers=fewest)):
            lengths.append(0)
            continue
        inside = sorted({fewest, most, *(many for many in _near_numbers(now.workers) if fewest <= many <= most)})
        numbers += inside
        lengths.append(len(inside) + 1)
        numbers.append(0)
        bases.append(now)
        lasts.append(_needed(now, need, bounds, config))
    rows = ragged.of_lengths(lengths)
    bare = [length for length in lengths if length]
    shapes = columns(bases).taken(np.repeat(np.arange(len(bases)), bare))
    shapes = shapes._replace(workers=np.array(numbers, dtype=np.float64))
    last = np.cumsum(np.array(bare, dtype=np.int64)) - 1
    for column, value in zip(shapes, columns(lasts), strict=True):
        column[last] = value
    cpu, memory = np.array(quotas).T[:, rows.owner]
    fits = (shapes.cpu <= cpu) & (shapes.memory <= memory)
    return shapes.taken(fits), rows.only(fits)


@functools.lru_cache(maxsize=1024)
def _near_numbers(workers: int) -> tuple[int, ...]:
    """Numbers of workers near one of them."""
    return tuple({round(workers * NEAR ** (at / STEPS_NEAR)) for at in range(-STEPS_NEAR, STEPS_NEAR + 1)})


def _needed(now: Shape, need: MemoryNeed, bounds: Bounds, config: PlanningConfig) -> Shape:
    """What runs now, within bounds and with the memory that servers need."""
    needed = fitting_in.clipped(now, bounds, config)
    if need.server or need.rows:
        least, most = bounds.least.server_memory, bounds.most.server_memory
        needed = replace(needed, server_memory=min(max(need.of_server(needed.servers), least), most))
    return needed
