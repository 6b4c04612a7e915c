"""Pure. Solves non-negative least squares on log errors for many jobs at once.

In: `LeastSquares`, padded arrays from `planning.perf_model.fit`. Out: `LeastSquaresSolution`. All jobs share a few
array operations, because for a single job the call overhead exceeds the computation.

The solver minimizes the sum of squares of log(X c / measured) over c >= 0. For rows that were limited by cores, only
residuals above 0 count, because the equations did not make these rows slow. Around an estimate t of the seconds, log(X
c) is log(t) + X c / t - 1 to first order. So each Gauss-Newton iteration is a non-negative least squares problem with
rows divided by t. A line search shortens a step that increases the error. The first iteration uses measured seconds for
t, which is NNLS weighted by 1 / seconds. If the unconstrained solution is non-negative, it is also the constrained
solution. Otherwise SciPy's NNLS computes it.
"""

from dataclasses import dataclass

import numpy

from springtide.planning.perf_model.equations import Array

TURNS = 8
"""Most Gauss-Newton iterations; three are enough in practice."""
HALVINGS = 4
"""Maximum number of halvings of a step that overshoots."""
SETTLED = 1e-4
"""Relative improvement below which the iteration stops."""
HUBER = 1.345
"""Deviations beyond which a row's influence is bounded. It keeps 95% of the efficiency of least squares."""
LEAST_DEVIATION = 0.02
"""Minimum deviation of log seconds, by which equal steps differ on any machine."""
RIDGE = 1e-11
"""Added to the diagonal (about 1), so that indistinguishable columns remain solvable."""
NOWHERE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSquares:
    """Problems of all jobs as arrays (jobs, rows, coefficients); shorter jobs are padded."""

    rows: Array
    """X: (jobs, rows, 5)."""
    seconds: Array
    """Measured seconds, 1 where padded. (jobs, rows)."""
    present: Array
    """1, or 0 where padded."""
    bound: Array
    """1 where cores limited the row. The equations must allow its speed, and may allow more. (jobs, rows)."""
    pull: Array
    """Strength of the pull of each coefficient to `towards`, in shares of the step time. (jobs, 5)."""
    towards: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSquaresSolution:
    """Coefficients, residuals and row weights of all jobs."""

    coefficients: Array
    residuals: Array
    """log(fitted / measured); 0 where padded."""
    weights: Array
    """Weight of each row from 0 to 1; 0 for a row limited by cores that the equations allow."""


def solve(problem: LeastSquares) -> LeastSquaresSolution:
    """Run Gauss-Newton with bounds, Huber weights, and step halving."""
    seconds, present = problem.seconds, problem.present
    weights, now = present, seconds
    found = _one_turn(problem, weights, now)
    residuals = _residuals(problem, found)
    for _ in range(TURNS):
        before, felt = found, _felt(problem, residuals)
        weights = present * _huber(felt, present)
        error = _error(problem, before, felt, weights)
        now = numpy.exp(residuals) * seconds
        active = weights * (felt == residuals)
        found = numpy.where(active.any(axis=1)[:, None], _one_turn(problem, active, now), before)
        for halving in range(HALVINGS + 1):
            residuals = _residuals(problem, found)
            worse = _error(problem, found, _felt(problem, residuals), weights) > error
            if not worse.any():
                break
            share = 0.5 if halving < HALVINGS else 0.0
            found = numpy.where(worse[:, None], before + share * (found - before), found)
        residuals = _residuals(problem, found)
        after = _error(problem, found, _felt(problem, residuals), weights)
        if (error - after <= SETTLED * numpy.maximum(error, NOWHERE)).all():
            break
    weights = weights * (_felt(problem, residuals) == residuals)
    return LeastSquaresSolution(coefficients=found, residuals=residuals, weights=weights)


def _felt(problem: LeastSquares, residuals: Array) -> Array:
    """Return the residuals that count. A row limited by cores may be slower than its equations."""
    felt: Array = numpy.where((problem.bound > 0) & (residuals < 0), 0.0, residuals)
    return felt


def _one_turn(problem: LeastSquares, weights: Array, now: Array) -> Array:
    root = numpy.sqrt(weights)
    system = problem.rows * (root / now)[:, :, None]
    wanted = root * (1 - numpy.log(now / problem.seconds))
    scale = numpy.sqrt((system**2).sum(axis=1) + problem.pull**2)
    scale = numpy.where(scale > 0, scale, 1.0)
    system = system / scale[:, None, :]
    pull = problem.pull / scale
    gram = numpy.swapaxes(system, 1, 2) @ system
    diagonal = numpy.arange(gram.shape[-1])
    gram[:, diagonal, diagonal] += pull**2 + RIDGE
    drawn = problem.pull * problem.towards
    right = (numpy.swapaxes(system, 1, 2) @ wanted[:, :, None])[:, :, 0] + pull * drawn
    gram[:, diagonal, diagonal] += gram[:, diagonal, diagonal] < 2 * RIDGE  # an empty column
    found: Array = numpy.linalg.solve(gram, right[:, :, None])[:, :, 0]
    below = numpy.flatnonzero((found < 0).any(axis=1))
    if len(below):
        found[below] = _bounded(system[below], wanted[below], pull[below], drawn[below])
    return found / scale


def _bounded(system: Array, wanted: Array, pull: Array, drawn: Array) -> list[Array]:
    """Solve the constrained problems of some jobs, one by one."""
    from scipy import optimize

    drawing = numpy.zeros((len(pull), pull.shape[1], pull.shape[1]))
    each = numpy.arange(pull.shape[1])
    drawing[:, each, each] = pull
    left, right = numpy.concatenate([system, drawing], axis=1), numpy.concatenate([wanted, drawn], axis=1)
    return [optimize.nnls(one, other)[0] for one, other in zip(left, right, strict=True)]


def _residuals(problem: LeastSquares, found: Array) -> Array:
    fitted = (problem.rows @ found[:, :, None])[:, :, 0]
    logs: Array = numpy.log(numpy.maximum(fitted, NOWHERE) / problem.seconds)
    return problem.present * logs


def _error(problem: LeastSquares, found: Array, residuals: Array, weights: Array) -> Array:
    drawn = problem.pull * (found - problem.towards)
    total: Array = (weights * residuals**2).sum(axis=1) + (drawn**2).sum(axis=1)
    return total


def _huber(residuals: Array, present: Array) -> Array:
    """Return Huber weights: 1 for ordinary residuals, less beyond. The scale is a median, which outliers do not
    affect."""
    sizes = numpy.abs(residuals)
    deviation = numpy.maximum(1.4826 * median(sizes, present), LEAST_DEVIATION)
    weights: Array = numpy.minimum(1.0, HUBER * deviation[:, None] / numpy.maximum(sizes, NOWHERE))
    return weights


def median(values: Array, present: Array) -> Array:
    """Return the median of each job over rows that are not padding."""
    ordered = numpy.sort(numpy.where(present > 0, values, numpy.inf), axis=1)
    count = present.sum(axis=1).astype(int)
    middle: Array = numpy.take_along_axis(ordered, ((count - 1) // 2)[:, None], axis=1)[:, 0]
    other: Array = numpy.take_along_axis(ordered, (count // 2)[:, None], axis=1)[:, 0]
    return (middle + other) / 2
