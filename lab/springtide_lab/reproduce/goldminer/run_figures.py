"""Pure. Figures of one run. In: a `Story`. Out: `Figures`: completion, queueing, utilization. Next: `rows`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from springtide_lab.reproduce.goldminer.simulation.run import ClusterMoment, ClusterStory


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Minutes and shares."""

    jct: float
    queueing: float
    running: float
    """JCT without queueing."""
    gpus: float
    """Allocated, of all, in the minutes that are measured."""
    cpus: float
    fragmentation: float
    """Section 2: |free cores' share - free GPUs' share|, mean of machines and time."""
    local: float
    """Of data workers' cores, those beside a trainer of theirs."""
    moved: float
    """Cores of data workers that changed machines, a job."""
    makespan: float


def figures(story: ClusterStory, until: float) -> Figures:
    count = len(story.ends)
    jct = sum(one.jct for one in story.ends) / count
    queueing = sum(one.queued for one in story.ends) / count
    return Figures(
        jct=jct,
        queueing=queueing,
        running=jct - queueing,
        moved=story.moved / count,
        gpus=mean(story.moments, until, lambda one: one.gpus),
        cpus=mean(story.moments, until, lambda one: one.cpus),
        fragmentation=mean(story.moments, until, lambda one: one.fragmentation),
        local=mean(story.moments, until, lambda one: one.local),
        makespan=max(one.ended for one in story.ends),
    )


def mean(moments: Sequence[ClusterMoment], until: float, value: Callable[[ClusterMoment], float]) -> float:
    """Over time, from 0 on."""
    total, last = 0.0, 0.0
    for one, following in zip(moments, [*moments[1:], None], strict=True):
        begin, end = min(one.at, until), min(following.at if following else until, until)
        total += value(one) * (end - begin)
        last = end
    return total / max(last, 1e-9) if moments else 0.0
