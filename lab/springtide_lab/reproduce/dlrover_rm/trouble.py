"""Simulate a test bed job with a slow worker or server under three strategies: Figs. 12, 13 (000), Fig. 8 (001).

Paper 000 compares strategies with the shape tuned by hand. Paper 001 compares DLRover, which sizes jobs itself, with
jobs tuned by hand. The bound is the same job without the slow role.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.sim.engine import systems
from springtide.sim.world import parameters
from springtide.sim.world.world import TrueJob
from springtide_lab.reproduce.dlrover_rm.testbed import end, job_of, learned, less
from springtide_lab.reproduce.report import NOT_IN_TEXT, Row, row

TRADITIONAL = systems.Mechanisms(servers=systems.ServerChange.RESTART, dynamic_shards=False)
"""Mechanisms that stop and restart a job with a slow role; each worker has an equal part of the data (000 §5.1)."""
EIGHT_MIN = (
    "a restart takes 8 minutes, as in Fig. 12 (5 to restart, 3 to save and load); all systems notice after one minute"
)
NO_TIME = (
    "the text gives no time for this restart, so the 8 minutes of Fig. 12 apply. They are 27.6% of a job that "
    "takes 21 minutes without them; 37% would be a restart of 12 minutes"
)
OCCURS = "the text does not say when the fault occurs: here, at shares of the job drawn by seed"
SET = (
    "the text limits the cores of a pod (§6.2), so the pod is slow from the first step on. Ours sizes the job "
    "itself, as the text's system does"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleCase:
    """The job of one figure."""

    figure: str
    who: str
    speed: float
    model: str
    paper: float
    """The paper's reduction of completion time compared with doing nothing."""
    restart: float | None = None
    """The paper's reduction compared with a restart; None if the paper has no such figure."""
    at: float | None = None
    """Share of the job after which the role becomes slow; None draws it by seed."""

    @property
    def what(self) -> str:
        return f"{self.model}: slow {self.who} ({self.speed:.0%} of its cores), JCT saved against"

    def jobs(self, seeds: Sequence[int], *, later: bool = False) -> list[TrueJob]:
        when = shares(seeds) if later or self.at is None else [self.at] * len(seeds)
        names = ("slow_server_at", "server_speed") if self.who == "server" else ("straggles_at", "straggler_speed")
        return [
            job_of(parameters.model(self.model), seed, **dict(zip(names, (at, self.speed), strict=True)))
            for seed, at in zip(seeds, when, strict=True)
        ]


CASES = (
    TroubleCase(figure="000 Fig. 12", who="server", speed=0.03, model="widedeep", paper=0.364, restart=0.276),
    TroubleCase(figure="000 Fig. 13", who="worker", speed=0.03, model="widedeep", paper=0.485, restart=0.37),
    TroubleCase(figure="001 Fig. 8", who="worker", speed=0.25, model="widedeep", paper=0.24, at=0.0),
    TroubleCase(figure="001 Fig. 8", who="worker", speed=0.25, model="xdeepfm", paper=0.42, at=0.0),
    TroubleCase(figure="001 Fig. 8", who="server", speed=0.25, model="widedeep", paper=0.42, at=0.0),
    TroubleCase(figure="001 Fig. 8", who="server", speed=0.25, model="xdeepfm", paper=0.25, at=0.0),
)


def shares(seeds: Sequence[int]) -> list[float]:
    return [float(share) for share in np.random.default_rng([7, *seeds]).uniform(0.1, 0.6, size=len(seeds))]


def rows(seeds: Sequence[int]) -> list[Row]:
    return [one for case in CASES for one in _rows(case, seeds)]


def _rows(case: TroubleCase, seeds: Sequence[int]) -> list[Row]:
    return _strategies(case, case.restart, seeds) if case.restart is not None else _own_size(case, seeds)


def _strategies(case: TroubleCase, restart: float, seeds: Sequence[int]) -> list[Row]:
    jobs, figure, what = case.jobs(seeds), case.figure, case.what
    calm, ours = _calm(case, seeds), _times(jobs, systems.Mechanisms())
    nothing, stopped = _times(jobs, None), _times(jobs, TRADITIONAL)
    own = list(map(less, _own(case, jobs, seeds), stopped))
    found = [
        *_beside(figure, f"{what} no reaction", case.paper, (ours, nothing, calm), why=OCCURS, goal=case.paper),
        *_beside(
            figure,
            f"{what} a restart",
            restart,
            (ours, stopped, calm),
            goal=restart,
            why=EIGHT_MIN if case.who == "server" else NO_TIME,
        ),
        row(figure, f"{what} a restart; own shape", restart, own),
    ]
    if case.who == "worker":
        needed = [(one / (1 - restart) - one) / 60 for one in calm]
        lost = [(theirs - one) / 60 for theirs, one in zip(stopped, calm, strict=True)]
        why = f"minutes that a restart must cost to make possible a saving of {restart:.0%}, and its cost here"
        found.append(row("bound", f"{what} a restart: minutes that it must cost", NOT_IN_TEXT, needed, why=why))
        found.append(row("bound", f"{what} a restart: minutes that it costs", NOT_IN_TEXT, lost))
    return found


def _own_size(case: TroubleCase, seeds: Sequence[int]) -> list[Row]:
    jobs, figure, what = case.jobs(seeds), case.figure, f"{case.what} no reaction"
    nothing = _times(jobs, None)
    below = list(map(less, _own(case, jobs, seeds), nothing))
    later = case.jobs(seeds, later=True)
    late = list(map(less, _times(later, systems.Mechanisms()), _times(later, None)))
    by_hand, times = f"{what}; ours tuned by hand", (_times(jobs, systems.Mechanisms()), nothing, _calm(case, seeds))
    return [
        row(figure, what, case.paper, below, goal=case.paper, why=SET),
        *_beside(figure, by_hand, NOT_IN_TEXT, times),
        row(figure, f"{by_hand}, if the fault comes later", NOT_IN_TEXT, late),
    ]


def _beside(
    figure: str,
    what: str,
    paper: float | str,
    times: tuple[list[float], list[float], list[float]],
    *,
    why: str = "",
    goal: float | None = None,
) -> list[Row]:
    ours, theirs, calm = times
    bound = list(map(less, calm, theirs))
    return [
        row(figure, what, paper, list(map(less, ours, theirs)), goal=goal, why=why, bound=bound),
        row("bound", f"{what}, if there were no fault", "-", bound),
    ]


def _calm(case: TroubleCase, seeds: Sequence[int]) -> list[float]:
    return _times([job_of(parameters.model(case.model), seed) for seed in seeds], None)


def _own(case: TroubleCase, jobs: Sequence[TrueJob], seeds: Sequence[int]) -> list[float]:
    model = parameters.model(case.model)
    pairs = zip(jobs, seeds, strict=True)
    return [end(job, "springtide", history=learned(model, seed)).jct_s for job, seed in pairs]


def _times(jobs: Sequence[TrueJob], mechanisms: systems.Mechanisms | None) -> list[float]:
    """Return completion times with the shape tuned by hand; without `mechanisms`, nothing is done about slow roles."""
    return [end(job, "static", mechanisms=mechanisms).jct_s for job in jobs]
