"""Pure. Estimates how much a change of a job's shape costs, from the launch times of roles (Eqn 8).

Jobs keep training while roles start and slots move, so the main cost of a change is the delay of its gain. A worker
that gets a new size also trains nothing while its successor starts.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.plan.view import LaunchTime
from springtide.planning.perf_model.shape_columns import ShapeColumns

Floats = NDArray[np.float64]
USUAL_S = 20.0
"""Seconds to start a role, if nothing was measured: DLRover's value for a pod."""
NEWEST = 64
LEAST_RATE = 1e-9


class StartLine(NamedTuple):
    """Start time of a role as a line: seconds at zero cores, seconds per core, and the shortest time observed."""

    usual: Floats | float
    slope: Floats | float
    least: Floats | float

    def seconds(self, cpu: Floats) -> Floats:
        return np.maximum(self.usual + self.slope * cpu, self.least)


class StartTimes(NamedTuple):
    """Start times of workers and servers. The times are numbers for one job, and columns with one row per job for many
    jobs.
    """

    worker: StartLine
    server: StartLine


def starts(launches: Sequence[LaunchTime]) -> StartTimes:
    """Fit a line by median slope through past launches."""
    return StartTimes(_line(launches, RoleKind.WORKER), _line(launches, RoleKind.SERVER))


def starts_of_many(launches: Sequence[Sequence[LaunchTime]]) -> StartTimes:
    """Return the start times of many jobs as columns. Jobs with the same list of launches share one fit."""
    known = {id(some): starts(some) for some in {id(some): some for some in launches}.values()}
    rows = np.array([(*known[id(some)].worker, *known[id(some)].server) for some in launches]).reshape(-1, 6).T
    return StartTimes(StartLine(*rows[:3, :, None]), StartLine(*rows[3:, :, None]))


def _line(launches: Sequence[LaunchTime], kind: RoleKind) -> StartLine:
    starts = [
        launch
        for launch in launches
        if launch.kind is kind and math.isfinite(launch.seconds + launch.cpu) and launch.seconds >= 0
    ]
    if not starts:
        return StartLine(USUAL_S, 0.0, USUAL_S)
    starts = starts[-NEWEST:]
    sizes, seconds = np.array([start.cpu for start in starts]), np.array([start.seconds for start in starts])
    apart_by, later_by = sizes[:, None] - sizes[None, :], seconds[:, None] - seconds[None, :]
    apart = apart_by > 1e-9
    slope = max(0.0, float(np.median(later_by[apart] / apart_by[apart]))) if apart.any() else 0.0
    return StartLine(float(np.median(seconds - slope * sizes)), slope, float(seconds.min()))


def seconds(now: Shape | ShapeColumns, to: ShapeColumns, known: StartTimes) -> Floats:
    """Return the seconds until each candidate shape would be running. Removing servers takes as long as moving their
    slots."""
    more_workers = (to.workers > now.workers) | resized_workers(now, to)
    moved = (to.servers != now.servers) | (to.server_cpu != now.server_cpu) | (to.server_memory != now.server_memory)
    for_workers = np.where(more_workers, known.worker.seconds(to.worker_cpu), 0.0)
    for_servers = np.where(moved, known.server.seconds(to.server_cpu), 0.0)
    return np.asarray(np.maximum(for_workers, for_servers))


def resized_workers(now: Shape | ShapeColumns, to: ShapeColumns) -> NDArray[np.bool_]:
    """Return True for each shape in which the remaining workers get a new size and must restart."""
    return np.asarray((to.worker_cpu != now.worker_cpu) | (to.worker_memory != now.worker_memory))


def mean_throughput(
    now: Shape | ShapeColumns,
    to: ShapeColumns,
    known: StartTimes,
    throughput_now: Floats | float,
    throughput: Floats,
    samples: Floats | float,
    *,
    stay: bool = False,
) -> Floats:
    """Return the mean samples per second over the next `samples`, if the job changes now.

    A job trains at its current speed until a faster shape is ready. A change that completes after the job's last sample
    gains nothing. Of two shapes with the same delay, the faster shape is always better. With `stay`, resized workers
    train until their successors are ready, so replacing them costs nothing.
    """
    wait = np.where(throughput > throughput_now, seconds(now, to, known), 0.0)
    before = wait * throughput_now
    again: Floats | float = 0.0
    if not stay:  # subtract the samples that are lost while workers are replaced one after another
        again = np.where(resized_workers(now, to), known.worker.seconds(to.worker_cpu) * throughput_now, 0.0)
    took = wait + (samples - before + again) / np.maximum(throughput, LEAST_RATE)
    return np.where(before < samples, samples / np.maximum(took, LEAST_RATE), 0.0)
