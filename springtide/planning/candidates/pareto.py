"""Pure. Finds the Pareto front of a job: the shapes that no other shape beats in both cost and throughput.

Memory makes no step faster, so each role gets what it needs. Spaces of up to `MOST` shapes are enumerated, so their
fronts are exact; larger spaces are searched in coarser steps. Next: `planning.allocate.choose`.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy

from springtide.domain.core.shape import GIB, NO_NEED, ROUNDING, MemoryNeed, Prices, ShapeBounds
from springtide.domain.plan.profile import ModelFacts
from springtide.planning.perf_model import equations, shape_columns
from springtide.planning.perf_model.equations import Array, Coefficients, Index
from springtide.planning.perf_model.measurements import UNLIMITED, CoreSpeed
from springtide.planning.perf_model.shape_columns import ShapeColumns

MOST = 300_000
"""Maximum number of shapes within bounds that are enumerated."""
MEMORY_STEP = 1 << 28
"""Bytes by which memory sizes are rounded up."""
SAME = 1e-12
"""Relative difference below which two costs, or two sums of cores, are equal."""


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


@functools.lru_cache(maxsize=256)
def sides(bounds: ShapeBounds) -> Sides:
    """Return the options of each role whose cores fit the quota beside the smallest option of the other role."""
    least, quota = bounds.least, quota_cpu(bounds)
    return Sides(
        _side(bounds.workers, bounds.worker_cpus, quota - least.servers * least.server_cpu),
        _side(bounds.servers, bounds.server_cpus, quota - least.workers * least.worker_cpu),
    )


def quota_cpu(bounds: ShapeBounds) -> float:
    return bounds.quota.cpu * (1 + ROUNDING)


def rounded(need: MemoryNeed, bounds: ShapeBounds) -> MemoryNeed:
    return MemoryNeed(
        worker=max(-(-need.worker // MEMORY_STEP) * MEMORY_STEP, bounds.least.worker_memory),
        server=-(-need.server // MEMORY_STEP) * MEMORY_STEP,
        rows=need.rows,
    )


def fewest_servers(need: MemoryNeed, bounds: ShapeBounds) -> float:
    """Return the fewest servers at which each server's memory is within its bound."""
    if bounds.most.server_memory == 0:
        return 1
    room = bounds.most.server_memory - need.server
    if need.rows == 0:
        return 1 if room >= 0 else math.inf
    return math.ceil(need.rows / room) if room > 0 else math.inf


def _side(counts: tuple[int, ...], cpus: tuple[float, ...], quota: float) -> Side:
    many, each = numpy.repeat(numpy.array(counts, dtype=float), len(cpus)), numpy.tile(cpus, len(counts))
    cpu = many * each
    inside = cpu <= quota * (1 + SAME)
    return Side(many[inside], each[inside], cpu[inside])


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontQuery:
    """Query for the Pareto front of one job."""

    coefficients: Coefficients
    facts: ModelFacts
    bounds: ShapeBounds
    need: MemoryNeed = NO_NEED
    prices: Prices = field(default_factory=Prices)
    pace: CoreSpeed = UNLIMITED

    @property
    def factors(self) -> Array:
        """Return the factors that turn grid columns into seconds per sample."""
        c, facts = self.coefficients, self.facts
        traffic = 1.0 if facts.group else facts.dense_bytes / facts.bandwidth  # in bsp, `traffic_s` carries this factor
        batch = facts.group or facts.batch
        seconds = [c.grad * batch, c.upd, c.sync * traffic, c.emb * batch * facts.dim, c.beta]
        return numpy.array(seconds) / batch


# ---- pruning ----
# The time of a step is the sum of a worker part, a server part and a joint part (lookups): a matrix of rank 3 over
# pairs of options. The cost is a sum of two parts. First, only the best options of either side are paired. For each of
# a thousand cost levels, these pairs give the speed of a shape that is certainly cheaper. Then all pairs are compared
# with these speeds, in single precision with a tolerance for rounding. No grid has to be sorted or cached.

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


