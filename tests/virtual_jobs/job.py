"""Runs one job on virtual machines from its first process to its end.

In: a `Setup`. Out: a `VirtualOutcome` with the counts of every slot. Reading order: `virtual_loop` (virtual time) →
`machines` (processes) → `master` (the real service) → `master_connection` → `worker` and `server` (real leases and
slots, virtual work) → `faults` → `counting_oracle`.
"""

import asyncio
import pathlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from springtide import _native
from springtide.data import shards
from springtide.domain.core.roles import RoleKind, WantedRole
from springtide.domain.core.shape import Shape
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import DatasetCard
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.plan.plan import Adviser
from springtide.domain.spec.job_spec import GuardRules, JobPhase, JobSpec, StragglerRules
from springtide.domain.spec.planning_config import PlanRules
from springtide.master.core.record import JobRecord
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus
from springtide.server import recovery
from springtide.sim.world.world import TrueJob
from tests.oracles import job_invariants, ledger_invariants
from tests.virtual_jobs import counting_oracle
from tests.virtual_jobs.bsp_worker import BspWorker, Ring
from tests.virtual_jobs.machines import Machines, Program
from tests.virtual_jobs.master import Masters, MemoryEventLog
from tests.virtual_jobs.master_connection import Weather, Wire
from tests.virtual_jobs.network import DataWeather, Network
from tests.virtual_jobs.server import Disks, VirtualServer, owner_of
from tests.virtual_jobs.step_time import ServerCores, StepTime
from tests.virtual_jobs.worker import VirtualWorker

