"""Pure. Lists shapes near the measured shapes, where an unclear model can be trusted.

In: jobs with their measured shapes and bounds. Out: nearby shapes of all jobs, as columns. Next:
`planning.allocate.bids` predicts their throughput.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.shape import MemoryNeed, Shape, ShapeBounds
from springtide.planning.perf_model import shape_columns
from springtide.planning.perf_model.shape_columns import RaggedRows, ShapeColumns

Floats = NDArray[np.float64]
NEAR = 2.0
"""Factor around the measured values within which an unclear model is trusted."""
COUNTS, SIZES = 8, 3
"""Number of counts and of sizes per role to try."""


class TrustRegion(NamedTuple):
    """Measured shapes, current shape, bounds and memory needs of one job."""

    seen: set[Shape]
    """Measured shapes."""
    now: Shape
    limits: ShapeBounds
    need: MemoryNeed


def shapes(jobs: Sequence[TrustRegion]) -> tuple[ShapeColumns, RaggedRows]:
    """Return all combinations of nearby counts and sizes, each with the needed memory."""
    axes = [_axes(one) for one in jobs]
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
    need = np.array([(one.need.worker, one.need.server, one.need.rows) for one in jobs], dtype=float)
    worker, server, stored = need.reshape(-1, 3).T.take(rows.owner, axis=1)
    return ShapeColumns(workers, servers, worker_cpu, server_cpu, worker, server + np.ceil(stored / servers)), rows


def inside(shapes: ShapeColumns, rows: RaggedRows, limits: Sequence[ShapeBounds]) -> NDArray[np.bool_]:
    known = np.array(
        [
            (
                one.quota.cpu,
                one.quota.memory,
                one.least.worker_memory,
                one.most.worker_memory,
                one.least.server_memory,
                one.most.server_memory,
            )
            for one in limits
        ],
        dtype=float,
    ).reshape(-1, 6)
    cpu, memory, least_worker, most_worker, least_server, most_server = known.T.take(rows.owner, axis=1)
    return np.asarray(
        (shapes.cpu <= cpu)
        & (shapes.memory <= memory)
        & (shapes.worker_memory >= least_worker)
        & (shapes.worker_memory <= most_worker)
        & (shapes.server_memory >= least_server)
        & (shapes.server_memory <= most_server)
    )


def _axes(one: TrustRegion) -> tuple[Sequence[float], ...]:
    """Return the worker counts, server counts, and the sizes of each."""
    least, most, now, seen, step = one.limits.least, one.limits.most, one.now, one.seen, one.limits.cpu_step
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
    """Return a few sizes in the range. With a step, return more sizes, in whole steps."""
    low, high = _between(values, least, most)
    count = SIZES if step is None else COUNTS - 1
    sizes = [low * (high / low) ** (at / (count - 1)) for at in range(count)]
    if step is not None:
        sizes = [min(most, round(least + round((size - least) / step) * step, 9)) for size in sizes]
    return sorted({*sizes, min(max(now, low), high)})
