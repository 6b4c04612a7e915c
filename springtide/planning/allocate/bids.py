"""Pure. Computes the bid of each measured job: candidate shapes with the throughput that the job's model predicts.

If the coefficients of a model are unclear, the model is trusted only near the measured shapes. No prediction may
exceed the speed that the cores allow. Next: `planning.allocate.choose`.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.shape import MemoryNeed, Shape, ShapeBounds
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.allocate.choose import UNENDING_S, Bid
from springtide.planning.candidates import clamp, pareto
from springtide.planning.candidates.pareto import FrontQuery
from springtide.planning.lifecycle import stages
from springtide.planning.lifecycle.stages import ReadyJob
from springtide.planning.perf_model import equations, measurements, shape_columns
from springtide.planning.perf_model.equations import Models, Shapes
from springtide.planning.perf_model.fit import FittedModel
from springtide.planning.perf_model.measurements import CoreSpeed
from springtide.planning.perf_model.shape_columns import Index, RaggedRows, ShapeColumns, columns, joined

Floats = NDArray[np.float64]
CPUS = ("worker_cpu", "server_cpu")
OPTIONS = 48
"""Most options of one job. If a Pareto front has more options, some are dropped."""
ROOM_TO_GROW = 1.25
"""A new plan has this many times the memory that the forecast says rows need, because forecasts have errors and plans
last long."""
STEPS_NEAR = 8
"""Number of worker counts to try in each direction, up to `trust_region.NEAR` times the current count."""
TOO_MUCH = 1.5
"""The memory of a role stays unchanged if it is at most this many times what the role needs."""


class Bidder(NamedTuple):
    """Job that takes part in the allocation, with its model and core speed."""

    ready: ReadyJob
    fitted: FittedModel
    pace: CoreSpeed

    @property
    def need(self) -> MemoryNeed:
        """Return the memory that the roles need, with room for new rows."""
        need = self.ready.job.need
        return MemoryNeed(worker=need.worker, server=need.server, rows=math.ceil(ROOM_TO_GROW * need.rows))

    @property
    def near(self) -> bool:
        """True if the model is trusted only near the measured shapes."""
        return self.alone or (bool(self.fitted.unclear) and not self.ready.first)

    @property
    def alone(self) -> bool:
        """True if a bsp job was measured with only one number of workers, so the cost of synchronization is unknown."""
        return bool(self.fitted.facts.group) and len(set(self.fitted.table.settings[:, 0].tolist())) < 2


class HeldShapes(NamedTuple):
    """Current resources of the jobs that own the candidate shapes, as columns with one row per candidate."""

    worker_cpu: Floats
    server_cpu: Floats
    worker_memory: Floats
    server_memory: Floats
    worker_known: Floats
    """1 if the workers' memory need is known, otherwise 0; `server_known` is the same for servers."""
    server_known: Floats


Look = Callable[[Sequence[Bidder], Sequence[MemoryNeed], PlanningConfig], tuple[ShapeColumns, RaggedRows]]
"""Function that lists candidate shapes of several jobs, and the index of the job to which each shape belongs."""


def bids(bidders: Sequence[Bidder], view: ClusterView, config: PlanningConfig) -> list[Bid | str]:
    found: list[Bid | str] = [""] * len(bidders)
    fronts = [at for at, bidder in enumerate(bidders) if not bidder.near]
    near = [at for at, bidder in enumerate(bidders) if bidder.near]
    # chunk sizes at which the arrays stay in the CPU cache
    for which, look, at_once in ((fronts, _worth_having, 64), (near, _nearby, 16)):
        for first in range(0, len(which), at_once):
            some = which[first : first + at_once]
            for at, bid in zip(some, _bids([bidders[at] for at in some], look, view, config), strict=True):
                found[at] = bid
    return found


def _bids(bidders: Sequence[Bidder], look: Look, view: ClusterView, config: PlanningConfig) -> list[Bid | str]:
    needs = [bidder.need for bidder in bidders]
    shapes, rows = look(bidders, needs, config)
    speed = _speed(bidders, shapes, rows.owner)
    kept = _thinned(shapes.cost(config.prices), speed, rows)
    others, beside = _other_workers(bidders, needs, config)
    owner = np.concatenate([rows.owner[kept], beside.owner])
    order = np.argsort(owner, kind="stable")
    whole = joined(shapes.taken(kept), others).taken(order)
    speeds = np.concatenate([speed[kept], _speed(bidders, others, beside.owner)])[order]
    both = shape_columns.of_owners(owner[order], len(bidders))
    found: list[Bid | str] = []
    for bidder, first, length in zip(bidders, both.starts.tolist(), both.lengths.tolist(), strict=True):
        mine = slice(first, first + length)
        mine_only = ShapeColumns(*(column[mine] for column in whole))
        found.append(_bid(bidder, *_not_refuted(bidder, mine_only, speeds[mine], config), view))
    return found


