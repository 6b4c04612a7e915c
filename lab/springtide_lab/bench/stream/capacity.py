"""Compare models that predict a real job's throughput with other numbers of workers: ours, Kale's, Ernest's, Optimus'.

In: a real job with CPU quotas of fractions of a core, in async and in bsp. All shapes are measured in turn, forwards
and backwards, because a single window has an error of 2 to 4%. Out: `capacity_mape_async` and `capacity_mape_bsp`,
where each shape is predicted from the others.
"""

import contextlib
import itertools
import pathlib
import random
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import TypeVar

from springtide.domain.core.shape import Shape
from springtide.domain.spec.job_spec import SyncMode
from springtide.planning.online.capacity_model import CapacitySample, Kind
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, quota_job, report
from springtide_lab.bench.core.quota_job import QuotaJob
from springtide_lab.reproduce.kale import throughput

TARGET = 0.0243
WORKER_CPU, SERVER_CPU = 0.15, 0.05  # cores; servers need about a fifth of the workers' cores
SETTLE_S = 1.5
MEASURE_S: Mapping[SyncMode, float] = {"async": 5.0, "bsp": 12.0}
"""Seconds of a window. In bsp a window of 4 s has an error of 2.5%, and starting a job takes longer than that, so bsp
gets few long windows."""
BUDGET_S: Mapping[SyncMode, float] = {"async": 290.0, "bsp": 400.0}
"""Seconds for all rounds of one mode, including the start of its jobs. Both modes together take twelve minutes."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 12
DRAWS = 200
"""Number of resamplings of the rounds for the confidence interval."""
Round = Sequence[CapacitySample]
Rounds = Generator[Round, None, None]
Item = TypeVar("Item")
FULL: Mapping[SyncMode, Sequence[int]] = {"async": (1, 2, 3, 4, 5), "bsp": (1, 2, 3, 4, 5, 6)}
"""Numbers of workers; a shape has as many servers as workers."""
QUICK: Mapping[SyncMode, Sequence[int]] = {"async": (2, 1), "bsp": ()}
KINDS: Mapping[SyncMode, Kind] = {"async": "async", "bsp": "sync"}
NAMES = {
    "learned": "ours",
    "async": "Kale",
    "sync": "Kale",
    "ernest": "Ernest",
    "optimus": "Optimus",
    "optimus-async": "Optimus",
}


def bench(options: Options) -> report.Result:
    wanted = QUICK if options.quick else FULL
    taken: dict[SyncMode, list[Round]] = {}
    with harness.scratch() as folder:
        quota_job.clicks(folder)
        for sync, numbers in wanted.items():
            # in bsp every shape gets a separate job, because a new group resumes from a checkpoint, which takes long
            # here
            ways = one_job if sync == "async" else jobs_anew
            least, budget_s, seconds = (
                (1, 0.0, 1.5) if options.quick else (LEAST_ROUNDS, BUDGET_S[sync], MEASURE_S[sync])
            )
            with contextlib.closing(ways(folder, sync, numbers, seconds)) as rounds:
                taken[sync] = within(rounds, budget_s, least=least, label=sync) if numbers else []
    return judge(taken)


def within(
    rounds: Iterable[Item], budget_s: float, *, least: int, label: str, clock: Callable[[], float] = time.monotonic
) -> list[Item]:
    """Return as many rounds as fit into the budget, if each takes as long as the longest so far; return at least
    `least`."""
    found: list[Item] = []
    began = last = clock()
    longest = 0.0
    for one in harness.track(f"{label}, in rounds", rounds, total=MOST_ROUNDS):
        found.append(one)
        now = clock()
        longest, last = max(longest, now - last), now
        if len(found) >= MOST_ROUNDS or (len(found) >= least and now - began + longest > budget_s):
            break
    return found


def one_job(folder: pathlib.Path, sync: SyncMode, numbers: Sequence[int], seconds: float) -> Rounds:
    """Yield rounds of one running job, which takes each of these numbers of workers in turn."""
    first = _shape(numbers[0])
    with QuotaJob(folder, first, name=f"capacity-{sync}", sync=sync) as job:
        job.trains(first.workers)
        for turn in itertools.count():
            yield [_seen(job, _shape(number), seconds) for number in (numbers if turn % 2 == 0 else numbers[::-1])]


def jobs_anew(folder: pathlib.Path, sync: SyncMode, numbers: Sequence[int], seconds: float) -> Rounds:
    """Yield rounds with a separate job for each of these numbers of workers."""
    for turn in itertools.count():
        found = []
        for workers in numbers if turn % 2 == 0 else numbers[::-1]:
            shape = _shape(workers)
            with QuotaJob(folder, shape, name=f"capacity-{sync}-{workers}-{turn}", sync=sync) as job:
                job.trains(workers)
                found.append(_seen(job, shape, seconds))
            shutil.rmtree(job.cluster.files.root, ignore_errors=True)  # remove checkpoints that no job will resume from
        yield found


def _shape(workers: int) -> Shape:
    return Shape(workers=workers, servers=workers, worker_cpu=WORKER_CPU, server_cpu=SERVER_CPU)


def _seen(job: QuotaJob, shape: Shape, seconds: float) -> CapacitySample:
    job.let_go()
    job.become(shape)
    time.sleep(SETTLE_S)
    since = time.time()
    time.sleep(seconds)
    return CapacitySample(shape.workers, job.rate(since, time.time()))


def typical(rounds: Sequence[Round]) -> list[CapacitySample]:
    rates: dict[int, list[float]] = {}
    for one in itertools.chain.from_iterable(rounds):
        rates.setdefault(one.workers, []).append(one.throughput)
    return [CapacitySample(workers, median(some)) for workers, some in rates.items()]


def interval(kind: Kind, rounds: Sequence[Round], *, seed: int = 0) -> tuple[float, float]:
    """Return the 90% bootstrap interval of our model's error, from rounds drawn with repetition."""
    chance = random.Random(seed)
    draws = [tuple(sorted(chance.choices(range(len(rounds)), k=len(rounds)))) for _ in range(DRAWS)]
    errors = {
        draw: throughput.left_out(kind, typical([rounds[each] for each in draw]))["learned"].mape for draw in set(draws)
    }
    cut = quantiles([errors[draw] for draw in draws], n=20, method="inclusive")
    return cut[0], cut[-1]


