"""The luck that a simulated job is born with, at its world's rates: pods that are lost, its straggler, its slow server.

In: a `VirtualJob` and the world. Out: acts on it, until it is over. The rate model has the same luck by the same rates.
"""

import asyncio
import random
from collections import Counter

from springtide.domain.core.roles import RoleKind
from springtide.sim.jobs.job import VirtualJob
from springtide.sim.world.parameters import DAY_S, ClusterWorld


class Luck:
    """Of one job."""

    def __init__(self, job: VirtualJob, world: ClusterWorld, chance: random.Random) -> None:
        self._job, self._world, self._chance = job, world, chance
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(self._lose_pods(), self._become_slow())

    async def _lose_pods(self) -> None:
        world = self._world
        a_day = world.pod_failures_a_day + world.preemptions_a_day
        while a_day > 0:
            pods = max(1, len(self._job.machines.processes))
            await asyncio.sleep(self._chance.expovariate(a_day / DAY_S * pods))
            if self._job.ended:
                return
            evicted = self._chance.random() < world.preemptions_a_day / a_day
            found = [*self._job.machines.processes.values()]
            process = self._chance.choice(found) if found else None
            desk = self._job.masters.desk
            if process is None or desk is None:
                continue
            server = process.life.role.kind is RoleKind.SERVER
            if server and desk.state.safety.saved is None:
                continue
            process.kill(signal="SIGTERM" if evicted else "SIGKILL", evicted=evicted)
            self.done["server lost" if server else "worker lost"] += 1

    async def _become_slow(self) -> None:
        job = self._job.setup.job
        for share, kind, speed in sorted(
            [
                (job.straggles_at, RoleKind.WORKER, job.straggler_speed),
                (job.slow_server_at, RoleKind.SERVER, job.server_speed),
            ]
        ):
            while self._job.samples_done < share * job.samples:
                await asyncio.sleep(5 * self._job.spec.heartbeat_s)
            if found := self._job.machines.living(kind):
                self._chance.choice(found).speed = speed
                self.done[f"slow {kind}"] += 1