class JobLimits(NamedTuple):
    """Limits, prices and memory needs of all queries as columns, one number per job."""

    cpu: Array
    memory: Array
    """Memory limit without the rows, which take the same memory in every shape."""
    worker: Array
    server: Array
    rows: Array
    least_server: Array
    cpu_price: Array
    memory_price: Array
    most_worker: Array
    fewest_servers: Array


class StepFactors(NamedTuple):
    """Performance models of all queries as columns, one number per job."""

    worker_idle: Array
    """Minimum seconds per sample of one worker core; 0 means no limit. `server_idle` is the same for one server
    core."""
    server_idle: Array
    in_step: Array
    """1 for bsp, 0 for async; `traffic_s` is the time that the dense parameters take to cross the network."""
    traffic_s: Array
    grad: Array
    """Factor of the gradient term: divided by shape fields, it gives seconds per sample. So do the next four."""
    upd: Array
    sync: Array
    emb: Array
    beta: Array


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


def pairs(workers: RoleOptions, servers: RoleOptions, both: Array, limits: JobLimits) -> tuple[Index, Index, Index]:
    """Return the job, worker option and server option of each pair that can be on a front, in this order.

    `both` is the part of the seconds per sample that both counts divide. Pairs above a limit outdo no pair, but may be
    in the result.
    """
    scale = _scale(workers, servers, both)
    best = _best(workers, servers, both, limits, scale).ravel()
    parts = _parts(workers, servers, both, scale, at=1 - NEAR)
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
    first, count = side.there.argmax(axis=1).tolist(), side.there.sum(axis=1).tolist()
    return [slice(at, at + many) for at, many in zip(first, count, strict=True)]


def _scale(workers: RoleOptions, servers: RoleOptions, both: Array) -> tuple[Array, Array, Array]:
    """Return the time unit (0 if the job cannot be pruned), the lowest cost, and the number of cost levels per unit of
    cost."""
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
    """Build the factors, with seconds multiplied by `at`. Core limits are exact, so they are not scaled."""
    unit, low, steps = scale
    a_unit = numpy.where(unit > 0, 1 / numpy.where(unit > 0, unit, 1.0), 0.0)
    left = numpy.ones((*workers.number.shape, 3), dtype=numpy.float32)
    right = numpy.ones((len(servers.number), 3, servers.number.shape[1]), dtype=numpy.float32)
    left[:, :, 0], left[:, :, 2] = at * a_unit * workers.seconds, at * a_unit * both / workers.number
    right[:, 1], right[:, 2] = at * a_unit * servers.seconds, 1 / servers.number
    least = [numpy.minimum(side.least * a_unit, SLOWEST).astype(numpy.float32) for side in (workers, servers)]
    # the added half keeps rounding errors within this job's levels
    before = numpy.arange(len(low))[:, None] * (STEPS + 2) + 0.5
    above = (workers.cost - low) * steps + before
    beside = (servers.cost * steps).astype(numpy.float32)
    return _Parts(left, right, least[0], least[1], above.astype(numpy.float32), beside)


def _best(
    workers: RoleOptions, servers: RoleOptions, both: Array, limits: JobLimits, scale: tuple[Array, Array, Array]
) -> Single:
    """Return, for each cost level, the seconds of the fastest known pair that is certainly cheaper."""
    some, others = _some(workers, both / _middling(servers)), _some(servers, both / _middling(workers))
    parts = _parts(some, others, both, scale, at=1 + NEAR)
    seconds = numpy.maximum(parts.left @ parts.right, parts.least_left[:, :, None])
    numpy.maximum(seconds, parts.least_right[:, None, :], out=seconds)
    steps = (parts.above[:, :, None] + parts.beside[:, None, :]).astype(numpy.intp)
    seconds[some.cpu[:, :, None] + others.cpu[:, None, :] > limits.cpu[:, None, None]] = NOTHING
    if numpy.isfinite(limits.memory).any():
        seconds[some.memory[:, :, None] + others.memory[:, None, :] > limits.memory[:, None, None]] = NOTHING
    flat = numpy.full(len(both) * (STEPS + 2) + 2, NOTHING, dtype=numpy.float32)
    # store it two levels higher, to allow for rounding of the cost
    numpy.minimum.at(flat, steps.ravel() + 2, seconds.ravel())
    best: Single = flat[:-2].reshape(len(both), STEPS + 2)
    best[:, :2] = NOTHING  # the first two entries may come from the previous job
    best = numpy.minimum.accumulate(best, axis=1)
    best[scale[0][:, 0] == 0] = NOTHING
    return best


