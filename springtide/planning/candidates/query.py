"""Pure. Query for a Pareto front: one job with its model, bounds, current shape and needs.

In: every module that needs the shapes worth having. Next: `planning.candidates.pareto`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import NO_NEED, MemoryNeed, Prices, Shape, ShapeBounds
from springtide.domain.plan.profile import ModelFacts
from springtide.domain.plan.view import LaunchTime
from springtide.planning.candidates import switch_cost
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Array, Coefficients

NO_LIMIT = (math.inf, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontQuery:
    """Query for the Pareto front of one job."""

    coefficients: Coefficients
    facts: ModelFacts
    bounds: ShapeBounds
    now: Shape | None = None
    """Current shape; None if nothing runs yet."""
    need: MemoryNeed = NO_NEED
    prices: Prices = field(default_factory=Prices)
    launches: Sequence[LaunchTime] | None = None
    """Launches from which the overhead of a change is estimated; None means changes are free."""
    horizon_s: float = math.inf
    """Seconds in which a change must pay off."""
    pace: tuple[float, float] = NO_LIMIT
    """Maximum samples per second of one worker core and of one server core."""
    seed: int = 0
    """Seed of NSGA-II."""

    def __post_init__(self) -> None:
        if not self.horizon_s > 0:
            raise errors.BadInput(f"candidates: horizon_s {self.horizon_s:g}; wanted seconds above 0")

    @property
    def factors(self) -> Array:
        """Return the factors that turn grid columns into seconds per sample."""
        c, facts = self.coefficients, self.facts
        traffic = 1.0 if facts.group else facts.dense_bytes / facts.bandwidth  # in bsp, `traffic_s` carries this factor
        batch = facts.group or facts.batch
        seconds = [c.grad * batch, c.upd, c.sync * traffic, c.emb * batch * facts.dim, c.beta]
        return numpy.array(seconds) / batch

    @property
    def before(self) -> float:
        return equations.throughput(self.coefficients, self.facts, self.now) if self.now else 0.0


def most_overhead(ask: FrontQuery) -> tuple[float, float]:
    """Return bounds on the overhead: a share of the throughput, plus samples per second."""
    if ask.launches is None or ask.now is None or not math.isfinite(ask.horizon_s):
        return 0.0, 0.0
    for_worker = switch_cost.start_seconds(ask.launches, RoleKind.WORKER, numpy.array([ask.bounds.most.worker_cpu]))
    for_server = switch_cost.start_seconds(ask.launches, RoleKind.SERVER, numpy.array([ask.bounds.most.server_cpu]))
    late = max(float(for_worker[0]), float(for_server[0]))
    return min(late / ask.horizon_s, 1.0), ask.before * float(for_worker[0]) / ask.horizon_s
