"""Ways to share out samples and synchronize rows, run over a stream of ids by the native scheduler: what each sends.

In: an `id_streams.IdStream`. Out: `Sent` a way: rows pulled, pushed and sent between workers, per worker and step.
Nothing is trained and nothing is sent: the plans are counted. Next: `bench allocate` makes goals of it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.embedding.schedule import scheduler as allocate
from springtide.embedding.schedule import sync_plan
from springtide_lab.bench.cache import id_streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to train: who gets which samples, and how rows are kept in step."""

    name: str
    policy: str
    on_demand: bool = True
    p2p: str = "off"
    effort: int = 0

    def settings(self, *, workers: int, capacity_rows: int) -> allocate.ScheduleSettings:
        """As the scheduler wants them."""
        return allocate.ScheduleSettings(
            workers=workers,
            capacity_rows=capacity_rows,
            policy=self.policy,
            on_demand=self.on_demand,
            p2p=self.p2p,
        )


VANILLA = Way(name="vanilla", policy="random", on_demand=False)
LAIA = Way(name="LAIA", policy="laia", on_demand=False)
LAIA_PLAN = Way(name="LAIA + plan", policy="laia")
LAIA_PLAN_P2P = Way(name="LAIA + plan, P2P", policy="laia", p2p="rows")
OURS_SERVERS = Way(name="ours, no P2P", policy="anneal")
OURS_ROWS = Way(name="ours, P2P of rows", policy="anneal", p2p="rows")
OURS = Way(name="ours", policy="anneal", p2p="gradients")
"""With all it may use: rows, values and gradients from worker to worker."""

WAYS = (VANILLA, LAIA, LAIA_PLAN, LAIA_PLAN_P2P, OURS_SERVERS, OURS_ROWS, OURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Means over the steps that count, per worker; `largest` is Appendix A's cost: largest push + largest pull."""

    pull: float
    push: float
    p2p: float
    largest: float
    hit_rate: float
    allocate_p50_ms: float

    @property
    def total(self) -> float:
        """Transmissions a worker and step; what goes from worker to worker counts once."""
        return self.pull + self.push + self.p2p


def features(batch: id_streams.Ids) -> list[allocate.FeatureIds]:
    """A batch as the scheduler takes it: a table a column."""
    return [allocate.FeatureIds(table, np.ascontiguousarray(column)) for table, column in enumerate(batch.T)]


def run(
    way: Way, batches: Sequence[id_streams.Ids], *, workers: int, capacity_rows: int, warmup: int, effort: int = 0
) -> Sent:
    """Schedule all batches; those after `warmup` count."""
    scheduler = allocate.Scheduler(way.settings(workers=workers, capacity_rows=capacity_rows))
    counted: list[sync_plan.PlanTraffic] = []
    costs: list[int] = []
    times: list[float] = []
    before: sync_plan.PlanTraffic | None = None
    for number, batch in enumerate(batches):
        done = scheduler.schedule(features(batch), len(batch), effort=effort or way.effort)
        now = sync_plan.traffic(done.plans)
        if number >= warmup:
            counted.append(now)
            costs.append(now.reward(before))
            times.append(1e3 * done.seconds["allocate"])
        before = now

    def mean(rows: Sequence[Sequence[int]]) -> float:
        return sum(map(sum, rows)) / len(rows) / workers

    return Sent(
        pull=mean([one.pulls for one in counted]),
        push=mean([one.pushes for one in counted]),
        p2p=mean([one.sent for one in counted]),
        largest=statistics.fmean(costs),
        hit_rate=statistics.fmean(one.hit_rate for one in counted),
        allocate_p50_ms=statistics.median(times),
    )
