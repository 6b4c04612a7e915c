"""The job that `bench platforms` runs everywhere, and what it says of itself: throughput, first step, losing a node.

In: `trains` is a script that computes all the time, `waits` one that sleeps as a large model would compute, so that its
speed shows how many train and not how busy the machine is. Each worker prints one JSON line when it has trained: logs
come back the same way on every platform. Out: figures for `springtide_lab.bench.control.platforms.platforms`.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages import messages

BATCH = 512
MARK = "measured "
PATIENCE_S = 120.0
LOOK_S = 0.05
SELDOM_S = 1.0  # while throughput is measured: a look costs more on some platforms than on others
FULL = 0.9
"""Of the speed before: from then on it counts as full again; a window of speed is not exact to the batch."""
WINDOW_S = 2.0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformResult:
    """What one run was like."""

    rate: float
    """Samples a second, after the first fifth of them."""
    first_step_s: float
    """From submitting it to the end of the first step."""


class Side(Protocol):
    """A platform with one job at a time, for a benchmark. Made anew for every run, so that it burdens no other's."""

    def submit(self, plan: RunPlan) -> None: ...

    def status(self) -> messages.JobStatus: ...

    def printed(self, role: str) -> Sequence[str]: ...

    def lose_a_node(self) -> None:
        """A server and a worker, with the host that they are on if there are several."""
        ...

    def close(self) -> None: ...


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


def trained(side: Side, script: str, *, samples: int) -> PlatformResult:
    """Run it to its end; what its worker says."""
    at = time.time()
    side.submit(plan_of(script, samples=samples, pause_s=0.0, workers=1, servers=1))
    until(side, lambda status: status.phase.over, every_s=SELDOM_S)
    said = [line[len(MARK) :] for line in side.printed("worker-0") if line.startswith(MARK)]
    if not said:
        raise RuntimeError(f"the worker did not say what it measured; the job is {side.status()}")
    told = json.loads(said[-1])
    return PlatformResult(rate=told["rate"], first_step_s=told["first_at"] - at)


def recovered(side: Side, script: str) -> float:
    """Seconds from the loss of a node with a worker and a server on it to full speed."""
    side.submit(plan_of(script, samples=10**8, pause_s=0.2, workers=2, servers=2))
    until(side, whole)
    before = settled(side)
    lost_at = time.monotonic()
    side.lose_a_node()
    until(side, lambda status: not whole(status))
    seen = [(time.monotonic(), side.status().samples)]

    def again(status: messages.JobStatus) -> bool:
        seen.append((time.monotonic(), status.samples))
        return whole(status) and speed(seen) >= FULL * before

    until(side, again)
    return seen[-1][0] - lost_at


def settled(side: Side) -> float:
    """Samples a second while nothing happens."""
    first = time.monotonic(), side.status().samples
    until(side, lambda _: time.monotonic() > first[0] + 3 * WINDOW_S)
    return speed([first, (time.monotonic(), side.status().samples)])


def whole(status: messages.JobStatus) -> bool:
    there = [str(each.role.kind) for each in status.members if each.joined and each.alive]
    return there.count("worker") == 2 and there.count("server") == 2 and status.samples > 0


def speed(seen: Sequence[tuple[float, int]]) -> float:
    """Samples a second over the last two seconds or a little more; 0 while less has been seen."""
    end, samples = seen[-1]
    before = [each for each in seen if each[0] <= end - WINDOW_S]
    return (samples - before[-1][1]) / (end - before[-1][0]) if before else 0.0


def until(side: Side, true: Callable[[messages.JobStatus], bool], *, every_s: float = LOOK_S) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true(status := side.status()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_S:g} s: {status}")
        time.sleep(every_s)
