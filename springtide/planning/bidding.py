"""Pure. What a measured job could have: its fitted model over the shapes worth having, as a `Bid`.

In: a job that is `Ready`, and its model (`planning.fit`). Out: a `Bid`, or why there is none. Next: `planning.choose`.

A model is trusted near what was measured, and nowhere beyond what cores can do (`planning.paces`).
"""

import functools
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from springtide.domain.planning import PlanningConfig
from springtide.domain.shape import Bounds, Shape
from springtide.domain.view import ClusterView, JobView
from springtide.planning import candidates, evidence, fitting_in, paces
from springtide.planning.choose import UNENDING_S, Bid
from springtide.planning.columns import Columns, columns, joined
from springtide.planning.equations import Shapes
from springtide.planning.fit import Fitted
from springtide.planning.paces import Pace
from springtide.planning.priorities import Standing
from springtide.planning.stages import Ready

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


def bid(ready: Ready, fitted: Fitted, view: ClusterView, config: PlanningConfig) -> Bid | str:
    """The job's candidates, and what each would bring."""
    job, now = ready.job, ready.measured.shape
    job = replace(job, need=replace(job.need, rows=math.ceil(ROOM_TO_GROW * job.need.rows)))
    pace = paces.pace_of(job, ready.measured.throughput)
    if fitted.unclear and not ready.first:
        shapes = _nearby(job, now, config)
    else:
        shapes = _worth_having(job, now, fitted, pace, config)
    speed = np.minimum(_predicted(fitted, shapes), paces.ceiling(pace, shapes))
    shapes, speed = _thinned(shapes, speed, config)
    others = _other_workers(job, now, config)
    if not len(speed) and not len(others.workers):
        return "no shape within its bounds is worth having"
    faster = np.minimum(_predicted(fitted, others), paces.ceiling(pace, others))
    shapes, speed = joined(shapes, others), np.concatenate([speed, faster])
    here = min(float(fitted.predict(now)), paces.ceiling_of(pace, now))
    left = job.remaining if math.isfinite(job.remaining) else here * UNENDING_S
    return Bid(
        job=job.name, now=now, throughput_now=here, shapes=shapes, throughput=speed,
        standing=Standing(
            samples_left=left, throughput=here, waited_s=max(0.0, view.now - job.submitted_at), given=job.priority
        ),
        launches=view.launches or job.launches,
    )  # fmt: skip


def _worth_having(job: JobView, now: Shape, fitted: Fitted, pace: Pace, config: PlanningConfig) -> Columns:
    """The front of a model that is clear."""
    front = candidates.front(
        fitted.coefficients, job.facts, bounds=allowed(job.bounds, config), now=now, need=job.need,
        prices=config.prices, pace=pace,
    )  # fmt: skip
    return _with_memory(front.shapes, job, now)


def allowed(bounds: Bounds, config: PlanningConfig) -> Bounds:
    """A job's bounds with C_total and C_max in them."""
    most = bounds.most
    cpus = {name: max(getattr(bounds.least, name), min(getattr(most, name), config.node_cpu)) for name in CPUS}
    return replace(bounds, most=replace(most, **cpus), quota=fitting_in.quota(bounds, config))


def _nearby(job: JobView, now: Shape, config: PlanningConfig) -> Columns:
    """Shapes within the bounds and near what was measured: for a model that cannot tell everything apart yet."""
    seen = [one.shape for one in evidence.by_shape(job)] or [now]
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
    rows = np.ceil(job.need.rows / servers)
    shapes = Columns(workers, servers, worker_cpu, server_cpu, none + job.need.worker, job.need.server + rows)
    shapes = _with_memory(shapes, job, now)
    fits = (shapes.cpu <= limits.quota.cpu) & (shapes.memory <= limits.quota.memory)
    for name in ("worker_memory", "server_memory"):
        column = getattr(shapes, name)
        fits &= (column >= getattr(limits.least, name)) & (column <= getattr(limits.most, name))
    return shapes.taken(fits)


@functools.lru_cache(maxsize=256)
def _crossed(axes: tuple[tuple[float, ...], ...]) -> tuple[Floats, ...]:
    """All combinations, a column an axis; jobs that were measured alike share them."""
    return tuple(axis.ravel() for axis in np.meshgrid(*(np.array(axis, dtype=np.float64) for axis in axes)))


def _predicted(fitted: Fitted, shapes: Columns) -> Floats:
    return np.asarray(fitted.predict(Shapes(*shapes[:4])))


def _thinned(shapes: Columns, speed: Floats, config: PlanningConfig) -> tuple[Columns, Floats]:
    """Shapes of which none is both cheaper and faster than another, and not too many of them."""
    cost = shapes.cost(config.prices)
    order = np.lexsort((-speed, cost))
    best = np.maximum.accumulate(speed[order]) if len(order) else speed[order]
    kept = order[np.append(True, best[1:] > best[:-1])] if len(order) else order
    if len(kept) > OPTIONS:
        kept = kept[np.linspace(0, len(kept) - 1, OPTIONS).round().astype(np.int64)]
    return shapes.taken(kept), speed[kept]


def _with_memory(shapes: Columns, job: JobView, now: Shape) -> Columns:
    """Memory as it is needed; as it is now, where nobody knows what is needed.

    Roles of the size they have keep their memory where it is enough and not far more: nobody begins anew for that.
    """
    worker, server = shapes.worker_memory, shapes.server_memory
    if not job.need.worker:
        worker = np.full_like(worker, now.worker_memory)
    if not job.need.server and not job.need.rows:
        server = np.full_like(server, now.server_memory)
    worker = _kept(worker, now.worker_memory, shapes.worker_cpu == now.worker_cpu)
    server = _kept(server, now.server_memory, shapes.server_cpu == now.server_cpu)
    return shapes._replace(worker_memory=worker, server_memory=server)


def _kept(needed: Floats, held: int, same: NDArray[np.bool_]) -> Floats:
    return np.where(same & (needed <= held) & (held <= TOO_MUCH * needed), float(held), needed)


def _other_workers(job: JobView, now: Shape, config: PlanningConfig) -> Columns:
    """What runs now with more or fewer workers, the change that costs least; and with just the memory that it needs."""
    bounds = job.bounds
    near = {round(now.workers * NEAR ** (at / STEPS_NEAR)) for at in range(-STEPS_NEAR, STEPS_NEAR + 1)}
    ends = {bounds.least.workers, bounds.most.workers}
    inside = {one for one in near | ends if bounds.least.workers <= one <= bounds.most.workers}
    counts = np.array(sorted(inside), dtype=np.float64)
    same = (now.servers, now.worker_cpu, now.server_cpu, now.worker_memory, now.server_memory)
    shapes = Columns(counts, *(np.full(counts.shape, float(each)) for each in same))
    quota = fitting_in.quota(bounds, config)
    if not bounds.holds(replace(now, workers=bounds.least.workers)):
        return shapes.taken(np.zeros(0, dtype=np.int64))
    needed = fitting_in.clipped(now, bounds, config)
    if job.need.server or job.need.rows:
        least, most = bounds.least.server_memory, bounds.most.server_memory
        needed = replace(needed, server_memory=min(max(job.need.of_server(needed.servers), least), most))
    shapes = joined(shapes, columns([needed]))
    return shapes.taken((shapes.cpu <= quota.cpu) & (shapes.memory <= quota.memory))
