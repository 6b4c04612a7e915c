"""Pure. Learns the capacity of each number of workers while a job runs.

In: the work of each worker in a time window. Out: samples per second by number of workers (`capacity`), for
planning/online/scaling/decision.py. The master and the simulator share this code. The master journals the result.

* Only workers that never waited show their full speed. A worker that waits half of the time can look many times faster
  than it is. A quota of a tenth of a core is renewed every tenth of a second, so a step after a rest gets it whole.
* Batches that were cut short at the live head are converted to full batches, by the measured cost of other sizes.
* Measurements fade over hours. A fitted curve fills in the numbers of workers that the job never had.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from springtide.domain.data.streams import StepSums
from springtide.planning.online.capacity import capacity_model as curves

FULL = 0.8  # share of a batch: fuller batches show a worker's speed, others only a lower limit
LEAST_BUSY_S = 1.0  # minimum busy seconds of a worker for a valid speed
PRIOR_STEPS = 3.0
"""Weight of the prior that a step costs in proportion to its samples, in steps whose sizes vary as much as their mean.
It applies until the sizes have varied enough."""


class WorkerWork(NamedTuple):
    """Work of one worker, since its start or between two moments."""

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
        """Samples per busy second; None if the worker was busy for too short."""
        return self.samples / self.busy_s if self.busy_s >= LEAST_BUSY_S and self.samples > 0 else None

    def fills(self, batch: float) -> float:
        """Return the mean fill of batches. Near the live head batches are cut short and cost more per sample."""
        return self.steps.samples / (self.steps.number * batch) if self.steps.number else 0.0


def utilization(works: Mapping[int, WorkerWork]) -> float:
    """Return the share of time in which workers were busy."""
    busy = sum(work.busy_s for work in works.values())
    whole = busy + sum(work.waited_s for work in works.values())
    return busy / whole if whole > 0 else 0.0


def together(works: Mapping[int, WorkerWork]) -> float | None:
    """Return the samples per second of all workers without waiting; None if no worker was busy enough. Idle workers
    count as the mean of the others."""
    paces = [pace for work in works.values() if (pace := work.pace) is not None]
    return sum(paces) / len(paces) * len(works) if paces else None


def full(works: Mapping[int, WorkerWork], batch: float) -> dict[int, WorkerWork]:
    """Return the workers whose batches were nearly full, so that they show their speed."""
    return {rank: work for rank, work in works.items() if work.fills(batch) >= FULL}


def summed(works: Mapping[int, WorkerWork]) -> StepSums:
    return StepSums(*(sum(column) for column in zip(*(work.steps for work in works.values()), strict=True)))


def quicker_when_full(steps: StepSums, batch: float, size: float) -> float:
    """Return the speedup of full batches over batches of `size` samples, from the step costs in `steps`.

    It is 1 if a step costs as much as its samples, and batch / size if the cost is independent of the size.
    """
    if not steps.number or not steps.seconds or not 0 < size < batch:
        return 1.0
    each, took = steps.samples / steps.number, steps.seconds / steps.number
    wide = max(0.0, steps.squared / steps.number - each**2)
    with_it = steps.crossed / steps.number - each * took
    doubt = each**2 * PRIOR_STEPS / steps.number
    by_sample = min(max(0.0, (with_it + doubt * took / each) / (wide + doubt)), took / each)
    at_all = took - by_sample * each
    return (at_all + by_sample * size) / size / ((at_all + by_sample * batch) / batch)


SATURATED = 0.9  # utilization above which workers show their full speed
FRESH = 0.3  # weight of a new measurement against the earlier value
MOST_RESTED = 1.25  # limit on the rate of workers that waited, as a multiple of the rate without waiting
RESTED = 0.05  # weight of measurements with waiting, next to those without
FADES_S = 6 * 3600.0  # half-life of a measurement's weight
KEPT_STEPS = 0.9  # share of the step cost statistics kept per window
LEAST = 1e-4  # smallest weight
# window of a measurement: stream seconds, and at least clock seconds (a few heartbeats)
WINDOW_S, LEAST_WINDOW_S = 20.0, 4.0


def window_s(speedup: float) -> float:
    """Return the clock seconds of one measurement. On a faster stream it covers more stream time."""
    return max(LEAST_WINDOW_S, WINDOW_S / speedup)


@dataclass(frozen=True, slots=True)
class WorkerRate:
    """Measured throughput of one number of workers."""

    rate: float
    """Samples per second in full batches."""
    at: float
    """Stream time of the last measurement."""


@dataclass(frozen=True, slots=True)
class LearnedCapacity:
    """Everything learned about the capacity of a job."""

    seen: dict[int, WorkerRate] = field(default_factory=dict)
    """Rates without waiting, by number of workers; `rested` has the rates with waiting."""
    rested: dict[int, WorkerRate] = field(default_factory=dict)
    steps: StepSums = field(default_factory=StepSums)
    """Step statistics of workers without waiting, newest weighted most. Before any exist, of all workers."""

    @property
    def known(self) -> bool:
        return bool(self.seen or self.rested)

    def then(self, works: Mapping[int, WorkerWork], *, batch: float, at: float) -> "LearnedCapacity":
        """Return the state after another window, in which all these workers were present throughout."""
        rate = together(works)
        steps = summed(works) if works else StepSums()
        if rate is None:
            return self
        saturated = utilization(works) >= SATURATED
        costs = self.steps if self.seen and not saturated else _kept(self.steps, steps)
        if steps.number:
            rate *= quicker_when_full(costs, batch, steps.samples / steps.number)
        if saturated:
            return replace(self, steps=costs, seen=_noted(self.seen, len(works), rate, at))
        sure = self.seen.get(len(works))
        least = sum(work.samples / max(work.busy_s + work.waited_s, 1e-9) for work in works.values())
        seen = self.seen if sure is None or least <= sure.rate else _noted(self.seen, len(works), least, at)
        return replace(self, steps=costs, seen=seen, rested=_noted(self.rested, len(works), rate, at))

    def capacity(self, most: int, *, now: int, at: float, kind: curves.Kind = "async") -> tuple[float, ...] | None:
        """Return the samples per second for 0 to `most` workers; None without measurements.

        All values come from one fitted curve. The current number `now` has the largest weight. Beyond the largest
        number seen, throughput is at most proportional.
        """
        weighed = self._weighed(now, at)
        if not weighed:
            return None
        seen = [curves.CapacitySample(workers, rate) for workers, rate, _ in weighed]
        curve = curves.learn(kind, seen, weights=[weight for *_, weight in weighed])
        largest = max(one.workers for one in seen)
        known = [0.0, *(curve(workers) for workers in range(1, most + 1))]
        for workers in range(largest + 1, most + 1):
            known[workers] = min(known[workers], curve(largest) / largest * workers)
        return tuple(known)

    def _weighed(self, now: int, at: float) -> list[tuple[int, float, float]]:
        """Return worker counts, rates and weights; the largest weight is 1."""
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
                )  # a worker that rests is no slower than a worker that does not
                rate = (rate * weight + held * beside) / max(weight + beside, 1e-300)
                weight += beside
            if rate > 0:
                found.append((workers, rate, weight * (4.0 if workers == now else 1.0)))
        top = max((weight for *_, weight in found), default=0.0)
        return [(workers, rate, max(LEAST, weight / top)) for workers, rate, weight in found if top > 0]


def _noted(seen: dict[int, WorkerRate], workers: int, rate: float, at: float) -> dict[int, WorkerRate]:
    before = seen.get(workers)
    return {**seen, workers: WorkerRate(rate if before is None else before.rate + FRESH * (rate - before.rate), at)}


def _weight(one: WorkerRate | None, at: float) -> float:
    return 0.0 if one is None else max(LEAST, 0.5 ** (max(0.0, at - one.at) / FADES_S))


def _kept(before: StepSums, new: StepSums) -> StepSums:
    return StepSums(*(KEPT_STEPS * old + fresh for old, fresh in zip(before, new, strict=True)))
