"""Simulate an online job on many days of traffic at once, in steps of 15 seconds of virtual time.

In: the paper's traffic shape or a trace in CSV; a scheme that chooses the number of workers. Out: `TrafficDay`s, scaled
so that the peak needs 28 workers; `OnlineRun` with samples, workers and pauses by step and lane (a day and a setting).
"""

import math
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide import errors, file_input
from springtide.data.stream.producer import TRACE, read_trace
from springtide.planning.online.capacity_model import CapacityCurve
from springtide.planning.online.decision import ChangeEffect
from springtide.planning.online.slo_metrics import SloSums

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
TICK_S = 15.0
"""Seconds per step: the interval at which HPA decides."""


class Seen(NamedTuple):
    """Observations of all lanes that a scheme may use."""

    tick: int
    workers: Counts
    backlog: Array
    """Number of samples that wait."""
    arrivals: Array
    """Samples per second in the last step."""
    utilization: Array
    """Utilization of the workers in the last step in which they trained."""
    free: NDArray[np.bool_]
    """True for lanes without a change in progress."""

    @property
    def at(self) -> float:
        """Seconds since the start of the run."""
        return self.tick * TICK_S


Scheme = Callable[[Seen], Counts]
"""Function that returns the wanted workers of each lane; ignored for lanes with a change in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRun:
    """Results of a run for all lanes."""

    arrived: Array
    """Arrived samples since the start, of shape [lanes, steps + 1]."""
    trained: Array
    """Trained samples since the start, of shape [steps + 1, lanes]."""
    workers: Counts
    """Number of workers, of shape [steps, lanes]."""
    down: Array
    """Share of each step for which a change stopped training, of shape [steps, lanes]."""

    def lag_s(self, lane: int) -> Array:
        """Return how long the oldest untrained sample has waited at the end of each step, in seconds."""
        arrived, trained = self.arrived[lane], self.trained[1:, lane]
        ends = np.arange(len(arrived)) * TICK_S
        came = np.interp(trained, arrived + np.arange(len(arrived)) * 1e-9, ends)
        return np.where(trained >= arrived[1:] - 1e-6, 0.0, np.maximum(ends[1:] - came, 0.0))

    def kept(self, lane: int, *, after: int, slo_s: float) -> SloSums:
        """Return the sums of one lane from step `after` on."""
        return measure(
            self.lag_s(lane)[after:],
            self.workers[after:, lane].astype(float),
            self.down[after:, lane] > 0,
            step_s=TICK_S,
            slo_s=slo_s,
        )


def measure(
    lag_s: Array,
    workers: Array,
    down: NDArray[np.bool_],
    *,
    step_s: float,
    slo_s: float,
) -> SloSums:
    """Return the sums of a whole run in equal steps."""
    return SloSums(
        seconds=len(lag_s) * step_s,
        violated_s=float(np.count_nonzero(lag_s > slo_s)) * step_s,
        lag_s2=float(lag_s.sum()) * step_s,
        down_s=float(np.count_nonzero(down)) * step_s,
        worker_s=float(workers.sum()) * step_s,
    )


def run(traffic: Array, scheme: Scheme, *, workers: Counts, capacity: Array, doing: ChangeEffect) -> OnlineRun:
    """Simulate all lanes. `traffic` is samples per second, of shape [lanes, steps]; `capacity[w]` is the rate that w
    workers can train."""
    lanes, steps = traffic.shape
    arrived = np.concatenate([np.zeros((lanes, 1)), np.cumsum(traffic * TICK_S, axis=1)], axis=1)
    by_step = np.ascontiguousarray(arrived.T)
    rates = np.ascontiguousarray(traffic.T)
    live = doing.pause_s == 0
    lasts = doing.start_s if live else doing.pause_s
    workers = workers.copy()
    before, under_way = workers.copy(), np.zeros(lanes)
    trained, utilization = np.zeros(lanes), np.full(lanes, 0.8)
    all_trained, all_workers = np.zeros((steps + 1, lanes)), np.zeros((steps, lanes), dtype=np.int64)
    down = np.zeros((steps, lanes))
    for step in range(steps):
        free = under_way <= 0
        seen = Seen(step, workers, by_step[step] - trained, rates[max(step - 1, 0)], utilization, free)
        wanted = scheme(seen)
        change = free & (wanted != workers)
        if change.any():
            before = np.where(change, workers, before)
            workers = np.where(change, wanted, workers)
            under_way = np.where(change, lasts, under_way)
        busy = np.minimum(under_way, TICK_S)
        can = (TICK_S - busy) * capacity[workers]
        if live:
            can += busy * capacity[np.minimum(before, workers)]
        else:
            down[step] = busy / TICK_S
        done = np.minimum(can, by_step[step + 1] - trained)
        utilization = np.where(can > 0, done / np.maximum(can, 1e-9), utilization)
        under_way = np.maximum(under_way - TICK_S, 0)
        trained = trained + done
        all_trained[step + 1], all_workers[step] = trained, workers
    return OnlineRun(arrived=arrived, trained=all_trained, workers=all_workers, down=down)


STEP_S = 600.0
"""Seconds per step of the traffic that forecasts are made from."""
DAY = 144
WEEKS = 28 * DAY
WARM = 12
"""Number of steps of STEP_S before midnight that are simulated but not measured."""
FIRST_DAY = 14
"""Number of days of a trace before the first day that is used."""
PEAK, MOST = 28, 32
"""Number of workers that the peak needs (672 GPU hours are 28 workers for a day), and the maximum (section 4.1)."""
A10 = CapacityCurve(kind="async", coefficients=(0.000566, 0.000224, 1.41e-21))
"""Capacity of asynchronous training on A10 (Table 1), with coefficients in the order of Eqn 9."""
CAPACITY = np.array([0.0, *(A10(workers) for workers in range(1, MOST + 1))])
RATIO = 7.65
"""Ratio of the highest to the lowest traffic of a day (section 2.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficDay:
    """Traffic of one day in samples per second, and of the days before."""

    name: str
    past: Array
    """Traffic before the warm-up, in steps of `STEP_S`."""
    rates: Array
    """Traffic of the warm-up and the day, in steps of `TICK_S`."""

    @property
    def warm(self) -> int:
        """Number of steps of `TICK_S` that are not measured."""
        return int(WARM * STEP_S / TICK_S)

    def first(self, hours: int) -> "TrafficDay":
        return replace(self, rates=self.rates[: self.warm + round(hours * 3600 / TICK_S)])

    @property
    def steps(self) -> Array:
        """Traffic of the warm-up and the day, in steps of `STEP_S`."""
        return np.asarray(self.rates.reshape(-1, int(STEP_S / TICK_S)).mean(axis=1))


def paper(seed: int) -> TrafficDay:
    """Generate a day in the shape of the text: 34k/s in the early morning, 260k/s in the evening, more at weekends.

    The level differs by 3% between days, and traffic varies by another 3% within hours; the text gives neither
    figure.
    """
    chance = np.random.default_rng((3, seed))
    days = WEEKS // DAY + 2
    hour = np.tile(np.arange(DAY) / DAY * 24, days)
    wide = 0.5 - 0.5 * np.cos((hour - 5) / 24 * 2 * math.pi)
    peaks = np.exp(-(((hour - 20.5) / 2.6) ** 2)) + 0.5 * np.exp(-(((hour - 12.5) / 2) ** 2))
    shape = 0.55 * wide + 0.6 * peaks
    shape = (shape - shape.min()) / (shape.max() - shape.min())
    weekend = np.repeat((np.arange(days) + seed) % 7 >= 5, DAY)
    shape = np.where(weekend, np.minimum(shape * 1.05 + 0.06, 1.08), shape)
    level = np.repeat(chance.normal(1, 0.03, days), DAY)
    wander = np.zeros(len(shape))
    for place, push in enumerate(chance.normal(0, 0.015, len(shape) - 1), start=1):
        wander[place] = 0.9 * wander[place - 1] + push
    values = (1 / RATIO + (1 - 1 / RATIO) * shape) * level * np.exp(wander)
    return _day(f"paper's shape {seed}", values, STEP_S, (days - 1) * DAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Traffic of a CSV file in equal steps."""

    name: str
    step_s: float
    values: Array
    """Traffic from the first midnight on."""

    @property
    def days(self) -> range:
        whole = int(len(self.values) * self.step_s // 86_400)
        return range(FIRST_DAY, whole)

    def day(self, number: int) -> TrafficDay:
        return _day(f"{self.name} {number}", self.values, self.step_s, round(number * 86_400 / self.step_s))

    def drawn(self, count: int, *, seed: int = 0) -> list[TrafficDay]:
        """Return up to `count` distinct days in random order."""
        order = np.random.default_rng((5, seed)).permutation(np.asarray(self.days))
        return [self.day(int(one)) for one in order[:count]]


def read(path: pathlib.Path) -> Trace:
    """Read a trace as `springtide produce --trace` does, in equal steps; missing values are interpolated."""
    found = read_trace(file_input.read(path, what=f"a {TRACE}").splitlines(), f"--trace {path}")
    step_s = float(np.median(np.diff(found.at_s)))
    coarse_or_fine = (STEP_S % step_s == 0 or step_s % STEP_S == 0) and 86_400 % step_s == 0
    if not coarse_or_fine or step_s % TICK_S:
        raise errors.BadInput(
            f"--trace {path}: steps of {step_s:g} s; expected equal steps that fit into 10 minutes, or that 10 minutes "
            "fit into"
        )
    values = np.interp(np.arange(0.0, found.at_s[-1] + step_s / 2, step_s), found.at_s, found.rate)
    skip = round(-found.begins_at % 86_400 / step_s)
    trace = Trace(name=path.stem, step_s=step_s, values=values[skip:])
    if not len(trace.days):
        raise errors.BadInput(
            f"--trace {path}: {len(values)} steps of {step_s:g} s; expected more than {FIRST_DAY} days"
        )
    return trace


def _day(name: str, values: Array, step_s: float, start: int) -> TrafficDay:
    """Return the day that begins at step `start`, with the traffic before it, scaled by the day's peak."""
    begin = start - round(WARM * STEP_S / step_s)
    rates = _finer(values[begin : start + round(86_400 / step_s)], step_s, TICK_S)
    warm = int(WARM * STEP_S / TICK_S)
    past = values[:begin]
    if step_s < STEP_S:
        times = round(STEP_S / step_s)
        past = past[len(past) % times :].reshape(-1, times).mean(axis=1)
    else:
        past = _finer(past, step_s, STEP_S)
    scale = float(CAPACITY[PEAK] * 0.995 / max(rates[warm:].max(), 1e-9))
    return TrafficDay(name=name, past=past[-WEEKS:] * scale, rates=rates * scale)


def _finer(values: Array, step_s: float, finer_s: float) -> Array:
    times = round(step_s / finer_s)
    return np.interp((np.arange(len(values) * times) + 0.5) / times - 0.5, np.arange(len(values)), values)


def start(days: Sequence[TrafficDay]) -> Counts:
    """Return the workers that every scheme starts with: a fifth more than the first traffic needs."""
    first = np.asarray([day.rates[0] for day in days])
    return np.minimum(np.searchsorted(CAPACITY, 1.2 * first, side="right"), MOST)
