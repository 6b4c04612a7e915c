"""One job of the test bed in trouble: a worker or a server with a part of its cores, and three ways to meet it.

In: seeds. Out: rows of Figs. 12 and 13 of DLRover-RM (000) and of Fig. 8 of DLRover (001). Next: `reproduction`.

Ours has the shape tuned by hand, as the others have; where it has its own, that is said. The bound is the same job, had
nothing happened to it: nobody who has that shape can end sooner.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.sim import models, systems
from springtide.sim.rows import Row, row
from springtide.sim.testbed import end, job_of, learned, less
from springtide.sim.world import Job

TRADITIONAL = systems.Mechanisms(servers=systems.ServerChange.RESTART)
"""Stops and restarts when something is wrong."""
EIGHT_MIN = "a restart takes 8 minutes, as the text says; all notice the trouble after one"
OCCURS = "it occurs while the job runs, the text does not say when: at shares of the job drawn by seed"
SET = (
    "the text sets the cores of a pod (§6.2), and a pod has its cores from its start: from the first step on. Later "
    "ones, drawn by seed as for 000, are beside it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One figure's job."""

    figure: str
    who: str
    speed: float
    model: str
    paper: float
    """By how much ours is below doing nothing."""
    restart: float | None = None
    """The same of a restart, where the paper has one."""
    at: float | None = None
    """Share of the job after which it happens; None: drawn."""

    @property
    def what(self) -> str:
        """For people."""
        return f"{self.model}: slow {self.who} ({self.speed:.0%} of its cores), JCT below"

    def jobs(self, seeds: Sequence[int], *, later: bool = False) -> list[Job]:
        """Its job, a seed each."""
        when = shares(seeds) if later or self.at is None else [self.at] * len(seeds)
        names = ("slow_server_at", "server_speed") if self.who == "server" else ("straggles_at", "straggler_speed")
        return [
            job_of(models.model(self.model), seed, **dict(zip(names, (at, self.speed), strict=True)))
            for seed, at in zip(seeds, when, strict=True)
        ]


CASES = (
    Case(figure="000 Fig. 12", who="server", speed=0.03, model="widedeep", paper=0.364, restart=0.276),
    Case(figure="000 Fig. 13", who="worker", speed=0.03, model="widedeep", paper=0.485, restart=0.37),
    Case(figure="001 Fig. 8", who="worker", speed=0.25, model="widedeep", paper=0.24, at=0.0),
    Case(figure="001 Fig. 8", who="worker", speed=0.25, model="xdeepfm", paper=0.42, at=0.0),
    Case(figure="001 Fig. 8", who="server", speed=0.25, model="widedeep", paper=0.42, at=0.0),
    Case(figure="001 Fig. 8", who="server", speed=0.25, model="xdeepfm", paper=0.25, at=0.0),
)


def shares(seeds: Sequence[int]) -> list[float]:
    """Of the job, when something occurs, a seed each."""
    return [float(share) for share in np.random.default_rng([7, *seeds]).uniform(0.1, 0.6, size=len(seeds))]


def rows(seeds: Sequence[int]) -> list[Row]:
    """All of them."""
    return [one for case in CASES for one in _rows(case, seeds)]


def _rows(case: Case, seeds: Sequence[int]) -> list[Row]:
    jobs, figure, what = case.jobs(seeds), case.figure, case.what
    calm = _times([job_of(models.model(case.model), seed) for seed in seeds], None)
    ours, nothing = _times(jobs, systems.Mechanisms()), _times(jobs, None)
    own = [
        end(job, "springtide", history=learned(models.model(case.model), seed)).jct_s
        for job, seed in zip(jobs, seeds, strict=True)
    ]
    why = OCCURS if case.at is None else SET
    found = _beside(figure, f"{what} doing nothing", case.paper, (ours, nothing, calm), why)
    if case.restart is not None:
        stopped = _times(jobs, TRADITIONAL)
        found += _beside(figure, f"{what} a restart", case.restart, (ours, stopped, calm), EIGHT_MIN)
        found.append(row(figure, f"{what} a restart; own shape", case.restart, list(map(less, own, stopped))))
        return found
    found.append(row(figure, f"{what} nothing; own shape", case.paper, list(map(less, own, nothing)), goal=case.paper))
    later = case.jobs(seeds, later=True)
    below = list(map(less, _times(later, systems.Mechanisms()), _times(later, None)))
    return [*found, row(figure, f"{what} doing nothing, where it comes later", case.paper, below)]


def _beside(
    figure: str, what: str, paper: float, times: tuple[list[float], list[float], list[float]], why: str
) -> list[Row]:
    """Ours below another way, and the bound of it."""
    ours, theirs, calm = times
    bound = list(map(less, calm, theirs))
    return [
        row(figure, what, paper, list(map(less, ours, theirs)), goal=paper, why=why, bound=bound),
        row("bound", f"{what}, had nothing happened", "-", bound),
    ]


def _times(jobs: Sequence[Job], mechanisms: systems.Mechanisms | None) -> list[float]:
    """Completion times in the shape tuned by hand; None: nothing is done about anything."""
    return [end(job, "static", mechanisms=mechanisms).jct_s for job in jobs]
