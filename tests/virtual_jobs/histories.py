"""Short random histories of whole jobs in virtual time: some faults in a few seconds, and the violations at the end.

In: a seed, or a `Case`. Out: a `History` with its violations and its events. A case is plain data, so `search` can
leave faults out until only those remain that matter. Everything but machines, network, disks and time is real.
"""

import asyncio
import pathlib
import random
import shutil
import tempfile
import time
import types
from collections import Counter
from dataclasses import dataclass, field, replace

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer import claims
from springtide.domain.core import roles
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase
from springtide.master.checkpoint import round as checkpoint_round
from springtide.sim.world import parameters, workload
from springtide_lab.reproduce.dlrover_rm.testbed import WORLD
from tests.virtual_jobs import counting_oracle, virtual_loop
from tests.virtual_jobs.faults import FaultBounds, FaultRates, JobFaults
from tests.virtual_jobs.job import Setup, VirtualJob, VirtualOutcome
from tests.virtual_jobs.master_connection import Weather
from tests.virtual_jobs.network import DataWeather
from tests.virtual_jobs.server import Disks, VirtualServer

MODEL = parameters.MODELS["widedeep"]
LONGEST_S = 600.0
BOUNDS = FaultBounds(workers=(1, 3), servers=(1, 3), silence_s=4.0, slow_s=2.0, master_s=0.5)
KINDS = {
    "kill_worker": 3,
    "kill_server": 6,
    "kill_master": 3,
    "evict": 1,
    "cut_off": 2,
    "cut_data": 2,
    "slow_worker": 1,
    "slow_server": 1,
    "full_memory": 1,
    "full_store": 2,
    "scale_workers": 2,
    "scale_servers": 5,
    "lose_file": 3,
    "tear_file": 1,
    "flip_bit": 1,
    "resume": 3,
    "second_job": 2,
}
"""Kinds of faults, with their frequency."""
STREAMS = 0.2  # share of jobs that train on a stream
GROUPS = 0.4  # share of the others that are bsp groups
RAM = pathlib.Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to the job at a time, in seconds. `seed` chooses to whom."""

    at: float
    kind: str
    seed: int


@dataclass(frozen=True, slots=True)
class Case:
    """The job and the faults of a history."""

    seed: int
    setup: Setup
    faults: tuple[Fault, ...]


@dataclass(slots=True)
class History:
    """The events of a run, and its violations."""

    case: Case
    violations: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    events: list[tuple[float, str, str, dict[str, object]]] = field(default_factory=list)
    """Time, run, kind and details of each event."""
    moves: int = 0
    """Number of requests that masters answered."""

    @property
    def story(self) -> list[tuple[float, str, str]]:
        """Return the events in the order of time, with their details as text."""
        return sorted((at, run, f"{kind} {_words(details)}") for at, run, kind, details in self.events)


def draw(seed: int) -> Case:
    """Return the case of a seed: a small job, its network, and some faults."""
    chance = random.Random(seed)
    stream = chance.random() < STREAMS
    bsp = not stream and chance.random() < GROUPS
    steps, within_s = (chance.randint(5, 9), 2.0) if bsp else (chance.randint(3, 6), 1.5)
    shape = replace(MODEL.tuned, workers=chance.choice([1, 1, 2, 2, 3]), servers=chance.choice([1, 1, 2, 2, 3]))
    setup = Setup(
        job=workload.one(WORLD, MODEL, requested=shape, steps=steps),
        shape=shape,
        seed=seed,
        slots=4,
        stride_s=0.0,
        run="run1",
        bsp=bsp,
        relaunches=10**6,
        silence_s=3.0,
        save_every_s=chance.choice([0.3, 0.8, 2.0]),
        weather=Weather(late_s=chance.choice([0.001, 0.05]), lost=chance.choice([0.0, 0.05])),
        data_weather=DataWeather(
            late_s=chance.choice([0.0, 0.01, 0.1]),
            lost=chance.choice([0.0, 0.05]),
            twice=chance.choice([0.0, 0.1]),
            later_s=chance.choice([0.5, 3.0]),
            broken=chance.choice([0.0, 0.1]),
        ),
        disks=Disks(save_s=chance.choice([0.02, 0.3]), restore_s=chance.choice([0.05, 0.3]), move_s=0.02),
        starts_s=lambda wanted, chance: chance.uniform(0.05, 0.3),
    )
    if stream:
        sizes = tuple(chance.randint(1, 4) for _ in range(2))
        setup = replace(setup, log=counting_oracle.VirtualLog(sizes, setup.card.batch_size))
    count = chance.choice([1, 2, 2, 3, 3, 4])
    kinds = chance.choices(list(KINDS), list(KINDS.values()), k=count)
    if setup.bsp:  # a full server ends a group in another way, which is not simulated
        kinds = ["kill_server" if kind == "full_store" else kind for kind in kinds]
    if setup.log is not None and chance.random() < 0.5:
        kinds.append("resume")
    faults = sorted(
        (Fault(round(chance.uniform(0.1, within_s), 3), kind, chance.getrandbits(32)) for kind in kinds),
        key=lambda fault: fault.at,
    )
    return Case(seed, setup, tuple(faults))


def happen(case: Case) -> History:
    """Run a case."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="history-", dir=RAM if RAM.is_dir() else None))
    least, roles.LEAST_SLOTS = roles.LEAST_SLOTS, 1
    history = History(case)
    real = checkpoint_round.time, claims.time
    checkpoint_round.time = claims.time = _CLOCK  # type: ignore[assignment]
    try:
        virtual_loop.run(World(history, folder).live())
    except (AssertionError, TimeoutError, virtual_loop.Stuck, errors.SpringtideError) as error:
        history.violations.append(f"{type(error).__name__}: {error}")
    finally:
        roles.LEAST_SLOTS, (checkpoint_round.time, claims.time) = least, real
        shutil.rmtree(folder, ignore_errors=True)
    return history


