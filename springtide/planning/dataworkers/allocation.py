"""Pure. Allocates the cluster's cores for data workers among jobs (the second level of GoldMiner).

A job's next core is assumed to gain as much as the cores of its last change, until a measurement corrects this. A
metric decides which job comes first.
"""

import heapq
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from springtide.domain.plan.view import JobView
from springtide.planning.policy import registry

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class FedJob:
    """Input state of one job, as the allocator for the whole cluster sees it."""

    name: str
    gpus: int
    """Number of GPUs on which the job trains, or of its trainers if it has no GPUs."""
    speed: float
    """Current steps per second: t."""
    capable: float
    """Steps per second that the trainers would reach if they never waited for data: the ideal t."""
    cpu: float
    """Current cores of the data workers: c."""
    gain: float | None = None
    """Gain of the last change in steps per second per core; None if unknown."""
    steps_left: float = math.inf
    least: float = 1.0
    """Fewest cores of the job. Every job gets its minimum before any job gets more, because a stalled job produces no
    measurements.
    """

    @property
    def room(self) -> bool:
        return self.speed < self.capable * (1 - ROUNDING)

    def at(self, cpu: float) -> float:
        """Return the steps per second with `cpu` cores. Below the current cores they are proportional to `cpu`, and
        above they grow by `slope`."""
        if cpu <= self.cpu:
            return self.speed * cpu / self.cpu if self.cpu > 0 else self.speed
        return min(self.speed + self.slope * (cpu - self.cpu), max(self.capable, self.speed))

    @property
    def slope(self) -> float:
        """Return the expected gain of the next core: the gain per core of the last change, or the mean per core before
        any change."""
        if self.gain is not None:
            return self.gain
        return self.speed / self.cpu if self.cpu > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStep:
    """Input of a metric: a job that could get the next cores, with the cores that this round has given to the job so
    far.
    """

    job: FedJob
    cpu: float
    """c: cores without the step."""
    more: float
    """Δc: cores of the step."""
    speed: float
    """t: steps per second without the step."""
    faster: float
    """Δt: expected gain in steps per second."""


Metric = Callable[[CoreStep], float]
"""Function that scores a step. The job with the smallest score gets the next cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRules:
    """Settings of the allocation of cores."""

    grain: float = 1.0
    """Unit of allocation, in cores. A whole data worker would be too coarse as the unit: a job that needs one core
    might get none, although other jobs gain little from their last data worker. A remainder becomes a smaller data
    worker.
    """
    keep: float = 0.05
    """Bonus in the score for cores that a job already has, so that small differences do not move cores between jobs."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreAllotment:
    """Cores for the data workers of each job, with reasons."""

    cores: Mapping[str, float]
    why: Mapping[str, str]
    notes: tuple[str, ...] = ()
    """Errors that metric functions raised."""

    @property
    def total(self) -> float:
        return sum(self.cores.values())


def corrected(before: FedJob, *, speed: float, capable: float, cpu: float, steps_left: float | None = None) -> FedJob:
    """Return the job after a change, with the measured gain per core.

    If the queue is full after the change, the cores could have produced more than the trainers took. The change then
    does not show the value of a core, and the earlier value is kept. The first measurement is compared with zero
    cores and zero speed.
    """
    change = cpu - before.cpu
    left = before.steps_left if steps_left is None else steps_left
    if abs(change) < ROUNDING:
        seen = before.gain if before.gain is not None or cpu <= 0 else speed / cpu
        return replace(before, speed=speed, capable=capable, cpu=cpu, gain=seen, steps_left=left)
    seen = max((speed - before.speed) / change, 0.0) if before.cpu > 0 else speed / cpu
    full = speed >= capable * (1 - ROUNDING) if change > 0 else not before.room
    if full and before.gain is not None:
        seen = max(seen, before.gain)
    return replace(before, speed=speed, capable=capable, cpu=cpu, gain=seen, steps_left=left)


def allot(jobs: Sequence[FedJob], cpu: float, metric: Metric, rules: CoreRules | None = None) -> CoreAllotment:
    """Allocate the cores. Each job first gets its minimum, in order. Then the metric decides who gets each further
    unit."""
    rules = rules or CoreRules()
    given = _least(jobs, cpu, rules)
    free = cpu - sum(given.values())
    notes: dict[str, None] = {}
    by_name = {job.name: job for job in jobs}
    heap: list[tuple[float, int, str]] = []
    for job in jobs:
        _offer(heap, job, given[job.name], metric, rules, notes)
    while heap and free >= rules.grain - ROUNDING:
        _, _, name = heapq.heappop(heap)
        given[name] += rules.grain
        free -= rules.grain
        _offer(heap, by_name[name], given[name], metric, rules, notes)
    return CoreAllotment(cores=given, why={job.name: _why(job, given[job.name]) for job in jobs}, notes=tuple(notes))


