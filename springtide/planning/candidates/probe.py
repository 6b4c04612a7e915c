"""Pure. Chooses the shape to measure next: the shape whose measurement best resolves the unclear coefficients.

In: a `FittedModel` and bounds. Out: a `Probe`. Next: a policy may give the job that shape for a while.

The information about the coefficients is a matrix (`FittedModel.information`). A measurement adds the outer product of
its row. The D-optimal measurement increases the determinant most, which shrinks the confidence volume most.
"""

from dataclasses import dataclass

import numpy

from springtide.domain.core.shape import NO_NEED, MemoryNeed, Prices, Shape, ShapeBounds
from springtide.planning.candidates import grids, pareto
from springtide.planning.candidates.query import FrontQuery
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import TERMS, Shapes
from springtide.planning.perf_model.fit import FittedModel

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
    fits = pareto.fitting(ask, grid.shapes, grid.memory)
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
    shape = pareto.with_memory(ask, *(column[best : best + 1] for column in shapes)).shape(0)
    unclear = f"cannot tell {', '.join(fitted.unclear)} apart yet; " if fitted.unclear else ""
    return Probe(shape=shape, tells=float(told[best]), why=f"{unclear}{shape} would tell most")
