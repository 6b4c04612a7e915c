"""Measure a real job with CPU quotas of fractions of a core, shape by shape: WideDeep on generated clicks.

In: shapes. Out: `QuotaProfile`s, with profiles and the cores that the roles really used (a quota is only an upper
limit). The tables are large, so that servers use about a fifth of the CPU of the workers.
"""

import itertools
import pathlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import ModelFacts, Profile, TimingSum
from springtide.domain.spec.job_spec import GuardRules, JobSpec, SyncMode
from springtide.domain.spec.planning_config import PlanRules
from springtide.master.autoscale import job_view
from springtide.planning.perf_model import profiles
from springtide.planning.perf_model.profiles import WorkerReading
from springtide.rpc.messages.types import JobStatus
from springtide.testing.cluster import LocalCluster
from springtide.zoo.clicklog.dataset import ClickLog
from springtide.zoo.clicklog.population import LogSpec
from springtide_lab.bench.core import jobs

BATCH, DIM, HIDDEN, SAMPLES = 512, 64, (64, 32), 40_000
SPEC = LogSpec(seed=7, cardinalities=(100_000, 50_000, *(2_000,) * 12, *(10_000,) * 12), zipf=0.8)
LOOK_S = 0.1

SCRIPT = """
import dataclasses, json, pathlib, sys, time
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
import springtide as st
from springtide_lab.bench.core import quota_job
from springtide.zoo.models import WideDeep

torch.set_num_threads(1)
torch.manual_seed(0)
data, told_in = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
job = st.join()
model = WideDeep(quota_job.SPEC.cardinalities, dim=quota_job.DIM, hidden=quota_job.HIDDEN, sparse=True)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
batches = job.prepare(model, optimizer, quota_job.clicks(data), batch_size=quota_job.BATCH, epochs=10_000)
model, optimizer, batches = batches
told = 0.0
with open(told_in / f"told-{job.rank}", "a", buffering=1) as file:
    for x, y in batches:
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()
        now = time.time()
        if now - told > 0.5:
            told = now
            print(json.dumps([now, dataclasses.asdict(job.meter.collect())]), file=file)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Durations for each shape, in seconds."""

    settle_s: float = 3.0
    measure_s: float = 10.0
    window_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaProfile:
    """Measurements of one shape."""

    shape: Shape
    profiles: tuple[Profile, ...]
    worker_used: float
    """Cores used by all workers together."""
    server_used: float

    @property
    def speed(self) -> float | None:
        """Samples per second: the median over the windows, or None without any."""
        speeds = [self.shape.workers * BATCH / profile.step_s for profile in self.profiles if profile.step_s > 0]
        return median(speeds) if speeds else None


def clicks(folder: pathlib.Path) -> ClickLog:
    """Return the click log, whose files all workers and jobs share."""
    return ClickLog(SAMPLES, spec=SPEC, folder=folder / "clicks")


def short(shape: Shape) -> str:
    return f"{shape.workers}x{shape.worker_cpu:.3g} + {shape.servers}x{shape.server_cpu:.3g}"


def facts() -> ModelFacts:
    fields = len(SPEC.cardinalities)
    widths = [fields * DIM + SPEC.dense, *HIDDEN, 1]
    weights = sum((before + 1) * after for before, after in itertools.pairwise(widths)) + SPEC.dense + 1
    return ModelFacts(dense_bytes=4.0 * weights, bandwidth=job_view.BANDWIDTH, dim=fields * (DIM + 1), batch=BATCH)


