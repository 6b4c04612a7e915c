"""Pure. What a core is worth: samples a second that one of workers, and one of servers, was seen to do.

In: a `JobView` and its speed. Out: a `CoreSpeed`, and what shapes can do by it at most. Next:
`planning.perf_model.fit`, `planning.allocate.bids`.

A step takes the core-seconds that it was seen to take, so that fewer cores cannot be faster, whatever the equations
say. And where all cores of a role are busy, steps are as long as cores need: that says what a core is worth, but of
the terms of a step only that they are no longer (all waiting would be laid to one of them).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.plan.view import JobView
from springtide.planning.perf_model import measurements
from springtide.planning.perf_model.shape_columns import ShapeColumns

Floats = NDArray[np.float64]


class CoreSpeed(NamedTuple):
    """Samples a second of a core of workers, and of one of servers; infinity: nobody knows."""

    worker: float = math.inf
    server: float = math.inf


def pace_of(job: JobView, throughput: float) -> CoreSpeed:
    """By what samples took of cores in all windows; where nobody has counted, by what the job uses and does now."""
    return CoreSpeed(*(_pace(job, kind, throughput) for kind in (RoleKind.WORKER, RoleKind.SERVER)))


def _pace(job: JobView, kind: RoleKind, throughput: float) -> float:
    a_sample = measurements.spent(job, kind)
    if a_sample is not None:
        return 1 / a_sample
    used = measurements.use(job, kind)
    return math.inf if used is None else of_cores(throughput, used.used, used.given)


def of_cores(throughput: float, used: float, given: float) -> float:
    """Samples a second of one core that is given; infinity where nothing is known.

    The kernel hands a quota out in parts, so that a role that is held to it is seen to use some hundredths more than it
    was given. It would with any quota: plans give cores, and what one is worth counts by those.
    """
    cores = min(used, given) if given > 0 else used
    return throughput / cores if throughput > 0 and cores > 0 else math.inf


def ceiling(pace: CoreSpeed | Floats, shapes: ShapeColumns) -> Floats:
    """Samples a second that the cores of shapes allow: at one pace, or each at its own (two rows of numbers)."""
    worker, server = pace
    return np.minimum(shapes.workers * shapes.worker_cpu * worker, shapes.servers * shapes.server_cpu * server)


def ceiling_of(pace: CoreSpeed, shape: Shape) -> float:
    return min(shape.workers * shape.worker_cpu * pace.worker, shape.servers * shape.server_cpu * pace.server)
