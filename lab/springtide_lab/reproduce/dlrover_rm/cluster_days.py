"""Simulate days of the papers' production clusters, with the shapes that users requested and with planned shapes.

In: seeds. Out: rows of Fig. 9, Table 4, Figs. 14 and 15 of DLRover-RM (000), and of §6.4 of DLRover (001).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from springtide.domain.core.shape import ShapeBounds
from springtide.domain.plan.plan import Decision
from springtide.domain.plan.view import ClusterView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.perf_model.equations import Array
from springtide.planning.policy import registry
from springtide.planning.policy.acceptance import Policy
from springtide.sim import report
from springtide.sim.engine import systems
from springtide.sim.engine.running_job import JobEnd, JobOutcome
from springtide.sim.engine.simulation import HISTORY, Simulation, Story
from springtide.sim.world import workload
from springtide.sim.world.parameters import ClusterWorld
from springtide_lab.reproduce.report import Better, Row, row

WORLD = ClusterWorld()
QUANTILES = 64
Which = Callable[[JobOutcome], bool]
CLASSES: dict[str, Which] = {
    "all jobs": lambda one: True,
    "hot servers": lambda one: one.job.faults.hot > 1,
    "too little server CPU": lambda one: one.job.faults.starved,
}
"""Classes of jobs with completion times in Fig. 15."""


class Case(NamedTuple):
    """One figure of a summary, with the paper's values before and with DLRover-RM."""

    figure: str
    what: str
    field: str
    before: float
    after: float


