"""Pure. The shapes worth having for one job: no other is both cheaper and faster.

In: coefficients (of `planning.fit`), bounds, prices, what the job needs and what it has now. Out: a `Front`, cheapest
first. Next: `planning.choose` picks one a job, under the capacity of the cluster.

Resource cost (Eqn 7) is what a shape costs an hour. Throughput gain (Eqn 8) is the throughput it adds, less overhead:
samples that the change loses (`planning.switching`), spread over `horizon_s`, the time in which it has to pay.

Spaces of up to `grids.MOST` shapes are listed whole, so that the front is the true one. Larger ones are searched by
NSGA-II (`planning.evolve`, the extra `brain`); without it they are made coarser until they can be listed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy

from springtide import errors
from springtide.domain.cluster import RoleKind
from springtide.domain.profile import ModelFacts
from springtide.domain.shape import GIB, NO_NEED, Bounds, MemoryNeed, Prices, Shape
from springtide.domain.view import Launch
from springtide.planning import equations, grids, switching
from springtide.planning.columns import Columns
from springtide.planning.equations import Array, Coefficients, Index, Shapes

How = Literal["exact", "evolved", "coarse"]
BLOCK = 64
"""Shapes that are compared at once."""
NO_LIMIT = (math.inf, math.inf)
SAME = 1e-12
"""Costs that differ by a smaller part are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a front is wanted for."""

    coefficients: Coefficients
    facts: ModelFacts
    bounds: Bounds
    now: Shape | None = None
    """What the job has; None: nothing runs yet."""
    need: MemoryNeed = NO_NEED
    prices: Prices = field(default_factory=Prices)
    launches: Sequence[Launch] | None = None
    """From which the overhead of a change is told; None: changes cost nothing."""
    horizon_s: float = math.inf
    """Seconds in which a change has to pay."""
    pace: tuple[float, float] = NO_LIMIT
    """Samples a second that a core of workers, and one of servers, is worth at most: fewer cores cannot be faster."""
    seed: int = 0
    """Of NSGA-II."""

    def __post_init__(self) -> None:
        if not self.horizon_s > 0:
            raise errors.BadInput(f"candidates: horizon_s {self.horizon_s:g}; wanted seconds above 0")

    @property
    def factors(self) -> Array:
        """What the columns of a grid are multiplied with to be seconds a sample."""
        c, facts = self.coefficients, self.facts
        traffic = facts.dense_bytes / facts.bandwidth
        seconds = [c.grad * facts.batch, c.upd, c.sync * traffic, c.emb * facts.batch * facts.dim, c.beta]
        return numpy.array(seconds) / facts.batch

    @property
    def before(self) -> float:
        """Samples a second as it is now."""
        return equations.throughput(self.coefficients, self.facts, self.now) if self.now else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Shapes of which none is both cheaper and faster than another: cheapest first, so slowest first."""

    shapes: Columns
    cost: Array
    """Eqn 7, an hour."""
    throughput: Array
    """Samples a second."""
    gain: Array
    """Eqn 8, samples a second against what runs now; below 0: slower."""
    how: How
    why: str

    def __len__(self) -> int:
        return len(self.cost)

    def shape(self, index: int) -> Shape:
        """One of them."""
        return self.shapes.shape(index)

    def only(self, which: Index) -> "Front":
        """Some of them, by index or by mask."""
        return replace(
            self, shapes=self.shapes.taken(which), cost=self.cost[which], throughput=self.throughput[which],
            gain=self.gain[which],
        )  # fmt: skip

    def thin(self, most: int) -> "Front":
        """At most so many, evenly over the gain, both ends among them."""
        if len(self) <= most:
            return self
        wanted = numpy.linspace(self.gain[0], self.gain[-1], most)
        return self.only(numpy.unique(numpy.searchsorted(self.gain, wanted).clip(0, len(self) - 1)))


