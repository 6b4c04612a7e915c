"""Pure. Fits the performance models of many jobs to their profiles in one computation.

The fit minimizes log(predicted / measured) seconds, with Huber weights against outliers. If cores limit the speed of
a shape, the equations may predict a higher speed for it. If steps are timed by term, the slope of each term weakly
attracts the term's coefficient. Totals alone cannot separate, for example, `emb` from `beta`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import msgspec
import numpy

from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import ModelFacts, Profile
from springtide.planning.perf_model import equations, shape_columns
from springtide.planning.perf_model.equations import TERMS, Array, Coefficients, Shapes
from springtide.planning.perf_model.measurements import CoreSpeed
from springtide.planning.perf_model.profiles import ProfileTable, tabulate

FEWEST = 3
"""Fewest configurations for a fit to totals alone."""
FEWEST_TIMED = 1
"""Fewest configurations for a fit if the time of each step was measured term by term. Few configurations suffice,
because each term scales in its own way.
"""
NO_NUMBERS = "the measurements span too many orders of magnitude for a finite model"
TERMS_PULL = 0.1
"""Weight of the terms' slopes. Totals are accurate to about 3%, overlapping terms to about 30%."""
CLEAR = 0.1
"""A coefficient is unclear if the uncertainty of its part of the step time is more than this share of the step time."""
VARIES = 1e-6
BUSY = 0.85
"""Cores are the bottleneck of a shape that reaches more than this share of the speed that its cores allow. The margin
covers the difference that two windows of one shape may have.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """Fitted performance model of one job, with its uncertainty."""

    coefficients: Coefficients
    facts: ModelFacts
    table: ProfileTable
    rmsle: float
    """Root mean square of log(predicted / measured) over the configurations; predictions combine the equations and the
    limits by cores."""
    mape: float
    """Mean absolute error of throughput, as a share of the measured value."""
    deviations: tuple[float, ...]
    """Standard deviation of each coefficient's part of the step time, as a share of the step time; infinite if
    unknown.
    """

    @property
    def uncertainty(self) -> dict[str, float]:
        return dict(zip(TERMS, self.deviations, strict=True))

    @property
    def unclear(self) -> tuple[str, ...]:
        return tuple(name for name, share in self.uncertainty.items() if share > CLEAR)

    @overload
    def predict(self, shape: Shape) -> float: ...
    @overload
    def predict(self, shape: Shapes) -> Array: ...
    def predict(self, shape: Shape | Shapes) -> Array | float:
        return equations.throughput(self.coefficients, self.facts, shape)

    @property
    def why(self) -> str:
        count = len(self.table)
        quality = f"fitted to {count} configuration{'' if count == 1 else 's'}, off by {self.mape:.1%} on average"
        return f"{quality}; cannot tell yet: {', '.join(self.unclear)}" if self.unclear else quality


def fit(profiles: Iterable[Profile], facts: ModelFacts, pace: CoreSpeed | None = None) -> FittedModel | str:
    """Fit the model of one job, or return the reason why there is none. `pace` is the speed of the job's cores."""
    return fit_many([(profiles, facts)], [pace or CoreSpeed()])[0]


def fit_many(
    jobs: Iterable[tuple[Iterable[Profile], ModelFacts]], paces: Sequence[CoreSpeed] | None = None
) -> list[FittedModel | str]:
    """Fit the models of many jobs together, which is far faster than one by one. For a job without a model, return the
    reason."""
    asked = list(jobs)
    tables = [_checked(table) for table in tabulate([profiles for profiles, _ in asked])]
    usable = [
        (table, facts, pace)
        for table, (_, facts), pace in zip(tables, asked, paces or [CoreSpeed()] * len(asked), strict=True)
        if isinstance(table, ProfileTable)
    ]
    models = iter(_fit_tables(*zip(*usable, strict=True)) if usable else ())
    return [table if isinstance(table, str) else next(models) for table in tables]


def _checked(table: ProfileTable | str) -> ProfileTable | str:
    if isinstance(table, str):
        return table
    fewest = FEWEST_TIMED if table.timed else FEWEST
    if len(table) >= fewest:
        return table
    return f"{len(table)} configurations measured, at least {fewest} needed to predict others"


def _design(tables: Sequence[ProfileTable], facts: Sequence[ModelFacts]) -> Array:
    """Return the design matrices of all jobs, padded with rows of 0, as an array (jobs, rows, 5)."""
    settings = _padded([table.settings for table in tables])
    present = settings[:, :, :1] > 0
    w, p, worker_cpu, server_cpu, m = numpy.moveaxis(numpy.where(present, settings, 1.0), -1, 0)
    known = [(fact.dense_bytes, fact.bandwidth, fact.dim, fact.batch, fact.group) for fact in facts]
    unknown = numpy.zeros(0)  # placeholder for the coefficients, which are not known yet
    models = equations.Models(*(unknown,) * 5, *numpy.array(known, dtype=numpy.float64).T[:, :, None])
    columns = equations.step_columns(models, Shapes(w, p, worker_cpu, server_cpu), m)
    return numpy.asarray(numpy.stack(columns, axis=-1) * present)


