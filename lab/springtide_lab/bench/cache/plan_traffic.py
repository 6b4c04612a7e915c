"""Count the rows that the plans of one step pull, push and send, and show the state of a scheduler.

In: the plans of `embedding.schedule.scheduler`, one per rank. Out: counts per worker, their total, and the reward of
Herald's Appendix A. In the reward, an iteration waits for the largest push, and then for the largest pull.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide import _native, errors
from springtide.embedding.schedule.scheduler import POLICIES, FeatureIds, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTraffic:
    """Numbers of rows by worker for one step: pulled before the step, pushed before the step, and pushed at its end."""

    pulls: tuple[int, ...]
    gradients: tuple[int, ...]
    """Rows that are pushed at the end of the step, because several workers train them."""
    write_backs: tuple[int, ...]
    """Rows pushed before the step, because another worker trains them or the cache evicted them."""
    sent: tuple[int, ...]
    """Rows, values and gradients sent to other workers."""
    received: tuple[int, ...]

    @property
    def pushes(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(self.gradients, self.write_backs, strict=True)))

    @property
    def transmissions(self) -> int:
        """Rows on the network in total; a row sent between workers counts once."""
        return sum(self.pulls) + sum(self.pushes) + sum(self.sent)

    def reward(self, before: "PlanTraffic | None" = None) -> int:
        """Return the largest push plus the largest pull; lower is better.

        The push includes the gradients of the step `before`. Sends count as pushes, and received rows count as pulls.
        Unlike Herald's reward, the value is not negated.
        """
        earlier = before.gradients if before else (0,) * len(self.pulls)
        push = max(map(sum, zip(earlier, self.write_backs, self.sent, strict=True)))
        return push + max(map(sum, zip(self.pulls, self.received, strict=True)))


def traffic(plans: Sequence[_native.CachePlan]) -> PlanTraffic:
    names = [field.name for field in dataclasses.fields(PlanTraffic)]
    return PlanTraffic(**{name: tuple(getattr(plan, name) for plan in plans) for name in names})


class ComparingScheduler(Scheduler):
    """Scheduler that also shows the contents of the caches and the results of other policies."""

    def consider(
        self, features: Sequence[FeatureIds], samples: int, policy: str, *, effort: int = 0
    ) -> _native.Considered:
        """Return the result of another policy for the next batch from the same state, without scheduling the batch."""
        if policy not in POLICIES:
            raise errors.UnknownName("allocation policy", policy, POLICIES)
        tables = self.settings.tables
        looked_at = [(f.table, f.ids, f.offsets) for f in features if tables is None or f.table in tables]
        return self._native.consider(looked_at, samples, policy, effort=effort)

    def cached(self, worker: int) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.bool_]]:
        """Return tables and keys of one worker's rows in eviction order, and which rows only this worker has."""
        tables, keys, dirty = self._native.cached(worker)
        return tables, keys, dirty.astype(bool)
