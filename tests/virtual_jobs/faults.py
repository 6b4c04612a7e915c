"""Injects random faults into a virtual job: crashes, hangs, slow processes, new masters and rescaling.

In: rates by kind of fault, and a seed. Out: actions on a `VirtualJob` at random times. Faults stop at `until_s`, so
that the job can end. `Luck` injects the faults that a simulated job has from its world.
"""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, fields

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.sim.world.parameters import DAY_S, ClusterWorld
from tests.virtual_jobs import virtual_loop
from tests.virtual_jobs.job import VirtualJob
from tests.virtual_jobs.machines import VirtualProcess

WORDS = "drawn by the simulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Mean number of faults of each kind per hour."""

    kill_worker: float = 0.0
    kill_server: float = 0.0
    kill_master: float = 0.0
    evict: float = 0.0
    """Evictions of any pod."""
    cut_off: float = 0.0
    """Network cuts between a worker or server and its master; the process lives on while the master may suspect it."""
    slow_worker: float = 0.0
    """Phases in which a worker has only a part of its cores."""
    slow_server: float = 0.0
    """Phases in which a server has only a part of its cores; the job's guards may replace the server."""
    full_memory: float = 0.0
    """OOM kills of a server."""
    scale_workers: float = 0.0
    scale_servers: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultBounds:
    """Limits of the faults."""

    workers: tuple[int, int] = (1, 8)
    servers: tuple[int, int] = (1, 5)
    until_s: float = 600.0
    silence_s: float = 60.0
    """Longest network cut, in seconds."""
    slow_s: float = 120.0
    """Longest slow phase of a worker or server, in seconds."""
    master_s: float = 5.0
    """Longest time without a master, in seconds."""


class JobFaults:
    """Fault injector of one job."""

    def __init__(self, job: VirtualJob, rates: FaultRates, bounds: FaultBounds, seed: int) -> None:
        self._job, self._rates, self._bounds = job, rates, bounds
        self._chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        """Number of injected faults by kind."""

    async def run(self) -> None:
        if not self._rates.total:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + self._bounds.until_s
        kinds = [each.name for each in fields(self._rates)]
        weights = [getattr(self._rates, kind) for kind in kinds]
        while True:
            await virtual_loop.sleep(self._chance.expovariate(self._rates.total / 3600))
            if loop.time() > until or self._job.ended:
                return
            (kind,) = self._chance.choices(kinds, weights)
            if await self.strike(kind):
                self.done[kind] += 1

    async def strike(self, kind: str) -> bool:
        struck: bool = await getattr(self, f"_{kind}")()
        return struck

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
        await virtual_loop.sleep(self._chance.uniform(0.01, self._bounds.master_s))
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
        with contextlib.suppress(errors.BadInput):  # the job refuses while it starts or drains
            await self._job.scale(workers=workers, servers=servers, why=WORDS)
            return True
        return False


class Luck:
    """Injector of the faults that one job has from its world: lost pods and slow processes."""

    def __init__(self, job: VirtualJob, world: ClusterWorld, chance: random.Random) -> None:
        self._job, self._world, self._chance = job, world, chance
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(self._lose_pods(), self._become_slow())

    async def _lose_pods(self) -> None:
        world = self._world
        a_day = world.faults.pod_failures_a_day + world.faults.preemptions_a_day
        while a_day > 0:
            pods = max(1, len(self._job.machines.processes))
            await virtual_loop.sleep(self._chance.expovariate(a_day / DAY_S * pods))
            if self._job.ended:
                return
            evicted = self._chance.random() < world.faults.preemptions_a_day / a_day
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
                (job.faults.straggles_at, RoleKind.WORKER, job.faults.straggler_speed),
                (job.faults.slow_server_at, RoleKind.SERVER, job.faults.server_speed),
            ]
        ):
            while self._job.samples_done < share * job.samples:
                await virtual_loop.sleep(5 * self._job.spec.heartbeat_s)
            if found := self._job.machines.living(kind):
                self._chance.choice(found).speed = speed
                self.done[f"slow {kind}"] += 1