def _padded(rows: Sequence[Array]) -> Array:
    lines = shape_columns.of_lengths([len(some) for some in rows])
    whole = numpy.zeros((len(rows), int(lines.lengths.max()), 5))
    whole[lines.owner, lines.place] = numpy.concatenate(rows)
    return whole


def _least_seconds(tables: Sequence[ProfileTable], paces: Sequence[CoreSpeed]) -> Array:
    """Return the fewest seconds per step that the cores allow, as an array (jobs, rows); 0 if unknown."""
    settings = _padded([table.settings for table in tables])
    w, p, worker_cpu, server_cpu, m = numpy.moveaxis(numpy.where(settings > 0, settings, 1.0), -1, 0)
    worker, server = 1 / numpy.array(paces).T[:, :, None]
    seconds: Array = numpy.maximum(m / worker_cpu * worker, w * m / (p * server_cpu) * server)
    return seconds


def _fit_tables(
    tables: Sequence[ProfileTable], facts: Sequence[ModelFacts], paces: Sequence[CoreSpeed]
) -> list[FittedModel | str]:
    rows, times = _design(tables, facts), _padded([table.times for table in tables])
    present = (times[:, :, 0] > 0).astype(float)
    count = present.sum(axis=1)
    seconds = numpy.where(present > 0, times[:, :, 0], 1.0)
    timed = numpy.array([table.timed for table in tables])
    slopes, varies = _lines(rows, times, seconds, present)
    shares = (rows / seconds[:, :, None]).sum(axis=1) / count[:, None]
    there = timed[:, None] & (times[:, :, 1:].sum(axis=1) > 0) & (shares[:, :4] > 0)
    pull = numpy.zeros_like(shares)
    pull[:, :4] = TERMS_PULL * shares[:, :4] * there
    towards = numpy.zeros_like(shares)
    towards[:, :4] = slopes
    by_cores = _least_seconds(tables, paces)
    bound = present * (by_cores >= BUSY * seconds)
    solution = solve(LeastSquares(rows=rows, seconds=seconds, present=present, bound=bound, pull=pull, towards=towards))
    fitted_s = numpy.exp(solution.residuals) * seconds
    residuals = present * numpy.log(numpy.maximum(fitted_s, by_cores) / seconds)
    rmsle = numpy.sqrt((residuals**2).sum(axis=1) / count)
    mape = numpy.abs(numpy.expm1(-residuals)).sum(axis=1) / count
    relative = rows * (numpy.sqrt(solution.weights) / fitted_s)[:, :, None]
    information = numpy.swapaxes(relative, 1, 2) @ relative
    columns = numpy.arange(4)
    information[:, columns, columns] += numpy.where(varies, pull[:, :4], 0.0) ** 2
    deviations = _deviations(information, shares, numpy.maximum(rmsle, LEAST_DEVIATION))
    return [
        FittedModel(
            coefficients=Coefficients(grad=c[0], upd=c[1], sync=c[2], emb=c[3], beta=c[4]),
            facts=facts[job],
            table=tables[job],
            rmsle=one_rmsle,
            mape=one_mape,
            deviations=tuple(deviation),
        )
        if all(map(math.isfinite, c))
        else NO_NUMBERS
        for job, (c, one_rmsle, one_mape, deviation) in enumerate(
            zip(solution.coefficients.tolist(), rmsle.tolist(), mape.tolist(), deviations.tolist(), strict=True)
        )
    ]


def _lines(rows: Array, times: Array, seconds: Array, present: Array) -> tuple[Array, Array]:
    """Return the non-negative slope of each term, found by relative least squares, and whether the term's input
    varied.

    If the input of a term never varied, the term is assumed to follow its equation without a constant.
    """
    x, t = rows[:, :, :4], times[:, :, 1:]
    weights = present / seconds**2
    weights = (weights / weights.sum(axis=1, keepdims=True))[:, None, :]
    x_mean, t_mean = weights @ x, weights @ t
    spread, together = (weights @ (x - x_mean) ** 2)[:, 0], (weights @ ((x - x_mean) * (t - t_mean)))[:, 0]
    square = (weights @ x**2)[:, 0]
    varies = spread > VARIES * square
    origin = (weights @ (x * t))[:, 0] / numpy.where(square > 0, square, 1.0)
    slope = numpy.clip(together / numpy.where(varies, spread, 1.0), 0.0, None)
    below = t_mean[:, 0] - slope * x_mean[:, 0] < 0
    return numpy.where(below | ~varies, origin, slope), varies


