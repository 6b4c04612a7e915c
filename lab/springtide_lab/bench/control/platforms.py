"""What a cluster costs over this machine's own processes: the same job on each platform, in alternating rounds.

In: a script that computes all the time. Out: `ray_vs_local` and `k8s_vs_local` (samples/s), the time from submitting to
the first step, and from losing a node (a worker and a server of two each) to full speed.
"""

import contextlib
import importlib
import importlib.util
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import logs
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, report
from springtide_lab.testing.ray_cluster import RayWorld

LINES = 1000
BATCH = 512
MARK = "measured "
PATIENCE_S = 120.0
LOOK_S = 0.05
SELDOM_S = 1.0  # while throughput is measured: a look costs more on some platforms than on others
FULL = 0.9
"""Of the speed before: from then on it counts as full again; a window of speed is not exact to the batch."""
WINDOW_S = 2.0
TARGET = 0.95
OTHERS = ("ray", "k8s")
SCRIPT = """
import json, sys, time
import torch
from torch import nn
import springtide as st

samples, pause_s = int(sys.argv[1]), float(sys.argv[2])


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
    time.sleep(pause_s)
    optimizer.zero_grad()
    loss_of(model(ids), clicked).backward()
    optimizer.step()
    times.append(time.time())
warm = len(times) // 5  # of which connections and pages are new
rate = BATCH * (len(times) - 1 - warm) / (times[-1] - times[warm]) if len(times) > 10 else 0.0
print("measured " + json.dumps({"first_at": times[0] if times else 0.0, "rate": rate, "steps": len(times)}), flush=True)
""".replace("BATCH", str(BATCH))


class Side(Protocol):
    """A platform with one job at a time, for a benchmark. Made anew for every run, so that it burdens no other's."""

    def submit(self, plan: RunPlan) -> None: ...

    def status(self) -> JobStatus: ...

    def printed(self, role: str) -> Sequence[str]: ...

    def lose_a_node(self) -> None:
        """A server and a worker, with the host that they are on if there are several."""
        ...

    def close(self) -> None: ...


Maker = Callable[[], Side]


def plan_of(script: str, *, samples: int, pause_s: float, workers: int, servers: int) -> RunPlan:
    spec = JobSpec(
        name="measured",
        workers=workers,
        servers=servers,
        checkpoints=CheckpointRules(every_s=2.0),
        backoff_s=0.1,
        relaunches=100,
        heartbeat_s=0.5,
    )
    return RunPlan(spec=spec, script=script, arguments=(str(samples), str(pause_s)), grace_s=5.0)


def trained(side: Side, script: str, *, samples: int) -> dict[str, float]:
    """Run the job to its end: samples a second after the first fifth, seconds from submitting to the first step."""
    at = time.time()
    side.submit(plan_of(script, samples=samples, pause_s=0.0, workers=1, servers=1))
    until(side, lambda status: status.phase.over, every_s=SELDOM_S)
    said = [line[len(MARK) :] for line in side.printed("worker-0") if line.startswith(MARK)]
    if not said:
        raise RuntimeError(f"the worker did not say what it measured; the job is {side.status()}")
    told = json.loads(said[-1])
    return {"figure": told["rate"], "first_step_s": told["first_at"] - at}


def recovered(side: Side, script: str) -> float:
    """Seconds from the loss of a node with a worker and a server on it to full speed."""
    side.submit(plan_of(script, samples=10**8, pause_s=0.2, workers=2, servers=2))
    until(side, whole)
    before = settled(side)
    lost_at = time.monotonic()
    side.lose_a_node()
    until(side, lambda status: not whole(status))
    seen = [(time.monotonic(), side.status().samples)]

    def again(status: JobStatus) -> bool:
        seen.append((time.monotonic(), status.samples))
        return whole(status) and speed(seen) >= FULL * before

    until(side, again)
    return seen[-1][0] - lost_at


def settled(side: Side) -> float:
    """Samples a second while nothing happens."""
    first = time.monotonic(), side.status().samples
    until(side, lambda _: time.monotonic() > first[0] + 3 * WINDOW_S)
    return speed([first, (time.monotonic(), side.status().samples)])


def whole(status: JobStatus) -> bool:
    there = [str(each.role.kind) for each in status.members if each.joined and each.alive]
    return there.count("worker") == 2 and there.count("server") == 2 and status.samples > 0


def speed(seen: Sequence[tuple[float, int]]) -> float:
    """Samples a second over the last two seconds or a little more; 0 while less has been seen."""
    end, samples = seen[-1]
    before = [each for each in seen if each[0] <= end - WINDOW_S]
    return (samples - before[-1][1]) / (end - before[-1][0]) if before else 0.0


def until(side: Side, true: Callable[[JobStatus], bool], *, every_s: float = LOOK_S) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true(status := side.status()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_S:g} s: {status}")
        time.sleep(every_s)