def _not_refuted(
    bidder: Bidder, shapes: ShapeColumns, speed: Floats, config: PlanningConfig
) -> tuple[ShapeColumns, Floats]:
    """Drop the shape that the job has left because it was slower. A model may still recommend that shape."""
    shape = stages.refuted(bidder.ready.job, config)
    if shape is None or stages.alike(shape, bidder.ready.measured.shape):
        return shapes, speed
    same = (shapes.workers == shape.workers) & (shapes.servers == shape.servers)
    same &= (shapes.worker_cpu == shape.worker_cpu) & (shapes.server_cpu == shape.server_cpu)
    return (shapes.taken(~same), speed[~same]) if same.any() else (shapes, speed)


def _bid(bidder: Bidder, shapes: ShapeColumns, speed: Floats, view: ClusterView) -> Bid | str:
    if not len(speed):
        return "no shape within its bounds is worth having"
    job, now = bidder.ready.job, bidder.ready.measured.shape
    # a gain must also hold against the measured speed, because the model may predict too little for the present shape
    predicted = min(float(bidder.fitted.predict(now)), measurements.ceiling_of(bidder.pace, now))
    here = max(predicted, bidder.ready.measured.throughput)
    left = job.progress.remaining
    left = left if math.isfinite(left) else here * UNENDING_S
    return Bid(
        job=job.name,
        now=now,
        throughput_now=here,
        shapes=shapes,
        throughput=speed,
        samples_left=left,
        waited_s=max(0.0, view.now - job.progress.submitted_at),
        given=job.identity.priority,
        launches=view.launches or job.launches,
        settled=not bidder.ready.first,
    )


def _worth_having(
    bidders: Sequence[Bidder], needs: Sequence[MemoryNeed], config: PlanningConfig
) -> tuple[ShapeColumns, RaggedRows]:
    asks = [
        FrontQuery(
            coefficients=bidder.fitted.coefficients,
            facts=bidder.fitted.facts,
            bounds=allowed(bidder.ready.job.bounds, config),
            need=need,
            prices=config.prices,
            pace=bidder.pace,
        )
        for bidder, need in zip(bidders, needs, strict=True)
    ]
    parts = [pareto.front(ask).shapes for ask in asks]
    rows = shape_columns.of_lengths([len(part.workers) for part in parts])
    return _with_memory(joined(*parts), _held(bidders, needs, rows)), rows


def _nearby(
    bidders: Sequence[Bidder], needs: Sequence[MemoryNeed], config: PlanningConfig
) -> tuple[ShapeColumns, RaggedRows]:
    """List shapes near the measured shapes, for jobs whose models cannot yet separate all coefficients."""
    limits = [allowed(bidder.ready.job.bounds, config) for bidder in bidders]
    around = []
    for bidder, need, limit in zip(bidders, needs, limits, strict=True):
        now = bidder.ready.measured.shape
        around.append(TrustRegion(measurements.shapes(bidder.ready.job) or {now}, now, limit, need))
    shapes, rows = nearby_shapes(around)
    shapes = _with_memory(shapes, _held(bidders, needs, rows))
    fits = inside_limits(shapes, rows, limits)
    return shapes.taken(fits), rows.only(fits)


def _held(bidders: Sequence[Bidder], needs: Sequence[MemoryNeed], rows: RaggedRows) -> HeldShapes:
    found = []
    for bidder, need in zip(bidders, needs, strict=True):
        now, known = bidder.ready.measured.shape, (need.worker > 0, need.server > 0 or need.rows > 0)
        found.append((now.worker_cpu, now.server_cpu, now.worker_memory, now.server_memory, *known))
    return HeldShapes(*np.array(found, dtype=float).T.take(rows.owner, axis=1))


def allowed(bounds: ShapeBounds, config: PlanningConfig) -> ShapeBounds:
    most, quota = bounds.most, clamp.quota(bounds, config)
    if max(most.worker_cpu, most.server_cpu) <= config.node_cpu and quota == bounds.quota:
        return bounds
    cpus = {name: max(getattr(bounds.least, name), min(getattr(most, name), config.node_cpu)) for name in CPUS}
    return replace(bounds, most=replace(most, **cpus), quota=quota)


def _speed(bidders: Sequence[Bidder], shapes: ShapeColumns, owner: Index) -> Floats:
    """Return the samples per second of each shape by its job's model, but at most what its cores allow."""
    known = np.array(
        [
            (*_coefficients(bidder.fitted.coefficients), *_facts(bidder.fitted.facts), *bidder.pace)
            for bidder in bidders
        ],
        dtype=float,
    ).T.take(owner, axis=1)
    predicted = equations.throughputs(Models(*known[:-2]), Shapes(*shapes[:4]))
    return np.minimum(predicted, measurements.ceiling(known[-2:], shapes))