class QuotaJob:
    """A WideDeep job with CPU quotas. A `with` statement starts and ends the job. Consecutive jobs may share the
    folder.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        first: Shape,
        *,
        name: str,
        planning: PlanRules | None = None,
        sync: SyncMode = "async",
    ) -> None:
        self._told_in = folder / name
        self._told_in.mkdir()
        whole = planning is None  # start each process with a whole core, so that its imports do not take minutes
        spec = JobSpec(
            name=name,
            workers=first.workers,
            servers=first.servers,
            worker_cpu=1.0 if whole else first.worker_cpu,
            server_cpu=1.0 if whole else first.server_cpu,
            guards=GuardRules(memory=False, servers=False),
            planning=planning or PlanRules(),
            sync=sync,
        )
        self.cluster = jobs.prepared(folder, SCRIPT, [folder, self._told_in], spec)
        self._changes: list[tuple[float, Shape]] = []
        self._used: dict[Shape, list[tuple[float, float]]] = {}

    def __enter__(self) -> "QuotaJob":
        self.cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.__exit__()

    def trains(self, workers: int) -> None:
        told = [self._told_in / f"told-{rank}" for rank in range(workers)]
        self.cluster.until(lambda _: all(path.exists() and path.stat().st_size for path in told))

    def become(self, shape: Shape) -> None:
        """Change the job to this shape: scale to its numbers of roles, then set the CPU quotas of the roles."""
        status = self.cluster.status
        if (status.roles.workers.wanted, status.roles.servers.wanted) != (shape.workers, shape.servers):
            asked, known, same = time.time(), len(self.cluster.moves()), status.roles.servers.wanted == shape.servers
            self.cluster.scale(shape.workers, servers=shape.servers)
            self.cluster.until(lambda now: there(now, shape) and self._all_train(now, asked))
            self.cluster.until(lambda now: same or self.cluster.settled(now, shape.servers, known=known))
        roles = {f"worker-{rank}": shape.worker_cpu for rank in ranks(self.cluster.status, RoleKind.WORKER)}
        roles |= {f"server-{rank}": shape.server_cpu for rank in ranks(self.cluster.status, RoleKind.SERVER)}
        jobs.hold(self.cluster, roles)

    def let_go(self) -> None:
        """Raise every quota to a whole core, so that roles start, stop and move slots quickly."""
        for kind in (RoleKind.WORKER, RoleKind.SERVER):
            for rank in ranks(self.cluster.status, kind):
                self.cluster.throttle(f"{kind}-{rank}", 1.0)

    def _all_train(self, status: JobStatus, since: float) -> bool:
        told = [self._told_in / f"told-{rank}" for rank in ranks(status, RoleKind.WORKER)]
        return all(path.exists() and path.stat().st_mtime > since for path in told)

    def measure(self, shape: Shape, times: Times) -> None:
        self.become(shape)
        self._changes.append((time.time(), shape))
        time.sleep(times.settle_s)
        self._used.setdefault(shape, []).append(used(self.cluster, times.measure_s))

    def taken(self, times: Times) -> list[QuotaProfile]:
        rules = PlanRules(settle_s=times.settle_s, window_s=times.window_s, warm_up_steps=10)
        readings = [reading for path in sorted(self._told_in.glob("told-*")) for reading in read(path)]
        ends = [*(at for at, _ in self._changes[1:]), float("inf")]
        found = [
            profile
            for (since, shape), end in zip(self._changes, ends, strict=True)
            for profile in profiles.observe(
                [reading for reading in readings if reading.at < end],
                shape,
                since=since,
                batch=BATCH,
                rules=rules,
                fewest_steps=2,
            )
        ]
        return [
            QuotaProfile(
                shape=shape,
                profiles=tuple(one for one in found if one.shape == shape),
                worker_used=sum(workers for workers, _ in some) / len(some),
                server_used=sum(servers for _, servers in some) / len(some),
            )
            for shape, some in self._used.items()
        ]

    def rate(self, since: float, until: float) -> float:
        """Return the samples per second of all workers between two moments."""
        total = 0.0
        for path in self._told_in.glob("told-*"):
            within = [one for one in read(path) if since <= one.at <= until]
            if len(within) > 1 and within[-1].at > within[0].at:
                gained = within[-1].timing.samples - within[0].timing.samples
                total += max(0, gained) / (within[-1].at - within[0].at)
        return total


def there(status: JobStatus, shape: Shape) -> bool:
    """Return True if all roles of the shape run and have joined, and no slot is moving."""
    wanted = (shape.workers, shape.servers)
    return (
        (status.roles.workers.alive, status.roles.servers.alive)
        == (status.roles.workers.wanted, status.roles.servers.wanted)
        == wanted
        and all(member.joined for member in status.members if member.alive)
        and not status.roles.slots_moving
    )


def ranks(status: JobStatus, kind: RoleKind) -> list[int]:
    return [member.role.rank for member in status.members if member.role.kind is kind and member.alive]


def read(path: pathlib.Path) -> list[WorkerReading]:
    """Return the readings in a worker's file, without its last line, which may be incomplete."""
    whole = path.read_text().rpartition("\n")[0].splitlines()
    lines = [msgspec.json.decode(line, type=tuple[float, TimingSum]) for line in whole]
    rank = int(path.name.rpartition("-")[2])
    return [WorkerReading(at=at, worker=rank, timing=timing) for at, timing in lines]


def used(job: LocalCluster, seconds: float) -> tuple[float, float]:
    """Return the cores that all workers and all servers used during `seconds`, from the kernel's CPU counters."""
    first: dict[Role, tuple[float, float]] = {}
    last: dict[Role, tuple[float, float]] = {}
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        for member in job.status.members:
            if member.usage is not None and member.alive:
                known = last.get(member.role)
                if known is None or member.usage.cpu_s != known[1]:
                    last[member.role] = (now, member.usage.cpu_s)
                    first.setdefault(member.role, last[member.role])
        time.sleep(LOOK_S)
    sums = dict.fromkeys((RoleKind.WORKER, RoleKind.SERVER), 0.0)
    for role, (at, cpu_s) in last.items():
        began, before = first[role]
        if at > began and role.kind in sums:
            sums[role.kind] += (cpu_s - before) / (at - began)
    return sums[RoleKind.WORKER], sums[RoleKind.SERVER]


def measured(folder: pathlib.Path, shapes: Sequence[Shape], times: Times) -> list[QuotaProfile]:
    """Measure one job in shapes with equal numbers of roles: first forwards, then backwards, so that a drift of the
    machine's speed cancels out.
    """
    first = shapes[0]
    name = f"quota-{first.workers}-{first.servers}"
    with QuotaJob(folder, first, name=name) as job:
        job.trains(first.workers)
        for shape in (*shapes, *reversed(shapes)):
            job.measure(shape, times)
        return job.taken(times)
