"""Pure. Clamps a shape to the bounds of a job, the size of a node, the quota, and the free capacity."""

import math
from dataclasses import replace
from typing import Any

from springtide.domain.core.shape import NO_NEED, MemoryNeed, ResourceBudget, Shape, ShapeBounds
from springtide.domain.spec.planning_config import PlanningConfig

SMALLEST_CPU = 0.1
"""Sizes are rounded to tenths of a core, because measurements are not more precise."""


def quota(bounds: ShapeBounds, config: PlanningConfig) -> ResourceBudget:
    """Return the resource limit of one job: the smaller of its quota and C_total. If even the job's smallest shape
    needs more than C_total, return what this shape needs."""
    return replace(bounds.quota, cpu=min(bounds.quota.cpu, max(config.total_cpu, bounds.least.cpu)))


def within(shape: Shape, bounds: ShapeBounds, config: PlanningConfig, *, need: MemoryNeed = NO_NEED) -> Shape:
    """Clip the shape to the bounds field by field, then shrink it to fit the quota."""
    held = smaller(clipped(shape, bounds, config, need), bounds, quota(bounds, config))
    return held if held is not None else bounds.least


def clipped(shape: Shape, bounds: ShapeBounds, config: PlanningConfig, need: MemoryNeed = NO_NEED) -> Shape:
    """Clip each field to its bounds, and the size of each role to the size of a node (Eqn 5)."""
    least, most = bounds.least, bounds.most
    servers = _between(shape.servers, least.servers, most.servers)
    return Shape(
        workers=_between(shape.workers, least.workers, most.workers),
        servers=servers,
        worker_cpu=_cores(shape.worker_cpu, least.worker_cpu, most.worker_cpu, config.node_cpu),
        server_cpu=_cores(shape.server_cpu, least.server_cpu, most.server_cpu, config.node_cpu),
        worker_memory=_between(max(shape.worker_memory, need.worker), least.worker_memory, most.worker_memory),
        server_memory=_between(
            max(shape.server_memory, need.of_server(servers)), least.server_memory, most.server_memory
        ),
        worker_gpu=least.worker_gpu,
    )


def smaller(shape: Shape, bounds: ShapeBounds, room: ResourceBudget) -> Shape | None:
    """Return the shape, or a smaller shape within the bounds, that fits into `room`. Return None if even the
    smallest shape does not fit.

    The number of workers is reduced first, because workers do not depend on each other. If the fewest workers are still
    too many, the cores of each role are reduced, and then the number of servers.
    """
    if room.holds(shape):
        return shape
    for name in ("workers", "worker_cpu", "server_cpu", "servers", "worker_memory", "server_memory"):
        least = _with(shape, name, getattr(bounds.least, name))
        if room.holds(least):
            return _largest(shape, least, name, room)
        shape = least
    return None


def _largest(shape: Shape, least: Shape, name: str, room: ResourceBudget) -> Shape:
    low, high = getattr(least, name), getattr(shape, name)
    unit = 1 if isinstance(low, int) and isinstance(high, int) else SMALLEST_CPU
    steps = math.floor((high - low) / unit)
    first, last = 0, steps
    while first < last:  # bisection for the largest number of steps that fits
        middle = (first + last + 1) // 2
        fits = room.holds(_with(shape, name, _stepped(low, middle, unit)))
        first, last = (middle, last) if fits else (first, middle - 1)
    return _with(shape, name, _stepped(low, first, unit))


def _with(shape: Shape, name: str, value: Any) -> Shape:
    return replace(shape, **{name: value})


def _stepped(low: float, steps: int, unit: float) -> float:
    return low + steps * unit if unit == 1 else max(low, round(low + steps * unit, 9))


def _between(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)


def _cores(value: float, least: float, most: float, node: float) -> float:
    """Round up to tenths of a core, because a role with too few cores slows down the others."""
    rounded = math.ceil(round(value / SMALLEST_CPU, 6)) * SMALLEST_CPU
    return min(max(round(rounded, 9), least), max(min(most, node), least))
