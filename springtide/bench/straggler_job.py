"""The job of `bench straggler`: every batch costs the same processor time, every worker has the same quota at first.

In: how many batches, and for how many workers. Out: a running job that trains once `go` is called, and when each of its
workers trained what. Next: straggler.py (ours), straggler_baselines.py (equal parts, stop and restart).
"""

import pathlib
from collections.abc import Mapping

from springtide import errors
from springtide.domain.checkpoints import CheckpointRules
from springtide.domain.job import JobSpec, Phase
from springtide.testing.cluster import LocalCluster

WORKERS, SLOW = 4, 2
CPU = 0.35  # cores of a worker: four and a server fit into two, and 3% of it is still a quota that the kernel takes
BATCH, BATCH_S = 16, 0.01
ROLES = [f"worker-{rank}" for rank in range(WORKERS)]

SCRIPT = """
import os, pathlib, sys, time
import torch
import springtide as st

torch.set_num_threads(1)
folder, samples, batch, batch_s = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])


class Indices(torch.utils.data.Dataset):
    def __len__(self):
        return samples

    def batch(self, indices):
        return torch.from_numpy(indices)


job = st.join()
model = st.EmbeddingBag(4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, batches = job.prepare(model, optimizer, Indices(), batch_size=batch)
done = os.open(folder / f"trained-{job.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
weights = torch.rand(64, 64)
while not (folder / "go").exists():
    time.sleep(0.02)
for x in batches:
    began = time.thread_time()
    optimizer.zero_grad()
    model(x[:, None] % 1000).sum().backward()
    optimizer.step()
    while time.thread_time() - began < batch_s:  # the rest of what a larger model would compute
        weights = torch.tanh(weights @ weights)
    os.write(done, f"{time.monotonic()}\\n".encode())
"""


def batches_of(seconds: float, capacity: float) -> int:
    """What so many workers at their full quota train in that time."""
    return round(seconds * capacity * CPU / BATCH_S)


def started(
    folder: pathlib.Path, batches: int, *, workers: int = WORKERS, rules: CheckpointRules | None = None
) -> LocalCluster:
    """A job of so many batches, to be entered. It notes what it trained in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    spec = JobSpec(name="straggler", workers=workers, worker_cpu=1.0, checkpoints=rules or CheckpointRules())
    arguments = [str(folder), str(batches * BATCH), str(BATCH), str(BATCH_S)]
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
    if ended.phase is not Phase.FINISHED:
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


def pace(times: list[float], since: float, until: float) -> float:
    """Batches a second."""
    return sum(since <= at < until for at in times) / (until - since)
