"""Pure. Finds the Pareto front of a job: the shapes for which no other shape is both cheaper and faster.

More memory makes no step faster, so each role gets only as much memory as it needs. If there are at most `MOST` shapes,
this module enumerates all of them, so the front is exact. Otherwise the search uses coarser steps. Next:
`planning.allocate.choose`.
"""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy

from springtide.domain.core import resources
from springtide.domain.core.shape import GIB, NO_NEED, ROUNDING, MemoryNeed, Prices, ShapeBounds
from springtide.domain.plan.profile import ModelFacts
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Array, Coefficients, Index
from springtide.planning.perf_model.measurements import UNLIMITED, CoreSpeed
from springtide.planning.perf_model.shape_columns import ShapeColumns, gpus_for

MOST = 300_000
"""Most shapes within the bounds to enumerate."""
MEMORY_STEP = 1 << 28
"""Memory sizes are rounded up to multiples of this many bytes."""
SAME = 1e-12
"""Two costs, two speeds, or two sums of cores count as equal if their relative difference is below this value."""
LEVELS = 1024
"""Number of cost levels between the cheapest and the most expensive pair of options."""
SLOWEST = 1e300
"""Largest number of seconds per sample, so that sums of limits stay finite."""


class Side(NamedTuple):
    """Options for one role: number of processes, cores of each process, and cores in total."""

    number: Array
    each: Array
    cpu: Array


class Sides(NamedTuple):
    """Options for workers and for servers. Each option of one role can be combined with at least one option of the
    other role.
    """

    workers: Side
    servers: Side

    def __len__(self) -> int:
        return len(self.workers.number) * len(self.servers.number)


