"""Pure. What workers did between two moments, as they tell it: samples, time at work, what steps took.

In: sums that each worker tells (`StreamUse`). Out: paces and utilization, and what a full batch would have taken where
batches were cut short at the live head. Next: learner.py makes of it what so many workers can train.
"""

from collections.abc import Mapping
from typing import NamedTuple

from springtide.domain.data.streams import StepSums

FULL = 0.8  # of a batch's room: fuller ones say what a worker can do, others what it can at least
LEAST_BUSY_S = 1.0  # of a worker: less says nothing of its speed
PRIOR_STEPS = 3.0
"""So many steps, of sizes as far apart as they are large, is what "in proportion to its samples" counts for: that is
what a step is taken to cost until sizes have differed enough to say."""


class WorkerWork(NamedTuple):
    """Of one worker, since it began or between two moments."""

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
