"""One of four workers is throttled by a real CPU quota: how much longer than ideal does the job take?

In: real jobs; at 3% a worker is throttled midway, at 25% WideDeep and xDeepFM have a slow worker from the start. Out:
`jct_vs_ideal` (work left over capacity left), beside equal parts fixed beforehand, and stop and restart.
"""

import contextlib
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from springtide.data.source import Indices
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.embedding.modules.modules import EmbeddingBag
from springtide.testing.cluster import LocalCluster
from springtide.zoo.clicklog.dataset import ClickLog
from springtide.zoo.clicklog.population import LogSpec
from springtide.zoo.models import WideDeep, XDeepFM
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report

SPEC = LogSpec(seed=7)
LOG = 20_000  # samples


class Numbers(torch.utils.data.Dataset[Tensor]):
    """Samples that are their own indices."""

    def __init__(self, folder: pathlib.Path, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Indices) -> Tensor:
        return torch.from_numpy(indices)[:, None] % 1000


class StragglerClicks(torch.utils.data.Dataset[Any]):
    """So many samples of a log that begins anew after its last one; in files that all workers and jobs share."""

    def __init__(self, folder: pathlib.Path, samples: int) -> None:
        self._samples, self._log = samples, ClickLog(LOG, spec=SPEC, folder=folder / "clicks")

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Indices) -> Any:
        return self._log.batch(indices % LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kind."""

    batch: int
    """Samples of a batch: it takes about 10 ms of a core."""
    batch_s: float = 0.0
    """Processor time that a batch takes at least."""
    data: Callable[[pathlib.Path, int], torch.utils.data.Dataset[Any]]
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]


def sum_of(model: nn.Module, ids: Any) -> Tensor:
    total: Tensor = model(ids).sum()
    return total


def click_loss(model: nn.Module, batch: Any) -> Tensor:
    return binary_cross_entropy_with_logits(model(batch.x), batch.y)


KINDS = {
    "even": Work(batch=16, batch_s=0.01, data=Numbers, model=lambda: EmbeddingBag(4), loss=sum_of),
    "WideDeep": Work(
        batch=128, data=StragglerClicks, model=lambda: WideDeep(SPEC.cardinalities, sparse=True), loss=click_loss
    ),
    "xDeepFM": Work(
        batch=16, data=StragglerClicks, model=lambda: XDeepFM(SPEC.cardinalities, sparse=True), loss=click_loss
    ),
}
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
from springtide_lab.bench.faults.straggler import KINDS

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
    spec = JobSpec(name="straggler", workers=workers, worker_cpu=1.0, checkpoints=rules or CheckpointRules())
    return jobs.prepared(folder, SCRIPT, [folder, folder.parent, kind, batches], spec)


def until_ready(job: LocalCluster, folder: pathlib.Path, workers: int = WORKERS) -> None:
    """Every worker waits for `go`."""
    job.until(lambda _: all((folder / f"trained-{rank}").exists() for rank in range(workers)))


def go(folder: pathlib.Path) -> None:
    (folder / "go").touch()


@contextlib.contextmanager
def under_way(
    folder: pathlib.Path, kind: str, batches: int, *, workers: int = WORKERS, rules: CheckpointRules | None = None
) -> Iterator[LocalCluster]:
    """A job whose workers have their full quota, and have all trained a batch."""
    with started(folder, kind, batches, workers=workers, rules=rules) as job:
        until_ready(job, folder, workers=workers)
        jobs.hold(job, dict.fromkeys(ROLES[:workers], CPU))
        go(folder)
        job.until(lambda _: all(trained(folder, workers=workers)))
        yield job


def trained(folder: pathlib.Path, workers: int = WORKERS) -> list[list[float]]:
    texts = [(folder / f"trained-{rank}").read_text() for rank in range(workers)]
    return [[float(line) for line in text.splitlines()] for text in texts]


def measured_pace(times: Sequence[float], since: float, until: float) -> float:
    return sum(since <= at < until for at in times) / (until - since) if until > since else 0.0


def healthy_pace(times: Sequence[Sequence[float]], since: float, until: float) -> float:
    return statistics.mean(measured_pace(mine, since, until) for rank, mine in enumerate(times) if rank != SLOW)


def tried_pace(kind: str) -> float:
    """Batches a second of one worker alone at its full quota: what a model costs on this machine nobody knows."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "job"
        with under_way(folder, kind, 1_000_000, workers=1) as job:
            since = time.monotonic() + WARM_S
            job.until(lambda _: time.monotonic() > since + TRY_S)
            return measured_pace(trained(folder, workers=1)[0], since, since + TRY_S)


PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """One job, or one in four parts."""

    slow: float
    took_s: float
    ideal_s: float

    @property
    def ratio(self) -> float:
        return self.took_s / self.ideal_s


def equal_parts(kind: str, slow: float, batches: int) -> Baseline:
    part = batches // WORKERS
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as entered:
        folders = [pathlib.Path(name) / f"part-{rank}" for rank in range(WORKERS)]
        parts = [entered.enter_context(started(folder, kind, part, workers=1)) for folder in folders]
        for rank, (job, folder) in enumerate(zip(parts, folders, strict=True)):
            until_ready(job, folder, workers=1)
            jobs.hold(job, {ROLES[0]: CPU * (slow if rank == SLOW else 1.0)})
        began = time.monotonic()
        for folder in folders:
            go(folder)
        for job in parts:
            jobs.finished(job, PATIENCE_S)
        times = [trained(folder, workers=1)[0] for folder in folders]
    together = min(max(mine) for rank, mine in enumerate(times) if rank != SLOW)
    capacity = healthy_pace(times, began, together) * (WORKERS - 1 + slow)
    return Baseline(slow=slow, took_s=max(map(max, times)) - began, ideal_s=part * WORKERS / capacity)


def stop_and_restart(kind: str, slow: float, batches: int, *, even_s: float, notice_s: float) -> Baseline:
    """The job is stopped with a checkpoint `notice_s` after the throttling, and goes on with four healthy workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "job"
        with under_way(folder, kind, batches, rules=CheckpointRules(every_s=jobs.EVERY_S)) as job:
            began = time.monotonic()
            job.until(lambda _: time.monotonic() > began + even_s)
            throttled_at = time.monotonic()
            jobs.hold(job, {ROLES[SLOW]: CPU * slow})
            job.until(lambda _: time.monotonic() > throttled_at + notice_s)
            stopped_at = time.monotonic()
            again = jobs.stop_job(job)
        with started(folder, kind, batches, rules=again) as job:
            job.until(lambda status: status.roles.workers.alive == WORKERS)
            jobs.hold(job, dict.fromkeys(ROLES, CPU))
            jobs.finished(job, PATIENCE_S)
        times = trained(folder)
    left = sum(at >= throttled_at for mine in times for at in mine)
    capacity = healthy_pace(times, began, stopped_at) * (WORKERS - 1 + slow)
    return Baseline(slow=slow, took_s=max(map(max, times)) - throttled_at, ideal_s=left / capacity)


TARGET = 1.15
USUAL_DELAYS = {"notice": 30.0, "save": 30.0, "pull": 60.0, "start": 60.0, "load": 30.0}
"""Seconds; training goes on until the straggler is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerCase:
    """A kind of work, and how slow one of its workers becomes."""

    kind: str
    slow: float
    """Part of its quota that the slow worker is left."""
    beside: tuple[str, str]
    """What the paper says: how much shorter than equal parts (doing nothing), and than stop and restart."""

    def __str__(self) -> str:
        return f"{self.slow:.0%}" if self.kind == "even" else f"{self.slow:.0%} {self.kind}"

    @property
    def capacity(self) -> float:
        return WORKERS - 1 + self.slow


HARD = StragglerCase(kind="even", slow=0.03, beside=("-48.5%", "-37%"))
MODELS = (
    StragglerCase(kind="WideDeep", slow=0.25, beside=("-24%", "")),
    StragglerCase(kind="xDeepFM", slow=0.25, beside=("-42%", "")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerSizes:
    """How long each part takes, at full quota."""

    even_s: float = 20.0
    """Before the throttling at 3%."""
    rest_s: float = 65.0
    runs: int = 3
    equal_s: float = 4.0
    """Work of equal parts at 3%: the slow one's quarter takes 25 times as long."""
    model_s: float = 36.0
    """All of a model's work; the slow one's equal part takes three times as long."""
    pace: float | None = None
    """Batches a second that a worker is taken to train of a model; None: it is tried."""
    notice_s: float | None = None
    """Until the job is stopped to be started again; None: as the delays say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRun:
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
    def ideal_s(self) -> float:
        return self.left / sum(pace * (self.slow if rank == SLOW else 1.0) for rank, pace in enumerate(self.paces))


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerOutcome:
    """A case: our jobs, and what they are shown beside."""

    case: StragglerCase
    runs: tuple[StragglerRun, ...]
    parts: Baseline
    restart: Baseline

    @property
    def ratio(self) -> float:
        return statistics.median(run.took_s / run.ideal_s for run in self.runs)


def bench(options: Options) -> report.Result:
    quick = StragglerSizes(even_s=4.0, rest_s=8.0, runs=1, equal_s=0.2, model_s=2.0, pace=20.0, notice_s=2.0)
    sizes = quick if options.quick else StragglerSizes()
    delays = jobs.delays_of(options.delays, USUAL_DELAYS)
    notice_s = delays["notice"] if sizes.notice_s is None else sizes.notice_s
    total = sizes.runs + 2 + 4 * len(MODELS)
    with harness.bar("jobs with a straggler", total=total) as step:
        hard = hard_case(sizes, notice_s, step)
        models = [model_case(case, sizes, notice_s, step) for case in MODELS]
    return judge([hard, *models], delays)


def hard_case(sizes: StragglerSizes, notice_s: float, step: Callable[[], None]) -> StragglerOutcome:
    """Throttled to next to nothing in the middle of the job."""
    slow, even_s = HARD.slow, sizes.even_s
    batches = round(EVEN_PACE * (even_s * WORKERS + sizes.rest_s * HARD.capacity))
    runs = []
    for _ in range(sizes.runs):
        runs.append(one("even", slow, batches, even_s=even_s))
        step()
    parts = equal_parts("even", slow, round(EVEN_PACE * sizes.equal_s * HARD.capacity))
    step()
    restart = stop_and_restart("even", slow, batches, even_s=even_s, notice_s=notice_s)
    step()
    return StragglerOutcome(case=HARD, runs=tuple(runs), parts=parts, restart=restart)


def model_case(
    case: StragglerCase, sizes: StragglerSizes, notice_s: float, step: Callable[[], None]
) -> StragglerOutcome:
    """A model of the zoo, with a slow worker from the first batch on: three ways to train the same data."""
    pace = tried_pace(case.kind) if sizes.pace is None else sizes.pace
    step()
    batches = max(WORKERS, round(pace * sizes.model_s * case.capacity))
    run = one(case.kind, case.slow, batches, even_s=0.0)
    step()
    parts = equal_parts(case.kind, case.slow, batches)
    step()
    restart = stop_and_restart(case.kind, case.slow, batches, even_s=0.0, notice_s=notice_s)
    step()
    return StragglerOutcome(case=case, runs=(run,), parts=parts, restart=restart)


def one(kind: str, slow: float, batches: int, *, even_s: float) -> StragglerRun:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "job"
        with under_way(folder, kind, batches) as job:
            began = time.monotonic()
            time.sleep(even_s)
            throttled_wall = time.time()
            throttled_at = time.monotonic()
            jobs.hold(job, {ROLES[SLOW]: CPU * slow})
            jobs.finished(job, PATIENCE_S)
            decided = [float(str(event["at"])) for event in job.story if resized(event)]
        times = trained(folder)
    assert sum(map(len, times)) == batches, "not every batch was trained once"
    return StragglerRun(
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
    before = [measured_pace(mine, began, throttled_at) for mine in times]
    after = [measured_pace(mine, throttled_at, until) for mine in times]
    after[SLOW] = healthy_pace(times, throttled_at, until)
    return tuple(map(max, before, after))


def resized(event: Mapping[str, object]) -> bool:
    """Whether an event of the story is a decision about the slow worker's leases."""
    return event["event"] == "decision" and f"leases of {ROLES[SLOW]}" in str(event.get("what"))


def judge(outcomes: Sequence[StragglerOutcome], delays: Mapping[str, float]) -> report.Result:
    hard = outcomes[0]
    noticed = [run.noticed_s for one in outcomes for run in one.runs if run.noticed_s is not None]
    return report.Result(
        goals=(report.goal("jct_vs_ideal", hard.ratio, target=TARGET, better="lower"),),
        rounds=len(hard.runs),
        columns=("CPU of worker-2", "seconds", "vs ideal", "ours is", "paper's is"),
        rows=tuple(row for one in outcomes for row in rows_of(one, delays)),
        notes=(
            f'{WORKERS} workers of {CPU} cores (quota); all are run; "ours is" compares times over the ideal of each',
            f"restart: stopped with a checkpoint, then {WORKERS} healthy workers; {jobs.delays_text(delays)}, "
            "added to what was run",
            '"paper\'s is": what the papers say of theirs on clusters, beside doing nothing and stop and restart: '
            f"DLRover-RM, Fig. 13 ({HARD.slow:.0%}), and DLRover, Fig. 8 ({MODELS[0].slow:.0%})",
            f"smaller leases {max(noticed):.0f} s after the throttling at the latest" if noticed else "never resized",
        ),
        details={"outcomes": outcomes, "delays": {f"{name}_s": seconds for name, seconds in delays.items()}},
    )


def rows_of(one: StragglerOutcome, delays: Mapping[str, float]) -> Iterator[report.Cells]:
    to_parts, to_restart = one.case.beside
    less = ", of less work" if one.case == HARD else ""
    restarted_s = one.restart.took_s + sum(delays.values()) - delays["notice"]
    for what, seconds, ideal, paper in (
        ("ideal", statistics.median(run.ideal_s for run in one.runs), 1.0, ""),
        ("ours", statistics.median(run.took_s for run in one.runs), one.ratio, ""),
        (f"equal parts{less}", one.parts.took_s, one.parts.ratio, to_parts),
        ("restart, delays 0", one.restart.took_s, one.restart.ratio, ""),
        ("restart", restarted_s, restarted_s / one.restart.ideal_s, to_restart),
    ):
        yield (f"{one.case}: {what}", seconds, ideal, f"{one.ratio / ideal - 1:+.0%}", paper)
