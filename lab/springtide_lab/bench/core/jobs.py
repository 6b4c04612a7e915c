"""Start the subject of a benchmark: a real job on this machine, or a worker with servers but without a master.

`prepared` returns a job that runs a script. `SCRIPT` is a training script that records when each step ended. `job`
returns the same kind of object as `st.join()`, connected to servers (core/server_process.py).
"""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from springtide import config, errors
from springtide.checkpoint.format import checkpoint_io
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import Placement
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec, SyncMode
from springtide.platforms.agent import run_plan
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.local.fork_server import ForkServerClient
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.rpc.messages.types import JobStatus
from springtide.testing.cluster import LocalCluster
from springtide.worker.job import Job
from springtide.worker.link.master_link import LocalMaster, local_link
from springtide_lab.bench.core import peers

SECRET = b"no secret between processes of one benchmark"
SLOTS = 1024


class ServedMaster(LocalMaster):
    """Local master of a worker whose tables are on servers."""

    def __init__(self, settings: config.Settings, addresses: Sequence[str], sync: SyncMode) -> None:
        super().__init__(settings)
        self._addresses, self._sync = tuple(addresses), sync

    def welcome(self) -> WorkerWelcome:
        welcome = super().welcome()
        return msgspec.structs.replace(
            welcome,
            spec=dataclasses.replace(welcome.spec, slots=SLOTS, sync=self._sync),
            servers=self._addresses,
            placement=placement(len(self._addresses)),
            secret=SECRET,
        )


def placement(servers: int) -> Placement:
    return Placement(epoch=1, servers=servers, server_of_slot=tuple(slot % servers for slot in range(SLOTS)))


def job(addresses: Sequence[str], *, sync: SyncMode = "async") -> Job:
    settings = config.load()
    return Job(settings, local_link(settings, ServedMaster(settings, addresses, sync)))


def start(stack: contextlib.ExitStack, servers: int = 1) -> list[peers.Worker]:
    return [
        stack.enter_context(peers.Worker("core/server_process", options={"index": index, "servers": servers}))
        for index in range(servers)
    ]


@contextlib.contextmanager
def running(*, servers: int) -> Iterator[Job]:
    with contextlib.ExitStack() as stack:
        yield job([str(server.ask("round")["address"]) for server in start(stack, servers)])


BATCH = 64
SCRIPT = """
import os, pathlib, sys, time
import torch
import springtide as st

folder, rows, dim = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ids, pause_s = (int(sys.argv[4]), float(sys.argv[5])) if len(sys.argv) > 5 else (8, 0.0)
torch.set_num_threads(1)


class Ids(torch.utils.data.Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        return index, (index * 7919 + torch.arange(ids) * 104729) % rows


job = st.join()
model = torch.nn.EmbeddingBag(rows, dim, mode="sum")
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
model, optimizer, batches = job.prepare(model, optimizer, Ids(), batch_size=BATCH, shuffle=False)
steps = os.open(folder / f"steps-{job.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for indices, x in batches:
    time.sleep(pause_s)
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    os.write(steps, f"{time.time()} {int(indices[0])} {os.getpid()}\\n".encode())
""".replace("BATCH", str(BATCH))


class TrainedBatch(NamedTuple):
    """One trained batch: the time at which its step ended, the index of its first sample, the process that trained
    it."""

    at: float
    first: int
    pid: int


def trained(folder: pathlib.Path) -> list[list[TrainedBatch]]:
    """Return each worker's batches. The last line of a file is skipped, because it may be half written."""
    lines = [path.read_text().splitlines()[:-1] for path in sorted(folder.glob("steps-*"))]
    words = [[line.split() for line in some] for some in lines]
    return [[TrainedBatch(float(at), int(first), int(pid)) for at, first, pid in some] for some in words]


def steps(folder: pathlib.Path) -> list[list[float]]:
    """Return the times at which each worker's steps ended."""
    return [[batch.at for batch in worker] for worker in trained(folder)]


def merged(folder: pathlib.Path) -> list[float]:
    return sorted(at for worker in steps(folder) for at in worker)


WITHIN_S = 60.0


@contextlib.contextmanager
def warmed_up() -> Iterator[ForkServerClient]:
    plan = RunPlan(spec=JobSpec(name="bench"), script="train.py")
    environment = config.child_environment({}, run_plan.environment_of(plan, ProcessLimits()))
    with contextlib.closing(ForkServerClient()) as warm:
        warm.begin(environment)
        deadline = time.monotonic() + WITHIN_S
        while not warm.suits(environment) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield warm


EVERY_S = 3600.0
"""Seconds between periodic checkpoints: long enough that none is written during a measurement."""


def stop_job(job: LocalCluster) -> CheckpointRules:
    """Stop a job after its current batches and a last checkpoint; return the rules to resume from that checkpoint."""
    job.stop("to be started again")
    last = job.wait().checkpoints.number
    folder = str((job.files.root / "checkpoints").absolute())
    run = checkpoint_io.read(folder, last).run
    return CheckpointRules(every_s=EVERY_S, resume=folder, resume_number=last, resume_run=run)


def prepared(
    folder: pathlib.Path,
    script: str,
    arguments: Sequence[object],
    spec: JobSpec,
    *,
    grace_s: float = 5.0,
    warm: ForkServerClient | None = None,
) -> LocalCluster:
    """Return a job that runs this script; use it as a context. The job stores its runs in `folder`."""
    (folder / "train.py").write_text(script)
    words = [str(argument) for argument in arguments]
    return LocalCluster(folder / "train.py", words, spec=spec, folder=folder / "runs", grace_s=grace_s, warm=warm)


def finished(job: LocalCluster, within_s: float | None = None) -> JobStatus:
    """Wait until a job ends; raise JobFailed unless its phase is FINISHED."""
    status = job.wait() if within_s is None else job.wait(within_s=within_s)
    if status.phase is not JobPhase.FINISHED:
        raise errors.JobFailed(f"the job of the benchmark has {status.phase}: {status.why}")
    return status


def hold(job: LocalCluster, cores: Mapping[str, float]) -> None:
    for role, cpu in cores.items():
        if not job.throttle(role, cpu):
            raise errors.BadInput(
                "this benchmark needs CPU quotas: run it as root, where control groups can be created"
            )
