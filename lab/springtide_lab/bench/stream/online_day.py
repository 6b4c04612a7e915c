"""Replay a day of traffic in five minutes to a real online job, which scales its workers by a forecast and by
measurements.

In: a generated day, and the seven days before it as history; workers with a quota of part of a core. Out: the figures
of Kale's section 4.1, points of the day, and whether every record was trained exactly once.
"""

import pathlib
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from springtide import errors
from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create
from springtide.domain.core.roles import RoleKind
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import GuardRules, JobSpec
from springtide.domain.spec.online_job import OnlineJob, OnlinePoint, OnlineRules, OnlineState, TrafficStep
from springtide.planning.online.traffic import DAY_S
from springtide.platforms.local import process_group
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry.events import read_points
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report
from springtide_lab.reproduce.kale import world


def day_shares(seed: int) -> Callable[[float], float]:
    """Return a function from days since midnight to traffic as a share of the peak; negative days are the history."""
    day = world.paper(seed)
    values = np.concatenate([day.past, day.steps]) / day.rates.max()
    midnight = len(values) - world.DAY
    return lambda at: float(np.interp(midnight + at * world.DAY, np.arange(len(values)) + 0.5, values))


PARTITIONS, BATCH, KEYS = 8, 64, 997
EVERY_S = 0.05  # seconds between two appends

SCRIPT = """
import pathlib, sys, time
import numpy as np
import torch
from torch import nn
import springtide as st

torch.set_num_threads(1)
folder, url = pathlib.Path(sys.argv[1]), sys.argv[2]
batch, work, pause_s = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])


class Counter(nn.Module):  # zeros, SGD at rate 1, a gradient of -1 an occurrence: rows count what was trained
    def __init__(self):
        super().__init__()
        self.often = st.EmbeddingBag(1, init="zeros")
        self.seen = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.often(x[:, None])[:, 0].sum() + self.seen.sum() * len(x)


def decode(bodies):
    return torch.from_numpy(np.frombuffer(b"".join(bodies), dtype=np.int64).copy())


job = st.join()
model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
data = st.stream(url, decode=decode, linger_s=0.2)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=batch)
a, b = torch.ones(128, 128), torch.ones(128, 128)
for x in batches:
    for _ in range(work):  # what a real model would compute
        a @ b
    time.sleep(pause_s)
    optimizer.zero_grad()
    (-model(x)).backward()
    optimizer.step()
if not job.leaving:
    state = model.state_dict()
    part = folder / f"counts-{job.rank}.npz"
    np.savez(part, keys=state["often.keys"], rows=state["often.rows"], seen=state["seen"])
    part.rename(folder / "counts.npz")
"""


