"""Pure. Prunes the pairs of worker and server options that cannot be on a job's Pareto front.

In: worker options and server options of several jobs, with cost and resources of each option. Out: the few pairs that
need a closer look. Next: `planning.candidates.pareto` finds the front among them.

The time of a step is the sum of a worker part, a server part and a joint part (lookups). As a matrix over pairs it has
rank 3. The cost is a sum of two parts. The module first pairs only the best options of either side. These pairs are
close to the front. They give, for each of a thousand cost levels, the speed of a cheaper shape. Then the module
compares all pairs with these speeds in single precision, with a tolerance for rounding. So no grid is sorted or cached,
and every job may have its own bounds, prices and memory.
"""

from typing import NamedTuple

import numpy

from springtide.planning.perf_model.equations import Array, Index

STEPS = 1024
"""Cost levels between the cheapest and the dearest pair."""
SOME = 40
"""Maximum number of options per side in the first pairing, spread evenly over the promising options."""
NEAR = 1e-5
"""Relative tolerance that covers single precision errors."""
SLOWEST, NOTHING = 1e20, 1e29
"""Upper limit on times, and the marker for an unknown time, in a job's time unit (about its slowest shape)."""
Single = numpy.typing.NDArray[numpy.float32]


class RoleOptions(NamedTuple):
    """Options of one role: one row per job, one column per option, padded with absent options."""

    there: Index
    number: Array
    cpu: Array
    memory: Array
    each: Array
    """Cores of each process."""
    cost: Array
    seconds: Array
    """Seconds per sample of this side alone."""
    least: Array
    """Minimum seconds per sample that the cores allow."""

    def at(self, which: Index) -> "RoleOptions":
        return RoleOptions(*(column.take(which) for column in self))


class PruneLimits(NamedTuple):
    """Limits of each job for pruning."""

    both: Array
    """Joint part of the seconds per sample, which is divided by both counts."""
    cpu: Array
    memory: Array
    """Memory limit. Pairs above the CPU or memory limit are not shapes; they outdo no pair, but may be in the
    result."""
    slower: Array
    less: Array
    """Absolute margin in samples per second. A pair outdoes a dearer pair with throughput below (1 - slower) x its own
    - less."""


class _Parts(NamedTuple):
    """Factors of the time and cost matrices of each job, in the job's own time unit and cost level."""

    left: Single
    """(jobs, worker options, 3). The product with `right` is seconds."""
    right: Single
    least_left: Single
    least_right: Single
    above: Single
    """(jobs, worker options). The sum with `beside` is the cost level of a pair, numbered across jobs."""
    beside: Single


def pairs(workers: RoleOptions, servers: RoleOptions, limits: PruneLimits) -> tuple[Index, Index, Index]:
    """Return the job, worker option and server option of each pair that can be on a front, in this order."""
    unit, low, steps = _scale(workers, servers, limits.both[:, None])
    best = _best(workers, servers, limits, (unit, low, steps)).ravel()
    parts = _parts(workers, servers, limits.both[:, None], (unit, low, steps), at=1 - NEAR)
    capped = [numpy.asarray(one.any(axis=1)).tolist() for one in (parts.least_left, parts.least_right)]
    found, count = [], []
    for job, (rows, columns) in enumerate(zip(_span(workers), _span(servers), strict=True)):
        seconds = parts.left[job, rows] @ parts.right[job, :, columns]
        if capped[0][job]:
            numpy.maximum(seconds, parts.least_left[job, rows, None], out=seconds)
        if capped[1][job]:
            numpy.maximum(seconds, parts.least_right[job, columns], out=seconds)
        at = (parts.above[job, rows, None] + parts.beside[job, columns]).astype(numpy.intp)
        which = numpy.flatnonzero(seconds < best.take(at))
        left, right = numpy.divmod(which, max(1, columns.stop - columns.start))
        found.append((left + rows.start, right + columns.start))
        count.append(len(which))
    job_of = numpy.repeat(numpy.arange(len(count)), count)
    return job_of, numpy.concatenate([one for one, _ in found]), numpy.concatenate([one for _, one in found])


def _span(side: RoleOptions) -> list[slice]:
    """Return the range of present options, which are contiguous."""
    first, count = side.there.argmax(axis=1).tolist(), side.there.sum(axis=1).tolist()
    return [slice(at, at + many) for at, many in zip(first, count, strict=True)]


def _scale(workers: RoleOptions, servers: RoleOptions, both: Array) -> tuple[Array, Array, Array]:
    """Return the time unit (0: job cannot be pruned), the lowest cost, and cost levels per unit of cost."""
    fewest, low, high, slowest = both, 0.0, 0.0, 0.0
    for side in (workers, servers):
        fewest = fewest / numpy.where(side.there, side.number, numpy.inf).min(axis=1, keepdims=True)
        low = low + numpy.where(side.there, side.cost, numpy.inf).min(axis=1, keepdims=True)
        high = high + numpy.where(side.there, side.cost, -numpy.inf).max(axis=1, keepdims=True)
        slowest = slowest + numpy.where(side.there, side.seconds, 0.0).max(axis=1, keepdims=True)
    unit, span = slowest + fewest, high - low
    sane = (unit > 0) & numpy.isfinite(unit) & (span > 0) & numpy.isfinite(span)
    steps = numpy.where(sane, (STEPS - 1) / numpy.where(sane, span, 1.0), 0.0)
    return numpy.where(sane, unit, 0.0), numpy.where(sane, low, 0.0), steps


