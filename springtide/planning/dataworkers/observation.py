"""Pure. Computes how a job was fed with data over an interval, from the totals in its trainers' heartbeats.

Reports shortly after a change are ignored (`settled_at`). Next: `tuner.decide`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from springtide.domain.data.data_workers import FeedSeen, FeedState, StageSeen

WARM_UP = 1 / 3
"""Share of an interval to ignore after a change, because data workers still import packages and fill queues."""
LEAST_BUSY = 0.02
"""Smallest busy share to assume for a loop. A trainer reports a wait when the wait ends, so an interval can contain
more waiting than its length.
"""


class TrainerReport(NamedTuple):
    """Report of one trainer, with the time of its arrival."""

    at: float
    state: FeedState


class StageCores(NamedTuple):
    """Data workers of one stage: their number, and the average cores that each of them has and uses."""

    workers: int = 0
    cpu: float = 0.0
    cpu_used: float = 0.0
    gpu: bool = False


class Cores(NamedTuple):
    """Cores that roles have and cores that they use, as means per process. 0 means no limit, or unknown."""

    stages: tuple[StageCores, ...] = (StageCores(),)
    """Stages of data workers, first to last. The tuple has at least one stage."""
    trainer_cpu: float = 0.0
    trainer_cpu_used: float = 0.0
    free_cpu: float = 0.0
    share_cpu: float = 0.0


class _Over(NamedTuple):
    """Differences between the first and the last valid report of one trainer."""

    seconds: float
    looped: float
    taken: int
    made: int
    read: float
    stateless: float
    waited: float
    fill: float


def settled_at(changed_at: float, every_s: float) -> float:
    return changed_at + WARM_UP * every_s


def see(
    by_trainer: Mapping[str, Sequence[TrainerReport]],
    cores: Cores,
    *,
    at: float,
    since: float,
    earlier: Sequence[Mapping[str, Sequence[TrainerReport]]] = (),
) -> FeedSeen | None:
    """Return the measurements from `since` to `at`, over all trainers with reports.

    Every consumer reports on the stage that it reads from: trainers on the last stage of data workers, data workers on
    the previous stage. `earlier` has the reports of data workers in order, for every stage except the first.
    """
    over = _all_over(by_trainer, since)
    if not over:
        return None
    capable_per_s = sum(_capable(trainer) for trainer in over)
    consumers = [*(own.workers for own in cores.stages[1:]), len(over)]
    reports = [*(_all_over(words, since) for words in earlier), over]
    return FeedSeen(
        at=at,
        trainers=len(over),
        stages=tuple(
            _stage(number, own, of_stage, capable_per_s)
            for number, own, of_stage in zip(consumers, cores.stages, reports, strict=True)
        ),
        trainer_cpu=cores.trainer_cpu,
        trainer_cpu_used=cores.trainer_cpu_used,
        steps_per_s=sum(trainer.taken / trainer.seconds for trainer in over),
        capable_per_s=capable_per_s,
        own_share=min(
            1.0, sum(trainer.read + trainer.stateless for trainer in over) / sum(trainer.looped for trainer in over)
        ),
        free_cpu=cores.free_cpu,
        share_cpu=cores.share_cpu,
    )


def _stage(consumers: int, own: StageCores, over: Sequence[_Over], capable_per_s: float) -> StageSeen:
    return StageSeen(
        consumers=consumers,
        **own._asdict(),
        made_per_s=sum(trainer.made / trainer.seconds for trainer in over),
        capable_per_s=capable_per_s,
        fill=sum(trainer.fill for trainer in over) / len(over) if over else 0.0,
        wait_share=min(1.0, sum(trainer.waited for trainer in over) / sum(trainer.looped for trainer in over))
        if over
        else 0.0,
    )


def _all_over(reports: Mapping[str, Sequence[TrainerReport]], since: float) -> list[_Over]:
    return [
        window
        for words in reports.values()
        if (window := _over([word for word in words if word.at >= since])) is not None
    ]


def _over(words: Sequence[TrainerReport]) -> _Over | None:
    """Return the differences between the first and the last report of a trainer. Return None if there are too few
    reports or the trainer restarted.
    """
    if len(words) < 2:
        return None
    first, last = words[0], words[-1]
    then, now = first.state, last.state
    seconds, looped = last.at - first.at, now.looped_s - then.looped_s
    if seconds <= 0 or looped <= 0 or now.taken < then.taken or now.made < then.made:
        return None
    fills = [word.state.queued / word.state.room for word in words if word.state.room > 0]
    return _Over(
        seconds=seconds,
        looped=looped,
        taken=now.taken - then.taken,
        made=now.made - then.made,
        read=max(0.0, now.read_s - then.read_s),
        stateless=max(0.0, now.stateless_s - then.stateless_s),
        waited=max(0.0, now.waited_s - then.waited_s),
        fill=sum(fills) / len(fills) if fills else 0.0,
    )


def _capable(trainer: _Over) -> float:
    busy = trainer.looped - trainer.waited - trainer.read - trainer.stateless
    return trainer.taken / trainer.seconds / max(busy / trainer.looped, LEAST_BUSY)