SLOTS = 64
TOLD = frozenset({"phase", "decision", "lost", "ready", "checkpoint", "moved", "master", "failed", "poisoned", "plan"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A job and its environment."""

    job: TrueJob
    shape: Shape
    """Initial shape of the job."""
    seed: int = 0
    slots: int = SLOTS
    """Number of slots. Less than 64 makes checkpoints cheaper to simulate."""
    heartbeat_s: float = 1.0
    """Heartbeat interval in seconds. Longer intervals are cheaper to simulate, and the master's timeouts grow with
    them.
    """
    stride_s: float = 0.5
    """Approximate seconds of work between two pushes of a worker, at least one batch."""
    save_every_s: float = 600.0
    run: str = "simulated"
    bsp: bool = False
    log: counting_oracle.VirtualLog | None = None
    """Stream that the job trains on instead of a data set."""
    resumed: CheckpointRules = field(default_factory=CheckpointRules)
    """Checkpoint of another run from which the job continues."""
    silence_s: float = 30.0
    relaunches: int = 5
    guards: GuardRules = field(default_factory=lambda: GuardRules(memory=False))
    """Guards of the servers. Without the memory guard, memory has no limit."""
    planning: PlanRules = field(default_factory=PlanRules)
    """Planning rules of the master; by default the master does not plan."""
    weather: Weather = field(default_factory=Weather)
    data_weather: DataWeather = field(default_factory=DataWeather)
    disks: Disks = field(default_factory=Disks)
    starts_s: Callable[[WantedRole, random.Random], float] = lambda wanted, chance: chance.uniform(0.5, 3.0)
    """Function that draws the start time of a process, in seconds."""

    @property
    def card(self) -> DatasetCard:
        """Return the job's data: one batch per step."""
        if self.log is not None:
            return self.log.card()
        batch = self.job.facts.batch
        batches = max(1, round(self.job.samples / batch))
        per_shard = shards.batches_a_shard(batches)
        return DatasetCard(samples=batches * batch, batch_size=batch, shard_batches=per_shard, in_step=self.bsp)

    @property
    def wanted(self) -> counting_oracle.Keys:
        """Return the number of batches of each shard or partition."""
        return counting_oracle.batches_of(self.card) if self.log is None else self.log.wanted()

    @property
    def spec(self) -> JobSpec:
        beat, usual = self.heartbeat_s, StragglerRules()
        return JobSpec(
            name=self.job.name.replace("~", "-").lower(),
            servers=self.shape.servers,
            workers=self.shape.workers,
            slots=self.slots,
            sync="bsp" if self.bsp else "async",
            heartbeat_s=beat,
            silence_s=max(self.silence_s, 3 * beat),
            join_s=1e6,
            relaunches=self.relaunches,
            drain_s=max(self.silence_s, 6 * beat, 4 * self.stride_s),
            checkpoints=replace(self.resumed, every_s=self.save_every_s),
            planning=self.planning,
            guards=replace(self.guards, window_s=5 * beat),
            stragglers=replace(usual, window_s=max(usual.window_s, 6 * beat), every_s=max(usual.every_s, 4 * beat)),
            worker_cpu=self.shape.worker_cpu,
            server_cpu=self.shape.server_cpu,
            worker_memory=self.shape.worker_memory or None,
            server_memory=self.shape.server_memory or None if self.guards.memory else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualOutcome:
    """Result of a virtual job."""

    name: str
    phase: JobPhase
    why: str
    jct_s: float
    """Completion time in seconds since submission."""
    samples: int
    """Number of samples that the ledger counts as trained."""
    wanted: int
    counts: counting_oracle.Counts
    relaunches: int
    terms: int
    """Number of masters."""
    eras: int
    """Number of times the ledger went back to a checkpoint."""
    moved: int
    """Number of slots that moved between servers."""
    copies: int
    """Number of duplicate pushes."""
    batches: int
    steps: tuple[int, ...]
    """Last step of each rank of a bsp group that ended."""
    told: Counter[str]
    """Number of events by kind."""
    story: list[tuple[float, str, dict[str, object]]] = field(repr=False)

    @property
    def right(self) -> bool:
        finished = self.phase is JobPhase.FINISHED and self.samples == self.wanted
        return finished and self.counts.right and set(self.steps) <= {self.batches}


class VirtualJob:
    """A running virtual job. Faults and rescaling use `machines`, `masters` and `scale`."""

    def __init__(self, setup: Setup, folder: pathlib.Path, adviser: Adviser | None = None) -> None:
        self.setup, self.spec, self.card, self._folder = setup, setup.spec, setup.card, folder
        self.chance = random.Random(setup.seed)
        self._loop = asyncio.get_running_loop()
        self.began = self._loop.time()
        self.told = MemoryEventLog(folder, lambda: self._loop.time() - self.began, TOLD.__contains__)
        self.masters = Masters(self.spec, folder, self.told, self._check, adviser, setup.run)
        self.network: Network[VirtualServer] = Network(setup.data_weather, self.chance)
        self.pace = StepTime(setup.job, setup.slots)
        self.pace.serving, self.pace.done = self._serving, lambda: float(self.samples_done)
        self.machines = Machines(
            self._wire, self._program, lambda wanted: setup.starts_s(wanted, self.chance), self.spec.heartbeat_s / 2
        )
        self.keys = counting_oracle.counting_keys(setup.slots, len(setup.wanted))
        self.servers: list[VirtualServer] = []
        self._stores_made: list[_native.Store] = []
        self._rings: dict[int, Ring] = {}
        self._steps: list[int] = []
        self._samples_done = 0
        self.over = asyncio.Event()

    async def run(self) -> VirtualOutcome:
        self.masters.start()
        try:
            return await self._run()
        finally:
            self.machines.end_all()
            self.masters.kill()
            for store in self._stores_made if self.setup.slots < SLOTS else ():
                counting_oracle.reuse(store)

    async def _run(self) -> VirtualOutcome:
        attending = self._loop.create_task(self.machines.attend())
        watching = self._loop.create_task(self._watch())
        done, _ = await asyncio.wait([attending, watching], return_when=asyncio.FIRST_COMPLETED)
        self.over.set()
        watching.cancel()
        if watching in done:
            attending.cancel()
            watching.result()
        status = attending.result()
        await self.masters.present()
        return self._outcome(status)

    def clock(self) -> float:
        return self._loop.time()

    @property
    def ended(self) -> bool:
        """Return True if the job is over; processes lost from now on do not matter."""
        desk = self.masters.desk
        return self.over.is_set() or (desk is not None and desk.state.phase.over)

    async def scale(self, *, workers: int | None = None, servers: int | None = None, why: str) -> None:
        """Scale the job as `springtide scale` or a plan does; BadInput if the job cannot scale now."""
        link = self._wire("plan")
        await link.ask(messages.ScaleRequest(workers=workers, servers=servers, why=why))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(10 * self.spec.heartbeat_s)
            broken = self.masters.broken or next(
                (one.broken for one in self.machines.processes.values() if one.broken), None
            )
            if broken is not None:
                raise broken

    def _wire(self, name: str) -> Wire:
        return Wire(self.masters, name, self.setup.weather, self.chance)

    def _program(self, wanted: WantedRole) -> Program:
        if wanted.role.kind is RoleKind.WORKER:
            holder = LeaseHolder(wanted.role.rank, wanted.incarnation)
            if self.setup.bsp:
                rank = BspWorker(holder, self.card, self.network, self.pace, self.setup.stride_s)
                return rank.use(self._rings, self._steps)
            return VirtualWorker(holder, self.card, self.network, self.pace, self.setup.stride_s, self.setup.log)
        server = VirtualServer(
            wanted.role.rank, wanted.incarnation, self.keys, self.network, self.pace, self.setup.disks, self.chance
        )
        self._stores_made.append(server.store)
        self.servers = [*(one for one in self.servers if one.gates or one.alive), server]
        return server

    def _serving(self) -> ServerCores:
        found = [one.process for one in self.servers if one.alive and one.gates and one.process is not None]
        if not found:
            return ServerCores(1, self.setup.shape.server_cpu)
        return ServerCores(len(found), sum(one.cpu for one in found) / len(found), min(one.speed for one in found))

    @property
    def samples_done(self) -> int:
        """Number of trained samples in the master's ledger; without a master, the last known number."""
        if (desk := self.masters.desk) is not None:
            self._samples_done = desk.record.book.samples_done
        return self._samples_done

    def _check(self, record: JobRecord) -> None:
        job_invariants.check(record.state)
        ledger_invariants.check(record.book)
        alive = [server for server in self.servers if server.alive]
        for slot in range(self.setup.slots):
            owner_of(slot, alive)

    def _stores(self, saved: int | None) -> dict[int, _native.Store]:
        """Return the store of each slot at the end: its owner's, or that of a server that was handing it over.

        The slots of a server lost after the final checkpoint are restored from that checkpoint.
        """
        found: dict[int, _native.Store] = {}
        for slot in range(self.setup.slots):
            kept = (server for server in self.servers if server.moving.keeps(slot))
            if (server := owner_of(slot, self.servers) or next(kept, None)) is not None:
                found[slot] = server.store
        if saved is not None and (lost := [slot for slot in range(self.setup.slots) if slot not in found]):
            last = counting_oracle.new_store(self.setup.slots)
            recovery.restore(last, str(self._folder), saved, lost)
            found |= dict.fromkeys(lost, last)
        return found

    def _outcome(self, status: JobStatus) -> VirtualOutcome:
        record = self.masters.record
        stores = self._stores(record.state.safety.saved if status.phase is JobPhase.FINISHED else None)
        totals, log = record.book.totals(), self.setup.log
        wanted = self.card.epochs * self.card.samples_used if log is None else sum(log.sizes) * log.batch
        return VirtualOutcome(
            name=self.spec.name,
            phase=status.phase,
            why=status.why,
            jct_s=self._loop.time() - self.began,
            samples=totals.samples_done,
            wanted=wanted,
            counts=counting_oracle.count(self.setup.wanted, self.setup.slots, stores),
            relaunches=status.roles.relaunches,
            terms=self.masters.term,
            eras=record.book.era,
            moved=sum(line["slots"] for _, kind, line in self.told.lines if kind == "moved"),
            copies=self.network.copies,
            batches=int(self.setup.wanted.sum()),
            steps=tuple(self._steps),
            told=Counter(kind for _, kind, _ in self.told.lines),
            story=self.told.lines,
        )