def _parts(
    workers: RoleOptions, servers: RoleOptions, both: Array, scale: tuple[Array, Array, Array], *, at: float
) -> _Parts:
    """Build the factors. Seconds are multiplied by `at`. Core limits are exact and often equal, so they are not
    scaled."""
    unit, low, steps = scale
    a_unit = numpy.where(unit > 0, 1 / numpy.where(unit > 0, unit, 1.0), 0.0)
    left = numpy.ones((*workers.number.shape, 3), dtype=numpy.float32)
    right = numpy.ones((len(servers.number), 3, servers.number.shape[1]), dtype=numpy.float32)
    left[:, :, 0], left[:, :, 2] = at * a_unit * workers.seconds, at * a_unit * both / workers.number
    right[:, 1], right[:, 2] = at * a_unit * servers.seconds, 1 / servers.number
    least = [numpy.minimum(side.least * a_unit, SLOWEST).astype(numpy.float32) for side in (workers, servers)]
    # the half keeps rounding from reaching the previous job's levels
    before = numpy.arange(len(low))[:, None] * (STEPS + 2) + 0.5
    above = (workers.cost - low) * steps + before
    beside = (servers.cost * steps).astype(numpy.float32)
    return _Parts(left, right, least[0], least[1], above.astype(numpy.float32), beside)


def _best(workers: RoleOptions, servers: RoleOptions, limits: PruneLimits, scale: tuple[Array, Array, Array]) -> Single:
    """Return, for each cost level, the seconds of the fastest known pair that is certainly cheaper."""
    both = limits.both[:, None]
    some, others = _some(workers, both / _middling(servers)), _some(servers, both / _middling(workers))
    parts = _parts(some, others, both, scale, at=1 + NEAR)
    seconds = numpy.maximum(parts.left @ parts.right, parts.least_left[:, :, None])
    numpy.maximum(seconds, parts.least_right[:, None, :], out=seconds)
    steps = (parts.above[:, :, None] + parts.beside[:, None, :]).astype(numpy.intp)
    seconds[some.cpu[:, :, None] + others.cpu[:, None, :] > limits.cpu[:, None, None]] = NOTHING
    if numpy.isfinite(limits.memory).any():
        seconds[some.memory[:, :, None] + others.memory[:, None, :] > limits.memory[:, None, None]] = NOTHING
    flat = numpy.full(len(both) * (STEPS + 2) + 2, NOTHING, dtype=numpy.float32)
    numpy.minimum.at(flat, steps.ravel() + 2, seconds.ravel())  # two levels higher, to cover rounding of the cost
    best: Single = flat[:-2].reshape(len(both), STEPS + 2)
    best[:, :2] = NOTHING  # these entries may come from the previous job
    best = numpy.minimum.accumulate(best, axis=1)
    if limits.slower.any() or limits.less.any():
        least = (1 - limits.slower[:, None]) / best - limits.less[:, None] * scale[0]
        later = (1 + NEAR) / numpy.maximum(least, 1 / NOTHING)
        best = numpy.where(least > 1 / NOTHING, later, NOTHING).astype(numpy.float32)
    best[scale[0][:, 0] == 0] = NOTHING
    return best


def _middling(side: RoleOptions) -> Array:
    """Return the geometric mean of the smallest and largest count."""
    least = numpy.where(side.there, side.number, numpy.inf).min(axis=1, keepdims=True)
    most = numpy.where(side.there, side.number, 1.0).max(axis=1, keepdims=True)
    middle: Array = numpy.sqrt(least * most)
    return middle


def _some(side: RoleOptions, both: Array) -> RoleOptions:
    """Return the Pareto-optimal options of one side, assuming a mean count of the other role."""
    order = numpy.argsort(numpy.where(side.there, side.cost, numpy.inf), axis=1)
    order += numpy.arange(len(order))[:, None] * order.shape[1]
    seconds = numpy.maximum(side.seconds + both / side.number, side.least)
    seconds = numpy.where(side.there, seconds, numpy.inf).take(order)
    best = numpy.minimum.accumulate(seconds, axis=1)
    kept = numpy.ones(seconds.shape, dtype=bool)
    kept[:, 1:] = seconds[:, 1:] < best[:, :-1]
    count = kept.sum(axis=1)
    first, even = numpy.cumsum(count) - count, numpy.linspace(0.0, 1.0, min(int(count.max()), SOME))
    chosen = first[:, None] + numpy.rint(even * (count - 1)[:, None]).astype(int)
    return side.at(order[kept].take(chosen))
