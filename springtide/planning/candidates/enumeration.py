"""Pure. Enumerates all shapes of several jobs and keeps those that can be on a Pareto front.

In: `FrontQuery`s. Out: per job, the shapes that no cheaper shape outperforms, cheapest first. Next:
`planning.candidates.pareto` builds fronts from them.

The overhead of a change is bounded by a known share of the gain. A shape that is slower than a cheaper shape by more
than this bound cannot be on the front. So the exact overhead is computed only for the few remaining shapes.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from springtide.domain.core.shape import GIB
from springtide.planning.candidates import grids, prune, query
from springtide.planning.candidates.grids import Side
from springtide.planning.candidates.prune import PruneLimits, RoleOptions
from springtide.planning.candidates.query import FrontQuery
from springtide.planning.perf_model import equations, shape_columns
from springtide.planning.perf_model.equations import Array, Index
from springtide.planning.perf_model.shape_columns import ShapeColumns

AT_ONCE = 32
"""Jobs per chunk, so that the arrays stay in the CPU cache."""
SAME = 1e-12
Listed = tuple[ShapeColumns, Array, Array]
"""Shapes, their hourly cost, and their samples per second."""


class EnumerationQuery(NamedTuple):
    """Parameters of all queries as columns, one number per job."""

    cpu: Array
    memory: Array
    worker: Array
    server: Array
    rows: Array
    least_server: Array
    cpu_price: Array
    memory_price: Array
    worker_idle: Array
    """Minimum seconds per sample of one worker core; `server_idle` likewise for one server core. 0 means no limit."""
    server_idle: Array
    most_worker: Array
    fewest_servers: Array
    slower: Array
    less: Array
    in_step: Array
    """1 for bsp, 0 for async; `traffic_s` is the time that the dense parameters take to cross the network."""
    traffic_s: Array
    grad: Array
    """Factor of the gradient term; dividing it by shape fields gives seconds per sample. The next four fields
    likewise."""
    upd: Array
    sync: Array
    emb: Array
    beta: Array


def listed(asks: Sequence[FrontQuery]) -> list[Listed]:
    wanted = _wanted(asks)
    workers, servers = _options(asks, wanted)
    memory_left = wanted.memory - wanted.rows
    limits = PruneLimits(wanted.emb, wanted.cpu, memory_left, wanted.slower, wanted.less)
    job, left, right = prune.pairs(workers, servers, limits)
    left, right = job * workers.number.shape[1] + left, job * servers.number.shape[1] + right
    cpu = workers.cpu.take(left) + servers.cpu.take(right)
    memory = workers.memory.take(left) + servers.memory.take(right)
    (fits,) = numpy.nonzero((cpu <= wanted.cpu.take(job)) & (memory <= memory_left.take(job)))
    rows = shape_columns.of_owners(job[fits], len(asks))
    cost = (cpu * wanted.cpu_price.take(job) + memory / GIB * wanted.memory_price.take(job))[fits]
    order = rows.ordered(cost)
    job, left, right, cost = rows.owner, left[fits][order], right[fits][order], cost[order]
    counts = workers.number.take(left), servers.number.take(right)
    seconds = workers.seconds.take(left) + servers.seconds.take(right) + wanted.emb.take(job) / (counts[0] * counts[1])
    seconds = numpy.maximum(seconds, numpy.maximum(workers.least.take(left), servers.least.take(right)))
    throughput = numpy.divide(1.0, seconds, out=numpy.zeros_like(seconds), where=seconds > 0)
    best = numpy.maximum(rows.best_before(throughput), -1.0)
    least = best * (1 - wanted.slower.take(job)) - wanted.less.take(job)
    (hopeful,) = numpy.nonzero(throughput * (1 - SAME) > least)  # a difference within rounding is no advantage
    rows, job, left, right = rows.only(hopeful), job[hopeful], left[hopeful], right[hopeful]
    whole = _columns(wanted, job, workers, servers, left, right)
    cost = cost[hopeful] + wanted.rows.take(job) / GIB * wanted.memory_price.take(job)
    ends = numpy.cumsum(rows.lengths).tolist()
    each = [slice(end - length, end) for end, length in zip(ends, rows.lengths.tolist(), strict=True)]
    throughput = throughput[hopeful]
    return [(ShapeColumns(*(column[mine] for column in whole)), cost[mine], throughput[mine]) for mine in each]


def _columns(
    wanted: EnumerationQuery, job: Index, workers: RoleOptions, servers: RoleOptions, left: Index, right: Index
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


def _wanted(asks: Sequence[FrontQuery]) -> EnumerationQuery:
    found = []
    for ask in asks:
        bounds, need = ask.bounds, grids.rounded(ask.need, ask.bounds)
        most = bounds.most.worker_memory or math.inf
        idle = [1 / pace if pace < math.inf else 0.0 for pace in ask.pace]
        found.append(
            (
                grids.quota_cpu(bounds),
                bounds.quota.memory,
                need.worker,
                need.server,
                need.rows,
                bounds.least.server_memory,
                ask.prices.cpu,
                ask.prices.memory,
                *idle,
                most,
                grids.fewest_servers(need, bounds),
                *query.most_overhead(ask),
                ask.facts.group > 0,
                ask.facts.dense_bytes / ask.facts.bandwidth,
                *ask.factors,
            )
        )
    return EnumerationQuery(*numpy.array(found, dtype=float).T)


def _options(asks: Sequence[FrontQuery], wanted: EnumerationQuery) -> tuple[RoleOptions, RoleOptions]:
    """Return the options for workers and servers of each job, with their cost and time."""
    two = [grids.sides(ask.bounds) for ask in asks]
    cpu_price, memory_price, rows = wanted.cpu_price[:, None], wanted.memory_price[:, None], wanted.rows[:, None]
    w, worker_cpu, cpu = _padded([one.workers for one in two])
    there = (w > 0) & (wanted.worker <= wanted.most_worker)[:, None]
    w, cpu = numpy.maximum(w, 1.0), numpy.where(w > 0, cpu, 1.0)
    memory = w * wanted.worker[:, None]
    constant, sent, in_step = wanted.beta[:, None] / w, wanted.sync[:, None], wanted.in_step[:, None] > 0
    if in_step.any():
        hops = equations.hops(w, wanted.traffic_s[:, None])
        constant = numpy.where(in_step, wanted.beta[:, None] + sent * hops, constant)
        sent = numpy.where(in_step, 0.0, sent)
    workers = RoleOptions(
        there=there,
        number=w,
        cpu=cpu,
        memory=memory,
        each=worker_cpu,
        cost=cpu * cpu_price + memory / GIB * memory_price,
        seconds=wanted.grad[:, None] / cpu + constant,
        least=wanted.worker_idle[:, None] / cpu,
    )
    p, server_cpu, cpu = _padded([one.servers for one in two])
    there = (p > 0) & (p >= wanted.fewest_servers[:, None])
    p, cpu = numpy.maximum(p, 1.0), numpy.where(p > 0, cpu, 1.0)
    need, least = wanted.server[:, None], wanted.least_server[:, None]
    # memory that the bounds demand beyond the rows
    beyond = numpy.where(least > need, numpy.maximum(least - need - rows / p, 0.0), 0.0)
    memory = p * (need + beyond)
    servers = RoleOptions(
        there=there,
        number=p,
        cpu=cpu,
        memory=memory,
        each=server_cpu,
        cost=cpu * cpu_price + memory / GIB * memory_price,
        seconds=wanted.upd[:, None] / cpu + sent / p,
        least=wanted.server_idle[:, None] / cpu,
    )
    return workers, servers


def _padded(sides: Sequence[Side]) -> tuple[Array, ...]:
    """Return counts, cores of each and total cores, one row per job, padded with 0."""
    rows = shape_columns.of_lengths([len(one.number) for one in sides])
    return tuple(rows.padded(numpy.concatenate(parts), 0.0) for parts in zip(*sides, strict=True))