class Producer:
    """Append records to a new log at the rate of `traffic`, and count them."""

    def __init__(
        self,
        folder: pathlib.Path,
        traffic: Callable[[float], float],
        *,
        partitions: int = PARTITIONS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`traffic` returns the records per second at a wall time; `clock` returns the time stamps of records."""
        self._stream = create(folder / "log", LogSettings(partitions=partitions))
        self.url = self._stream.url
        self._traffic, self._partitions, self._clock = traffic, partitions, clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)  # Ctrl-C ends it too
        self.appended = 0

    def start(self) -> None:
        self._thread.start()

    def seal(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._stream.seal()
        self._stream.close()

    def _run(self) -> None:
        writer, owed, before = self._stream.writer(), 0.0, time.time()
        while not self._ended.wait(EVERY_S):
            now = time.time()
            owed, before = owed + self._traffic(now) * (now - before), now
            count = int(owed)
            owed -= count
            keys = (np.arange(self.appended, self.appended + count) % KEYS).astype(np.int64)
            for number in range(self._partitions):
                mine = keys[number :: self._partitions]
                if len(mine):
                    ends = 8 * np.arange(1, len(mine) + 1, dtype=np.int64)
                    writer.append(number, mine.tobytes(), ends, at=self._clock())
            self.appended += count
        writer.close()


class Held:
    """Set each worker's CPU quota once the worker has joined; before that it has a whole core, so that its imports are
    fast."""

    def __init__(self, job: LocalCluster, cpu: float) -> None:
        self._job, self._cpu = job, cpu
        self._done: set[tuple[str, int]] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="held")

    def __enter__(self) -> "Held":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            for member in self._job.status.members:
                life = (str(member.role), member.incarnation)
                trains = member.role.kind is RoleKind.WORKER and member.alive and member.joined
                if trains and life not in self._done and not self._job.over:
                    self._done.add(life)
                    self._job.throttle(life[0], self._cpu)


def job_of(
    folder: pathlib.Path,
    producer: Producer,
    online: OnlineJob,
    *,
    work: int = 0,
    pause_s: float = 0.0,
    cpu: float | None = 1.0,
    name: str = "day",
    workers: int = 1,
    checkpoint_s: float = 5.0,
) -> LocalCluster:
    spec = JobSpec(
        name=name,
        workers=workers,
        servers=1,
        worker_cpu=cpu,
        heartbeat_s=0.2,
        slots=64,
        online=online,
        guards=GuardRules(memory=False, servers=False),
        checkpoints=CheckpointRules(every_s=checkpoint_s),
    )
    return jobs.prepared(folder, SCRIPT, [folder, producer.url, BATCH, work, pause_s], spec)


def miscounted(folder: pathlib.Path, appended: int) -> int:
    counts = np.load(folder / "counts.npz")
    held = dict(zip(counts["keys"].tolist(), counts["rows"][:, 0].tolist(), strict=True))
    wrong = 0.0
    for key in range(KEYS):
        due = len(range(key, appended, KEYS))
        wrong += abs(held.pop(key, 0.0) - due)
    return int(wrong + sum(map(abs, held.values())) + abs(float(counts["seen"][0]) - appended) * (wrong == 0))


DAY_LASTS_S, QUICK_S = 300.0, 40.0
BEFORE = 7
SEED = 8
CPU, MOST = 0.15, 4
PEAK = 3.2
"""Peak traffic relative to the throughput of one worker: four workers keep up with it, three do not."""
WORK = 60
VIOLATION, DOWN_MIN, OF_ADEQUATE = 0.026, 1.0, 0.85


def bench(options: Options) -> report.Result:
    if why := process_group.why_not():
        raise errors.BadInput(f"this benchmark needs CPU quotas: {why}")
    lasts_s = QUICK_S if options.quick else DAY_LASTS_S
    with harness.scratch() as folder:
        pace = one_worker(folder / "one")
        harness.say(f"one worker of {CPU:g} cores trains {pace:,.0f} records a second; the day begins")
        status, points, wrong = play(folder / "day", peak=PEAK * pace, lasts_s=lasts_s)
    assert status.online is not None
    return told(status.online, points, wrong, pace, lasts_s)


def told(state: OnlineState, points: Sequence[OnlinePoint], wrong: int, pace: float, lasts_s: float) -> report.Result:
    adequate = MOST * state.totals.hours
    off = [abs(point.forecast - point.arriving) for point in points if point.forecast is not None]
    came = [point.arriving for point in points if point.forecast is not None]
    return report.Result(
        goals=(
            report.goal("online_violation", state.totals.violation, target=VIOLATION, better="lower"),
            report.goal("online_downtime_min", state.totals.down_min, target=DOWN_MIN, better="lower"),
            report.goal(
                "online_worker_hours_vs_adequate",
                state.totals.worker_hours / adequate,
                target=OF_ADEQUATE,
                better="lower",
            ),
            report.goal("online_lost_or_repeated", float(wrong), target=0.0, better="lower"),
        ),
        rounds=1,
        columns=("scheme", "violation", "lag min", "down min", "worker-h", "changes"),
        rows=(
            (
                "this job",
                f"{state.totals.violation:.2%}",
                state.totals.lag_min,
                state.totals.down_min,
                state.totals.worker_hours,
                float(state.scaling.changes),
            ),
            (f"{MOST} workers all day (reckoned)", None, None, 0.0, adequate, 0.0),
        ),
        notes=(
            f"a day in {lasts_s:g} s: every second is {DAY_S / lasts_s / 60:.1f} min, so the promise "
            f"of {state.slo_lag_s / 60:g} min is kept within {state.slo_lag_s * lasts_s / DAY_S:.1f} s of the clock",
            f"one worker of {CPU:g} cores trains {pace:,.0f}/s; {state.stream.records:,} records came, peak "
            f"{max((point.arriving for point in points), default=0.0):,.0f}/s; the forecast for now was "
            f"{sum(off) / max(sum(came), 1e-9):.1%} off",
        ),
        details={"points": points},
    )


def one_worker(folder: pathlib.Path) -> float:
    """Measure the records per second of one worker that never waits for data."""
    records, seconds = 40_000, 8.0
    folder.mkdir()
    producer = Producer(folder, lambda _: records / EVERY_S / 4)
    producer.start()
    time.sleep(5 * EVERY_S)
    with job_of(folder, producer, OnlineJob(), work=WORK, name="one") as job, Held(job, CPU):
        job.until(lambda status: status.samples > 20 * BATCH)
        first, began = job.status, time.monotonic()
        while time.monotonic() < began + seconds and job.status.samples < records * 0.9:
            time.sleep(0.1)
        last, gone = job.status, time.monotonic() - began
    producer.seal()
    return (last.samples - first.samples) / gone


def play(folder: pathlib.Path, *, peak: float, lasts_s: float) -> tuple[JobStatus, list[OnlinePoint], int]:
    """Replay one day of traffic to a job; return the job's last status, its points, and the number of lost or repeated
    records.
    """
    folder.mkdir()
    share = day_shares(SEED)
    midnight = time.time()
    producer = Producer(folder, lambda wall: peak * share((wall - midnight) / lasts_s))
    history = folder / "before.jsonl"
    history.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in past(share, peak, midnight, lasts_s)))
    online = OnlineJob(
        on=True, rules=OnlineRules(most=MOST), speedup=DAY_S / lasts_s, every_s=120.0, history=str(history)
    )
    with job_of(folder, producer, online, work=WORK) as job, Held(job, CPU):
        job.until(lambda status: status.online is not None)
        producer.start()
        began, said = time.time(), ""
        status = job.status
        while time.time() < midnight + lasts_s or time.time() < began + 0.8 * lasts_s:
            status = job.status
            if status.master.decision_why != said and status.online is not None:
                said = status.master.decision_why
                harness.say(f"{time.time() - midnight:5.0f} s  {status.roles.workers.wanted} workers: {said}")
            assert not job.over, f"the job has ended: {status.why}"
            time.sleep(0.1)
        producer.seal()
        jobs.finished(job, within_s=120)
        points = read_points(job.files.online, OnlinePoint)
    return status, points, miscounted(folder, producer.appended)


def past(share: Callable[[float], float], peak: float, midnight: float, lasts_s: float) -> list[TrafficStep]:
    """Return the traffic of the days before, as an earlier run would have stored it."""
    step_s = lasts_s / world.DAY
    return [
        TrafficStep(
            at=midnight - step_s * back, seconds=step_s, samples=step_s * peak * share((0.5 - back) / world.DAY)
        )
        for back in range(BEFORE * world.DAY, 0, -1)
    ]
