"""The papers' production clusters: days of drawn jobs, as their users asked for and as planned. In: seeds. Out: rows of
Fig. 9, Table 4, Figs. 14 and 15 of DLRover-RM (000), and of §6.4 of DLRover (001). Next: `reproduction` prints them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from springtide.domain.plan.plan import Decision
from springtide.domain.plan.view import ClusterView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.policy import registry
from springtide.sim import report
from springtide.sim.engine import systems
from springtide.sim.engine.running_job import JobEnd, JobOutcome
from springtide.sim.engine.simulation import HISTORY, Simulation, Story
from springtide.sim.report import Summary
from springtide.sim.world import workload
from springtide.sim.world.parameters import ClusterWorld
from springtide_lab.reproduce.report import Row, row

WORLD = ClusterWorld()
EARLIER = HISTORY
"""Jobs of the days before, from which a history comes: the papers' systems ran for months."""
Which = Callable[[JobOutcome], bool]
CLASSES: dict[str, Which] = {
    "all jobs": lambda one: True,
    "hot servers": lambda one: one.job.faults.hot > 1,
    "too little server CPU": lambda one: one.job.faults.starved,
}
"""Whose completion times Fig. 15 shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDay:
    """The same jobs under several systems."""

    before: Story
    """As users asked for, on Kubeflow."""
    after: Story
    """Ours."""
    cold: Story
    """Ours, which has no history."""
    oracle: Story
    soonest: Story
    """The oracle that knows how long pods pend, too."""

    @property
    def was(self) -> Summary:
        return report.summary(self.before)

    @property
    def now(self) -> Summary:
        return report.summary(self.after)


def days(count: int, seeds: Sequence[int]) -> list[ClusterDay]:
    return [_day(count, seed) for seed in seeds]


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
        soonest=run(systems.oracle(jobs, world=WORLD)),
    )


def _earlier(ours: systems.System, seed: int, config: PlanningConfig) -> list[PastJob]:
    """What the history holds when the day begins: other jobs of the same users, which ours ran on the days before."""
    before = Simulation(WORLD, workload.jobs(WORLD, EARLIER, seed, earlier=True), ours, config=config)
    over = before.run().ended_at
    return [replace(one, ended_at=one.ended_at - over) for one in before.history]


def _forgetful(policy: systems.Policy) -> systems.Policy:
    """The same policy without a history: every job starts small."""

    def asked(view: ClusterView, config: PlanningConfig) -> Decision:
        return policy(replace(view, history=()), config)

    return asked


def rows(seen: Sequence[ClusterDay]) -> list[Row]:
    return [*warm_start(seen), *failures(seen), *utilization(seen), *completion(seen), *times(seen)]


def warm_start(seen: Sequence[ClusterDay]) -> list[Row]:
    """Fig. 9: how near the first shape is to the last, of jobs whose user has run such a job before."""
    spent = [1 - _scaling(day.after) / _scaling(day.cold) for day in seen]
    return [
        row(
            "000 Fig. 9", "first to last shape: workers", 0.92, [near(day.after, "workers") for day in seen], goal=0.92
        ),
        row(
            "000 Fig. 9", "first to last shape: servers", 0.85, [near(day.after, "servers") for day in seen], goal=0.85
        ),
        row("000 §6.2", "time spent scaling, below cold start", 0.26, spent, goal=0.26),
    ]


def near(story: Story, role: str) -> float:
    """1 - |first - last| / last, in the mean."""
    found = [max(0.0, 1 - abs(first - last) / last) for first, last in first_and_last(story, role)]
    return float(np.mean(found)) if found else float("nan")


def first_and_last(story: Story, role: str) -> list[tuple[int, int]]:
    """How many workers or servers finished jobs began and ended with, of kinds that had finished before they began."""
    first_end: dict[str, float] = {}
    for outcome in story.outcomes:
        first_end.setdefault(outcome.job.kind, outcome.ended_at)
    return [
        (getattr(one.initial, role), getattr(one.final, role))
        for one in story.outcomes
        if one.end is JobEnd.FINISHED and first_end[one.job.kind] < one.job.arrives_at
    ]


def _scaling(story: Story) -> float:
    return float(np.mean([one.scaling_s for one in story.outcomes if one.end is JobEnd.FINISHED]))


def failures(seen: Sequence[ClusterDay]) -> list[Row]:
    """Table 4: shares of jobs, before and after."""
    cases = (
        ("out of memory", "oom", 0.047, 0.0023),
        ("scheduling", "scheduling", 0.02, 0.001),
        ("slow by a hot server", "slow_hot", 0.08, 0.01),
        ("slow by a straggler", "slow_straggler", 0.07, 0.007),
    )
    found = []
    for what, name, before, after in cases:
        found.append(row("000 Table 4", f"{what}: before", before, [getattr(day.was, name) for day in seen]))
        ours = [getattr(day.now, name) for day in seen]
        found.append(row("000 Table 4", f"{what}: ours", after, ours, goal=after, better="lower"))
    return found


def utilization(seen: Sequence[ClusterDay]) -> list[Row]:
    """Fig. 14 (a, b) and 001 §6.4: used of what was allocated."""
    cases = (
        ("000 Fig. 14", "CPU of workers", "worker_cpu", 0.19, 0.40),
        ("000 Fig. 14", "CPU of servers", "server_cpu", 0.13, 0.414),
        ("000 Fig. 14", "memory of workers", "worker_memory", 0.152, 0.468),
        ("000 Fig. 14", "memory of servers", "server_memory", 0.138, 0.311),
        ("001 §6.4", "CPU", "cpu", 0.29, 0.44),
        ("001 §6.4", "memory", "memory", 0.31, 0.52),
    )
    found = []
    for figure, what, name, before, after in cases:
        found.append(row(figure, f"{what}: before", before, [getattr(day.was, name) for day in seen]))
        found.append(row(figure, f"{what}: ours", after, [getattr(day.now, name) for day in seen], goal=after))
    return found


def completion(seen: Sequence[ClusterDay]) -> list[Row]:
    """Fig. 14 (c): finished over submitted, by size."""
    found = []
    cases = (("below 100 CPUs", "completion_small", 0.84, 0.95), ("from 100 CPUs", "completion_large", 0.67, 0.87))
    for what, name, before, after in cases:
        found.append(row("000 Fig. 14", f"completed, {what}: before", before, [getattr(day.was, name) for day in seen]))
        ours = [getattr(day.now, name) for day in seen]
        found.append(row("000 Fig. 14", f"completed, {what}: ours", after, ours, goal=after))
    return found


def times(seen: Sequence[ClusterDay]) -> list[Row]:
    """Fig. 15: completion times of finished jobs below those of before; and over the oracle's."""
    paper_says = ((0.31, 0.357), (0.21, 0.286), (0.57, 0.287))
    found = []
    for (what, which), (median, tail) in zip(CLASSES.items(), paper_says, strict=True):
        for share, paper in ((50, median), (90, tail)):
            ours = [1 - _time(day.after, which, share) / _time(day.before, which, share) for day in seen]
            found.append(row("000 Fig. 15", f"{what}: JCT p{share} below before", paper, ours, goal=paper))
    for share in (50, 90):
        ours = [
            _time(day.after, lambda one: True, share) / _time(day.oracle, lambda one: True, share) - 1 for day in seen
        ]
        found.append(row("oracle", f"days: JCT p{share} over the oracle's", "-", ours, goal=0.05, better="lower"))
    why = "no policy can be better: it knows every job's coefficients and how long pods of each size pend"
    for share in (50, 90):
        ours = [
            _time(day.after, CLASSES["all jobs"], share) / _time(day.soonest, CLASSES["all jobs"], share) - 1
            for day in seen
        ]
        found.append(row("oracle", f"days: JCT p{share} over the least possible", "-", ours, why=why))
    return found


def _time(story: Story, which: Which, share: float) -> float:
    times = [one.jct_s for one in story.outcomes if one.end is JobEnd.FINISHED and which(one)]
    value = report.percentile(times, share)
    return float("nan") if value is None else value