def judge(taken: Mapping[SyncMode, Sequence[Round]]) -> report.Result:
    """Return the result: the error of each model when it predicts one measurement from all other measurements."""
    rows: list[report.Cells] = []
    goals: list[report.Goal] = []
    speeds: list[str] = []
    for sync, rounds in taken.items():
        seen = typical(rounds)
        value = None
        if len(seen) > 2:
            found = {NAMES[each]: one for each, one in throughput.left_out(KINDS[sync], seen).items()}
            low, high = interval(KINDS[sync], rounds)
            value = harness.Ratio(value=found["ours"].mape, low=low, high=high)
            rows += [(f"{sync}, servers = workers", model, one.mape, one.worst) for model, one in found.items()]
        name = f"capacity_mape_{sync}"
        goals.append(report.goal(name, value, target=TARGET, better="lower", why="" if value else "too few shapes"))
        speeds += [f"{sync} {one.workers}+{one.workers} {one.throughput:,.0f}" for one in seen]
        rows += [(f"{sync}, single windows", "their median", *_off(rounds))] if len(rounds) > 1 else []
    return report.Result(
        goals=tuple(goals),
        rounds=min((len(rounds) for rounds in taken.values() if rounds), default=0),
        columns=("job", "model", "MAPE", "largest error"),
        rows=tuple(rows),
        notes=(
            f"workers + servers, samples/s: {', '.join(speeds)}",
            "each predicted from all others of its kind; medians of rounds; number of rounds: "
            + ", ".join(f"{len(rounds)} {sync}" for sync, rounds in taken.items()),
            "spread: nine in ten of as many rounds drawn again",
        ),
        details={
            sync: [[{**one._asdict(), "servers": one.workers} for one in some] for some in rounds]
            for sync, rounds in taken.items()
        },
    )


def _off(rounds: Sequence[Round]) -> tuple[float, float]:
    middle = {one.workers: one.throughput for one in typical(rounds)}
    all_of = [one for some in rounds for one in some]
    judged = throughput.judged([one.throughput for one in all_of], [middle[one.workers] for one in all_of])
    return judged.mape, judged.worst
