"""Pure. What a core is worth: samples a second that one of workers, and one of servers, was seen to do.

In: a `JobView` and its speed. Out: a `Pace`, what shapes can do by it at most, and the profiles that say something
about the equations. Next: `planning.fit`, `planning.bidding`.

A step takes the core-seconds that it was seen to take, so that fewer cores cannot be faster, whatever the equations
say. And where all cores of a role are busy, steps are as long as cores need: that says what a core is worth, but
nothing about the terms of a step (all waiting would be laid to one of them). Such profiles are left out of the fit
where others are left.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.cluster import RoleKind
from springtide.domain.profile import Profile
from springtide.domain.shape import Shape
from springtide.domain.view import JobView
from springtide.planning import evidence, fit
from springtide.planning.columns import Columns

Floats = NDArray[np.float64]
BUSY = 0.85
"""Of what cores can do: a shape that does more is bound by them. Two windows of one shape may differ by so much."""


class Pace(NamedTuple):
    """Samples a second of a core of workers, and of one of servers; infinity: nobody knows."""

    worker: float = math.inf
    server: float = math.inf


def pace_of(job: JobView, throughput: float) -> Pace:
    """At the speed that the job has now, with the cores that it uses now."""
    used = [evidence.use(job, kind) for kind in (RoleKind.WORKER, RoleKind.SERVER)]
    return Pace(*(throughput / one.used if one is not None and throughput > 0 else math.inf for one in used))


def ceiling(pace: Pace | Floats, shapes: Columns) -> Floats:
    """Samples a second that the cores of shapes allow: at one pace, or each at its own (two rows of numbers)."""
    worker, server = pace
    return np.minimum(shapes.workers * shapes.worker_cpu * worker, shapes.servers * shapes.server_cpu * server)


def ceiling_of(pace: Pace, shape: Shape) -> float:
    """The same of one shape."""
    return min(shape.workers * shape.worker_cpu * pace.worker, shape.servers * shape.server_cpu * pace.server)


def telling(profiles: Sequence[Profile], pace: Pace) -> Sequence[Profile]:
    """Profiles of shapes that were not bound by their cores; all of them, where too few of those are left."""
    if math.isinf(pace.worker) and math.isinf(pace.server):
        return profiles
    free = [one for one in profiles if not _bound(one, pace)]
    enough = fit.FEWEST_TIMED if all(_timed(one) for one in free) else fit.FEWEST
    return free if len({one.shape for one in free}) >= enough else profiles


def _bound(profile: Profile, pace: Pace) -> bool:
    speed = evidence.throughput(profile.shape, profile.timing)
    return speed is not None and speed >= BUSY * ceiling_of(pace, profile.shape)


def _timed(profile: Profile) -> bool:
    timing = profile.timing
    return timing.gradient_s + timing.update_s + timing.synchronization_s + timing.lookup_s > 0
