"""Computes step times and resource use of virtual workers, with the physics of `sim.world.world`.

In: a `sim.world.world.TrueJob`, the number of training workers, and the servers' cores. Out: seconds of a step and of
its parts, cores and bytes. `sim.engine.simulation` uses the same functions, so the two simulations are comparable.
"""

from collections.abc import Callable
from typing import NamedTuple

from springtide.domain.core.shape import Shape
from springtide.sim.world import world as world_model
from springtide.sim.world.world import FaultCondition, Speed, TrueJob

AT_REST = 1e-9
TABLES = 26  # keys per sample in Criteo
ROW_BYTES = 64.0  # a row of 16 floats with its optimizer state


class ServerCores(NamedTuple):
    """Servers that hold slots."""

    servers: int
    cpu: float
    """Mean number of cores of a server."""
    slowest: float = 1.0
    """Smallest share of assigned cores among the servers."""


class StepTime:
    """Step time model of one job."""

    def __init__(self, job: TrueJob, slots: int) -> None:
        self.job, self._slots = job, slots
        self.at_work = 0
        """Number of workers that train now."""
        self.serving: Callable[[], ServerCores] = lambda: ServerCores(1, 1.0)
        self.done: Callable[[], float] = lambda: 0.0
        """Function that returns the number of trained samples."""
        self._known: dict[tuple[int, float, ServerCores], Speed] = {}

    def speed(self, worker_cpu: float) -> Speed:
        """Return the speed of all training workers, assuming that each has `worker_cpu` cores."""
        key = max(self.at_work, 1), worker_cpu, self.serving()
        found = self._known.get(key)
        if found is None:
            workers, _, (servers, server_cpu, slowest) = key
            shape = Shape(workers=workers, servers=max(servers, 1), worker_cpu=worker_cpu, server_cpu=server_cpu)
            condition = FaultCondition(server_speed=slowest)
            found = self._known[key] = world_model.speed(self.job, shape, condition)
        return found

    def slowed(self, now: Speed, share: float) -> Speed:
        """Return the speed of a worker that has only this share of its cores."""
        if share >= 1:
            return now
        gradient, update, synchronization, lookup = now.terms
        more = gradient * (1 / max(share, AT_REST) - 1)
        return Speed(
            step_s=now.step_s + more,
            terms=(gradient + more, update, synchronization, lookup),
            steps_s=now.steps_s,
            worker_cores=now.worker_cores,
            server_cores=now.server_cores,
        )

    def slot_bytes(self) -> float:
        return world_model.rows_bytes(self.job, self.done()) / self._slots

    def server_bytes(self, slots: int) -> float:
        return self.job.memory.server_base_bytes + slots * self.slot_bytes()

    def keys(self, slots: int, batches: int) -> float:
        """Return the number of keys of these batches in these slots."""
        return TABLES * self.job.facts.batch * batches * slots / self._slots

    def server_core_s(self, slots: int, batches: int) -> float:
        """Return the core-seconds that these batches cost a server with these slots."""
        return self.job.server_core_s * batches * slots / self._slots
