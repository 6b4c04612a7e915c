"""Measure the overhead of Ray and Kubernetes over local processes: one job on each platform, in alternating rounds.

In: a training script that computes all the time. Out: `ray_vs_local` and `k8s_vs_local` (ratios of samples/s), and the
time from submission to the first step.
"""

import functools
import importlib.util
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import logs
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, report
from springtide_lab.testing.ray_cluster import RayWorld

WORKER, LINES = "worker-0", 1000
BATCH = 512
MARK = "measured "
PATIENCE_S = 120.0
LOOK_S = 1.0  # seconds between polls of the status, which cost more on some platforms than on others
TARGET = 0.95
OTHERS = ("ray", "k8s")
SCRIPT = """
import json, sys, time
import torch
from torch import nn
import springtide as st

samples = int(sys.argv[1])


class Clicks(torch.utils.data.Dataset):
    def __len__(self):
        return samples

    def __getitems__(self, indices):
        made = torch.Generator().manual_seed(indices[0])
        ids = torch.randint(0, 1 << 20, (len(indices), 8), generator=made)
        return [(row, (row.sum() & 1).float()) for row in ids]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = st.EmbeddingBag(16)
        self.top = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids):
        return self.top(self.table(ids)).squeeze(1)


job = st.join()
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, batches = job.prepare(model, optimizer, Clicks(), batch_size=BATCH)
loss_of, times = nn.BCEWithLogitsLoss(), []
for ids, clicked in batches:
    optimizer.zero_grad()
    loss_of(model(ids), clicked).backward()
    optimizer.step()
    times.append(time.time())
warm = len(times) // 5  # of which connections and pages are new
rate = BATCH * (len(times) - 1 - warm) / (times[-1] - times[warm]) if len(times) > 10 else 0.0
print("measured " + json.dumps({"first_at": times[0] if times else 0.0, "rate": rate}), flush=True)
""".replace("BATCH", str(BATCH))


class Ran(NamedTuple):
    """The time at which a job was submitted, and the lines that its worker printed."""

    submitted_at: float
    lines: Sequence[str]


Run = Callable[[RunPlan], Ran]
"""Function that starts a platform, runs a job on the platform to its end, and stops the platform again, because idle
platforms would cause load.
"""


def run_locally(folder: pathlib.Path, plan: RunPlan) -> Ran:
    """Run a job as `springtide run` does, without a terminal."""
    submitted_at = time.time()
    job = LocalCluster(plan.script, plan.arguments, spec=plan.spec, folder=folder / "runs", grace_s=plan.grace_s)
    with job:
        until_over(lambda: job.status)
        job.wait()
    return Ran(submitted_at, logs.tail(job.files.logs / f"{WORKER}.log", LINES))


def run_on_ray(plan: RunPlan) -> Ran:
    """Run a job in a new cluster: a head and two nodes."""
    with RayWorld(nodes=2) as world:
        submitted_at = time.time()
        name = world.do("submit", plan)
        until_over(lambda: world.do("status", name))
        world.do("wait", name)
        return Ran(submitted_at, world.do("logs", name, WORKER, LINES))


def run_on_kubernetes(folder: pathlib.Path, plan: RunPlan) -> Ran:
    """Run a job in a new cluster of three nodes."""
    from springtide_lab.bench.control import platform_pods  # needs aiohttp

    with platform_pods.cluster(folder) as submit:
        submitted_at = time.time()
        job = submit(plan)
        until_over(job.status)
        return Ran(submitted_at, [line.text for line in job.logs([WORKER], lines=LINES, follow=False)])


def until_over(status: Callable[[], JobStatus]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (now := status()).phase.over:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the job is not over after {PATIENCE_S:g} s: {now}")
        time.sleep(LOOK_S)


def bench(options: Options) -> report.Result:
    rounds, samples = (1, 30_000) if options.quick else (5, 80_000)
    with harness.scratch() as folder:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        spec = JobSpec(
            name="measured",
            workers=1,
            servers=1,
            checkpoints=CheckpointRules(every_s=2.0),
            backoff_s=0.1,
            relaunches=100,
            heartbeat_s=0.5,
        )
        plan = RunPlan(spec=spec, script=str(script), arguments=(str(samples),), grace_s=5.0)
        ways = {platform: functools.partial(measure, run, plan) for platform, run in platforms(folder).items()}
        measured = harness.alternate(ways, rounds=rounds, warmup=0 if options.quick else 1, label="one job on each")
    return judge(measured)


def platforms(folder: pathlib.Path) -> dict[str, Run]:
    """Return the functions of the platforms that are installed here."""
    found: dict[str, Run] = {"local": functools.partial(run_locally, folder)}
    if importlib.util.find_spec("ray") is not None:
        found["ray"] = run_on_ray
    if importlib.util.find_spec("aiohttp") is not None:
        found["k8s"] = functools.partial(run_on_kubernetes, folder)
    return found


def measure(run: Run, plan: RunPlan) -> dict[str, float]:
    """Run a job; return its samples per second after the first fifth, and the seconds from submission to first step."""
    ran = run(plan)
    reports = [line[len(MARK) :] for line in ran.lines if line.startswith(MARK)]
    if not reports:
        raise RuntimeError(f"the worker printed no measurement: {list(ran.lines[-5:])}")
    told = json.loads(reports[-1])
    return {"figure": told["rate"], "first_step_s": told["first_at"] - ran.submitted_at}


def judge(measured: harness.Rounds) -> report.Result:
    first_step = measured.part("first_step_s")
    ratios = {platform: measured.ratio(platform, "local") for platform in measured.figures}
    return report.Result(
        goals=tuple(
            report.goal(f"{platform}_vs_local", ratios.get(platform), target=TARGET, why="the package is not installed")
            for platform in OTHERS
        ),
        rounds=measured.count,
        columns=("platform", "samples/s", "over local", "first step, s"),
        rows=tuple(
            (platform, measured.median(platform), str(ratio), first_step.median(platform))
            for platform, ratio in ratios.items()
        ),
        notes=(
            "one worker and one server that compute all the time, on the same machine for every platform",
            "first step: from submitting to its end",
        ),
        details={"rates": measured.figures, "first_step_s": first_step.figures},
    )
