"""What training transmits when the native scheduler runs it: the real `embedding.schedule.scheduler.Scheduler` over a
stream.

In: batches of ids and settings. Out: `Sent`, rows a worker and iteration by kind, after the warm-ups. Next:
`rows_counted`, `rows_timed`.
"""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from springtide.embedding.schedule import scheduler as allocate
from springtide.embedding.schedule import sync_plan
from springtide_lab.bench.cache.id_streams import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRows:
    """Rows a worker and iteration."""

    pulls: float
    pushes: float
    p2p: float
    largest_pull: float
    """Of the worker with most: an iteration waits for it."""
    largest_push: float
    hit_rate: float

    @property
    def transmissions(self) -> float:
        """All of them; a row that goes from worker to worker counts once."""
        return self.pulls + self.pushes + self.p2p


def features(batch: Ids) -> list[allocate.FeatureIds]:
    return [allocate.FeatureIds(table, np.ascontiguousarray(column)) for table, column in enumerate(batch.T)]


def count(
    batches: Sequence[Ids],
    settings: allocate.ScheduleSettings,
    *,
    skip: int,
    scored: Collection[int] = (),
    effort: int = 0,
) -> SentRows:
    """Schedule the batches one after the other; the first `skip` fill the caches and do not count."""
    scheduler = allocate.Scheduler(settings)
    seen: list[sync_plan.PlanTraffic] = []
    for batch in batches:
        scheduled = scheduler.schedule(features(batch), len(batch), scored=scored, effort=effort)
        plans: list[Any] = scheduled.plans
        seen.append(sync_plan.traffic(plans))
    counted = seen[skip:]
    each = settings.workers
    return SentRows(
        pulls=statistics.mean(sum(one.pulls) for one in counted) / each,
        pushes=statistics.mean(sum(one.pushes) for one in counted) / each,
        p2p=statistics.mean(sum(one.sent) for one in counted) / each,
        largest_pull=statistics.mean(max(map(sum, zip(one.pulls, one.received, strict=True))) for one in counted),
        largest_push=statistics.mean(max(map(sum, zip(one.pushes, one.sent, strict=True))) for one in counted),
        hit_rate=statistics.mean(one.hit_rate for one in counted),
    )