def _least(jobs: Sequence[FedJob], cpu: float, rules: CoreRules) -> dict[str, float]:
    given: dict[str, float] = {}
    free = cpu
    for job in jobs:
        wanted = math.ceil(job.least / rules.grain - ROUNDING) * rules.grain if job.capable > 0 else 0.0
        given[job.name] = min(wanted, _whole(free, rules.grain))
        free -= given[job.name]
    return given


def _whole(cpu: float, grain: float) -> float:
    return max(math.floor(cpu / grain + ROUNDING) * grain, 0.0)


def _has_use(job: FedJob, cpu: float) -> bool:
    """Return True if cores beyond `cpu` are expected to make the job faster."""
    slope = job.speed / job.cpu if cpu < job.cpu - ROUNDING else job.slope
    return slope > 0 and job.at(cpu) < job.capable * (1 - ROUNDING)


def _offer(
    heap: list[tuple[float, int, str]],
    job: FedJob,
    cpu: float,
    metric: Metric,
    rules: CoreRules,
    notes: dict[str, None],
) -> None:
    if not _has_use(job, cpu):
        return
    speed, after = job.at(cpu), cpu + rules.grain
    step = CoreStep(job=job, cpu=cpu, more=rules.grain, speed=speed, faster=job.at(after) - speed)
    score = _score(metric, step, notes)
    if after <= job.cpu + ROUNDING:
        score -= rules.keep * abs(score) if math.isfinite(score) else 0.0
    heapq.heappush(heap, (score, zlib.crc32(f"{rules.seed}:{job.name}".encode()), job.name))


def _score(metric: Metric, step: CoreStep, notes: dict[str, None]) -> float:
    """Return the score of a metric. A metric may be third-party code. If the metric fails for a job, the job comes
    last."""
    name = getattr(metric, "__name__", type(metric).__name__)
    try:
        score = float(metric(step))
    except Exception as error:  # a faulty metric must not stop the jobs
        notes[f"metric {name} failed: {type(error).__name__}: {error}"] = None
        return math.inf
    if math.isnan(score):
        notes[f"metric {name} is not a number for job {step.job.name}"] = None
        return math.inf
    return score


def _why(job: FedJob, cpu: float) -> str:
    share = (
        f"{job.at(cpu) / job.capable:.0%} of the rate that it could train" if job.capable > 0 else "it trains nothing"
    )
    if cpu > job.cpu + ROUNDING:
        return f"{job.cpu:g} to {cpu:g} cores: expected {share}"
    if cpu < job.cpu - ROUNDING:
        return f"{job.cpu:g} to {cpu:g} cores, because other jobs gain more from these cores: expected {share}"
    return f"keeps {cpu:g} cores: {share}" + ("" if job.room else ", its queue is full")


GROUP = "springtide.dataworker_metrics"


def maxtp(step: CoreStep) -> float:
    return -step.faster / step.more * step.job.gpus


def srtf(step: CoreStep) -> float:
    """Score by remaining time and cores: n (c + Δc) / (t + Δt) (shortest remaining time first)."""
    speed = step.speed + step.faster
    return step.job.steps_left * (step.cpu + step.more) / speed if speed > 0 else math.inf


def fair(step: CoreStep) -> float:
    """Score by the share of the possible throughput that the job reaches: (t + Δt) / t_ideal."""
    return (step.speed + step.faster) / step.job.capable


METRICS: dict[str, Metric] = {"maxtp": maxtp, "srtf": srtf, "fair": fair}


def load(name: str) -> Metric:
    return registry.find(name, METRICS, GROUP, "data worker metric")


GRAIN = 0.5
"""Unit of allocation in cores; half a core, because data workers on a small machine have only half a core."""


def shared(
    jobs: Iterable[JobView], before: Mapping[str, FedJob], cpu: float, metric: Metric
) -> tuple[CoreAllotment, dict[str, FedJob]]:
    """Divide the cores among the jobs that tune data workers."""
    known = {job.name: found for job in jobs if (found := fed(job, before.get(job.name))) is not None}
    return allot(list(known.values()), max(0.0, cpu), metric, CoreRules(grain=GRAIN)), known


def fed(job: JobView, before: FedJob | None) -> FedJob | None:
    """Return the job in the form for the allocator. Return None if the job does not tune data workers or reports
    invalid numbers."""
    fed = job.fed
    if fed is None or not _sound(fed.trainers, fed.speed, fed.capable, fed.cpu, fed.least):
        return None
    left = max(0.0, job.progress.remaining / job.facts.batch)
    if before is None:
        before = FedJob(name=job.name, gpus=fed.trainers, speed=fed.speed, capable=fed.capable, cpu=fed.cpu)
    now = corrected(before, speed=fed.speed, capable=fed.capable, cpu=fed.cpu, steps_left=left)
    return replace(now, gpus=fed.trainers, least=fed.least)


def _sound(trainers: int, speed: float, capable: float, cpu: float, least: float) -> bool:
    """Return True if the report is valid. A master of another version may send any value."""
    numbers = (speed, capable, cpu, least)
    return trainers >= 1 and math.isfinite(sum(numbers)) and min(numbers) >= 0
