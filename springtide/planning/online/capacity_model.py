"""Pure. Models capacity (samples per second, by number of workers), and learns the model from a running job.

Curves have the form samples / (coefficients x features of w), with non-negative coefficients. The kinds are "sync"
(Kale's Eqn 6), "async" (Eqn 9), "crowded" (Eqn 9 plus contention between workers), and models for comparison.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.data.streams import StepSums

Kind = Literal["sync", "async", "crowded", "ernest", "optimus", "optimus-async"]
Feature = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _each_squared(workers: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / workers**2


FEATURES: Mapping[Kind, tuple[Feature, ...]] = {
    "sync": (np.ones_like, np.reciprocal, _each_squared, np.positive),
    "async": (np.reciprocal, _each_squared, np.ones_like),
    "crowded": (np.reciprocal, _each_squared, np.ones_like, np.positive),
    "ernest": (np.ones_like, np.reciprocal, np.log, np.positive),
    "optimus": (np.ones_like, np.reciprocal, np.positive),
    "optimus-async": (np.reciprocal, np.ones_like),
}
"""Features of the coefficients, in seconds per batch of all workers (sync, ernest, optimus) or in seconds per sample
(others)."""
LEARNED: Mapping[Kind, tuple[Kind, tuple[int, ...]]] = {
    "sync": ("sync", (1, 0, 3, 2)),
    "async": ("crowded", (0, 2, 1, 3)),
}
"""For each sync mode, the kind of curve to fit to a running job, and the order of the curve's coefficients. The first
fit has only the first coefficient, and each further fit adds the next one. The first coefficient is the work of a
single worker. The second coefficient is the constant part. The last coefficients belong to parts that grow with the
number of workers or fall faster than it. Eqn 9 predicts that more workers always train more, which is wrong for real
jobs with many workers.
"""
DOUBT = 0.2
"""Penalty on deviations from proportional scaling. The penalty is divided by the number of different worker counts that
were measured. Measurements have errors of about 5%, and a coefficient may normally explain half of the time. Without a
penalty, 400/s with 4 workers and 440/s with 5 would predict only 550/s with 10. With a constant penalty of a tenth,
predictions for the extremes in sync mode were 8% off for six counts, even without noise. The penalty applies to a
coefficient's largest share of the time, for any number of workers from one on. For 1 / w², this share is twice as large
for one worker as for two workers.
"""
PRECISION = 1e-3
"""Two curves count as equally good if their relative errors differ by less than this."""


class CapacitySample(NamedTuple):
    """Measured throughput of a number of workers."""

    workers: int
    throughput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityCurve:
    """Throughput as a function of the number of workers."""

    kind: Kind
    coefficients: tuple[float, ...]
    batch: float = 1.0
    """Number of samples in a step of all workers together; 1 in async mode."""

    def __call__(self, workers: float) -> float:
        at = np.asarray(float(workers))
        seconds = sum(float(of(at)) * by for of, by in zip(FEATURES[self.kind], self.coefficients, strict=True) if by)
        return self.batch / seconds if seconds > 0 else np.inf

    def peak(self, most: int) -> int:
        return max(range(1, most + 1), key=lambda workers: (self(workers), -workers))


def fit(kind: Kind, seen: Sequence[CapacitySample], *, batch: float = 1.0) -> CapacityCurve:
    if kind not in FEATURES:
        raise errors.UnknownName("model of throughput", kind, FEATURES)
    return _fit(kind, seen, range(len(FEATURES[kind])), batch)


def learn(
    kind: Kind, seen: Sequence[CapacitySample], *, batch: float = 1.0, weights: Sequence[float] | None = None
) -> CapacityCurve:
    """Fit a curve for a running job, with at most one coefficient for each worker count that was measured.

    If only one worker count was measured, throughput is assumed to be proportional to the count. A deviation from
    proportional scaling must be clear (`DOUBT`). The curves with one, two and more coefficients are averaged, weighted
    by their likelihood (`_likely`). A single curve with four coefficients through five measurements would mostly follow
    noise. For each count, the median of its measurements is used. With `weights` (up to 1), each count has one
    measurement, and the weight is the confidence in that measurement.
    """
    if kind not in LEARNED:
        raise errors.UnknownName("way of training", kind, LEARNED)
    by_number: dict[int, list[float]] = {}
    for rate in seen:
        by_number.setdefault(rate.workers, []).append(rate.throughput)
    typical = [CapacitySample(workers, median(rates)) for workers, rates in sorted(by_number.items())]
    if weights is not None and len(typical) < len(seen):
        raise errors.BadInput("weights of several measurements of one number of workers: expected one of each")
    form, order = LEARNED[kind]
    doubt = DOUBT / max(1, len(typical))
    curves = [
        _fit(form, typical, order[:number], batch, doubt, weights)
        for number in range(1, max(1, min(len(order), len(typical))) + 1)
    ]
    shares = _likely(curves, typical, weights)
    mean = np.asarray([curve.coefficients for curve in curves]).T @ shares
    return replace(curves[-1], coefficients=tuple(map(float, mean)))


def _likely(
    curves: Sequence[CapacityCurve], seen: Sequence[CapacitySample], weights: Sequence[float] | None
) -> NDArray[np.float64]:
    """Return the Akaike weight of each curve. Each curve has one coefficient more than the curve before.

    An additional coefficient must reduce the error to less than exp(-1 / measurements) times the previous error.
    """
    rates = np.asarray([rate.throughput for rate in seen])
    off = np.asarray(
        [[1 - rate / curve(seen_rate.workers) for seen_rate, rate in zip(seen, rates, strict=True)] for curve in curves]
    )
    squares = np.average(off**2, axis=1, weights=weights) + PRECISION**2
    criterion = len(seen) * np.log(squares) + 2 * np.arange(len(curves))
    odds = np.exp((criterion.min() - criterion) / 2)
    shares: NDArray[np.float64] = odds / odds.sum()
    return shares


def _fit(
    kind: Kind,
    seen: Sequence[CapacitySample],
    used: Sequence[int],
    batch: float,
    doubt: float = 0.0,
    weights: Sequence[float] | None = None,
) -> CapacityCurve:
    workers = np.asarray([rate.workers for rate in seen], dtype=float)
    rates = np.asarray([rate.throughput for rate in seen], dtype=float)
    if not len(seen) or (workers < 1).any() or not (np.isfinite(rates) & (rates > 0)).all():
        raise errors.BadInput(f"{len(seen)} measurements of throughput: expected some, of 1 worker or more, above 0")
    columns = np.stack([FEATURES[kind][feature](workers) for feature in used], axis=-1)
    fewest = int(workers.argmin())
    alone = (
        np.stack([FEATURES[kind][feature](np.ones(1)) for feature in used], axis=-1) * rates[fewest] / workers[fewest]
    )
    doubts = doubt * np.maximum((columns * rates[:, None]).max(axis=0), alone[0]) / batch
    found = relative(columns, rates / batch, doubts, weights)
    coefficients = [0.0] * len(FEATURES[kind])
    for name, by in zip(used, found, strict=True):
        coefficients[name] = by
    return CapacityCurve(kind=kind, coefficients=tuple(coefficients), batch=batch)


def solver() -> Any:
    """Return SciPy's NNLS. The first call imports SciPy, which takes half a second."""
    from scipy import optimize

    return optimize.nnls


