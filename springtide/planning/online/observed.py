"""Pure. How much so many workers were seen to train while they had something to do, and what others would.

In: sums that each worker tells: samples trained, seconds at it, seconds without work. Out: samples a second by number
of workers (`capacity`), for deciding.py. What was measured once is believed less as it is measured again; numbers that
the job never had are read off a curve through those that it had (capacity.py).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from springtide.planning.online import capacity as curves

FRESH = 0.3  # of a new measurement beside what was known of that number of workers
FULL = 0.8  # of a batch's room: fuller ones say what a worker can do, others what it can at least
POOR, AGAIN_S = 0.6, 3600.0  # a number whose workers train less than this part of what they do now is tried again
LEAST_BUSY_S = 1.0  # of a worker: less says nothing of its speed


class Work(NamedTuple):
    """Of one worker, since it began or between two moments."""

    samples: float
    busy_s: float
    waited_s: float
    batches: float = 0.0

    def since(self, before: "Work") -> "Work":
        """What it did after that."""
        return Work(*(max(0.0, now - then) for now, then in zip(self, before, strict=True)))

    @property
    def pace(self) -> float | None:
        """Samples a second while it had something to do; None: it had too little."""
        return self.samples / self.busy_s if self.busy_s >= LEAST_BUSY_S and self.samples > 0 else None

    def fills(self, batch: int) -> float:
        """Part of its batches' room that was filled: near the live head they are cut short, and cost more a sample."""
        return self.samples / (self.batches * batch) if self.batches else 0.0


def utilization(works: Mapping[int, Work]) -> float:
    """Part of the time in which workers had something to do."""
    busy = sum(work.busy_s for work in works.values())
    whole = busy + sum(work.waited_s for work in works.values())
    return busy / whole if whole > 0 else 0.0


def together(works: Mapping[int, Work]) -> float | None:
    """Samples a second of all workers, none of them waiting; one that had too little to do counts as the others' mean.
    None: nobody was at work."""
    paces = [pace for work in works.values() if (pace := work.pace) is not None]
    return sum(paces) / len(paces) * len(works) if paces else None


def full(works: Mapping[int, Work], batch: int) -> dict[int, Work]:
    """Those whose batches were about full: what they train is what they can."""
    return {rank: work for rank, work in works.items() if work.fills(batch) >= FULL}


def noted(seen: Mapping[int, float], workers: int, rate: float) -> dict[int, float]:
    """What was seen of numbers of workers, with one more measurement."""
    before = seen.get(workers)
    return {**seen, workers: rate if before is None else before + FRESH * (rate - before)}


def believed(seen: Mapping[int, float], since: Mapping[int, float], now: int, *, at: float) -> dict[int, float]:
    """What was seen, without numbers that came out badly long ago beside the `now` workers that there are: machines may
    have been busy then, and a number that is not tried again would stay bad for ever. `since`: when each was seen."""
    here = seen.get(now, 0.0) / max(1, now)
    return {
        workers: rate
        for workers, rate in seen.items()
        if workers == now or rate / workers >= POOR * here or at - since.get(workers, at) < AGAIN_S
    }


def surely(seen: Mapping[int, float], sure: Collection[int]) -> dict[int, float]:
    """What was measured on full batches; where nothing was, what workers can train at least."""
    return {workers: rate for workers, rate in seen.items() if workers in sure} or dict(seen)


def held_to(
    known: Sequence[float], seen: Mapping[int, float], since: Mapping[int, float], now: int, *, at: float
) -> tuple[float, ...]:
    """The same, but fewer workers than there are `now` can train no more than they were seen to lately: else a job
    leaves a number that is not enough, and soon comes back to it."""
    lately = {
        workers: rate for workers, rate in seen.items() if workers < now and at - since.get(workers, -AGAIN_S) < AGAIN_S
    }
    return tuple(min(rate, lately.get(workers, rate)) for workers, rate in enumerate(known))


def capacity(seen: Mapping[int, float], most: int, *, now: int = 0) -> tuple[float, ...] | None:
    """Samples a second by number of workers, from none to `most`; None: nothing was measured.

    All of them are read off one curve, since numbers were measured at other times, when the machines may have been
    busier or less. It is raised or lowered to what the `now` workers that there are were seen to train last. Beyond the
    largest number seen nobody is believed to gain more than in proportion.
    """
    if not seen:
        return None
    largest = max(seen)
    curve = curves.learn("async", [curves.Seen(workers, rate) for workers, rate in sorted(seen.items())])
    level = seen[now] / curve(now) if now in seen else 1.0
    known = [0.0, *(level * curve(workers) for workers in range(1, most + 1))]
    for workers in range(largest + 1, most + 1):
        known[workers] = min(known[workers], level * curve(largest) / largest * workers)
    return tuple(known)