@functools.lru_cache(maxsize=256)
def sides(bounds: ShapeBounds) -> Sides:
    """Return the options of each role that fit into the quota together with the smallest option of the other role."""
    least, quota, gpu = bounds.least, quota_cpu(bounds), bounds.least.worker_gpu
    on_gpus = tuple(count for count in bounds.workers if resources.gpus_for(count, gpu) <= bounds.quota.gpu)
    return Sides(
        _side(on_gpus, bounds.worker_cpus, quota - least.servers * least.server_cpu),
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
    """Return the smallest number of servers for which each server's memory is within its bound."""
    if bounds.most.server_memory == 0:
        return 1
    room = bounds.most.server_memory - need.server
    if need.rows == 0:
        return 1 if room >= 0 else math.inf
    return math.ceil(need.rows / room) if room > 0 else math.inf


def _side(counts: tuple[int, ...], cpus: tuple[float, ...], quota: float) -> Side:
    many, cpu_of_each = numpy.repeat(numpy.array(counts, dtype=float), len(cpus)), numpy.tile(cpus, len(counts))
    cpu = many * cpu_of_each
    inside = cpu <= quota * (1 + SAME)
    return Side(many[inside], cpu_of_each[inside], cpu[inside])


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
    def factors(self) -> tuple[float, ...]:
        """Return the factors of the five terms of the seconds per sample; each term is a factor divided by fields of
        the shape."""
        c, facts = self.coefficients, self.facts
        # In bsp mode, `hops` includes this factor.
        traffic = 1.0 if facts.group else facts.dense_bytes / facts.bandwidth
        batch = facts.group or facts.batch
        seconds = (c.grad * batch, c.upd, c.sync * traffic, c.emb * batch * facts.dim, c.beta)
        return tuple(part / batch for part in seconds)


class RoleOptions(NamedTuple):
    """Options of one role. Each option has the part of a shape's time and cost that depends on this role alone."""

    number: Array
    each: Array
    """Cores of each process."""
    cpu: Array
    memory: Array
    """Bytes of each process without its rows, because the rows take the same memory in every shape."""
    cost: Array
    seconds: Array
    """Seconds per sample."""
    least: Array
    """Fewest seconds per sample that the cores allow."""

    def at(self, which: Index) -> "RoleOptions":
        return RoleOptions(*(column.take(which) for column in self))


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
        """Return at most `most` shapes, spread evenly over the throughput, including both ends."""
        if len(self) <= most:
            return self
        wanted = numpy.linspace(self.throughput[0], self.throughput[-1], most)
        which = numpy.unique(numpy.searchsorted(self.throughput, wanted).clip(0, len(self) - 1))
        return replace(self, shapes=self.shapes.taken(which), cost=self.cost[which], throughput=self.throughput[which])


def front(ask: FrontQuery) -> Front:
    if len(sides(ask.bounds)) > MOST:
        ask = replace(ask, bounds=_coarser(ask.bounds))
    bounds, need, prices = ask.bounds, rounded(ask.need, ask.bounds), ask.prices
    workers, servers = _workers(ask, need), _servers(ask, need)
    left, right = _hopeful(workers, servers, ask, need)
    workers, servers = workers.at(left), servers.at(right)
    memory = workers.memory + servers.memory
    gpus = gpus_for(workers.number, bounds.least.worker_gpu)
    cost = (workers.cpu + servers.cpu) * prices.cpu + memory / GIB * prices.memory + gpus * prices.gpu
    seconds = workers.seconds + servers.seconds + ask.factors[3] / (workers.number * servers.number)
    seconds = numpy.maximum(seconds, numpy.maximum(workers.least, servers.least))
    throughput = numpy.divide(1.0, seconds, out=numpy.zeros_like(seconds), where=seconds > 0)
    order = numpy.argsort(cost, kind="stable")
    kept = order[non_dominated(cost[order], throughput[order])]
    workers, servers = workers.at(kept), servers.at(kept)
    shapes = ShapeColumns(
        workers.number,
        servers.number,
        workers.each,
        servers.each,
        numpy.full(len(kept), float(need.worker)),
        numpy.maximum(need.server + numpy.ceil(need.rows / servers.number), bounds.least.server_memory),
        numpy.full(len(kept), bounds.least.worker_gpu),
    )
    looked_at = len(sides(bounds))
    why = f"{len(kept)} of {looked_at:,} shapes are worth having"
    if not len(kept):
        why = f"none of {looked_at:,} shapes has enough memory for the job within its bounds and quota"
    of_rows = need.rows / GIB * prices.memory
    return Front(shapes=shapes, cost=cost[kept] + of_rows, throughput=throughput[kept], why=why)


def _workers(ask: FrontQuery, need: MemoryNeed) -> RoleOptions:
    side, facts = sides(ask.bounds).workers, ask.facts
    grad, _, sync, _, beta = ask.factors
    constant = beta / side.number
    if facts.group:
        constant = beta + sync * equations.hops(side.number, facts.dense_bytes / facts.bandwidth)
    workers = _priced(side, side.number * need.worker, grad / side.cpu + constant, ask.pace.worker, ask.prices)
    return workers._replace(cost=workers.cost + gpus_for(side.number, ask.bounds.least.worker_gpu) * ask.prices.gpu)


def _servers(ask: FrontQuery, need: MemoryNeed) -> RoleOptions:
    side, least = sides(ask.bounds).servers, ask.bounds.least.server_memory
    _, upd, sync, _, _ = ask.factors
    sent = 0.0 if ask.facts.group else sync
    # memory beyond the rows, which the bounds require
    beyond = numpy.maximum(least - need.server - need.rows / side.number, 0.0) if least > need.server else 0.0
    seconds = upd / side.cpu + sent / side.number
    return _priced(side, side.number * (need.server + beyond), seconds, ask.pace.server, ask.prices)


def _priced(side: Side, memory: Array, seconds: Array, pace: float, prices: Prices) -> RoleOptions:
    cost = side.cpu * prices.cpu + memory / GIB * prices.memory
    least = (1 / pace if pace < math.inf else 0.0) / side.cpu
    return RoleOptions(*side, memory, cost, numpy.minimum(seconds, SLOWEST), least)


def _hopeful(workers: RoleOptions, servers: RoleOptions, ask: FrontQuery, need: MemoryNeed) -> tuple[Index, Index]:
    """Return the pairs of a worker option and a server option that are within the limits and can be on the front.

    The time of a pair is the sum of a worker part, a server part and a joint part (lookups). The cost of a pair is
    the sum of two parts. A pair cannot be on the front if a pair of a lower cost level is equally fast. Therefore
    only few pairs need to be sorted.
    """
    bounds = ask.bounds
    seconds = numpy.multiply.outer(ask.factors[3] / workers.number, 1 / servers.number)
    seconds += workers.seconds[:, None]
    seconds += servers.seconds
    numpy.maximum(seconds, workers.least[:, None], out=seconds)
    numpy.maximum(seconds, servers.least, out=seconds)
    for of_workers, of_servers, most in (
        (workers.cpu, servers.cpu, quota_cpu(bounds)),
        (workers.memory, servers.memory, bounds.quota.memory - need.rows),
    ):
        if of_workers.max() + of_servers.max() > most:
            seconds[numpy.add.outer(of_workers, of_servers) > most] = numpy.inf
    seconds[:, servers.number < fewest_servers(need, bounds)] = numpy.inf
    if need.worker > (bounds.most.worker_memory or math.inf):
        seconds[:] = numpy.inf
    spans = workers.cost - workers.cost.min(), servers.cost - servers.cost.min()
    scale = LEVELS / max(spans[0].max() + spans[1].max(), SAME)
    level = numpy.add.outer(*((span * scale).astype(numpy.intp) for span in spans))
    fastest = numpy.full(LEVELS + 3, numpy.inf)
    # both parts of a level were rounded down, so a pair is certainly cheaper only if it is two levels lower
    numpy.minimum.at(fastest[2:], level.ravel(), seconds.ravel())
    cheaper = numpy.minimum.accumulate(fastest).take(level)
    left, right = numpy.divmod(numpy.flatnonzero(seconds < cheaper), len(servers.number))
    return left, right


def _coarser(bounds: ShapeBounds) -> ShapeBounds:
    """Return the bounds with larger steps, so that at most `MOST` shapes remain."""
    bounds = replace(bounds, cpu_step=None)
    while len(sides(bounds)) > MOST:
        step = 2 * (bounds.worker_step or 1)
        bounds = replace(bounds, worker_step=step, server_step=step)
    return bounds


def non_dominated(cost: Array, throughput: Array) -> Index:
    """Return the shapes that are faster than all cheaper shapes. `cost` is sorted. A difference within the rounding
    error does not count as faster."""
    if len(cost) == 0:
        return numpy.zeros(0, dtype=int)
    before = numpy.append(-1.0, numpy.maximum.accumulate(throughput)[:-1])
    kept: Index = numpy.flatnonzero(throughput * (1 - SAME) > before)
    # if several shapes have the same cost, keep only the last one, which is the fastest
    last = numpy.append(cost[kept[1:]] > cost[kept[:-1]] * (1 + SAME), True)
    chosen: Index = kept[last]
    return chosen
