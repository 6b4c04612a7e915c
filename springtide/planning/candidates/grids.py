"""Pure. Lists all shapes within bounds as two sides: the options for workers and the options for servers.

More memory makes no step faster, so the search does not vary it: each role gets just the memory it needs. Servers share
the rows, so bounds on the memory of one server become bounds on the number of servers.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy

from springtide.domain.core.shape import GIB, ROUNDING, MemoryNeed, Prices, ShapeBounds
from springtide.planning.perf_model.equations import Array, Shapes

MOST = 300_000
"""Maximum number of shapes within bounds that are enumerated."""
KEPT = 256
"""Cache size of `sides`, a few hundred numbers per entry."""
MEMORY_STEP = 1 << 28
"""Bytes by which memory sizes are rounded up."""
SPARE = 1 + 1e-12
"""Tolerance for sums of cores."""


class Side(NamedTuple):
    """Options for one role: number of processes, cores of each, and cores in total."""

    number: Array
    each: Array
    cpu: Array


class Sides(NamedTuple):
    """Options for both roles. Each option fits together with at least one option of the other role."""

    workers: Side
    servers: Side

    def __len__(self) -> int:
        return len(self.workers.number) * len(self.servers.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Shapes within bounds, cheapest first. Memory and cost exclude the rows."""

    shapes: Shapes
    memory: Array
    """Bytes of each shape, without rows."""

    def __len__(self) -> int:
        return len(self.memory)


@functools.lru_cache(maxsize=KEPT)
def sides(bounds: ShapeBounds) -> Sides:
    """Return the options of each role whose cores fit the quota beside the smallest option of the other role."""
    least, quota = bounds.least, quota_cpu(bounds)
    return Sides(
        _side(bounds.workers, bounds.worker_cpus, quota - least.servers * least.server_cpu),
        _side(bounds.servers, bounds.server_cpus, quota - least.workers * least.worker_cpu),
    )


def count(bounds: ShapeBounds) -> int:
    """Return the number of pairs of worker and server options that an enumeration would have to check."""
    return len(sides(bounds))


def quota_cpu(bounds: ShapeBounds) -> float:
    """Return the quota in cores, with a tolerance for rounding."""
    return bounds.quota.cpu * (1 + ROUNDING)


def rounded(need: MemoryNeed, bounds: ShapeBounds) -> MemoryNeed:
    """Round memory up to steps, and up to the bounds."""
    return MemoryNeed(
        worker=max(-(-need.worker // MEMORY_STEP) * MEMORY_STEP, bounds.least.worker_memory),
        server=-(-need.server // MEMORY_STEP) * MEMORY_STEP,
        rows=need.rows,
    )


def grid(bounds: ShapeBounds, prices: Prices, need: MemoryNeed) -> Grid:
    """Return all shapes within the CPU quota, with the memory of each role excluding rows."""
    workers, servers = sides(bounds)
    left, right = (
        side.ravel()
        for side in numpy.meshgrid(numpy.arange(len(workers.number)), numpy.arange(len(servers.number)), indexing="ij")
    )
    cpu = workers.cpu[left] + servers.cpu[right]
    inside = cpu <= quota_cpu(bounds)
    left, right, cpu = left[inside], right[inside], cpu[inside]
    memory = workers.number[left] * need.worker + servers.number[right] * need.server
    cost = cpu * prices.cpu + memory / GIB * prices.memory
    order = numpy.lexsort((cpu, cost))
    left, right = left[order], right[order]
    shapes = Shapes(workers.number[left], servers.number[right], workers.each[left], servers.each[right])
    return Grid(shapes=shapes, memory=memory[order])


def fewest_servers(need: MemoryNeed, bounds: ShapeBounds) -> float:
    """Return the fewest servers at which each server's memory is within its bound."""
    if bounds.most.server_memory == 0:
        return 1
    room = bounds.most.server_memory - need.server
    if need.rows == 0:
        return 1 if room >= 0 else math.inf
    return math.ceil(need.rows / room) if room > 0 else math.inf


def _side(counts: tuple[int, ...], cpus: tuple[float, ...], quota: float) -> Side:
    """Return the counts and sizes of one role whose total cores fit the quota."""
    many, each = numpy.repeat(numpy.array(counts, dtype=float), len(cpus)), numpy.tile(cpus, len(counts))
    cpu = many * each
    inside = cpu <= quota * SPARE
    return Side(many[inside], each[inside], cpu[inside])
