"""One full decision for a whole cluster: models fitted, candidates listed, capacity shared out. How long, and how good?

In: jobs with known coefficients and noisy profiles (`plan_world.py`), as a brain would see them. Out: processor seconds
of one decision of Springtide's own policy for 2,000 jobs that share 60,000 cores, how that grows with jobs (a picture),
the same for 2,000 jobs of which no two have bounds, needs or a number of windows in common, and the choice's quality
beside the exact optimum on random small clusters. Nothing is remembered from one decision to the next.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy

from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.candidates import grids, pareto
from springtide.planning.candidates.query import Ask
from springtide.planning.lifecycle import warm_start
from springtide.planning.perf_model import fit
from springtide.planning.policy import registry
from springtide_lab.bench import Options
from springtide_lab.bench.control import plan_world, random_clusters
from springtide_lab.bench.core import growth, progress, report

JOBS = 2000
MOST_S = 2.0
LEAST_QUALITY = 0.99
SIZES = (10, 30, 100, 300, 1000, JOBS, 5000, 10_000)
QUICK_SIZES = (10, 20, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Processor seconds of one decision, and of two of its parts alone."""

    jobs: int
    decision_s: float
    """Fit, candidates, choice, and all else."""
    wall_s: float
    """The same by the clock on the wall."""
    fit_s: float
    candidates_s: float
    plans: int


def bench(options: Options) -> report.Result:
    """Decisions for more and more jobs; medians of several clusters, of the largest one only."""
    sizes, rounds = (QUICK_SIZES, 1) if options.quick else (SIZES, 3)
    instances = 20 if options.quick else 200
    one(plan_world.cluster(10, seed=0))  # what is imported late is there
    took: list[Took] = []
    several = {jobs: rounds if jobs <= JOBS else 1 for jobs in sizes}
    with progress.bar("decisions", total=sum(several.values()) + rounds) as done:
        for jobs, times in several.items():
            took.append(median(jobs, times, done))
        unlike = median(QUICK_SIZES[-1] if options.quick else JOBS, rounds, done, unlike=True)
    quality = random_clusters.quality(numpy.random.default_rng(7), instances=instances)
    curve = growth.Curve(what="jobs", sizes=[each.jobs for each in took], seconds=[each.decision_s for each in took])
    picture = options.folder / "plan-growth.png"
    growth.plot([curve], picture, cost="decision, ms")
    whole = next((each.decision_s for each in took if each.jobs == JOBS), None)
    return report.Result(
        goals=(
            report.goal("seconds_2000_jobs", whole, target=MOST_S, better="lower", why="" if whole else "quick"),
            report.goal("quality_vs_exact", quality.chosen_mean, target=LEAST_QUALITY),
        ),
        rounds=rounds,
        columns=("jobs", "decision, s", "wall, s", "fit, s", "candidates, s", "plans"),
        rows=tuple(
            (f"{t.jobs:,}{what}", t.decision_s, t.wall_s, t.fit_s, t.candidates_s, f"{t.plans:,}")
            for t, what in (*((each, "") for each in took), (unlike, ", no two alike"))
        ),
        notes=(
            f"processor seconds of one process; grows as jobs^{curve.exponent:.2f}; picture: {picture}",
            f"{quality.instances} random small clusters, parts of the optimum: taken {quality.chosen_mean:.4f} on the "
            f"average and {quality.chosen_worst:.3f} at worst; greedy alone {quality.greedy_mean:.4f}, "
            f"{quality.greedy_worst:.3f}",
        ),
        details={
            "exponent": curve.exponent, "greedy_mean": quality.greedy_mean, "greedy_worst": quality.greedy_worst,
            "seconds_unlike": unlike.decision_s, "jobs_unlike": unlike.jobs,
            "median_share_of_fit": statistics.median(t.fit_s / t.decision_s for t in took),
        },
    )  # fmt: skip


def median(jobs: int, rounds: int, done: Callable[[], None], *, unlike: bool = False) -> Took:
    """The middle one of several clusters of a size."""
    some = []
    for seed in range(rounds):
        some.append(one(plan_world.cluster(jobs, seed=seed, unlike=unlike)))
        done()
    return sorted(some, key=lambda each: each.decision_s)[len(some) // 2]


def one(view: ClusterView) -> Took:
    """A decision from nothing, then its parts by themselves."""
    config = PlanningConfig()
    policy = registry.load("springtide")
    _forget()
    began, clock = time.process_time(), time.perf_counter()
    decision = policy(view, config)
    decided, wall = time.process_time(), time.perf_counter() - clock
    models = fit.fit_many([(job.profiles, job.facts) for job in view.jobs])
    fitted = time.process_time()
    _forget()
    asks = [
        Ask(coefficients=model.coefficients, facts=job.facts, bounds=job.bounds, now=job.shape, need=job.need)
        for job, model in zip(view.jobs, models, strict=True)
        if isinstance(model, fit.Fitted)
    ]
    listed = time.process_time()
    pareto.fronts(asks)
    return Took(
        jobs=len(view.jobs), decision_s=decided - began, wall_s=wall, fit_s=fitted - decided,
        candidates_s=time.process_time() - listed, plans=len(decision.plans),
    )  # fmt: skip


def _forget() -> None:
    """What some rooms keep between decisions."""
    grids.sides.cache_clear()
    warm_start.known.cache_clear()