class Local:
    """`springtide run`, without a terminal."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._stack = folder, contextlib.ExitStack()

    def submit(self, plan: RunPlan) -> None:
        job = LocalCluster(plan.script, plan.arguments, spec=plan.spec, folder=self._folder, grace_s=plan.grace_s)
        self.job = self._stack.enter_context(job)

    def status(self) -> JobStatus:
        return self.job.status

    def printed(self, role: str) -> Sequence[str]:
        self.job.wait()
        return logs.tail(self.job.files.logs / f"{role}.log", LINES)

    def lose_a_node(self) -> None:
        """There is one host: both processes that another would take along."""
        self.job.kill("server-1")
        self.job.kill("worker-1")

    def close(self) -> None:
        self._stack.close()


class Ray:
    """A cluster of its own: a head and two nodes."""

    def __init__(self) -> None:
        self._world = RayWorld(nodes=2)
        self._name = ""

    def submit(self, plan: RunPlan) -> None:
        self._name = plan.spec.name
        self._world.do("submit", plan)

    def status(self) -> JobStatus:
        status: JobStatus = self._world.do("status", self._name)
        return status

    def printed(self, role: str) -> Sequence[str]:
        self._world.do("wait", self._name)
        said: list[str] = self._world.do("logs", self._name, role, LINES)
        return said

    def lose_a_node(self) -> None:
        """One that has a server and, if there is such a one, a worker."""
        nodes = set(self._world.do("nodes"))
        there: dict[str, list[str]] = {}
        for role, (node, _) in self._world.do("holders", self._name).items():
            if node in nodes:
                there.setdefault(node, []).append(role.partition("-")[0])
        self._world.do("remove", max(there, key=lambda node: (len(set(there[node])), len(there[node]))))

    def close(self) -> None:
        self._world.close()


def bench(options: Options) -> report.Result:
    rounds, losses, samples = (1, 1, 30_000) if options.quick else (5, 2, 80_000)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        script = folder / "train.py"
        script.write_text(SCRIPT)
        made = makers(folder)

        def measure(platform: str) -> dict[str, float]:
            with running(made[platform]) as side:
                return trained(side, str(script), samples=samples)

        platforms = {platform: partial(measure, platform) for platform in made}
        rates = harness.alternate(platforms, rounds=rounds, warmup=0 if options.quick else 1, label="one job on each")
        losing = lose(made, str(script), losses)
    return judge(rates, rates.parts["first_step_s"], losing)


def makers(folder: pathlib.Path) -> dict[str, Maker]:
    """How each platform that is here is set up for one run."""
    made: dict[str, Maker] = {"local": lambda: Local(folder / "runs")}
    if importlib.util.find_spec("ray") is not None:
        made["ray"] = Ray
    if importlib.util.find_spec("aiohttp") is not None:
        made["k8s"] = partial(importlib.import_module("springtide_lab.bench.control.platform_pods").Pods, folder)
    return made


def lose(made: Mapping[str, Maker], script: str, times: int) -> dict[str, list[float]]:
    """Seconds to full speed after a node is lost, on each in turn."""
    seconds: dict[str, list[float]] = {each: [] for each in made}
    with harness.bar("a lost node on each", total=times) as step:
        for _ in range(times):
            for platform, maker in made.items():
                with running(maker) as side:
                    seconds[platform].append(recovered(side, script))
            step()
    return seconds


@contextlib.contextmanager
def running(maker: Maker) -> Iterator[Side]:
    side = maker()
    try:
        yield side
    finally:
        side.close()


def judge(
    rates: harness.Rounds, first: Mapping[str, Sequence[float]], losing: Mapping[str, list[float]]
) -> report.Result:
    goals, rows = [], []
    for platform in ("local", *OTHERS):
        if platform not in rates.figures:
            goals.append(report.goal(f"{platform}_vs_local", None, target=TARGET, why="it is not installed here"))
            continue
        ratio = rates.ratio(platform, "local")
        if platform != "local":
            goals.append(report.goal(f"{platform}_vs_local", ratio, target=TARGET))
        rows.append(
            (
                platform,
                rates.median(platform),
                str(ratio),
                statistics.median(first[platform]),
                statistics.median(losing[platform]),
            )
        )
    return report.Result(
        goals=tuple(goals),
        rounds=rates.count,
        columns=("platform", "samples/s", "over local", "first step, s", "lost node, s"),
        rows=tuple(rows),
        notes=(
            "one worker and one server that compute all the time, on the same machine whatever the platform",
            "first step: from submitting to its end; lost node: from the loss of one of two workers with one of two "
            "servers (local: of both processes) to 90% of the speed before",
        ),
        details={
            "rates": {each: list(figures) for each, figures in rates.figures.items()},
            "first_step_s": {each: list(figures) for each, figures in first.items()},
            "lost_node_s": {each: list(figures) for each, figures in losing.items()},
        },
    )
