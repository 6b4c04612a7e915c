"""Pure. Finds the Pareto front of one job: the shapes that no other shape beats in both cost and throughput.

In: coefficients (from `planning.perf_model.fit`), bounds, prices, memory needs and the current shape. Out: a `Front`,
cheapest first. Next: `planning.allocate.choose` picks one shape per job within the capacity of the cluster.

The resource cost (Eqn 7) is the hourly cost of a shape. The throughput gain (Eqn 8) is the added throughput minus the
overhead. The overhead is the number of samples that the change loses (`planning.candidates.switch_cost`), divided by
`horizon_s`, the time in which the change must pay off.

Search spaces of up to `grids.MOST` shapes are enumerated, so the front is exact. NSGA-II (`evolved_front`, the extra
`brain`) searches larger spaces. Without the extra, the space is made coarser until it can be enumerated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy

from springtide import errors
from springtide.domain.core.shape import NO_NEED, ROUNDING, MemoryNeed, Prices, Shape, ShapeBounds
from springtide.domain.plan.profile import ModelFacts
from springtide.domain.plan.view import LaunchTime
from springtide.planning.candidates import enumeration, grids, switch_cost
from springtide.planning.candidates.enumeration import NO_LIMIT, FrontQuery
from springtide.planning.perf_model import equations, measurements
from springtide.planning.perf_model.equations import TERMS, Array, Coefficients, Index, Shapes
from springtide.planning.perf_model.fit import FittedModel
from springtide.planning.perf_model.shape_columns import ShapeColumns

How = Literal["exact", "evolved", "coarse"]
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
    gain: Array
    """Gain in samples per second over the current shape (Eqn 8); negative means slower."""
    how: How
    why: str

    def __len__(self) -> int:
        return len(self.cost)

    def shape(self, index: int) -> Shape:
        return self.shapes.shape(index)

    def only(self, which: Index) -> "Front":
        return replace(
            self,
            shapes=self.shapes.taken(which),
            cost=self.cost[which],
            throughput=self.throughput[which],
            gain=self.gain[which],
        )

    def thin(self, most: int) -> "Front":
        """Return at most `most` shapes, spread evenly over the gain, with both ends."""
        if len(self) <= most:
            return self
        wanted = numpy.linspace(self.gain[0], self.gain[-1], most)
        return self.only(numpy.unique(numpy.searchsorted(self.gain, wanted).clip(0, len(self) - 1)))


def front(
    coefficients: Coefficients,
    facts: ModelFacts,
    *,
    bounds: ShapeBounds,
    now: Shape | None = None,
    need: MemoryNeed = NO_NEED,
    prices: Prices | None = None,
    launches: Sequence[LaunchTime] | None = None,
    horizon_s: float = math.inf,
    pace: tuple[float, float] = NO_LIMIT,
) -> Front:
    return front_of(
        FrontQuery(
            coefficients=coefficients,
            facts=facts,
            bounds=bounds,
            now=now,
            need=need,
            prices=prices or Prices(),
            launches=launches,
            horizon_s=horizon_s,
            pace=pace,
        )
    )


def front_of(ask: FrontQuery) -> Front:
    """Return the front of one query, enumerated if possible and found by evolution otherwise."""
    return fronts([ask])[0]


def fronts(asks: Sequence[FrontQuery]) -> list[Front]:
    """Return the fronts of many jobs together, which is far faster than one by one."""
    small = [grids.count(ask.bounds) <= grids.MOST for ask in asks]
    found = iter(listed([ask for ask, fits in zip(asks, small, strict=True) if fits]))
    return [next(found) if fits else _searched(ask) for ask, fits in zip(asks, small, strict=True)]


def _searched(ask: FrontQuery) -> Front:
    """Return the front of a space that is too large to enumerate."""
    try:
        return evolved_front(ask)
    except errors.MissingExtra:
        (found,) = listed([replace(ask, bounds=_coarser(ask.bounds))])
        return replace(found, how="coarse")


def listed(asks: Sequence[FrontQuery]) -> list[Front]:
    found = []
    for first in range(0, len(asks), enumeration.AT_ONCE):
        some = asks[first : first + enumeration.AT_ONCE]
        for ask, (shapes, cost, throughput) in zip(some, enumeration.listed(some), strict=True):
            gain = gains(ask, shapes, throughput)
            found.append(assemble(shapes, cost, throughput, gain, how="exact", looked_at=grids.count(ask.bounds)))
    return found


def capped(ask: FrontQuery, shapes: ShapeColumns, throughput: Array) -> Array:
    """Limit the predicted throughput of shapes by their cores."""
    return numpy.minimum(throughput, measurements.ceiling(measurements.CoreSpeed(*ask.pace), shapes))


def gains(ask: FrontQuery, shapes: ShapeColumns, throughput: Array) -> Array:
    """Return the gains (Eqn 8) of shapes with this throughput."""
    before = ask.before
    more = throughput - before
    if ask.launches is None or ask.now is None or not math.isfinite(ask.horizon_s):
        return more
    return more - switch_cost.lost_samples(ask.now, shapes, ask.launches, before, throughput) / ask.horizon_s


def fitting(ask: FrontQuery, shapes: Shapes, memory_without_rows: Array) -> Index | None:
    """Return the shapes whose memory is within bounds and quota; None means all."""
    need, bounds = grids.rounded(ask.need, ask.bounds), ask.bounds
    if 0 < bounds.most.worker_memory < need.worker:
        return numpy.zeros(len(shapes.workers), dtype=bool)
    fits: Index | None = None
    fewest = grids.fewest_servers(need, bounds)
    if fewest > bounds.least.servers:
        fits = shapes.servers >= fewest
    if math.isfinite(bounds.quota.memory) and not _roomy(bounds, need):
        extra = shapes.servers * _beyond_need(bounds, need, shapes.servers)
        within = memory_without_rows + need.rows + extra <= bounds.quota.memory
        fits = within if fits is None else fits & within
    return fits


def _roomy(bounds: ShapeBounds, need: MemoryNeed) -> bool:
    """Return True if the quota has memory for the largest shape."""
    most = bounds.most
    server = max(need.server, bounds.least.server_memory)
    return most.workers * need.worker + most.servers * server + need.rows <= bounds.quota.memory


def _beyond_need(bounds: ShapeBounds, need: MemoryNeed, servers: Array) -> Array:
    """Return the bytes per server that the bounds demand beyond the memory need, for each number of servers."""
    if bounds.least.server_memory <= need.server:
        return numpy.zeros(1)
    beyond: Array = numpy.maximum(bounds.least.server_memory - need.server - need.rows / servers, 0.0)
    return beyond


def non_dominated(cost: Array, gain: Array) -> Index:
    """Return the indices on the front, for shapes sorted by rising cost."""
    if len(cost) == 0:
        return numpy.zeros(0, dtype=int)
    best = numpy.maximum.accumulate(gain)
    rises = numpy.append(True, best[1:] > best[:-1])
    kept: Index = numpy.nonzero(rises)[0]
    last = numpy.append(cost[kept[1:]] > cost[kept[:-1]] * (1 + SAME), True)  # of equal costs the last is the fastest
    chosen: Index = kept[last]
    return chosen


def with_memory(ask: FrontQuery, workers: Array, servers: Array, worker_cpu: Array, server_cpu: Array) -> ShapeColumns:
    need = grids.rounded(ask.need, ask.bounds)
    rows = numpy.ceil(need.rows / servers) if need.rows else numpy.zeros(len(servers))
    each = numpy.maximum(need.server + rows, float(ask.bounds.least.server_memory))
    return ShapeColumns(workers, servers, worker_cpu, server_cpu, numpy.full(len(workers), float(need.worker)), each)


def assemble(shapes: ShapeColumns, cost: Array, throughput: Array, gain: Array, *, how: How, looked_at: int) -> Front:
    """Build the front from shapes sorted by rising cost."""
    kept = non_dominated(cost, gain)
    why = f"{len(kept)} of {looked_at:,} shapes are worth having"
    if not len(kept):
        why = f"none of {looked_at:,} shapes has memory enough for the job within its bounds and quota"
    return Front(
        shapes=shapes.taken(kept), cost=cost[kept], throughput=throughput[kept], gain=gain[kept], how=how, why=why
    )


def _coarser(bounds: ShapeBounds) -> ShapeBounds:
    bounds = replace(bounds, cpu_step=None)
    while grids.count(bounds) > grids.MOST:
        step = 2 * (bounds.worker_step or 1)
        bounds = replace(bounds, worker_step=step, server_step=step)
    return bounds


POPULATION = 100
GENERATIONS = 120


def evolved_front(ask: FrontQuery, *, population: int = POPULATION, generations: int = GENERATIONS) -> Front:
    """Search the front with NSGA-II. Equal seeds give equal results."""
    try:
        from pymoo.algorithms.moo.nsga2 import NSGA2
        from pymoo.core.problem import Problem
        from pymoo.operators.crossover.sbx import SBX
        from pymoo.operators.mutation.pm import PM
        from pymoo.operators.repair.rounding import RoundingRepair
        from pymoo.operators.sampling.rnd import IntegerRandomSampling
        from pymoo.optimize import minimize
    except ImportError:
        raise errors.MissingExtra("a search by NSGA-II", "brain") from None
    lists = choices(ask.bounds)

    class Space(Problem):  # type: ignore[misc]
        """NSGA-II problem: cost and gain of the shapes that genes encode."""

        def __init__(self) -> None:
            upper = numpy.array([len(each) - 1 for each in lists])
            super().__init__(n_var=4, n_obj=2, n_ieq_constr=1, xl=numpy.zeros(4), xu=upper, vtype=int)

        def _evaluate(self, genes: Array, out: dict[str, Any], *_: object, **__: object) -> None:
            shapes = expressed(ask, lists, genes)
            cost, _throughput, gain, excess = score(ask, shapes)
            out["F"] = numpy.column_stack([cost, -gain])
            out["G"] = excess[:, None]

    algorithm = NSGA2(
        pop_size=population,
        sampling=IntegerRandomSampling(),
        crossover=SBX(prob=0.9, eta=15, vtype=float, repair=RoundingRepair()),
        mutation=PM(eta=20, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    found = minimize(Space(), algorithm, ("n_gen", generations), seed=ask.seed, verbose=False)
    genes = numpy.atleast_2d(found.X) if found.X is not None else numpy.zeros((0, 4))
    shapes = expressed(ask, lists, genes)
    cost, throughput, gain, excess = score(ask, shapes)
    order = numpy.argsort(cost, kind="stable")
    order = order[excess[order] <= 0]
    return assemble(
        shapes.taken(order),
        cost[order],
        throughput[order],
        gain[order],
        how="evolved",
        looked_at=population * generations,
    )


def choices(bounds: ShapeBounds) -> tuple[Array, ...]:
    """Return the values of each gene: workers, servers, cores of a worker, cores of a server."""
    listed = (bounds.workers, bounds.servers, bounds.worker_cpus, bounds.server_cpus)
    return tuple(numpy.array(each, dtype=float) for each in listed)


def expressed(ask: FrontQuery, lists: tuple[Array, ...], genes: Array) -> ShapeColumns:
    places = numpy.rint(genes).astype(int)
    return with_memory(ask, *(each[places[:, gene]] for gene, each in enumerate(lists)))


def score(ask: FrontQuery, shapes: ShapeColumns) -> tuple[Array, Array, Array, Array]:
    """Return cost, throughput, gain, and the excess over the bounds (0 or less means within)."""
    need = grids.rounded(ask.need, ask.bounds)
    few = Shapes(*shapes[:4])
    throughput = capped(ask, shapes, equations.throughput(ask.coefficients, ask.facts, few))
    fits = fitting(ask, few, shapes.workers * need.worker + shapes.servers * need.server)
    excess = shapes.cpu / ask.bounds.quota.cpu - (1 + ROUNDING)
    if fits is not None:
        excess = numpy.where(fits, excess, numpy.maximum(excess, 1.0))
    return shapes.cost(ask.prices), throughput, gains(ask, shapes, throughput), excess


FAINT = 1e-4
"""Prior precision of every coefficient, as a share of step time. It keeps the information matrix invertible."""
AS_GOOD = 0.95
"""Share of the best information at which a cheaper shape is preferred."""


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
    ask = FrontQuery(
        coefficients=fitted.coefficients, facts=fitted.facts, bounds=bounds, need=need, prices=prices or Prices()
    )
    grid = grids.grid(bounds, ask.prices, grids.rounded(need, bounds))
    fits = fitting(ask, grid.shapes, grid.memory)
    shapes = grid.shapes if fits is None else Shapes(*(column[fits] for column in grid.shapes))
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
    shape = with_memory(ask, *(column[best : best + 1] for column in shapes)).shape(0)
    unclear = f"cannot tell {', '.join(fitted.unclear)} apart yet; " if fitted.unclear else ""
    return Probe(shape=shape, tells=float(told[best]), why=f"{unclear}{shape} would tell most")