def relative(
    columns: NDArray[np.float64],
    rates: NDArray[np.float64],
    doubts: NDArray[np.float64] | None = None,
    weights: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """Fit non-negative coefficients to the times 1 / rate by least squares of relative errors.

    Columns are normalized first, because 1 / w² and w differ by a factor of a million. `doubts` are penalty factors on
    all coefficients except the first.
    """
    # the share of the measured time that each term explains, per unit of its coefficient
    share = columns * rates[:, None]
    wanted = np.ones(len(rates))
    if weights is not None:
        trust = np.sqrt(np.asarray(weights, dtype=float))
        share, wanted = share * trust[:, None], wanted * trust
    size = np.maximum(np.linalg.norm(share, axis=0), 1e-300)
    if doubts is not None and columns.shape[1] > 1:
        share = np.concatenate([share, np.diag(doubts)[1:]])
        wanted = np.concatenate([wanted, np.zeros(columns.shape[1] - 1)])
    found, _ = solver()(share / size, wanted)
    return tuple(map(float, found / size))


# a worker shows its speed if its batches are filled to at least this share; with emptier batches, the worker shows only
# a lower limit of its speed
FULL = 0.8
LEAST_BUSY_S = 1.0  # a worker's speed is valid only if the worker was busy for at least this many seconds
PRIOR_STEPS = 3.0
"""Weight of the prior assumption that a step costs in proportion to its samples. The unit is a step: the evidence of
one measured step, if step sizes vary as much as their mean. Once sizes have varied enough, measurements outweigh the
prior.
"""


class WorkerWork(NamedTuple):
    """Work of one worker, since the worker's start or between two times."""

    samples: float
    busy_s: float
    waited_s: float
    steps: StepSums = StepSums()

    def since(self, before: "WorkerWork") -> "WorkerWork":
        steps = StepSums(*(max(0.0, now - then) for now, then in zip(self.steps, before.steps, strict=True)))
        samples, busy_s = max(0.0, self.samples - before.samples), max(0.0, self.busy_s - before.busy_s)
        return WorkerWork(samples, busy_s, max(0.0, self.waited_s - before.waited_s), steps)

    @property
    def pace(self) -> float | None:
        """Samples per busy second; None if the worker was busy for too short a time."""
        return self.samples / self.busy_s if self.busy_s >= LEAST_BUSY_S and self.samples > 0 else None

    def fills(self, batch: float) -> float:
        """Return the mean fill of batches. A worker that has caught up with the stream trains partial batches, which
        cost more per sample."""
        return self.steps.samples / (self.steps.number * batch) if self.steps.number else 0.0


def utilization(works: Mapping[int, WorkerWork]) -> float:
    busy = sum(work.busy_s for work in works.values())
    whole = busy + sum(work.waited_s for work in works.values())
    return busy / whole if whole > 0 else 0.0


def together(works: Mapping[int, WorkerWork]) -> float | None:
    """Return the samples per second that all workers would train if they never waited. For an idle worker, the function
    uses the mean of the busy workers.
    """
    paces = [pace for work in works.values() if (pace := work.pace) is not None]
    return sum(paces) / len(paces) * len(works) if paces else None


def full(works: Mapping[int, WorkerWork], batch: float) -> dict[int, WorkerWork]:
    """Return the workers whose batches were nearly full, because only these workers show their speed."""
    return {rank: work for rank, work in works.items() if work.fills(batch) >= FULL}


def summed(works: Mapping[int, WorkerWork]) -> StepSums:
    return StepSums(*(sum(column) for column in zip(*(work.steps for work in works.values()), strict=True)))


def quicker_when_full(steps: StepSums, batch: float, size: float) -> float:
    """Return how much faster full batches are than batches of `size` samples, from the step costs in `steps`.

    The result is 1 if a step costs in proportion to its samples, and batch / size if the cost does not depend on the
    size.
    """
    if not steps.number or not steps.seconds or not 0 < size < batch:
        return 1.0
    samples_per_step, took = steps.samples / steps.number, steps.seconds / steps.number
    wide = max(0.0, steps.squared / steps.number - samples_per_step**2)
    with_it = steps.crossed / steps.number - samples_per_step * took
    doubt = samples_per_step**2 * PRIOR_STEPS / steps.number
    by_sample = min(max(0.0, (with_it + doubt * took / samples_per_step) / (wide + doubt)), took / samples_per_step)
    at_all = took - by_sample * samples_per_step
    return (at_all + by_sample * size) / size / ((at_all + by_sample * batch) / batch)


SATURATED = 0.9  # workers show their full speed if their utilization exceeds this value
FRESH = 0.3  # weight of a new measurement relative to the earlier value
MOST_RESTED = 1.25  # the rate of workers that waited may exceed the rate without waiting by at most this factor
RESTED = 0.05  # weight of a measurement with waiting, relative to a measurement without waiting
FADES_S = 6 * 3600.0  # half-life in seconds of the weight of a measurement
KEPT_STEPS = 0.9  # share of the step cost statistics that remains after each window
LEAST = 1e-4  # smallest weight
# length of a measurement window: seconds of stream time, and the minimum in clock seconds (a few heartbeats)
WINDOW_S, LEAST_WINDOW_S = 20.0, 4.0


def window_s(speedup: float) -> float:
    """Return the length of one measurement in clock seconds. On a faster stream, a measurement covers more stream
    time."""
    return max(LEAST_WINDOW_S, WINDOW_S / speedup)


class WorkerRate(msgspec.Struct, frozen=True):
    """Measured throughput of one number of workers."""

    rate: float
    """Samples per second in full batches."""
    at: float
    """Stream time of the last measurement."""


@dataclass(frozen=True, slots=True)
class LearnedCapacity:
    """Everything learned about the capacity of a job."""

    seen: dict[int, WorkerRate] = field(default_factory=dict)
    """Rates of workers that never waited, by number of workers; `rested` has the rates of workers that waited."""
    rested: dict[int, WorkerRate] = field(default_factory=dict)
    steps: StepSums = field(default_factory=StepSums)
    """Step statistics of workers that never waited; the newest have the largest weight. Before any worker trained
    without waiting, this is the mean of all workers.
    """

    @property
    def known(self) -> bool:
        return bool(self.seen or self.rested)

    def then(self, works: Mapping[int, WorkerWork], *, batch: float, at: float) -> "LearnedCapacity":
        """Return the state after another window during which all these workers were present."""
        rate = together(works)
        steps = summed(works) if works else StepSums()
        if rate is None:
            return self
        saturated = utilization(works) >= SATURATED
        costs = self.steps
        if saturated or not self.seen:
            costs = StepSums(*(KEPT_STEPS * old + new for old, new in zip(self.steps, steps, strict=True)))
        if steps.number:
            rate *= quicker_when_full(costs, batch, steps.samples / steps.number)
        if saturated:
            return replace(self, steps=costs, seen=_with_rate(self.seen, len(works), rate, at))
        sure = self.seen.get(len(works))
        least = sum(work.samples / max(work.busy_s + work.waited_s, 1e-9) for work in works.values())
        seen = self.seen if sure is None or least <= sure.rate else _with_rate(self.seen, len(works), least, at)
        return replace(self, steps=costs, seen=seen, rested=_with_rate(self.rested, len(works), rate, at))

    def capacity(self, most: int, *, now: int, at: float, kind: Kind = "async") -> tuple[float, ...] | None:
        """Return the samples per second for 0 to `most` workers; None without measurements.

        All values come from one fitted curve. The current number `now` has the largest weight. For more workers than
        were ever measured, throughput grows at most in proportion to their number.
        """
        weighed = self._weighed(now, at)
        if not weighed:
            return None
        seen = [CapacitySample(workers, rate) for workers, rate, _ in weighed]
        curve = learn(kind, seen, weights=[weight for *_, weight in weighed])
        largest = max(rate.workers for rate in seen)
        known = [0.0, *(curve(workers) for workers in range(1, most + 1))]
        for workers in range(largest + 1, most + 1):
            known[workers] = min(known[workers], curve(largest) / largest * workers)
        return tuple(known)

    def _weighed(self, now: int, at: float) -> list[tuple[int, float, float]]:
        found = []
        for workers in sorted({*self.seen, *self.rested}):
            sure, rested = self.seen.get(workers), self.rested.get(workers)
            weight = _weight(sure, at)
            rate = sure.rate if sure is not None else 0.0
            if rested is not None and (sure is not None or not self.seen):
                beside = RESTED * _weight(rested, at) if self.seen else _weight(rested, at)
                held = rested.rate if sure is None else min(rested.rate, MOST_RESTED * rate)
                held = (
                    max(held, rate) if sure is not None else held
                )  # a worker that sometimes waits is not slower than a worker that never waits
                rate = (rate * weight + held * beside) / max(weight + beside, 1e-300)
                weight += beside
            if rate > 0:
                found.append((workers, rate, weight * (4.0 if workers == now else 1.0)))
        top = max((weight for *_, weight in found), default=0.0)
        return [(workers, rate, max(LEAST, weight / top)) for workers, rate, weight in found if top > 0]


def _with_rate(seen: dict[int, WorkerRate], workers: int, rate: float, at: float) -> dict[int, WorkerRate]:
    before = seen.get(workers)
    return {**seen, workers: WorkerRate(rate if before is None else before.rate + FRESH * (rate - before.rate), at)}


def _weight(rate: WorkerRate | None, at: float) -> float:
    return 0.0 if rate is None else max(LEAST, 0.5 ** (max(0.0, at - rate.at) / FADES_S))