def _middling(side: RoleOptions) -> Array:
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


AT_ONCE = 32
"""Jobs per chunk, so that the arrays stay in the CPU cache."""
Listed = tuple[ShapeColumns, Array, Array]
"""Shapes, their hourly cost, and their samples per second."""


def listed(asks: Sequence[FrontQuery]) -> list[Listed]:
    wanted, factors = _query_columns(asks)
    workers, servers = _options(asks, wanted, factors)
    job, left, right = pairs(workers, servers, factors.emb[:, None], wanted)
    left, right = job * workers.number.shape[1] + left, job * servers.number.shape[1] + right
    cpu = workers.cpu.take(left) + servers.cpu.take(right)
    memory = workers.memory.take(left) + servers.memory.take(right)
    (fits,) = numpy.nonzero((cpu <= wanted.cpu.take(job)) & (memory <= wanted.memory.take(job)))
    rows = shape_columns.of_owners(job[fits], len(asks))
    cost = (cpu * wanted.cpu_price.take(job) + memory / GIB * wanted.memory_price.take(job))[fits]
    order = rows.ordered(cost)
    job, left, right, cost = rows.owner, left[fits][order], right[fits][order], cost[order]
    counts = workers.number.take(left), servers.number.take(right)
    seconds = workers.seconds.take(left) + servers.seconds.take(right) + factors.emb.take(job) / (counts[0] * counts[1])
    seconds = numpy.maximum(seconds, numpy.maximum(workers.least.take(left), servers.least.take(right)))
    throughput = numpy.divide(1.0, seconds, out=numpy.zeros_like(seconds), where=seconds > 0)
    best = numpy.maximum(rows.best_before(throughput), -1.0)
    (hopeful,) = numpy.nonzero(throughput * (1 - SAME) > best)  # rounding errors are no advantage
    rows, job, left, right = rows.only(hopeful), job[hopeful], left[hopeful], right[hopeful]
    whole = _columns(wanted, job, workers, servers, left, right)
    cost = cost[hopeful] + wanted.rows.take(job) / GIB * wanted.memory_price.take(job)
    ends = numpy.cumsum(rows.lengths).tolist()
    each = [slice(end - length, end) for end, length in zip(ends, rows.lengths.tolist(), strict=True)]
    throughput = throughput[hopeful]
    return [(ShapeColumns(*(column[mine] for column in whole)), cost[mine], throughput[mine]) for mine in each]


def _columns(
    wanted: JobLimits, job: Index, workers: RoleOptions, servers: RoleOptions, left: Index, right: Index
) -> ShapeColumns:
    count = servers.number.take(right)
    rows = numpy.ceil(wanted.rows.take(job) / count)
    server_memory = numpy.maximum(wanted.server.take(job) + rows, wanted.least_server.take(job))
    return ShapeColumns(
        workers.number.take(left),
        count,
        workers.each.take(left),
        servers.each.take(right),
        wanted.worker.take(job),
        server_memory,
    )


def _query_columns(asks: Sequence[FrontQuery]) -> tuple[JobLimits, StepFactors]:
    limits, factors = [], []
    for ask in asks:
        bounds, facts, need = ask.bounds, ask.facts, rounded(ask.need, ask.bounds)
        quota = (quota_cpu(bounds), bounds.quota.memory - need.rows)
        memory = (need.worker, need.server, need.rows, bounds.least.server_memory)
        most = (bounds.most.worker_memory or math.inf, fewest_servers(need, bounds))
        limits.append((*quota, *memory, ask.prices.cpu, ask.prices.memory, *most))
        idle = (1 / pace if pace < math.inf else 0.0 for pace in ask.pace)
        factors.append((*idle, facts.group > 0, facts.dense_bytes / facts.bandwidth, *ask.factors))
    return JobLimits(*numpy.array(limits, dtype=float).T), StepFactors(*numpy.array(factors, dtype=float).T)