def _now() -> float:
    return asyncio.get_running_loop().time()


def _wait(seconds: float) -> None:
    raise AssertionError("a simulated master may not wait in a thread")


_CLOCK = types.SimpleNamespace(time=_now, monotonic=_now, sleep=_wait, strftime=time.strftime, localtime=time.localtime)
"""The module `time` in virtual time, for the modules that call it."""


class World:
    """The folder of checkpoints, and the runs that use it."""

    def __init__(self, history: History, folder: pathlib.Path) -> None:
        self._history, self._folder = history, folder
        self._runs: list[Run] = []
        self.damaged_at: float | None = None
        """When a file was last damaged."""
        self._flipped = False

    async def live(self) -> None:
        case = self._history.case
        self._begin(case.setup)
        faults = asyncio.create_task(self._strike())
        try:
            async with asyncio.timeout(LONGEST_S):
                for run in self._runs:  # grows
                    await run.over()
                    while self._runs[-1].given_up:  # the next run begins soon
                        await virtual_loop.sleep(0.1)
        finally:
            faults.cancel()
            self._tell()
        for run in self._runs:
            self._judge(run)
        self._check_folder()

    # ---- runs ----

    def _begin(self, setup: Setup, folder: pathlib.Path | None = None, *, second: bool = False) -> None:
        job = VirtualJob(setup, folder or self._folder)
        self._runs.append(Run(job, asyncio.create_task(job.run()), second=second))

    @property
    def _run(self) -> "Run":
        return next(run for run in reversed(self._runs) if not run.second)

    def _tell(self) -> None:
        for job in (run.job for run in self._runs):
            self._history.events += [(job.began + at, job.setup.run, kind, line) for at, kind, line in job.told.lines]
            self._history.moves += job.masters.answered

    def _judge(self, run: "Run") -> None:
        job = run.job
        if run.given_up or (run.refused and run.second):
            return
        name, outcome = job.setup.run, run.outcome
        if outcome is None and not self._is_excused(run):
            self._history.violations.append(f"{name}: {run.refused}")
        elif outcome is not None and outcome.phase is not JobPhase.FINISHED:
            if not self._is_excused(run):
                self._history.violations.append(f"{name}: {outcome.phase}: {outcome.why}")
        elif outcome is not None and not outcome.right:
            self._history.violations.append(
                f"{name}: {outcome.samples} of {outcome.wanted} samples; {outcome.counts} {outcome.steps}"
            )

    def _is_excused(self, run: "Run") -> bool:
        """Return True if a job may fail, because no complete checkpoint was begun after files were damaged.

        Servers look for lost and torn files whenever they save. Changed bytes show only when a checkpoint is read.
        """
        log, outcome = run.job.setup.log, run.outcome
        if log is not None and log.life and outcome is not None and "was recreated" in outcome.why:
            return True
        if self.damaged_at is None:
            return False
        saved = [line for _, kind, line in run.job.told.lines if kind == "checkpoint" and line["outcome"] == "complete"]
        return self._flipped or not any(line["begun_at"] > self.damaged_at for line in saved)

    def _check_folder(self) -> None:
        """Check that the newest checkpoint can be read if it was begun after files were damaged."""
        place = FolderStore(self._folder)
        for number in checkpoint_io.numbers(place)[:1]:
            manifest = checkpoint_io.manifest_of(place, number)
            if manifest.begun_at > (self.damaged_at or 0.0) and not self._flipped:
                try:
                    checkpoint_io.read(place, number)
                    checkpoint_io.verify(place, manifest, range(manifest.slots))
                except (errors.BadInput, OSError) as error:
                    self._history.violations.append(f"checkpoint {number} is complete on paper only: {error}")

    # ---- faults ----

    async def _strike(self) -> None:
        for fault in self._history.case.faults:
            await virtual_loop.sleep(max(0.0, fault.at - asyncio.get_running_loop().time()))
            job = self._run.job
            if job.ended:
                return
            chance = random.Random(fault.seed)
            if own := getattr(self, f"_{fault.kind}", None):
                done = await own(job, chance)
            else:
                done = await JobFaults(job, FaultRates(), BOUNDS, fault.seed).strike(fault.kind)
            if done:
                self._history.happened[fault.kind] += 1
                to = {} if done is True else {"of": done}
                self._history.events.append((fault.at, "fault", fault.kind, to))

    async def _cut_data(self, job: VirtualJob, chance: random.Random) -> str:
        servers = [one for one in job.servers if one.alive]
        if not servers:
            return ""
        job.network.cut_off(server := chance.choice(servers), job.clock() + chance.uniform(0.1, 3.0))
        return str(server.role)

    async def _full_store(self, job: VirtualJob, chance: random.Random) -> str:
        servers = [one for one in job.servers if one.alive and one.gates]
        if not servers:
            return ""
        server: VirtualServer = chance.choice(servers)
        counting_oracle.fill(server.store, job.setup.slots)
        asyncio.get_running_loop().call_later(chance.uniform(0.2, 2.0), _kill, server)
        return str(server.role)

    async def _lose_file(self, job: VirtualJob, chance: random.Random) -> str:
        return self._damage(chance, lambda path: path.unlink())

    async def _tear_file(self, job: VirtualJob, chance: random.Random) -> str:
        return self._damage(chance, lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]))

    async def _flip_bit(self, job: VirtualJob, chance: random.Random) -> str:
        def flip(path: pathlib.Path) -> None:
            content = bytearray(path.read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(content)
            self._flipped = True

        return self._damage(chance, flip)

    def _damage(self, chance: random.Random, how: object) -> str:
        files = sorted(self._folder.glob("*.seg"))
        if not files:
            return ""
        path = chance.choice(files)
        how(path)  # type: ignore[operator]
        self.damaged_at = asyncio.get_running_loop().time()
        return path.name

    async def _second_job(self, job: VirtualJob, chance: random.Random) -> str:
        """Start another job with the same name and folder, on another machine."""
        self._begin(replace(job.setup, run=f"other{len(self._runs)}"), second=True)
        return self._runs[-1].job.setup.run

    async def _resume(self, job: VirtualJob, chance: random.Random) -> str:
        """Kill everything, and start a new run from the last checkpoint, which takes the folder over."""
        self._run.give_up()
        await virtual_loop.sleep(chance.uniform(0.01, 0.5))
        found = checkpoint_io.latest(FolderStore(self._folder))
        log, anew = job.setup.log, ""
        if log is not None and chance.random() < 0.5 and log.life + 1 < counting_oracle.LIVES:
            sizes, anew = tuple(chance.randint(1, 4) for _ in log.sizes), ", on a log that was made anew"
            log = counting_oracle.VirtualLog(sizes, log.batch, log.life + 1)
        run, folder, rules = f"run{len(self._runs) + 1}", None, CheckpointRules()
        if found.manifest is None:
            folder = self._folder / run
        else:
            rules = CheckpointRules(
                resume=str(self._folder),
                resume_number=found.manifest.number,
                resume_run=found.manifest.run,
                numbers_after=max(checkpoint_io.numbers(found.place)),
            )
        self._begin(replace(job.setup, run=run, resumed=rules, log=log), folder)
        return f"{run} from {rules.resume_number or 'the beginning'}{anew}"


class Run:
    """One run of a job."""

    def __init__(self, job: VirtualJob, task: asyncio.Task[VirtualOutcome], *, second: bool) -> None:
        self.job, self._task, self.second = job, task, second
        self.given_up = False
        self.refused = ""
        self.outcome: VirtualOutcome | None = None

    def give_up(self) -> None:
        self.given_up = True
        self._task.cancel()
        self.job.machines.end_all()
        self.job.masters.kill()

    async def over(self) -> None:
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return
        error = self._task.exception()
        if isinstance(error, errors.BadInput | OSError):
            self.refused = str(error)
        elif error is not None:
            raise error
        else:
            self.outcome = self._task.result()


def _kill(server: VirtualServer) -> None:
    if server.process is not None:
        server.process.kill()


def _words(line: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in line.items())
