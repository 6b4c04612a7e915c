"""A scheduler driven over a stream of ids: how long each schedule took, and what its plans send.

In: a stream (`id_streams.py`), settings, and who chooses how much the allocation may do. Out: `Drive`. Used by
`bench schedule`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide.embedding.schedule import budget, sync_plan
from springtide.embedding.schedule import scheduler as allocate
from springtide_lab.bench.cache import id_streams

CACHE_SHARE = 0.1
"""Of all rows, what a worker's cache holds."""

Chooser = Callable[[Sequence[budget.ScheduleTime]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """One scheduler over the batches after the warm-up."""

    seconds: NDArray[np.float64]
    """Each whole schedule, by the clock on the wall: reading, allocation, plans, snapshot."""
    cpu_seconds: NDArray[np.float64]
    """The same in time of the calling thread."""
    stages: dict[str, float]
    """Medians."""
    transmissions: float
    """A worker and step."""
    reward: float
    """Largest push plus largest pull, a step."""
    imbalance: float
    """That, over what it were if all workers had the mean."""
    units: NDArray[np.int64]
    """Tables scored or sweeps made."""
    took: tuple[budget.ScheduleTime, ...]

    def ms(self, quantile: float) -> float:
        """Milliseconds that this share of schedules stay below."""
        return float(np.quantile(self.seconds, quantile) * 1e3)


def settings(stream: id_streams.IdStream, *, workers: int, **changed: object) -> allocate.ScheduleSettings:
    """The setting of the paper's simulations: a cache of a tenth of the rows."""
    return allocate.ScheduleSettings(workers=workers, capacity_rows=int(stream.total_rows * CACHE_SHARE), **changed)  # type: ignore[arg-type]


def features(stream: id_streams.IdStream, *, batch: int) -> list[list[allocate.FeatureIds]]:
    """All whole batches of a stream, feature by feature."""
    return [
        [allocate.FeatureIds(table, np.ascontiguousarray(column)) for table, column in enumerate(ids.T)]
        for ids in stream.batches(batch)
    ]


def drive(
    batches: Sequence[Sequence[allocate.FeatureIds]],
    chosen: allocate.ScheduleSettings,
    *,
    warmup: int,
    choose: Chooser | None = None,
) -> Drive:
    """Schedule all batches; `choose` says how many units the next allocation may have, given those so far."""
    scheduler = allocate.Scheduler(chosen)
    searches = chosen.policy not in ("laia", "random", "contiguous")
    seconds, cpu, counted, history = [], [], [], list[budget.ScheduleTime]()
    stages: dict[str, list[float]] = {}
    for batch in batches:
        units = choose(history) if choose else 0 if searches else len(batch)
        began, began_cpu = time.perf_counter(), time.thread_time()
        done = scheduler.schedule(
            batch, len(batch[0].ids), best_tables=None if searches else units, effort=units if searches else 0
        )
        seconds.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - began_cpu)
        history.append(budget.took(done.seconds, units=units))
        for stage, each in done.seconds.items():
            stages.setdefault(stage, []).append(each)
        counted.append(sync_plan.traffic(done.plans))
    after = counted[warmup:]
    rewards = [now.reward(before) for before, now in zip(counted[warmup - 1 :], after, strict=False)]
    mean = sum(each.per_worker for each in after) / len(after)
    even = sum(
        (sum(b.gradients) + sum(n.write_backs) + sum(n.sent) + sum(n.pulls) + sum(n.received)) / chosen.workers
        for b, n in zip(counted[warmup - 1 :], after, strict=False)
    ) / len(after)
    return Drive(
        seconds=np.array(seconds[warmup:]),
        cpu_seconds=np.array(cpu[warmup:]),
        stages={stage: float(np.median(each[warmup:])) for stage, each in stages.items()},
        transmissions=mean,
        reward=sum(rewards) / len(rewards),
        imbalance=sum(rewards) / len(rewards) / even,
        units=np.array([each.units for each in history[warmup:]]),
        took=tuple(history[warmup:]),
    )
