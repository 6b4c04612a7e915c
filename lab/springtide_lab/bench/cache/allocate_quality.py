"""How near the allocator is to the best there is, where that can be found: one sample a worker (Herald's Appendix C).

In: a stream, a number of workers. Out: for each policy the mean of (transmissions of the best allocation / its own),
both from the same caches, step by step; the caches go on with what ours decided. Next: `bench allocate`.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from springtide.embedding.schedule import scheduler as allocate
from springtide_lab.bench.cache import allocation_schemes, id_streams

PAPER = "0.45 to 0.57"
"""Herald's own quality on its data sets (Fig. 20)."""
SHARE = 0.1
"""Of all rows, cached by each worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Means over steps; 1 is the best there is."""

    stream: str
    workers: int
    p2p: str
    ours: float
    laia: float
    bound: float
    """Of the lower bound over the best: how much a bound that needs no search proves."""


def measure(stream: id_streams.IdStream, *, workers: int, p2p: str, steps: int, warmup: int) -> Quality:
    """Steps after `warmup` count."""
    settings = allocate.ScheduleSettings(
        workers=workers, capacity_rows=int(SHARE * stream.total_rows), policy="anneal", p2p=p2p
    )
    scheduler = allocate.Scheduler(settings)
    ours, laia, bound = [], [], []
    for number, batch in enumerate(stream.batches(workers)[: warmup + steps]):
        features = allocation_schemes.features(batch)
        if number >= warmup:
            best, found, paper = (
                scheduler.consider(features, workers, policy) for policy in ("exhaustive", "anneal", "laia")
            )
            ours.append(_ratio(best.transmissions, found.transmissions))
            laia.append(_ratio(best.transmissions, paper.transmissions))
            bound.append(_ratio(best.at_least, best.transmissions))
        scheduler.schedule(features, workers)
    return Quality(
        stream=stream.name,
        workers=workers,
        p2p=p2p,
        ours=statistics.fmean(ours),
        laia=statistics.fmean(laia),
        bound=statistics.fmean(bound),
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def worst(found: Sequence[Quality]) -> Quality:
    """The case in which ours is furthest from the best."""
    return min(found, key=lambda one: one.ours)