def _options(asks: Sequence[FrontQuery], wanted: JobLimits, factors: StepFactors) -> tuple[RoleOptions, RoleOptions]:
    two = [sides(ask.bounds) for ask in asks]
    limits = JobLimits(*(column[:, None] for column in wanted))
    step = StepFactors(*(column[:, None] for column in factors))
    there, w, worker_cpu, cpu = _padded([one.workers for one in two])
    constant, sent, in_step = step.beta / w, step.sync, step.in_step > 0
    if in_step.any():
        constant = numpy.where(in_step, step.beta + sent * equations.hops(w, step.traffic_s), constant)
        sent = numpy.where(in_step, 0.0, sent)
    there &= limits.worker <= limits.most_worker
    seconds, least = step.grad / cpu + constant, step.worker_idle / cpu
    workers = _role(limits, there, w, worker_cpu, cpu, w * limits.worker, seconds, least)
    there, p, server_cpu, cpu = _padded([one.servers for one in two])
    # memory that the bounds demand beyond the rows
    beyond = numpy.maximum(limits.least_server - limits.server - limits.rows / p, 0.0)
    beyond = numpy.where(limits.least_server > limits.server, beyond, 0.0)
    there &= p >= limits.fewest_servers
    seconds, least = step.upd / cpu + sent / p, step.server_idle / cpu
    servers = _role(limits, there, p, server_cpu, cpu, p * (limits.server + beyond), seconds, least)
    return workers, servers


def _role(
    limits: JobLimits,
    there: Index,
    number: Array,
    each: Array,
    cpu: Array,
    memory: Array,
    seconds: Array,
    least: Array,
) -> RoleOptions:
    cost = cpu * limits.cpu_price + memory / GIB * limits.memory_price
    return RoleOptions(there, number, cpu, memory, each, cost, seconds, least)


def _padded(sides: Sequence[Side]) -> tuple[Index, Array, Array, Array]:
    """Return whether an option exists, counts, cores of each and total cores, one row per job. Absent options count as
    one process of one core."""
    rows = shape_columns.of_lengths([len(one.number) for one in sides])
    number, each, cpu = (rows.padded(numpy.concatenate(parts), 0.0) for parts in zip(*sides, strict=True))
    there = number > 0
    return there, numpy.maximum(number, 1.0), each, numpy.where(there, cpu, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Pareto-optimal shapes, cheapest and slowest first."""

    shapes: ShapeColumns
    cost: Array
    throughput: Array
    why: str

    def __len__(self) -> int:
        return len(self.cost)

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
    asks = [ask if len(sides(ask.bounds)) <= MOST else replace(ask, bounds=_coarser(ask.bounds)) for ask in asks]
    found = []
    for first in range(0, len(asks), AT_ONCE):
        some = asks[first : first + AT_ONCE]
        for ask, (shapes, cost, throughput) in zip(some, listed(some), strict=True):
            kept, looked_at = non_dominated(cost, throughput), len(sides(ask.bounds))
            why = f"{len(kept)} of {looked_at:,} shapes are worth having"
            if not len(kept):
                why = f"none of {looked_at:,} shapes has memory enough for the job within its bounds and quota"
            found.append(Front(shapes=shapes.taken(kept), cost=cost[kept], throughput=throughput[kept], why=why))
    return found


def _coarser(bounds: ShapeBounds) -> ShapeBounds:
    """Return the bounds with steps so large that all shapes can be listed."""
    bounds = replace(bounds, cpu_step=None)
    while len(sides(bounds)) > MOST:
        step = 2 * (bounds.worker_step or 1)
        bounds = replace(bounds, worker_step=step, server_step=step)
    return bounds


def non_dominated(cost: Array, throughput: Array) -> Index:
    if len(cost) == 0:
        return numpy.zeros(0, dtype=int)
    best = numpy.maximum.accumulate(throughput)
    rises = numpy.append(True, best[1:] > best[:-1])
    kept: Index = numpy.nonzero(rises)[0]
    # of shapes with equal costs, the last is the fastest
    last = numpy.append(cost[kept[1:]] > cost[kept[:-1]] * (1 + SAME), True)
    chosen: Index = kept[last]
    return chosen
