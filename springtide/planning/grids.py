"""Pure. All shapes within bounds as arrays, cheapest first: made once for bounds and prices, used for every job.

In: `Bounds`, `Prices`, `MemoryNeed`. Out: a `Grid`. Next: `planning.candidates`, `planning.probe`.

Memory makes no step faster, so that it is no dimension of the search: a shape has just as much as its roles need. Each
worker needs the same, whatever their number; servers share the rows, so that more servers are smaller ones, and bounds
on a server's memory are bounds on the number of servers. What rows take in all is the same for every shape: it adds to
the cost but changes no order, and a grid serves jobs of any size.
"""

import functools
import math
from dataclasses import dataclass

import numpy

from springtide.domain.shape import GIB, ROUNDING, Bounds, MemoryNeed, Prices
from springtide.planning.equations import Array, Shapes

MOST = 300_000
"""Shapes of a grid: beyond it they are not listed (30 MB)."""
KEPT = 16
"""Grids that are remembered."""
MEMORY_STEP = 1 << 28
"""Bytes by which roles' memory grows: sizes between are rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Shapes within bounds, cheapest first, without what rows take."""

    shapes: Shapes
    base: Array
    """Columns of the model without the job's facts, divided by w: 1/(w worker_cpu), 1/(p server_cpu), 1/p, 1/(w p) and
    1/w. Multiplied by the job's factors and added up they are seconds a sample. (5, shapes)."""
    cost: Array
    """An hour, without rows."""
    cpu: Array
    memory: Array
    """Bytes, without rows."""

    def __len__(self) -> int:
        return len(self.cost)


@functools.lru_cache(maxsize=KEPT)
def count(bounds: Bounds) -> int:
    """Shapes that would have to be looked at: pairs of worker and server sides that the quota allows one by one."""
    least, quota = bounds.least, bounds.quota.cpu
    workers, _ = _side(bounds.workers, bounds.worker_cpus, quota - least.servers * least.server_cpu)
    servers, _ = _side(bounds.servers, bounds.server_cpus, quota - least.workers * least.worker_cpu)
    return len(workers) * len(servers)


def rounded(need: MemoryNeed, bounds: Bounds) -> MemoryNeed:
    """Memory in steps, and no less than the bounds want."""
    return MemoryNeed(
        worker=max(-(-need.worker // MEMORY_STEP) * MEMORY_STEP, bounds.least.worker_memory),
        server=-(-need.server // MEMORY_STEP) * MEMORY_STEP,
        rows=need.rows,
    )


@functools.lru_cache(maxsize=KEPT)
def grid(bounds: Bounds, prices: Prices, worker_memory: int, server_memory: int) -> Grid:
    """All shapes whose cores are within the quota, each worker with so much memory, each server beside its rows."""
    quota = bounds.quota.cpu * (1 + ROUNDING)
    w, worker_cpu = _side(bounds.workers, bounds.worker_cpus, quota)
    p, server_cpu = _side(bounds.servers, bounds.server_cpus, quota)
    left, right = (side.ravel() for side in numpy.meshgrid(numpy.arange(len(w)), numpy.arange(len(p)), indexing="ij"))
    cpu = (w * worker_cpu)[left] + (p * server_cpu)[right]
    inside = cpu <= quota
    left, right, cpu = left[inside], right[inside], cpu[inside]
    memory = w[left] * worker_memory + p[right] * server_memory
    cost = cpu * prices.cpu + memory / GIB * prices.memory
    order = numpy.lexsort((cpu, cost))
    left, right = left[order], right[order]
    shapes = Shapes(w[left], p[right], worker_cpu[left], server_cpu[right])
    workers, servers = shapes.workers, shapes.servers
    columns = numpy.stack(
        [workers * shapes.worker_cpu, servers * shapes.server_cpu, servers, workers * servers, workers]
    )
    return Grid(shapes=shapes, base=1 / columns, cost=cost[order], cpu=cpu[order], memory=memory[order])


def fewest_servers(need: MemoryNeed, bounds: Bounds) -> float:
    """Servers below which one of them would need more memory than it may have."""
    if bounds.most.server_memory == 0:
        return 1
    room = bounds.most.server_memory - need.server
    if need.rows == 0:
        return 1 if room >= 0 else math.inf
    return math.ceil(need.rows / room) if room > 0 else math.inf


def _side(counts: tuple[int, ...], cpus: tuple[float, ...], quota: float) -> tuple[Array, Array]:
    """Counts and sizes of one role whose cores alone are within the quota."""
    many, each = (side.ravel() for side in numpy.meshgrid(counts, cpus, indexing="ij"))
    inside = many * each <= quota * (1 + ROUNDING)
    return many[inside].astype(float), each[inside].astype(float)
