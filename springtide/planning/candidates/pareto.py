"""Pure. Finds the Pareto front of a job: the shapes that no other shape beats in both cost and throughput.

In: `FrontQuery`s. Out: a `Front` each, cheapest first. `next_probe` chooses the shape to measure next. Spaces of up to
`grids.MOST` shapes are enumerated, so their fronts are exact; larger spaces are searched in coarser steps. Next:
`planning.allocate.choose` picks one shape per job.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from springtide.domain.core.shape import NO_NEED, MemoryNeed, Prices, Shape, ShapeBounds
from springtide.planning.candidates import enumeration, grids
from springtide.planning.candidates.enumeration import FrontQuery
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import TERMS, Array, Index, Shapes
from springtide.planning.perf_model.fit import FittedModel
from springtide.planning.perf_model.shape_columns import ShapeColumns

SAME = 1e-12
"""Relative difference below which two costs are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Pareto-optimal shapes, cheapest and slowest first."""

    shapes: ShapeColumns
    cost: Array
    """Hourly cost (Eqn 7)."""
    throughput: Array
    """Samples per second."""
    why: str

    def __len__(self) -> int:
        return len(self.cost)

    def shape(self, index: int) -> Shape:
        return self.shapes.shape(index)

    def thin(self, most: int) -> "Front":
        """Return at most `most` shapes, spread evenly over the throughput, with both ends."""
        if len(self) <= most:
            return self
        wanted = numpy.linspace(self.throughput[0], self.throughput[-1], most)
        which = numpy.unique(numpy.searchsorted(self.throughput, wanted).clip(0, len(self) - 1))
        return replace(self, shapes=self.shapes.taken(which), cost=self.cost[which], throughput=self.throughput[which])


def front(ask: FrontQuery) -> Front:
    return fronts([ask])[0]


def fronts(asks: Sequence[FrontQuery]) -> list[Front]:
    """Return the fronts of many jobs together, which is far faster than one by one."""
    asks = [ask if grids.count(ask.bounds) <= grids.MOST else replace(ask, bounds=_coarser(ask.bounds)) for ask in asks]
    found = []
    for first in range(0, len(asks), enumeration.AT_ONCE):
        some = asks[first : first + enumeration.AT_ONCE]
        for ask, (shapes, cost, throughput) in zip(some, enumeration.listed(some), strict=True):
            kept, looked_at = non_dominated(cost, throughput), grids.count(ask.bounds)
            why = f"{len(kept)} of {looked_at:,} shapes are worth having"
            if not len(kept):
                why = f"none of {looked_at:,} shapes has memory enough for the job within its bounds and quota"
            found.append(Front(shapes=shapes.taken(kept), cost=cost[kept], throughput=throughput[kept], why=why))
    return found


def _coarser(bounds: ShapeBounds) -> ShapeBounds:
    """Return the bounds with steps so large that all shapes can be listed."""
    bounds = replace(bounds, cpu_step=None)
    while grids.count(bounds) > grids.MOST:
        step = 2 * (bounds.worker_step or 1)
        bounds = replace(bounds, worker_step=step, server_step=step)
    return bounds


def non_dominated(cost: Array, throughput: Array) -> Index:
    """Return the indices on the front, for shapes sorted by rising cost."""
    if len(cost) == 0:
        return numpy.zeros(0, dtype=int)
    best = numpy.maximum.accumulate(throughput)
    rises = numpy.append(True, best[1:] > best[:-1])
    kept: Index = numpy.nonzero(rises)[0]
    # of shapes with equal costs, the last is the fastest
    last = numpy.append(cost[kept[1:]] > cost[kept[:-1]] * (1 + SAME), True)
    chosen: Index = kept[last]
    return chosen


FAINT = 1e-4
"""Weak prior precision of every coefficient, which keeps the information matrix invertible. Coefficients are in shares
of the step time."""
AS_GOOD = 0.95
"""Share of the largest information gain that is enough: the cheapest shape with this much is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Shape to measure next."""

    shape: Shape
    tells: float
    """Information gain: log of the factor by which the confidence volume shrinks; 0 means none."""
    why: str


def next_probe(
    fitted: FittedModel, bounds: ShapeBounds, *, need: MemoryNeed = NO_NEED, prices: Prices | None = None
) -> Probe | None:
    """Return the cheapest of the most informative shapes; None if no shape fits or the space is too large to
    enumerate."""
    if grids.count(bounds) > grids.MOST:
        return None
    grid = grids.grid(bounds, prices or Prices(), need := grids.rounded(need, bounds))
    fits = _fitting(need, bounds, grid)
    shapes = Shapes(*(column[fits] for column in grid.shapes))
    if not len(shapes.workers):
        return None
    rows = equations.design(fitted.facts, shapes)
    seconds = rows @ fitted.coefficients.array
    if not (seconds > 0).all():
        return None
    rows = rows / seconds[:, None]
    scale = numpy.sqrt(numpy.diag(fitted.information))
    scale = numpy.where(scale > 0, scale, 1.0)
    known = fitted.information / scale / scale[:, None] + FAINT**2 * numpy.eye(len(TERMS))
    rows = rows / scale
    told = numpy.log1p((rows * numpy.linalg.solve(known, rows.T).T).sum(axis=1))
    best = int(numpy.nonzero(told >= AS_GOOD * told.max())[0][0])  # shapes are sorted by cost
    shape = _with_memory(need, bounds, *(float(column[best]) for column in shapes))
    unclear = f"cannot tell {', '.join(fitted.unclear)} apart yet; " if fitted.unclear else ""
    return Probe(shape=shape, tells=float(told[best]), why=f"{unclear}{shape} would tell most")


def _fitting(need: MemoryNeed, bounds: ShapeBounds, grid: grids.Grid) -> Index:
    """Return the shapes whose memory is within bounds and quota."""
    servers = grid.shapes.servers
    if 0 < bounds.most.worker_memory < need.worker:
        return numpy.zeros(len(servers), dtype=bool)
    beyond = numpy.maximum(bounds.least.server_memory - need.server - need.rows / servers, 0.0)
    memory = grid.memory + need.rows + servers * beyond
    fits: Index = (servers >= grids.fewest_servers(need, bounds)) & (memory <= bounds.quota.memory)
    return fits


def _with_memory(
    need: MemoryNeed, bounds: ShapeBounds, workers: float, servers: float, worker_cpu: float, server_cpu: float
) -> Shape:
    return Shape(
        workers=int(workers),
        servers=int(servers),
        worker_cpu=worker_cpu,
        server_cpu=server_cpu,
        worker_memory=need.worker,
        server_memory=max(need.server + math.ceil(need.rows / servers), bounds.least.server_memory),
    )