_coefficients = operator.attrgetter("grad", "upd", "sync", "emb", "beta")
_facts = operator.attrgetter("dense_bytes", "bandwidth", "dim", "batch", "group")


def _thinned(cost: Floats, speed: Floats, rows: RaggedRows) -> Index:
    """Return the Pareto-optimal shapes of each job, at most OPTIONS per job."""
    order = rows.ordered(cost)
    rises = speed[order] > rows.best_before(speed[order])
    kept, owner, price = order[rises], rows.owner[rises], cost[order[rises]]
    # if several shapes have the same cost, keep only the last one, which is the fastest
    last = np.append((owner[1:] != owner[:-1]) | (price[1:] > price[:-1]), True)
    kept, left = kept[last[: len(kept)]], shape_columns.of_owners(owner[last[: len(kept)]], len(rows.lengths))
    many = np.flatnonzero(left.lengths > OPTIONS)
    if not len(many):
        return np.asarray(kept)
    even = np.arange(OPTIONS) * ((left.lengths[many] - 1) / (OPTIONS - 1))[:, None]
    even[:, -1] = left.lengths[many] - 1
    chosen = left.lengths[left.owner] <= OPTIONS
    chosen[(left.starts[many][:, None] + even.round().astype(np.int64)).ravel()] = True
    return np.asarray(kept[chosen])


def _with_memory(shapes: ShapeColumns, held: HeldShapes) -> ShapeColumns:
    """Set the memory of each role to its need, or to its current memory if the need is unknown. A role with unchanged
    cores keeps its memory, and needs no restart, if its memory is between the need and `TOO_MUCH` times the need.
    """
    worker = np.where(held.worker_known > 0, shapes.worker_memory, held.worker_memory)
    server = np.where(held.server_known > 0, shapes.server_memory, held.server_memory)
    worker = _keep_fitting(worker, held.worker_memory, shapes.worker_cpu == held.worker_cpu)
    server = _keep_fitting(server, held.server_memory, shapes.server_cpu == held.server_cpu)
    return shapes._replace(worker_memory=worker, server_memory=server)


def _keep_fitting(needed: Floats, held: Floats, same: NDArray[np.bool_]) -> Floats:
    return np.where(same & (needed <= held) & (held <= TOO_MUCH * needed), held, needed)


def _other_workers(
    bidders: Sequence[Bidder], needs: Sequence[MemoryNeed], config: PlanningConfig
) -> tuple[ShapeColumns, RaggedRows]:
    """List two kinds of shape: the current shape with different worker counts, which is the cheapest change, and the
    current shape with only the memory that the job needs.
    """
    numbers: list[int] = []
    lengths, quotas, bases, lasts = [], [], [], []
    for bidder, need in zip(bidders, needs, strict=True):
        now, bounds = bidder.ready.measured.shape, bidder.ready.job.bounds
        fewest, most = bounds.least.workers, bounds.most.workers
        quota = clamp.quota(bounds, config)
        quotas.append(quota.amounts)
        if not bounds.holds(replace(now, workers=fewest)):
            lengths.append(0)
            continue
        ends = set() if bidder.alone else {fewest, most}
        inside = sorted(ends | {many for many in _near_numbers(now.workers) if fewest <= many <= most})
        numbers += inside
        lengths.append(len(inside) + 1)
        numbers.append(0)
        bases.append(now)
        lasts.append(_needed(now, need, bounds, config))
    rows = shape_columns.of_lengths(lengths)
    bare = [length for length in lengths if length]
    shapes = columns(bases).taken(np.repeat(np.arange(len(bases)), bare))
    shapes = shapes._replace(workers=np.array(numbers, dtype=np.float64))
    last = np.cumsum(np.array(bare, dtype=np.int64)) - 1
    for column, value in zip(shapes, columns(lasts), strict=True):
        column[last] = value
    cpu, memory, gpu = np.array(quotas).T.take(rows.owner, axis=1)
    fits = (shapes.cpu <= cpu) & (shapes.memory <= memory) & (shapes.gpus <= gpu)
    return shapes.taken(fits), rows.only(fits)


@functools.lru_cache(maxsize=1024)
def _near_numbers(workers: int) -> tuple[int, ...]:
    return tuple({round(workers * NEAR ** (at / STEPS_NEAR)) for at in range(-STEPS_NEAR, STEPS_NEAR + 1)})


