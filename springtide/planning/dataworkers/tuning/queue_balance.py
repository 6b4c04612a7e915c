"""Pure. What the queues between data workers and those they feed say: who keeps up, and which stage is the limit.

In: a `FeedSeen`. Out: its stages, alike for one and for many. Next: `size` and `number` tune the one that is the limit.
"""

from springtide.domain.data.data_workers import FeedSeen, StageSeen
from springtide.planning.dataworkers.tuning.thresholds import FULL, WAITS, WAITS_LITTLE


def stages(seen: FeedSeen) -> tuple[StageSeen, ...]:
    """First to last; where only one is spoken of, that one."""
    if seen.stages:
        return seen.stages
    only = StageSeen(
        consumers=seen.trainers,
        workers=seen.data_workers,
        cpu=seen.data_worker_cpu,
        cpu_used=seen.data_worker_cpu_used,
        made_per_s=seen.made_per_s,
        capable_per_s=seen.capable_per_s,
        fill=seen.fill,
        wait_share=seen.wait_share,
    )
    return (only,)


def keeps_up(stage: StageSeen) -> bool:
    """The ideal state: data workers are as fast as those who take from them."""
    return stage.wait_share <= WAITS_LITTLE or stage.fill >= FULL


def is_short(stage: StageSeen) -> bool:
    """Clearly not ideal: what it takes for a job that was tuned to be changed."""
    return stage.wait_share > WAITS and stage.fill < FULL


def limit(seen: tuple[StageSeen, ...]) -> int | None:
    """The stage that holds up the job: waited for, and not waiting itself. None: all keep up.

    Looked for from the trainers backwards: a stage that waits for the one before cannot be judged, nor helped.
    """
    if keeps_up(seen[-1]):
        return None
    at = len(seen) - 1
    while at > 0 and not keeps_up(seen[at - 1]):
        at -= 1
    return at
