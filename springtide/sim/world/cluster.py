"""Capacity of the virtual cluster: total cores and bytes, the largest pod, and pending times of pods.

In: resources that jobs take and release. Out: whether a request fits, and the seconds until pods run. Next:
`simulation`.
"""

import math
from statistics import NormalDist

import numpy as np

from springtide import errors
from springtide.domain.core.shape import GIB, ROUNDING, ResourceBudget, Shape
from springtide.sim.world.parameters import ClusterWorld

NORMAL = NormalDist()


class Cluster:
    """Cores and bytes in use, and free."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.capacity = ResourceBudget(cpu=world.nodes * world.node_cpu, memory=world.nodes * world.node_memory * GIB)
        self.cpu = 0.0
        self.memory = 0.0

    @property
    def free(self) -> ResourceBudget:
        return ResourceBudget(
            cpu=max(0.0, self.capacity.cpu - self.cpu), memory=max(0.0, self.capacity.memory - self.memory)
        )

    def fits(self, cpu: float, memory: float) -> bool:
        return self.cpu + cpu <= self.capacity.cpu * (1 + ROUNDING) and self.memory + memory <= self.capacity.memory * (
            1 + ROUNDING
        )

    def take(self, cpu: float, memory: float) -> None:
        if (cpu > 0 or memory > 0) and not self.fits(max(cpu, 0.0), max(memory, 0.0)):
            raise errors.JobFailed(f"the virtual cluster has no {cpu:g} cores and {memory:g} bytes left to take")
        self.cpu += cpu
        self.memory += memory

    def allows(self, shape: Shape) -> bool:
        most = self.world.node_memory * GIB
        return (
            max(shape.worker_cpu, shape.server_cpu) <= self.world.node_cpu
            and max(shape.worker_memory, shape.server_memory) <= most
        )


def pending_s(world: ClusterWorld, cpu: float, pods: int, random: np.random.Generator) -> float:
    """Return the seconds until the last of these pods has a node. Larger pods wait longer, and the
    slowest pod counts.
    """
    if pods < 1:
        return 0.0
    slowest = NORMAL.inv_cdf(min(max(float(random.random()) ** (1 / pods), 1e-9), 1 - 1e-9))
    return world.pending_s_a_core * cpu * math.exp(world.pending_spread * slowest)


class Reserved:
    """Cores and bytes of a shape."""

    __slots__ = ("cpu", "memory")

    def __init__(self, cpu: float = 0.0, memory: float = 0.0) -> None:
        self.cpu, self.memory = cpu, memory

    @staticmethod
    def of(shape: Shape, extra_workers: int = 0) -> "Reserved":
        return Reserved(
            shape.cpu + extra_workers * shape.worker_cpu, shape.memory + extra_workers * shape.worker_memory
        )

    @staticmethod
    def between(old: Shape, new: Shape) -> "Reserved":
        """Return the resources during a live change; pods of the same size are shared."""
        cpu = memory = 0.0
        for role in ("worker", "server"):
            before = (getattr(old, f"{role}_cpu"), getattr(old, f"{role}_memory"))
            after = (getattr(new, f"{role}_cpu"), getattr(new, f"{role}_memory"))
            counts = getattr(old, f"{role}s"), getattr(new, f"{role}s")
            if before == after:
                cpu, memory = cpu + max(counts) * before[0], memory + max(counts) * before[1]
            else:
                cpu += counts[0] * before[0] + counts[1] * after[0]
                memory += counts[0] * before[1] + counts[1] * after[1]
        return Reserved(cpu, memory)

    @staticmethod
    def larger(old: Shape, new: Shape) -> "Reserved":
        """Return the maximum of both shapes by cores and by memory, for a change that shrinks before it grows."""
        return Reserved(max(old.cpu, new.cpu), max(old.memory, new.memory))


def new_pods(old: Shape | None, new: Shape) -> tuple[tuple[float, int], tuple[float, int]]:
    """Return the size and number of new worker and server pods; a pod of another size is a new pod."""
    found = []
    for role in ("worker", "server"):
        size = (getattr(new, f"{role}_cpu"), getattr(new, f"{role}_memory"))
        same = old is not None and (getattr(old, f"{role}_cpu"), getattr(old, f"{role}_memory")) == size
        there = getattr(old, f"{role}s") if same else 0
        found.append((size[0], max(0, getattr(new, f"{role}s") - there)))
    return found[0], found[1]
