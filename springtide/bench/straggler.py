"""One of four workers is throttled in the middle of a job by a real CPU quota: how much longer than ideal does it take?

In: real jobs on this machine (`testing.cluster`). Every batch costs the same processor time, and every worker has the
same quota at first, so that its pace is measured; then one has 3% of it (once more: 25%). Ideal is what is left over
the capacity that is left. Out: `jct_vs_ideal`, and what two baselines would have taken of the same work at the same
paces: equal parts fixed beforehand, and stopping the job to start it again without the slow worker.
"""

import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

from springtide import errors
from springtide.bench import Options, progress, report
from springtide.bench.static_parts import Delays, equal_parts_s, restart_s
from springtide.domain.job import JobSpec, Phase
from springtide.testing.cluster import LocalCluster

WORKERS, SLOW = 4, 2
CPU = 0.35  # cores of a worker: four and a server fit into two, and 3% of it is still a quota that the kernel takes
BATCH, BATCH_S = 16, 0.01
TARGET = 1.15
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long each part takes, at full quota."""

    even_s: float = 20.0
    rest_s: float = 75.0
    runs: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job."""

    slow: float
    """Part of its quota that the slow worker was left."""
    paces: tuple[float, ...]
    """Batches a second of each worker at its full quota: before, or while the slow one was slow, whichever is more."""
    left: int
    """Batches when it was throttled."""
    took_s: float
    """From then to the last batch."""
    noticed_s: float | None
    """From then to the first decision about the slow worker."""

    @property
    def capacity(self) -> tuple[float, ...]:
        """Batches a second that each worker could train since."""
        return tuple(pace * (self.slow if rank == SLOW else 1.0) for rank, pace in enumerate(self.paces))

    @property
    def ideal_s(self) -> float:
        """Work over capacity."""
        return self.left / sum(self.capacity)


def bench(options: Options) -> report.Result:
    """Jobs at 3%, the median counts; and one at 25%."""
    sizes = Sizes(even_s=6.0, rest_s=15.0, runs=1) if options.quick else Sizes()
    delays = Delays.of(options.delays)
    runs: list[Run] = []
    with progress.bar("a job with a straggler", total=sizes.runs + 1) as step:
        for slow in (*[0.03] * sizes.runs, 0.25):
            runs.append(one(slow, sizes))
            step()
    return judge(runs, delays)


def one(slow: float, sizes: Sizes) -> Run:
    """A job that is throttled after a while."""
    batches = round((sizes.even_s * WORKERS + sizes.rest_s * (WORKERS - 1 + slow)) * CPU / BATCH_S)
    spec = JobSpec(name="straggler", workers=WORKERS, worker_cpu=1.0)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "train.py").write_text(SCRIPT)
        arguments = [name, str(batches * BATCH), str(BATCH), str(BATCH_S)]
        with LocalCluster(folder / "train.py", arguments, spec=spec, folder=folder / "runs", grace_s=5.0) as job:
            job.until(lambda _: all((folder / f"trained-{rank}").exists() for rank in range(WORKERS)))
            throttle(job, dict.fromkeys(ROLES, CPU))
            (folder / "go").touch()
            job.until(lambda _: all(trained(folder)))
            began = time.monotonic()
            time.sleep(sizes.even_s)
            throttled_wall = time.time()
            throttled_at = time.monotonic()
            throttle(job, {ROLES[SLOW]: CPU * slow})
            ended = job.wait(within_s=20 * sizes.rest_s)
            decided = [float(str(event["at"])) for event in job.story if resized(event)]
        if ended.phase is not Phase.FINISHED:
            raise errors.JobFailed(f"the job with a straggler has {ended.phase}: {ended.why}")
        times = trained(folder)
    assert sum(map(len, times)) == batches, "not every batch was trained once"
    return Run(
        slow=slow,
        paces=full_paces(times, began, throttled_at),
        left=sum(at >= throttled_at for mine in times for at in mine),
        took_s=max(max(mine) for mine in times) - throttled_at,
        noticed_s=min((at for at in decided if at > throttled_wall), default=throttled_wall) - throttled_wall or None,
    )


def full_paces(times: list[list[float]], began: float, throttled_at: float) -> tuple[float, ...]:
    """The better of two, so that a neighbour who disturbs one of the two phases does not make the ideal look worse."""
    later = sorted(at for mine in times for at in mine if at >= throttled_at)
    until = later[int(0.8 * len(later))]  # by the end, some may have nothing to do
    before = [pace(mine, began, throttled_at) for mine in times]
    after = [pace(mine, throttled_at, until) for mine in times]
    after[SLOW] = statistics.mean(one for rank, one in enumerate(after) if rank != SLOW)
    return tuple(map(max, before, after))


def pace(times: list[float], since: float, until: float) -> float:
    """Batches a second."""
    return sum(since <= at < until for at in times) / (until - since)


def throttle(job: LocalCluster, cores: Mapping[str, float]) -> None:
    """Hold roles to so many cores."""
    for role, cpu in cores.items():
        if not job.throttle(role, cpu):
            raise errors.BadInput("this benchmark needs CPU quotas: run it where control groups may be made, as root")


def trained(folder: pathlib.Path) -> list[list[float]]:
    """When each worker trained its batches."""
    texts = [(folder / f"trained-{rank}").read_text() for rank in range(WORKERS)]
    return [[float(line) for line in text.splitlines()] for text in texts]


def resized(event: Mapping[str, object]) -> bool:
    """Whether an event of the story is a decision about the slow worker's leases."""
    return event["event"] == "decision" and f"leases of {ROLES[SLOW]}" in str(event.get("what"))


def judge(runs: list[Run], delays: Delays) -> report.Result:
    """The goal and the table."""
    rows: list[tuple[str | float | None, ...]] = []
    for slow in (0.03, 0.25):
        some = [run for run in runs if run.slow == slow]

        def row(what: str, seconds: list[float], some: list[Run] = some, slow: float = slow) -> None:
            ours = statistics.median(run.took_s for run in some)
            middle = statistics.median(seconds)
            ideal = statistics.median(one / run.ideal_s for one, run in zip(seconds, some, strict=True))
            rows.append((f"{slow:.0%}: {what}", middle, ideal, f"{ours / middle - 1:+.0%}"))

        row("ideal", [run.ideal_s for run in some])
        row("ours", [run.took_s for run in some])
        row("equal parts", [equal_parts_s(run.left, run.capacity) for run in some])
        row("stop and restart", [restart_s(run.left, run.capacity, run.paces, delays) for run in some])
        zero = Delays(notice_s=delays.notice_s)
        row("the same, delays 0", [restart_s(run.left, run.capacity, run.paces, zero) for run in some])
    ratios = [run.took_s / run.ideal_s for run in runs if run.slow == 0.03]
    noticed = [run.noticed_s for run in runs if run.noticed_s is not None]
    return report.Result(
        goals=(report.goal("jct_vs_ideal", statistics.median(ratios), target=TARGET, better="lower"),),
        rounds=len(ratios),
        columns=("worker-2 has this much CPU", "seconds", "vs ideal", "ours is"),
        rows=tuple(rows),
        notes=(
            f"{WORKERS} workers of {CPU} cores (quota); baselines are computed from the paces measured here, not run",
            f"{delays}; the restarted job has {WORKERS} healthy workers",
            f"smaller leases {max(noticed):.0f} s after the throttling at the latest" if noticed else "never resized",
        ),
        details={"runs": runs, "delays": delays},
    )
