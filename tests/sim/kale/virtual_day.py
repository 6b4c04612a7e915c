"""One online job in virtual time that measures its workers, learns their capacity, and scales.

In: traffic by time, past traffic for forecasts, and the true behaviour of workers (`Truth`): the costs of a step and of
a sample, quotas that make workers look fast after a rest, and short batches at the end of the stream. Out: a
`PlayedDay` with the figures of Kale's section 4.1 and the decisions. Learning, outlook and decisions use the code of a
job's master (`planning/online`), and windows that of `master.autoscale.online_loop`. Rows: reproduction.py; a real day:
`springtide bench online`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from springtide.domain.data.streams import StepSums
from springtide.domain.spec.online_job import OnlineRules, OnlineView, TrafficOutlook
from springtide.planning.online import capacity_model, decision, seasonal
from springtide.planning.online.capacity_model import WorkerWork
from springtide.planning.online.slo_metrics import SloSums
from springtide.planning.online.traffic import DAY_S, STEP_S, PastTraffic

Array = NDArray[np.float64]
Size = TypeVar("Size", float, Array)
TICK_S = 0.25
"""Of the clock: as often as a master looks."""
SIZES, NOISE = 0.3, 0.4  # how far sizes of batches, and times of steps, are from their mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """True behaviour of workers, in seconds of the clock."""

    pace: float
    """Samples a second of one that never waits, in full batches."""
    batch: int = 64
    at_all: float = 1.0
    """Part of a full batch's time that a step costs whatever is in it."""
    gets_in_the_way: float = 0.0
    """Part of its time that each further worker costs the others."""
    quota: float = 0.15
    """Of a core: a step after a rest takes only so much of its usual time."""
    partitions: int = 8
    linger_s: float = 0.2
    start_s: float = 2.5

    def step_s(self, size: Size, workers: int) -> Size:
        full = self.batch / self.pace * (1 + self.gets_in_the_way * (workers - 1))
        return full * (self.at_all + (1 - self.at_all) * size / self.batch)

    def most(self, workers: int) -> float:
        """Return the samples per second that this number of workers trains in full batches."""
        return workers * self.batch / self.step_s(self.batch, workers)

    def trains(self, comes: float, waits: float, workers: int) -> tuple[float, float, float]:
        """Return the samples trained per second, the size of batches and the share of time in which workers are busy,
        for this traffic and this number of waiting samples."""
        size = min(self.batch, max(1.0, comes / self.partitions * self.linger_s))
        if waits < comes and comes / size * self.step_s(size, workers) < workers:
            return comes + waits, size, min(1.0, self.quota * comes / size * self.step_s(size, workers) / workers)
        sizes = np.linspace(size, self.batch, 32)
        rates = workers * sizes / self.step_s(sizes, workers)
        enough = int(np.searchsorted(rates, comes + waits))
        place = min(enough, len(sizes) - 1)
        return float(min(rates[place], comes + waits)), float(sizes[place]), 1.0


class PlayedDay(NamedTuple):
    """Results of a played day."""

    kept: SloSums
    scalings: int
    needed_hours: float
    """Worker-hours of the fewest that keep up with what came, at each moment."""
    capacity: tuple[float, ...] | None
    """As it was believed at the end."""
    changes: tuple[tuple[float, int, str], ...]
    """Hours, workers, why."""