def front(
    coefficients: Coefficients,
    facts: ModelFacts,
    *,
    bounds: Bounds,
    now: Shape | None = None,
    need: MemoryNeed = NO_NEED,
    prices: Prices | None = None,
    launches: Sequence[Launch] | None = None,
    horizon_s: float = math.inf,
    pace: tuple[float, float] = NO_LIMIT,
) -> Front:
    """The front of one job."""
    return front_of(
        Ask(
            coefficients=coefficients, facts=facts, bounds=bounds, now=now, need=need, prices=prices or Prices(),
            launches=launches, horizon_s=horizon_s, pace=pace,
        )
    )  # fmt: skip


def front_of(ask: Ask) -> Front:
    """The same; the whole space where it can be listed, what evolution finds of it elsewhere."""
    if grids.count(ask.bounds) <= grids.MOST:
        return listed(ask)
    try:
        from springtide.planning import evolve

        return evolve.front(ask)
    except errors.MissingExtra:
        return replace(listed(replace(ask, bounds=_coarser(ask.bounds))), how="coarse")


def listed(ask: Ask) -> Front:
    """The true front, by looking at every shape.

    Overhead takes no more than a known part of any gain. So what is too slow for that beside a cheaper shape is off the
    front, whatever the overhead of either, which is reckoned for the few that are left.
    """
    need = grids.rounded(ask.need, ask.bounds)
    grid = grids.grid(ask.bounds, ask.prices, need.worker, need.server)
    throughput = foreseen(ask, grid.base)
    fits = fitting(ask, grid.shapes, grid.memory)
    if fits is not None:
        throughput = numpy.where(fits, throughput, -1.0)
    cost = grid.cost
    extra = _beyond_need(ask.bounds, need, grid.shapes.servers)
    order: Index | None = None
    if extra.any():  # the least memory of a server is more than it needs: then more servers cost more than on the grid
        cost = cost + extra * grid.shapes.servers / GIB * ask.prices.memory
        order = numpy.argsort(cost, kind="stable")
        throughput, cost = throughput[order], cost[order]
    share, stop = most_overhead(ask)
    hopeful = _hopeful(throughput, share, stop)
    few = with_memory(ask, *(column[hopeful if order is None else order[hopeful]] for column in grid.shapes))
    cost, throughput = cost[hopeful] + need.rows / GIB * ask.prices.memory, throughput[hopeful]
    return assemble(few, cost, throughput, gains(ask, few, throughput), how="exact", looked_at=len(grid))


def foreseen(ask: Ask, base: Array) -> Array:
    """Samples a second of the shapes of a grid: by the equations, and no more than their cores are worth."""
    factors = ask.factors
    if not factors.any():
        return numpy.zeros(base.shape[1])
    seconds: Array = factors @ base
    for core_seconds, pace in zip(base[:2], ask.pace, strict=True):
        if pace < math.inf:
            numpy.maximum(seconds, core_seconds / pace, out=seconds)
    return 1 / seconds


def capped(ask: Ask, shapes: Columns, throughput: Array) -> Array:
    """What shapes do by the equations, but no more than their cores are worth."""
    workers, servers = ask.pace
    most = numpy.minimum(shapes.workers * shapes.worker_cpu * workers, shapes.servers * shapes.server_cpu * servers)
    return numpy.minimum(throughput, most)


