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
"""Of Gauss-Newton at most: three are enough in practice."""
HALVINGS = 4
"""Of a turn that overshoots."""
SETTLED = 1e-4
"""Part of the error gained by a turn, below which it was the last."""
HUBER = 1.345
"""Deviations beyond which a row pulls no harder: 95% as good as least squares when nothing is odd."""
LEAST_DEVIATION = 0.02
"""Of log seconds: what equal steps differ by on any machine."""
RIDGE = 1e-11
"""Added to the diagonal, which is about 1, so that columns that cannot be told apart can be solved for at all."""
NOWHERE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSquares:
    """Problems of all jobs as arrays (jobs, rows, coefficients); shorter jobs are padded."""

    rows: Array
    """X: (jobs, rows, 5)."""
    seconds: Array
    """Measured; 1 where padded. (jobs, rows)."""
    present: Array
    """1, or 0 where padded."""
    bound: Array
    """1 where cores bound the row: the equations must allow its speed, and may allow more. (jobs, rows)."""
    pull: Array
    """How strongly each coefficient is drawn to `towards`, in parts of the step's time. (jobs, 5)."""
    towards: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSquaresSolution:
    """Solutions of all jobs."""

    coefficients: Array
    residuals: Array
    """log(fitted / measured); 0 where padded."""
    weights: Array
    """Of rows, between 0 and 1; 0 where cores bound a row that the equations allow."""


def solve(problem: LeastSquares) -> LeastSquaresSolution:
    """Gauss-Newton with bounds, Huber's weights, steps halved where they overshoot."""
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
    """Residuals as far as they count: a row that cores bound may be slower than its equations."""
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
    gram[:, diagonal, diagonal] += gram[:, diagonal, diagonal] < 2 * RIDGE  # a column of nothing
    found: Array = numpy.linalg.solve(gram, right[:, :, None])[:, :, 0]
    below = numpy.flatnonzero((found < 0).any(axis=1))
    if len(below):
        found[below] = _bounded(system[below], wanted[below], pull[below], drawn[below])
    return found / scale


def _bounded(system: Array, wanted: Array, pull: Array, drawn: Array) -> list[Array]:
    """The answers of some jobs with the condition, one by one."""
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
    """Weights: 1 within the ordinary, less beyond. Deviations come from the median, which odd rows leave alone."""
    sizes = numpy.abs(residuals)
    deviation = numpy.maximum(1.4826 * median(sizes, present), LEAST_DEVIATION)
    weights: Array = numpy.minimum(1.0, HUBER * deviation[:, None] / numpy.maximum(sizes, NOWHERE))
    return weights


def median(values: Array, present: Array) -> Array:
    """Of each job, over the rows that are not padded."""
    ordered = numpy.sort(numpy.where(present > 0, values, numpy.inf), axis=1)
    count = present.sum(axis=1).astype(int)
    middle: Array = numpy.take_along_axis(ordered, ((count - 1) // 2)[:, None], axis=1)[:, 0]
    other: Array = numpy.take_along_axis(ordered, (count // 2)[:, None], axis=1)[:, 0]
    return (middle + other) / 2