class Past:
    """Traffic in steps of ten minutes of the stream. The first days are over; forecasts are for the others."""

    def __init__(self, before: Array, comes: Callable[[float], float], speedup: float) -> None:
        self._values, self._comes, self._speedup = list(map(float, before)), comes, speedup
        self._days = len(self._values)
        self._made: tuple[int, TrafficOutlook] | None = None

    def outlook(self, now: float) -> TrafficOutlook:
        """Return the outlook from `now` on, in seconds of the clock since the day began."""
        step = int(now * self._speedup // STEP_S)
        while len(self._values) < self._days + step:
            middle = (len(self._values) - self._days + 0.5) * STEP_S / self._speedup
            self._values.append(self._comes(middle))
        if self._made is None or self._made[0] != step:
            values, over = np.asarray(self._values), round(seasonal.LOOKED_AT_S / STEP_S)
            history = PastTraffic(step_s=STEP_S, values=values[:-over])
            said = seasonal.forecast(history, round(DAY_S / STEP_S) + over)
            self._made = (step, seasonal.outlook(said, values[-over:]))
        return self._made[1]


def play(
    comes: Callable[[float], float],
    before: Array,
    truth: Truth,
    rules: OnlineRules,
    *,
    speedup: float,
    every_s: float = 120.0,
    seed: int = 0,
    lasts_s: float | None = None,
) -> PlayedDay:
    """Play a day that begins with one worker. `comes` returns the samples that arrive per second, by seconds of the
    clock."""
    job = _Job(truth, rules, speedup, np.random.default_rng(seed))
    past = Past(before, comes, speedup)
    ticks = round((DAY_S / speedup if lasts_s is None else lasts_s) / TICK_S)
    decided_at = planned_at = -np.inf
    scaling = None
    needed = 0.0
    for tick in range(ticks):
        now, rate = tick * TICK_S, comes(tick * TICK_S)
        job.pass_by(now, rate)
        needed += next((n for n in range(1, rules.most) if truth.most(n) > rate), rules.most) * TICK_S
        if now < decided_at + every_s / speedup:
            continue
        decided_at = now
        view = job.view(now, past.outlook(now), rules)
        if view is None:
            continue
        known = replace(rules, start_s=truth.start_s * speedup)
        if scaling is None or decision.due(view, known, planned_at=planned_at):
            planned_at = view.at
            scaling = decision.decide(view, known)
        if not view.pausing:
            job.have(scaling.workers, scaling.why, now)
    learned = job.learned.capacity(rules.most, now=job.workers, at=ticks * TICK_S * speedup)
    return PlayedDay(job.kept, len(job.changes), needed * speedup / 3600, learned, tuple(job.changes))


class _Job:
    """Workers, backlog and learned capacity of the job."""

    def __init__(self, truth: Truth, rules: OnlineRules, speedup: float, chance: np.random.Generator) -> None:
        self._truth, self._rules, self._speedup, self._chance = truth, rules, speedup, chance
        self.workers = max(1, rules.fewest)
        self._target = (self.workers, 0.0)
        """Workers that were asked for, and when they are there."""
        self.learned, self.kept = capacity_model.LearnedCapacity(), SloSums()
        self.changes: list[tuple[float, int, str]] = []
        self._shape_at = self._measured_at = 0.0
        self._came, self._trained = [0.0], 0.0
        self._work = WorkerWork(0.0, 0.0, 0.0)  # of one worker, in the window under way
        self._used = 0.0

    def pass_by(self, now: float, comes: float) -> None:
        wanted, ready_at = self._target
        if wanted != self.workers and now >= ready_at:
            self.workers, self._shape_at, self._work = wanted, now, WorkerWork(0.0, 0.0, 0.0)
            self._measured_at = now
        self._came.append(self._came[-1] + comes * TICK_S)
        waits = self._came[-1] - self._trained - comes * TICK_S
        rate, size, used = self._truth.trains(comes, waits / TICK_S, self.workers)
        self._trained = min(self._came[-1], self._trained + rate * TICK_S)
        self._used = used
        self._measure(now, rate, size, used)
        self.kept = self.kept.then(
            TICK_S * self._speedup,
            lag_s=self._lag_s() * self._speedup,
            workers=self.workers,
            down=False,
            slo_s=self._rules.slo_lag_s,
        )

    def have(self, workers: int, why: str, now: float) -> None:
        if workers != self.workers:
            self.changes.append((now * self._speedup / 3600, workers, why))
            self._target = (workers, now + (self._truth.start_s if workers > self.workers else 0.0))

    def view(self, now: float, outlook: TrafficOutlook, rules: OnlineRules) -> OnlineView | None:
        at = now * self._speedup
        capacity = self.learned.capacity(rules.most, now=self.workers, at=at)
        if capacity is None:
            return None
        comes = (self._came[-1] - self._came[-min(len(self._came), 17)]) / (min(len(self._came) - 1, 16) * TICK_S)
        return OnlineView(
            at=at,
            workers=self._target[0],
            backlog=(self._came[-1] - self._trained) * self._speedup,
            lag_s=self._lag_s() * self._speedup,
            arrivals=comes,
            utilization=self._used,
            outlook=outlook,
            capacity=capacity,
            pausing=self._target[0] != self.workers,
        )

    def _lag_s(self) -> float:
        if self._trained >= self._came[-1] - 1e-6:
            return 0.0
        came = float(np.interp(self._trained, self._came[-2400:], np.arange(len(self._came))[-2400:] * TICK_S))
        return (len(self._came) - 1) * TICK_S - came

    def _measure(self, now: float, rate: float, size: float, used: float) -> None:
        """Report a worker's window to the learner once the window is over."""
        count = max(1, round(rate / self.workers * TICK_S / size))
        sizes = np.clip(self._chance.normal(size, SIZES * size, count), 1, self._truth.batch)
        times = (
            self._truth.step_s(sizes, self.workers)
            * self._chance.lognormal(-(NOISE**2) / 2, NOISE, count)
            * (1.0 if used >= 1 else self._truth.quota)
        )
        trained = rate / self.workers * TICK_S
        busy = TICK_S if used >= 1 else min(TICK_S, trained / float(sizes.sum()) * float(times.sum()))
        sums = (count, sizes.sum(), times.sum(), (sizes**2).sum(), (sizes * times).sum())
        steps = StepSums(*map(float, sums))
        before = self._work
        self._work = WorkerWork(
            before.samples + trained,
            before.busy_s + busy,
            before.waited_s + TICK_S - busy,
            StepSums(*(old + new for old, new in zip(before.steps, steps, strict=True))),
        )
        seconds = capacity_model.window_s(self._speedup)
        settled = self._shape_at + (seconds if self.learned.known else 0.0)
        if now >= max(settled, self._measured_at) + seconds:
            works = dict.fromkeys(range(self.workers), self._work)
            self.learned = self.learned.then(works, batch=self._truth.batch, at=now * self._speedup)
            self._measured_at, self._work = now, WorkerWork(0.0, 0.0, 0.0)
