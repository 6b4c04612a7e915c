"""Pure. A front by NSGA-II, as DLRover-RM finds it: for spaces too large to be listed. Needs the extra `brain`.

In: an `FrontQuery`. Out: a `Front`. Genes are places in the lists of counts and sizes that the bounds
allow; cores and memory beyond the quota are a violated constraint.
"""

from typing import Any

import numpy

from springtide import errors
from springtide.domain.core.shape import ROUNDING, ShapeBounds
from springtide.planning.candidates import grids, pareto
from springtide.planning.candidates.pareto import Front
from springtide.planning.candidates.query import FrontQuery
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Array, Shapes
from springtide.planning.perf_model.shape_columns import ShapeColumns

POPULATION = 100
GENERATIONS = 120


def front(ask: FrontQuery, *, population: int = POPULATION, generations: int = GENERATIONS) -> Front:
    """What evolution finds of the front; the same seed gives the same one."""
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
        """Cost and gain of shapes, by their genes."""

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
    return pareto.assemble(
        shapes.taken(order),
        cost[order],
        throughput[order],
        gain[order],
        how="evolved",
        looked_at=population * generations,
    )


def choices(bounds: ShapeBounds) -> tuple[Array, ...]:
    """What each gene may be: workers, servers, cores of a worker, cores of a server."""
    listed = (bounds.workers, bounds.servers, bounds.worker_cpus, bounds.server_cpus)
    return tuple(numpy.array(each, dtype=float) for each in listed)


def expressed(ask: FrontQuery, lists: tuple[Array, ...], genes: Array) -> ShapeColumns:
    places = numpy.rint(genes).astype(int)
    return pareto.with_memory(ask, *(each[places[:, gene]] for gene, each in enumerate(lists)))


def score(ask: FrontQuery, shapes: ShapeColumns) -> tuple[Array, Array, Array, Array]:
    """Cost, throughput, gain, and by how much bounds are passed (0 or less: not at all)."""
    need = grids.rounded(ask.need, ask.bounds)
    few = Shapes(*shapes[:4])
    throughput = pareto.capped(ask, shapes, equations.throughput(ask.coefficients, ask.facts, few))
    fits = pareto.fitting(ask, few, shapes.workers * need.worker + shapes.servers * need.server)
    excess = shapes.cpu / ask.bounds.quota.cpu - (1 + ROUNDING)
    if fits is not None:
        excess = numpy.where(fits, excess, numpy.maximum(excess, 1.0))
    return shapes.cost(ask.prices), throughput, pareto.gains(ask, shapes, throughput), excess
