"""How long a step takes a virtual worker, and what it uses: the physics of `sim.world.world`, for the pods there are
now.

In: a `sim.world.world.Job`, who is at work and with how many cores. Out: seconds of a step and of its parts, cores,
bytes. The rate model of `sim.engine.simulation` goes by the same functions: that is why the two can be compared.
"""

from collections.abc import Callable
from typing import NamedTuple

from springtide.domain.core.shape import Shape
from springtide.sim.world import world as physics
from springtide.sim.world.world import FaultCondition, Speed, TrueJob

AT_REST = 1e-9
TABLES = 26  # Criteo: as many keys a sample
ROW_BYTES = 64.0  # of a row with its optimizer state: 16 floats


class ServerCores(NamedTuple):
    """The servers that have slots."""

    servers: int
    cpu: float
    """Cores of one, on average."""
    slowest: float = 1.0
    """The smallest share that one has of the cores it should have."""


class StepTime:
    """Of one job."""

    def __init__(self, job: TrueJob, slots: int) -> None:
        self.job, self._slots = job, slots
        self.at_work = 0
        """Workers that train now."""
        self.serving: Callable[[], ServerCores] = lambda: ServerCores(1, 1.0)
        self.done: Callable[[], float] = lambda: 0.0
        """Samples that are trained."""
        self._known: dict[tuple[int, float, ServerCores], Speed] = {}

    def speed(self, worker_cpu: float) -> Speed:
        """Of all who are at work, if their workers are like this one."""
        key = max(self.at_work, 1), worker_cpu, self.serving()
        found = self._known.get(key)
        if found is None:
            workers, _, (servers, server_cpu, slowest) = key
            shape = Shape(workers=workers, servers=max(servers, 1), worker_cpu=worker_cpu, server_cpu=server_cpu)
            condition = FaultCondition(server_speed=slowest)
            found = self._known[key] = physics.speed(self.job, shape, condition)
        return found

    def slowed(self, now: Speed, share: float) -> Speed:
        """The same for a worker that has so much of its cores."""
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
        return physics.rows_bytes(self.job, self.done()) / self._slots

    def server_bytes(self, slots: int) -> float:
        return self.job.server_base_bytes + slots * self.slot_bytes()

    def keys(self, slots: int, batches: int) -> float:
        """Keys of so many batches that lie in so many slots."""
        return TABLES * self.job.facts.batch * batches * slots / self._slots

    def server_core_s(self, slots: int, batches: int) -> float:
        """Core-seconds that so many batches cost a server with so many slots."""
        return self.job.server_core_s * batches * slots / self._slots
