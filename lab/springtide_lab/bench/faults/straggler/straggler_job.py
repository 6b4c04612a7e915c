"""The job of `bench straggler`: every worker has the same quota at first, and notes when it trained what.

In: a kind of work (workload.py), how many batches, and for how many workers. Out: a running job that trains once
`go` is called. Next: straggler.py (ours), baselines.py (equal parts, stop and restart).
"""

import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence

from springtide import errors
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench.faults.straggler.workload import KINDS

WORKERS, SLOW = 4, 2
CPU = 0.35  # cores of a worker: four and a server fit into two, and 3% of it is still a quota that the kernel takes
ROLES = [f"worker-{rank}" for rank in range(WORKERS)]
EVEN_PACE = CPU / KINDS["even"].batch_s
"""Batches a second of a worker whose batches all cost the same."""
WARM_S, TRY_S = 1.0, 5.0

SCRIPT = """
import os, pathlib, sys, time
import torch
import springtide as st
from springtide_lab.bench.faults.straggler.workload import KINDS

torch.set_num_threads(1)
torch.manual_seed(0)
folder, shared, work = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), KINDS[sys.argv[3]]
job = st.join()
model = work.model()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
data = work.data(shared, int(sys.argv[4]) * work.batch)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=work.batch)
done = os.open(folder / f"trained-{job.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
weights = torch.rand(64, 64)
while not (folder / "go").exists():
    time.sleep(0.02)
for batch in batches:
    began = time.thread_time()
    optimizer.zero_grad()
    work.loss(model, batch).backward()
    optimizer.step()
    while time.thread_time() - began < work.batch_s:  # the rest of what a larger model would compute
        weights = torch.tanh(weights @ weights)
    os.write(done, f"{time.monotonic()}\\n".encode())
"""


def started(
    folder: pathlib.Path, kind: str, batches: int, *, workers: int = WORKERS, rules: CheckpointRules | None = None
) -> LocalCluster:
    """A job of so many batches, to be entered. It notes what it trained in `folder`; data lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    spec = JobSpec(name="straggler", workers=workers, worker_cpu=1.0, checkpoints=rules or CheckpointRules())
    arguments = [str(folder), str(folder.parent), kind, str(batches)]
    return LocalCluster(folder / "train.py", arguments, spec=spec, folder=folder / "runs", grace_s=5.0)


def until_ready(job: LocalCluster, folder: pathlib.Path, workers: int = WORKERS) -> None:
    """Every worker waits for `go`."""
    job.until(lambda _: all((folder / f"trained-{rank}").exists() for rank in range(workers)))


def go(folder: pathlib.Path) -> None:
    """Let them train."""
    (folder / "go").touch()


def until_ended(job: LocalCluster, within_s: float) -> None:
    """To the last batch."""
    ended = job.wait(within_s=within_s)
    if ended.phase is not JobPhase.FINISHED:
        raise errors.JobFailed(f"the job with a straggler has {ended.phase}: {ended.why}")


def throttle(job: LocalCluster, cores: Mapping[str, float]) -> None:
    """Hold roles to so many cores."""
    for role, cpu in cores.items():
        if not job.throttle(role, cpu):
            raise errors.BadInput("this benchmark needs CPU quotas: run it where control groups may be made, as root")


def trained(folder: pathlib.Path, workers: int = WORKERS) -> list[list[float]]:
    """When each worker trained its batches."""
    texts = [(folder / f"trained-{rank}").read_text() for rank in range(workers)]
    return [[float(line) for line in text.splitlines()] for text in texts]


def pace(times: Sequence[float], since: float, until: float) -> float:
    """Batches a second."""
    return sum(since <= at < until for at in times) / (until - since) if until > since else 0.0


def healthy_pace(times: Sequence[Sequence[float]], since: float, until: float) -> float:
    """The same of those that were never throttled, on average."""
    return statistics.mean(pace(mine, since, until) for rank, mine in enumerate(times) if rank != SLOW)


def tried_pace(kind: str) -> float:
    """Batches a second of one worker alone at its full quota: what a model costs on this machine nobody knows."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "job"
        with started(folder, kind, 1_000_000, workers=1) as job:
            until_ready(job, folder, workers=1)
            throttle(job, {ROLES[0]: CPU})
            go(folder)
            job.until(lambda _: all(trained(folder, workers=1)))
            since = time.monotonic() + WARM_S
            job.until(lambda _: time.monotonic() > since + TRY_S)
            return pace(trained(folder, workers=1)[0], since, since + TRY_S)