FAILURES = (
    Case("000 Table 4", "out of memory", "oom", 0.047, 0.0023),
    Case("000 Table 4", "scheduling", "scheduling", 0.02, 0.001),
    Case("000 Table 4", "slow by a hot server", "slow_hot", 0.08, 0.01),
    Case("000 Table 4", "slow by a straggler", "slow_straggler", 0.07, 0.007),
)
"""Failures and slow jobs, as shares of all jobs."""
UTILIZATION = (
    Case("000 Fig. 14", "CPU of workers", "worker_cpu", 0.19, 0.40),
    Case("000 Fig. 14", "CPU of servers", "server_cpu", 0.13, 0.414),
    Case("000 Fig. 14", "memory of workers", "worker_memory", 0.152, 0.468),
    Case("000 Fig. 14", "memory of servers", "server_memory", 0.138, 0.311),
    Case("001 §6.4", "CPU", "cpu", 0.29, 0.44),
    Case("001 §6.4", "memory", "memory", 0.31, 0.52),
)
"""Used shares of the allocated resources."""
COMPLETION = (
    Case("000 Fig. 14", "completed, below 100 CPUs", "completion_small", 0.84, 0.95),
    Case("000 Fig. 14", "completed, from 100 CPUs", "completion_large", 0.67, 0.87),
)
"""Finished jobs as a share of submitted jobs, by size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDay:
    """Stories of the same jobs under several systems."""

    before: Story
    """Shapes as requested by users, on Kubeflow."""
    after: Story
    """Our planner, with the history of earlier jobs."""
    cold: Story
    """Our planner without history."""
    oracle: Story
    soonest: Story
    """Oracle that also knows how long pods stay pending."""

    @property
    def was(self) -> dict[str, Any]:
        return report.summary(self.before).flat()

    @property
    def now(self) -> dict[str, Any]:
        return report.summary(self.after).flat()


def days(count: int, seeds: Sequence[int]) -> list[ClusterDay]:
    return [_day(count, seed) for seed in seeds]


@lru_cache(maxsize=8)
def waits(bounds: ShapeBounds, world: ClusterWorld) -> Array:
    """Expected seconds for which the pods of each shape stay pending. The role with the longer wait counts."""
    many = systems.grid(bounds)
    draws = [(place + 0.5) / QUANTILES for place in range(QUANTILES)]

    def of_slowest(pods: int) -> float:
        slowest = [world.pods.pending_spread * NormalDist().inv_cdf(draw ** (1 / pods)) for draw in draws]
        return world.pods.pending_s_a_core * float(np.mean(np.exp(slowest)))

    roles = ((many.workers, many.worker_cpu), (many.servers, many.server_cpu))
    found = []
    for counts, cores in roles:
        number, which = np.unique(counts, return_inverse=True)
        found.append(np.array([of_slowest(int(pods)) for pods in number])[which] * cores)
    return np.asarray(np.maximum(*found))


def _day(count: int, seed: int) -> ClusterDay:
    jobs = workload.jobs(WORLD, count, seed)
    ours = systems.system("springtide", registry.load("springtide"))
    config = PlanningConfig(exact_seconds=0.0)

    def run(system: systems.System, history: Sequence[PastJob] = ()) -> Story:
        return Simulation(WORLD, jobs, system, config=config, history=history).run()

    return ClusterDay(
        before=run(systems.system("static", registry.load("static"))),
        after=run(ours, _earlier(ours, seed, config)),
        cold=run(replace(ours, name="cold", policy=_forgetful(ours.policy))),
        oracle=run(systems.oracle(jobs)),
        soonest=run(systems.oracle(jobs, waits=partial(waits, world=WORLD))),
    )


def _earlier(ours: systems.System, seed: int, config: PlanningConfig) -> list[PastJob]:
    before = Simulation(WORLD, workload.jobs(WORLD, HISTORY, seed, earlier=True), ours, config=config)
    over = before.run().ended_at
    return [replace(one, ended_at=one.ended_at - over) for one in before.history]


def _forgetful(policy: Policy) -> Policy:
    def asked(view: ClusterView, config: PlanningConfig) -> Decision:
        return policy(replace(view, history=()), config)

    return asked


def rows(days: Sequence[ClusterDay]) -> list[Row]:
    return [
        *warm_start(days),
        *before_and_after(FAILURES, days, better="lower"),
        *before_and_after((*UTILIZATION, *COMPLETION), days),
        *times(days),
    ]


def warm_start(days: Sequence[ClusterDay]) -> list[Row]:
    """Return Fig. 9: how close the first shape is to the last, for jobs whose kind has finished before."""
    spent = [1 - _scaling(day.after) / _scaling(day.cold) for day in days]
    shapes = [
        row("000 Fig. 9", f"first to last shape: {role}", paper, [near(day.after, role) for day in days], goal=paper)
        for role, paper in (("workers", 0.92), ("servers", 0.85))
    ]
    return [*shapes, row("000 §6.2", "time spent scaling, saved against a cold start", 0.26, spent, goal=0.26)]


def near(story: Story, role: str) -> float:
    """Return the mean of 1 - |first - last| / last."""
    found = [max(0.0, 1 - abs(first - last) / last) for first, last in first_and_last(story, role)]
    return float(np.mean(found)) if found else float("nan")


def first_and_last(story: Story, role: str) -> list[tuple[int, int]]:
    """Return the first and last number of a role, for finished jobs whose kind had finished before they started."""
    first_end: dict[str, float] = {}
    for outcome in story.outcomes:
        first_end.setdefault(outcome.job.kind, outcome.ended_at)
    return [
        (getattr(one.tally.initial, role), getattr(one.final, role))
        for one in story.outcomes
        if one.end is JobEnd.FINISHED and first_end[one.job.kind] < one.job.arrives_at
    ]


def _scaling(story: Story) -> float:
    return float(np.mean([outcome.scaling_s for outcome in story.outcomes if outcome.end is JobEnd.FINISHED]))


def before_and_after(cases: Sequence[Case], days: Sequence[ClusterDay], *, better: Better = "higher") -> list[Row]:
    rows = []
    for case in cases:
        before = [day.was[case.field] for day in days]
        after = [day.now[case.field] for day in days]
        rows.append(row(case.figure, f"{case.what}: before", case.before, before))
        rows.append(row(case.figure, f"{case.what}: ours", case.after, after, goal=case.after, better=better))
    return rows


def times(days: Sequence[ClusterDay]) -> list[Row]:
    """Return Fig. 15: completion times of finished jobs compared with those before and with the oracle's."""
    papers = ((0.31, 0.357), (0.21, 0.286), (0.57, 0.287))
    every = CLASSES["all jobs"]
    rows = []
    for (what, which), (median, tail) in zip(CLASSES.items(), papers, strict=True):
        for share, paper in ((50, median), (90, tail)):
            ours = [1 - _time(day.after, which, share) / _time(day.before, which, share) for day in days]
            rows.append(row("000 Fig. 15", f"{what}: JCT p{share} saved against before", paper, ours, goal=paper))
    for share in (50, 90):
        ours = [_time(day.after, every, share) / _time(day.oracle, every, share) - 1 for day in days]
        rows.append(row("oracle", f"days: JCT p{share} above the oracle's", "-", ours, goal=0.05, better="lower"))
    why = "an upper bound: the oracle knows every job's coefficients, and how long pods of each size stay pending"
    for share in (50, 90):
        ours = [_time(day.after, every, share) / _time(day.soonest, every, share) - 1 for day in days]
        rows.append(row("oracle", f"days: JCT p{share} above the least possible", "-", ours, why=why))
    return rows


def _time(story: Story, which: Which, share: float) -> float:
    times = [outcome.jct_s for outcome in story.outcomes if outcome.end is JobEnd.FINISHED and which(outcome)]
    value = report.percentile(times, share)
    return float("nan") if value is None else value
