"""What goes wrong with a virtual job, drawn from a seed: processes die, hang or are slow, masters are replaced, people
change their minds.

In: rates by kind. Out: acts on a `VirtualJob`, each at its random time. After `until_s` nothing more goes wrong, so
that a job can end. The luck that a simulated job is born with: `luck`.
"""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, fields

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.sim.jobs.job import VirtualJob
from springtide.sim.jobs.members.machines import VirtualProcess
from springtide.sim.world.parameters import DAY_S, ClusterWorld

WORDS = "drawn by the simulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often each happens, times an hour."""

    kill_worker: float = 0.0
    kill_server: float = 0.0
    kill_master: float = 0.0
    evict: float = 0.0
    """Any pod, no fault of its own."""
    cut_off: float = 0.0
    """A worker or server reaches its master no more for a while: it is suspected, perhaps wrongly, and lives on."""
    slow_worker: float = 0.0
    """It has a part of its cores for a while."""
    slow_server: float = 0.0
    """The same; the job's own guards may replace it."""
    full_memory: float = 0.0
    """A server is killed for want of memory."""
    scale_workers: float = 0.0
    scale_servers: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultBounds:
    """How far it goes."""

    workers: tuple[int, int] = (1, 8)
    servers: tuple[int, int] = (1, 5)
    until_s: float = 600.0
    silence_s: float = 60.0
    """Longest time that somebody is cut off."""
    slow_s: float = 120.0
    """Longest time that a worker or a server is slow."""
    master_s: float = 5.0
    """Longest time until there is another master."""


class JobFaults:
    """Of one job."""

    def __init__(self, job: VirtualJob, rates: FaultRates, bounds: FaultBounds, seed: int) -> None:
        self._job, self._rates, self._bounds = job, rates, bounds
        self._chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        """What happened, and how often."""

    async def run(self) -> None:
        if not self._rates.total:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + self._bounds.until_s
        kinds = [each.name for each in fields(self._rates)]
        weights = [getattr(self._rates, kind) for kind in kinds]
        while True:
            await asyncio.sleep(self._chance.expovariate(self._rates.total / 3600))
            if loop.time() > until or self._job.ended:
                return
            (kind,) = self._chance.choices(kinds, weights)
            if await getattr(self, f"_{kind}")():
                self.done[kind] += 1

    def _some(self, *kinds: RoleKind) -> VirtualProcess | None:
        found = [process for kind in kinds for process in self._job.machines.living(kind)]
        return self._chance.choice(found) if found else None

    async def _kill_worker(self) -> bool:
        return self._kill(self._some(RoleKind.WORKER))

    async def _kill_server(self) -> bool:
        return self._kill(self._some(RoleKind.SERVER))

    async def _evict(self) -> bool:
        return self._kill(self._some(RoleKind.WORKER, RoleKind.SERVER), evicted=True)

    def _kill(self, process: VirtualProcess | None, *, evicted: bool = False, oom: bool = False) -> bool:
        if process is None:
            return False
        process.kill(signal="SIGTERM" if evicted else "SIGKILL", evicted=evicted, oom=oom)
        return True

    async def _kill_master(self) -> bool:
        masters = self._job.masters
        if masters.desk is None:
            return False
        if masters.desk.state.phase.over:
            return False
        masters.kill()
        await asyncio.sleep(self._chance.uniform(0.01, self._bounds.master_s))
        masters.start()
        return True

    async def _cut_off(self) -> bool:
        kinds = (RoleKind.WORKER, RoleKind.SERVER)
        process = self._some(*kinds)
        if process is None:
            return False
        process.wire.cut()
        asyncio.get_running_loop().call_later(self._chance.uniform(0.0, self._bounds.silence_s), process.wire.mend)
        return True

    async def _slow_worker(self) -> bool:
        return self._slow(self._some(RoleKind.WORKER))

    async def _slow_server(self) -> bool:
        return self._slow(self._some(RoleKind.SERVER))

    async def _full_memory(self) -> bool:
        return self._kill(self._some(RoleKind.SERVER), oom=True)

    def _slow(self, process: VirtualProcess | None) -> bool:
        if process is None:
            return False
        process.speed = self._chance.uniform(0.03, 0.5)

        def recover() -> None:
            process.speed = 1.0

        asyncio.get_running_loop().call_later(self._chance.uniform(1.0, self._bounds.slow_s), recover)
        return True

    async def _scale_workers(self) -> bool:
        return await self._scale(workers=self._chance.randint(*self._bounds.workers))

    async def _scale_servers(self) -> bool:
        return await self._scale(servers=self._chance.randint(*self._bounds.servers))

    async def _scale(self, *, workers: int | None = None, servers: int | None = None) -> bool:
        with contextlib.suppress(errors.BadInput):  # it is starting, or draining
            await self._job.scale(workers=workers, servers=servers, why=WORDS)
            return True
        return False


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
