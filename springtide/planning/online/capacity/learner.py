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

FULL = 0.8  # of a batch's room: fuller ones say what a worker can do, others what it can at least
LEAST_BUSY_S = 1.0  # of a worker: less says nothing of its speed
PRIOR_STEPS = 3.0
"""So many steps, of sizes as far apart as they are large, is what "in proportion to its samples" counts for: that is
what a step is taken to cost until sizes have differed enough to say."""


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
        """Samples a second while it had something to do; None: it had too little."""
        return self.samples / self.busy_s if self.busy_s >= LEAST_BUSY_S and self.samples > 0 else None

    def fills(self, batch: float) -> float:
        """Part of its batches' room that was filled: near the live head they are cut short, and cost more a sample."""
        return self.steps.samples / (self.steps.number * batch) if self.steps.number else 0.0


def utilization(works: Mapping[int, WorkerWork]) -> float:
    """Part of the time in which workers had something to do."""
    busy = sum(work.busy_s for work in works.values())
    whole = busy + sum(work.waited_s for work in works.values())
    return busy / whole if whole > 0 else 0.0


def together(works: Mapping[int, WorkerWork]) -> float | None:
    """Samples a second of all workers, none of them waiting; one that had too little to do counts as the others' mean.
    None: nobody was at work."""
    paces = [pace for work in works.values() if (pace := work.pace) is not None]
    return sum(paces) / len(paces) * len(works) if paces else None


def full(works: Mapping[int, WorkerWork], batch: float) -> dict[int, WorkerWork]:
    """Those whose batches were about full: what they train is what they can."""
    return {rank: work for rank, work in works.items() if work.fills(batch) >= FULL}


def summed(works: Mapping[int, WorkerWork]) -> StepSums:
    return StepSums(*(sum(column) for column in zip(*(work.steps for work in works.values()), strict=True)))


def quicker_when_full(steps: StepSums, batch: float, size: float) -> float:
    """By how much more a second is trained in full batches than in those of so many samples: 1 where a step costs what
    its samples cost, batch / size where it costs the same whatever is in it. `steps`: what is known of that."""
    if not steps.number or not steps.seconds or not 0 < size < batch:
        return 1.0
    each, took = steps.samples / steps.number, steps.seconds / steps.number
    wide = max(0.0, steps.squared / steps.number - each**2)
    with_it = steps.crossed / steps.number - each * took
    doubt = each**2 * PRIOR_STEPS / steps.number
    by_sample = min(max(0.0, (with_it + doubt * took / each) / (wide + doubt)), took / each)
    at_all = took - by_sample * each
    return (at_all + by_sample * size) / size / ((at_all + by_sample * batch) / batch)


SATURATED = 0.9  # of the time: workers that had something to do for so long were as quick as they are
FRESH = 0.3  # of a new measurement beside what was known of that number of workers
MOST_RESTED = 1.25  # times what workers that never waited trained: what those that did wait are believed, at the most
RESTED = 0.05  # how much they are believed beside them
FADES_S = 6 * 3600.0  # a measurement counts half as much after so long
KEPT_STEPS = 0.9  # of what is known about the cost of steps, from window to window
LEAST = 1e-4  # of a weight: less is nothing
WINDOW_S, LEAST_WINDOW_S = 20.0, 4.0  # of the stream that one measurement is of; of the clock, a few heartbeats of each


def window_s(speedup: float) -> float:
    """Seconds of the clock that one measurement is of; where the stream runs faster, more of its time."""
    return max(LEAST_WINDOW_S, WINDOW_S / speedup)


@dataclass(frozen=True, slots=True)
class WorkerRate:
    """Measured throughput of one number of workers."""

    rate: float
    """Samples a second, in full batches."""
    at: float
    """When it was seen last, by the stream's time."""


@dataclass(frozen=True, slots=True)
class LearnedCapacity:
    """Everything learned about the capacity of a job."""

    seen: dict[int, WorkerRate] = field(default_factory=dict)
    """By number of workers, while they never waited; the next, while they did."""
    rested: dict[int, WorkerRate] = field(default_factory=dict)
    steps: StepSums = field(default_factory=StepSums)
    """Of workers that never waited, the newest counting most; of others, while there were none."""

    @property
    def known(self) -> bool:
        return bool(self.seen or self.rested)

    def then(self, works: Mapping[int, WorkerWork], *, batch: float, at: float) -> "LearnedCapacity":
        """With another window, in which each of these workers was there all the time."""
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
        """Samples a second by number of workers, from none to `most`; None: nothing was measured.

        All of them are read off one curve. The `now` workers that there are count most. Beyond the largest number seen
        nobody is believed to gain more than in proportion.
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
        """Numbers of workers, what each trains, and how much that is believed; the most believed as much as 1."""
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
                )  # one that rests is no slower than one that does not
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