def _hopeful(throughput: Array, share: float, stop: float) -> Index:
    """Those that no cheaper one outdoes even after the most overhead there can be; below 0: left out.

    They are held against the best of the blocks before their own: a running maximum over all of them takes longer.
    """
    blocks = -(-len(throughput) // BLOCK)
    flat = numpy.full(blocks * BLOCK, -1.0)
    flat[: len(throughput)] = throughput
    padded = flat.reshape(blocks, BLOCK)
    best = numpy.empty(blocks)
    best[0] = 0.0
    numpy.maximum.accumulate(padded[:-1].max(axis=1), out=best[1:])
    limit = numpy.maximum(best * (1 - share) - stop, 0.0)
    few: Index = numpy.nonzero((padded >= limit[:, None]).ravel())[0]
    among = throughput[few]
    running = numpy.maximum.accumulate(among) * (1 - share) - stop
    kept: Index = few[numpy.append(True, among[1:] > running[:-1])] if len(few) else few
    return kept


def gains(ask: Ask, shapes: Columns, throughput: Array) -> Array:
    """Eqn 8 of shapes with such a throughput."""
    before = ask.before
    more = throughput - before
    if ask.launches is None or ask.now is None or not math.isfinite(ask.horizon_s):
        return more
    return more - switching.lost_samples(ask.now, shapes, ask.launches, before, throughput) / ask.horizon_s


def most_overhead(ask: Ask) -> tuple[float, float]:
    """No overhead is more than this part of the throughput and, beside it, so many samples a second."""
    if ask.launches is None or ask.now is None or not math.isfinite(ask.horizon_s):
        return 0.0, 0.0
    for_worker = switching.start_seconds(ask.launches, RoleKind.WORKER, numpy.array([ask.bounds.most.worker_cpu]))
    for_server = switching.start_seconds(ask.launches, RoleKind.SERVER, numpy.array([ask.bounds.most.server_cpu]))
    late = max(float(for_worker[0]), float(for_server[0]))
    return min(late / ask.horizon_s, 1.0), ask.before * float(for_worker[0]) / ask.horizon_s


def fitting(ask: Ask, shapes: Shapes, memory_without_rows: Array) -> Index | None:
    """Which shapes have memory enough within bounds and quota; None: all."""
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


def _roomy(bounds: Bounds, need: MemoryNeed) -> bool:
    """Whether the quota has memory for the largest of all shapes."""
    most = bounds.most
    server = max(need.server, bounds.least.server_memory)
    return most.workers * need.worker + most.servers * server + need.rows <= bounds.quota.memory


def _beyond_need(bounds: Bounds, need: MemoryNeed, servers: Array) -> Array:
    """Bytes of a server that bounds want and rows do not, by the number of servers."""
    if bounds.least.server_memory <= need.server:
        return numpy.zeros(1)
    beyond: Array = numpy.maximum(bounds.least.server_memory - need.server - need.rows / servers, 0.0)
    return beyond


def non_dominated(cost: Array, gain: Array) -> Index:
    """Which are on the front, of shapes in the order of rising cost."""
    if len(cost) == 0:
        return numpy.zeros(0, dtype=int)
    best = numpy.maximum.accumulate(gain)
    rises = numpy.append(True, best[1:] > best[:-1])
    kept: Index = numpy.nonzero(rises)[0]
    last = numpy.append(cost[kept[1:]] > cost[kept[:-1]] * (1 + SAME), True)  # of equal costs the last is the fastest
    chosen: Index = kept[last]
    return chosen


def with_memory(ask: Ask, workers: Array, servers: Array, worker_cpu: Array, server_cpu: Array) -> Columns:
    """Shapes with the memory that they need."""
    need = grids.rounded(ask.need, ask.bounds)
    rows = numpy.ceil(need.rows / servers) if need.rows else numpy.zeros(len(servers))
    each = numpy.maximum(need.server + rows, float(ask.bounds.least.server_memory))
    return Columns(workers, servers, worker_cpu, server_cpu, numpy.full(len(workers), float(need.worker)), each)


def assemble(shapes: Columns, cost: Array, throughput: Array, gain: Array, *, how: How, looked_at: int) -> Front:
    """The front of shapes that are in the order of rising cost."""
    kept = non_dominated(cost, gain)
    why = f"{len(kept)} of {looked_at:,} shapes are worth having"
    if not len(kept):
        why = f"none of {looked_at:,} shapes has memory enough for the job within its bounds and quota"
    return Front(
        shapes=shapes.taken(kept), cost=cost[kept], throughput=throughput[kept], gain=gain[kept], how=how, why=why
    )


def _coarser(bounds: Bounds) -> Bounds:
    """Larger steps, until the shapes can be listed."""
    bounds = replace(bounds, cpu_step=None)
    while grids.count(bounds) > grids.MOST:
        step = 2 * (bounds.worker_step or 1)
        bounds = replace(bounds, worker_step=step, server_step=step)
    return bounds