def _deviations(information: Array, shares: Array, deviation: Array) -> Array:
    """Return the standard deviation of each coefficient's part of the step time; 0 for a column of zeros."""
    matters = shares > 0
    size = numpy.where(matters, shares, 1.0)
    scaled = information / size[:, :, None] / size[:, None, :]
    finite = numpy.isfinite(scaled).all(axis=(1, 2), keepdims=True)  # treat an overflow as no information
    values, vectors = numpy.linalg.eigh(numpy.where(finite, scaled, 0.0))
    seen = values > 1e-6 * values[:, -1:]
    blind = (vectors**2 * ~seen[:, None, :]).sum(axis=2) > 0.01
    variance = (vectors**2 * (seen / numpy.where(seen, values, 1.0))[:, None, :]).sum(axis=2)
    spread: Array = numpy.where(blind, numpy.inf, deviation[:, None] * numpy.sqrt(variance))
    return numpy.where(matters, spread, 0.0)


TURNS = 8
"""Most Gauss-Newton iterations; three suffice in practice."""
HALVINGS = 4
"""How often a step that overshoots is halved at most."""
SETTLED = 1e-4
"""The iteration stops when the relative improvement is below this value."""
HUBER = 1.345
"""Number of standard deviations of a residual above which a row's influence on the fit is bounded. The usual value,
with which the fit keeps 95% of the efficiency of least squares.
"""
LEAST_DEVIATION = 0.02
"""Smallest standard deviation of log seconds to assume, because even identical steps differ by this much."""
RIDGE = 1e-11
"""Value to add to the diagonal (about 1), so that a problem with indistinguishable columns can be solved."""
NOWHERE = 1e-12


class LeastSquares(msgspec.Struct, frozen=True, kw_only=True):
    """Problems of all jobs as arrays (jobs, rows, coefficients); jobs with fewer rows are padded."""

    rows: Array
    """X: (jobs, rows, 5)."""
    seconds: Array
    """Measured seconds, as an array (jobs, rows); 1 in padding."""
    present: Array
    """1 for a row, and 0 for padding."""
    bound: Array
    """1 for each row whose speed was limited by cores, as an array (jobs, rows). For such a row, the equations may
    predict a higher speed than the measured one.
    """
    pull: Array
    """Strength with which the fit pulls each coefficient to `towards`, in shares of the step time, as an array (jobs,
    5).
    """
    towards: Array


class LeastSquaresSolution(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients, residuals and row weights of all jobs."""

    coefficients: Array
    residuals: Array
    """log(fitted / measured) of each row; 0 in padding."""
    weights: Array
    """Weight of each row from 0 to 1. The weight is 0 if cores limit the row and the equations already allow for
    this."""


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
    """Return the residuals, 0 for missing rows. If cores limited a row, a measured speed below the equations is no
    error.
    """
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
    gram[:, diagonal, diagonal] += gram[:, diagonal, diagonal] < 2 * RIDGE  # give an empty column a diagonal of 1
    found: Array = numpy.linalg.solve(gram, right[:, :, None])[:, :, 0]
    below = numpy.flatnonzero((found < 0).any(axis=1))
    if len(below):
        found[below] = _bounded(system[below], wanted[below], pull[below], drawn[below])
    return found / scale


def _bounded(system: Array, wanted: Array, pull: Array, drawn: Array) -> list[Array]:
    from scipy import optimize

    drawing = numpy.zeros((len(pull), pull.shape[1], pull.shape[1]))
    rows = numpy.arange(pull.shape[1])
    drawing[:, rows, rows] = pull
    left, right = numpy.concatenate([system, drawing], axis=1), numpy.concatenate([wanted, drawn], axis=1)
    return [optimize.nnls(matrix, other)[0] for matrix, other in zip(left, right, strict=True)]


def _residuals(problem: LeastSquares, found: Array) -> Array:
    fitted = (problem.rows @ found[:, :, None])[:, :, 0]
    logs: Array = numpy.log(numpy.maximum(fitted, NOWHERE) / problem.seconds)
    return problem.present * logs


def _error(problem: LeastSquares, found: Array, residuals: Array, weights: Array) -> Array:
    drawn = problem.pull * (found - problem.towards)
    total: Array = (weights * residuals**2).sum(axis=1) + (drawn**2).sum(axis=1)
    return total


def _huber(residuals: Array, present: Array) -> Array:
    """Return Huber weights. The scale of the residuals is a median, which outliers do not affect."""
    sizes = numpy.abs(residuals)
    deviation = numpy.maximum(1.4826 * median(sizes, present), LEAST_DEVIATION)
    weights: Array = numpy.minimum(1.0, HUBER * deviation[:, None] / numpy.maximum(sizes, NOWHERE))
    return weights


def median(values: Array, present: Array) -> Array:
    ordered = numpy.sort(numpy.where(present > 0, values, numpy.inf), axis=1)
    count = present.sum(axis=1).astype(int)
    middle: Array = numpy.take_along_axis(ordered, ((count - 1) // 2)[:, None], axis=1)[:, 0]
    other: Array = numpy.take_along_axis(ordered, (count // 2)[:, None], axis=1)[:, 0]
    return (middle + other) / 2
