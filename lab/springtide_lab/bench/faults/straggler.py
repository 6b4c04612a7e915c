"""Measure how much longer than ideal a job takes when one of its four workers is throttled by a real CPU quota.

In: real jobs. In one, a worker is throttled to 3% midway; WideDeep and xDeepFM have a worker at 25% from the start.
Out: `jct_vs_ideal`, where the ideal time is the remaining work divided by the remaining capacity. For comparison, the
benchmark also measures jobs whose workers get equal parts of the data.
"""

import contextlib
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from springtide.data.source import Indices
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
    """Samples that are derived from their indices."""

    def __init__(self, folder: pathlib.Path, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Indices) -> Tensor:
        return torch.from_numpy(indices)[:, None] % 1000


class StragglerClicks(torch.utils.data.Dataset[Any]):
    """`samples` samples of a click log that repeats after its end; all workers and jobs share its files."""

    def __init__(self, folder: pathlib.Path, samples: int) -> None:
        self._samples, self._log = samples, ClickLog(LOG, spec=SPEC, folder=folder / "clicks")

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Indices) -> Any:
        return self._log.batch(indices % LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kind of training: data, model and cost of a batch."""

    batch: int
    """Samples per batch, chosen so that a batch takes about 10 ms of a core."""
    batch_s: float = 0.0
    """Least CPU time of a batch, in seconds."""
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
CPU = 0.35  # cores of a worker: four workers and a server fit into two cores, and 3% of this is still a valid quota
ROLES = [f"worker-{rank}" for rank in range(WORKERS)]
EVEN_PACE = CPU / KINDS["even"].batch_s
"""Batches per second of a worker with work of kind `even`, whose batches all cost the same."""
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


def started(folder: pathlib.Path, kind: str, batches: int, *, workers: int = WORKERS) -> LocalCluster:
    """Return a job of `batches` batches, for use in a `with` statement. The job records its batches in `folder`. Its
    data is in a folder beside `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec = JobSpec(name="straggler", workers=workers, worker_cpu=1.0)
    return jobs.prepared(folder, SCRIPT, [folder, folder.parent, kind, batches], spec)


def until_ready(job: LocalCluster, folder: pathlib.Path, workers: int = WORKERS) -> None:
    """Wait until every worker is ready and waits for `go`."""
    job.until(lambda _: all((folder / f"trained-{rank}").exists() for rank in range(workers)))


def go(folder: pathlib.Path) -> None:
    (folder / "go").touch()


@contextlib.contextmanager
def under_way(folder: pathlib.Path, kind: str, batches: int, *, workers: int = WORKERS) -> Iterator[LocalCluster]:
    """Start a job; yield it once every worker has its full quota and has trained a batch."""
    with started(folder, kind, batches, workers=workers) as job:
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
    """Measure the batches per second of one worker alone at its full quota; a model's cost depends on the machine."""
    with harness.scratch() as scratch, under_way(scratch / "job", kind, 1_000_000, workers=1) as job:
        since = time.monotonic() + WARM_S
        job.until(lambda _: time.monotonic() > since + TRY_S)
        return measured_pace(trained(scratch / "job", workers=1)[0], since, since + TRY_S)


TARGET = 1.15
PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerCase:
    """One case: a kind of training, and the slowdown of one worker."""

    kind: str
    slow: float
    """Share of its quota that remains to the slow worker."""
    paper: str
    """The paper's change of job time, relative to equal parts of the data (doing nothing)."""

    def __str__(self) -> str:
        return f"{self.slow:.0%}" if self.kind == "even" else f"{self.slow:.0%} {self.kind}"

    @property
    def capacity(self) -> float:
        return WORKERS - 1 + self.slow


HARD = StragglerCase(kind="even", slow=0.03, paper="-48.5%")
MODELS = (
    StragglerCase(kind="WideDeep", slow=0.25, paper="-24%"),
    StragglerCase(kind="xDeepFM", slow=0.25, paper="-42%"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRun:
    """Times of one job, or of four jobs with equal parts of the data."""

    took_s: float
    """Seconds from the throttling to the last batch."""
    ideal_s: float
    """Seconds that the remaining work would take at the remaining capacity."""

    @property
    def ratio(self) -> float:
        return self.took_s / self.ideal_s


def equal_parts(case: StragglerCase, batches: int) -> StragglerRun:
    """Run four jobs of one worker each, so that every worker trains a fixed part of the data."""
    harness.say(f"{case}: equal parts")
    part = batches // WORKERS
    with harness.scratch() as scratch, contextlib.ExitStack() as entered:
        folders = [scratch / f"part-{rank}" for rank in range(WORKERS)]
        parts = [entered.enter_context(started(folder, case.kind, part, workers=1)) for folder in folders]
        for rank, (job, folder) in enumerate(zip(parts, folders, strict=True)):
            until_ready(job, folder, workers=1)
            jobs.hold(job, {ROLES[0]: CPU * (case.slow if rank == SLOW else 1.0)})
        began = time.monotonic()
        for folder in folders:
            go(folder)
        for job in parts:
            jobs.finished(job, PATIENCE_S)
        times = [trained(folder, workers=1)[0] for folder in folders]
    together = min(max(mine) for rank, mine in enumerate(times) if rank != SLOW)
    capacity = healthy_pace(times, began, together) * case.capacity
    return StragglerRun(took_s=max(map(max, times)) - began, ideal_s=part * WORKERS / capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerSizes:
    """Durations of each part, in seconds at full quota."""

    even_s: float = 20.0
    """Seconds before the throttling to 3%."""
    rest_s: float = 65.0
    runs: int = 3
    equal_s: float = 4.0
    """Seconds of work in the comparison with equal parts at 3%; the slow worker's quarter takes 25 times as long."""
    model_s: float = 36.0
    """Seconds of work of each model; the slow worker's equal part takes three times as long."""
    pace: float | None = None
    """Assumed batches per second of a worker that trains a model; None measures them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerOutcome:
    """Results of a case: our jobs, and the job with equal parts for comparison."""

    case: StragglerCase
    runs: tuple[StragglerRun, ...]
    parts: StragglerRun

    @property
    def ratio(self) -> float:
        return statistics.median(run.ratio for run in self.runs)


def bench(options: Options) -> report.Result:
    quick = StragglerSizes(even_s=4.0, rest_s=8.0, runs=1, equal_s=0.2, model_s=2.0, pace=20.0)
    sizes = quick if options.quick else StragglerSizes()
    return judge([hard_case(sizes), *(model_case(case, sizes) for case in MODELS)])


def hard_case(sizes: StragglerSizes) -> StragglerOutcome:
    """Measure the case in which a worker is throttled to 3% in the middle of the job."""
    batches = round(EVEN_PACE * (sizes.even_s * WORKERS + sizes.rest_s * HARD.capacity))
    runs = tuple(one(HARD, batches, even_s=sizes.even_s) for _ in range(sizes.runs))
    parts = equal_parts(HARD, round(EVEN_PACE * sizes.equal_s * HARD.capacity))
    return StragglerOutcome(case=HARD, runs=runs, parts=parts)


def model_case(case: StragglerCase, sizes: StragglerSizes) -> StragglerOutcome:
    """Measure a model with a slow worker from the first batch on: our job, and equal parts of the same data."""
    pace = tried_pace(case.kind) if sizes.pace is None else sizes.pace
    batches = max(WORKERS, round(pace * sizes.model_s * case.capacity))
    return StragglerOutcome(case=case, runs=(one(case, batches, even_s=0.0),), parts=equal_parts(case, batches))


def one(case: StragglerCase, batches: int, *, even_s: float) -> StragglerRun:
    harness.say(f"{case}: ours")
    with harness.scratch() as scratch:
        folder = scratch / "job"
        with under_way(folder, case.kind, batches) as job:
            began = time.monotonic()
            time.sleep(even_s)
            throttled_at = time.monotonic()
            jobs.hold(job, {ROLES[SLOW]: CPU * case.slow})
            jobs.finished(job, PATIENCE_S)
        times = trained(folder)
    assert sum(map(len, times)) == batches, "some batches were not trained exactly once"
    left = sum(at >= throttled_at for mine in times for at in mine)
    paces = full_paces(times, began, throttled_at)
    capacity = sum(pace * (case.slow if rank == SLOW else 1.0) for rank, pace in enumerate(paces))
    return StragglerRun(took_s=max(map(max, times)) - throttled_at, ideal_s=left / capacity)


def full_paces(times: list[list[float]], began: float, throttled_at: float) -> tuple[float, ...]:
    """Return each worker's batches per second at full quota: the higher one of its rates before and after the
    throttling.

    So a disturbance of the machine in one of the phases does not make the ideal look worse.
    """
    later = sorted(at for mine in times for at in mine if at >= throttled_at)
    until = later[int(0.8 * len(later))]  # leaves out the end, where some workers may have nothing to do
    before = [measured_pace(mine, began, throttled_at) for mine in times]
    after = [measured_pace(mine, throttled_at, until) for mine in times]
    after[SLOW] = healthy_pace(times, throttled_at, until)
    return tuple(map(max, before, after))


def judge(outcomes: Sequence[StragglerOutcome]) -> report.Result:
    hard = outcomes[0]
    return report.Result(
        goals=(report.goal("jct_vs_ideal", hard.ratio, target=TARGET, better="lower"),),
        rounds=len(hard.runs),
        columns=("CPU of worker-2", "seconds", "vs ideal", "ours is", "paper's is"),
        rows=tuple(row for outcome in outcomes for row in rows_of(outcome)),
        notes=(
            f'{WORKERS} workers of {CPU} cores (quota); all are run; "ours is" compares times over the ideal of each',
            '"paper\'s is": what the papers report for their systems on clusters, compared with doing nothing: '
            f"DLRover-RM, Fig. 13 ({HARD.slow:.0%}), and DLRover, Fig. 8 ({MODELS[0].slow:.0%})",
        ),
        details={"outcomes": outcomes},
    )


def rows_of(one: StragglerOutcome) -> Iterator[report.Cells]:
    less = ", of less work" if one.case == HARD else ""
    for what, seconds, ideal, paper in (
        ("ideal", statistics.median(run.ideal_s for run in one.runs), 1.0, ""),
        ("ours", statistics.median(run.took_s for run in one.runs), one.ratio, ""),
        (f"equal parts{less}", one.parts.took_s, one.parts.ratio, one.case.paper),
    ):
        yield (f"{one.case}: {what}", seconds, ideal, f"{one.ratio / ideal - 1:+.0%}", paper)
