"""Pure. How many cores, GPUs and data workers a stage may have: never more than are free and those it has.

In: `FeedSeen` and the user's rules. Next: `size` and `number` stay below it.
"""

from typing import NamedTuple

from springtide.domain.data.data_workers import FeedRules, FeedSeen
from springtide.planning.dataworkers.tuning import queue_balance

_HAIR = 1e-9  # sums of fractions of cores


class StageLimits(NamedTuple):
    """What one stage may have in all."""

    cores: float
    size: float
    """Cores of one data worker at most."""
    most: int | None
    """Data workers at most, by the user's word or by the number of GPUs."""

    def workers(self, cpu: float) -> int:
        fit = int((self.cores + _HAIR) / cpu) if cpu > 0 else 0
        return max(0, fit if self.most is None else min(fit, self.most))


def of(seen: FeedSeen, rules: FeedRules, at: int) -> StageLimits:
    stages = queue_balance.stages(seen)
    stage = stages[at]
    cores = stage.workers * stage.cpu + seen.free_cpu
    size = rules.cpu or seen.share_cpu or max(cores / max(stage.consumers, 1), 0.0)
    others = sum(other.workers for i, other in enumerate(stages) if i != at)
    most = None if rules.most is None else max(1, rules.most - others)
    if stage.gpu:
        by_gpu = stage.workers + seen.free_gpu
        most = by_gpu if most is None else min(most, by_gpu)
    return StageLimits(cores, size, most)