def _needed(now: Shape, need: MemoryNeed, bounds: ShapeBounds, config: PlanningConfig) -> Shape:
    needed = clamp.clipped(now, bounds, config)
    if need.server or need.rows:
        least, most = bounds.least.server_memory, bounds.most.server_memory
        needed = replace(needed, server_memory=min(max(need.of_server(needed.servers), least), most))
    return needed


NEAR = 2.0
"""An unclear model is trusted up to this factor above and below the measured values."""
COUNTS, SIZES = 8, 3
"""Number of counts and of sizes to try for each role."""


class TrustRegion(NamedTuple):
    """Measured shapes, current shape, bounds and memory needs of one job."""

    seen: set[Shape]
    now: Shape
    limits: ShapeBounds
    need: MemoryNeed


def nearby_shapes(jobs: Sequence[TrustRegion]) -> tuple[ShapeColumns, RaggedRows]:
    """Return all combinations of nearby counts and sizes, each with the needed memory."""
    axes = [_axes(job) for job in jobs]
    lengths = np.array([[len(axis) for axis in some] for some in axes]).reshape(-1, 4)
    rows = shape_columns.of_lengths(lengths.prod(axis=1))
    width = max(COUNTS, SIZES + 1)
    values = np.ones((4, len(jobs), width))
    for job, some in enumerate(axes):
        for axis, numbers in enumerate(some):
            values[axis, job, : len(numbers)] = numbers
    left, first, found = rows.place.astype(np.int32), rows.owner * width, {}
    for axis in (3, 2, 0, 1):  # the last axis varies fastest
        left, place = np.divmod(left, lengths[:, axis].astype(np.int32).take(rows.owner))
        found[axis] = values[axis].ravel().take(first + place)
    workers, servers, worker_cpu, server_cpu = (found[axis] for axis in range(4))
    need = np.array(
        [(job.need.worker, job.need.server, job.need.rows, job.now.worker_gpu) for job in jobs], dtype=float
    )
    worker, server, stored, gpu = need.reshape(-1, 4).T.take(rows.owner, axis=1)
    shapes = ShapeColumns(workers, servers, worker_cpu, server_cpu, worker, server + np.ceil(stored / servers), gpu)
    return shapes, rows


def inside_limits(shapes: ShapeColumns, rows: RaggedRows, limits: Sequence[ShapeBounds]) -> NDArray[np.bool_]:
    known = np.array(
        [
            (
                *limit.quota.amounts,
                limit.least.worker_memory,
                limit.most.worker_memory,
                limit.least.server_memory,
                limit.most.server_memory,
            )
            for limit in limits
        ],
        dtype=float,
    ).reshape(-1, 7)
    cpu, memory, gpu, least_worker, most_worker, least_server, most_server = known.T.take(rows.owner, axis=1)
    return np.asarray(
        (shapes.cpu <= cpu)
        & (shapes.memory <= memory)
        & (shapes.gpus <= gpu)
        & (shapes.worker_memory >= least_worker)
        & (shapes.worker_memory <= most_worker)
        & (shapes.server_memory >= least_server)
        & (shapes.server_memory <= most_server)
    )


def _axes(region: TrustRegion) -> tuple[Sequence[float], ...]:
    least, most, now, seen, step = (
        region.limits.least,
        region.limits.most,
        region.now,
        region.seen,
        region.limits.cpu_step,
    )
    return (
        _numbers([shape.workers for shape in seen], least.workers, most.workers),
        _numbers([shape.servers for shape in seen], least.servers, most.servers),
        _sizes([shape.worker_cpu for shape in seen], least.worker_cpu, most.worker_cpu, now.worker_cpu, step),
        _sizes([shape.server_cpu for shape in seen], least.server_cpu, most.server_cpu, now.server_cpu, step),
    )


def _between(values: Sequence[float], least: float, most: float) -> tuple[float, float]:
    return min(max(least, min(values) / NEAR), most), max(min(most, max(values) * NEAR), least)


def _numbers(values: Sequence[float], least: float, most: float) -> Sequence[float]:
    low, high = _between(values, least, most)
    first, last = math.ceil(low), math.floor(high)
    return sorted({round(first + (last - first) * at / (COUNTS - 1)) for at in range(COUNTS)})


def _sizes(values: Sequence[float], least: float, most: float, now: float, step: float | None) -> Sequence[float]:
    """Return a few sizes in the range. If `step` is given, also return sizes between the bounds, in whole steps."""
    low, high = _between(values, least, most)
    count = SIZES if step is None else COUNTS - 1
    sizes = [low * (high / low) ** (at / (count - 1)) for at in range(count)]
    if step is not None:
        sizes = [min(most, round(least + round((size - least) / step) * step, 9)) for size in sizes]
    return sorted({*sizes, min(max(now, low), high)})
