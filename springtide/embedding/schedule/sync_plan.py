"""Pure. Count the cost of the plans of one step: rows pulled, pushed and sent between workers.

In: the plans of `scheduler.Scheduler`, one per rank. Out: counts per worker, their total, and the reward of Herald's
Appendix A. That reward models an iteration that waits for the largest push, and then for the largest pull.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class PlanCounts(Protocol):
    """Counts of a `_native.CachePlan`; `PlanTraffic` explains them."""

    @property
    def pulls(self) -> int:
        """Rows pulled from servers."""

    @property
    def gradients(self) -> int:
        """Gradients pushed at the end of the step."""

    @property
    def write_backs(self) -> int:
        """Rows pushed before the step."""

    @property
    def sent(self) -> int:
        """Rows, values and gradients sent to other workers."""

    @property
    def received(self) -> int:
        """Rows, values and gradients received from other workers."""

    @property
    def gradients_received(self) -> int:
        """Gradients received from other workers."""

    @property
    def hits(self) -> int:
        """Rows found in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTraffic:
    """Rows by worker for one step: pulls for the step, pushes before the step, and pushes at its end."""

    pulls: tuple[int, ...]
    gradients: tuple[int, ...]
    """Rows pushed at the end of the step, because several workers train them."""
    write_backs: tuple[int, ...]
    """Rows pushed before the step, because another worker trains them or the cache evicted them."""
    sent: tuple[int, ...]
    """Rows, values and gradients sent to other workers."""
    received: tuple[int, ...]
    gradients_received: tuple[int, ...]
    """Gradients received at the end of the step; part of `received`."""
    hits: tuple[int, ...]

    @property
    def pushes(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(self.gradients, self.write_backs, strict=True)))

    @property
    def transmissions(self) -> int:
        """Rows on the network in total; a row sent between workers counts once."""
        return sum(self.pulls) + sum(self.pushes) + sum(self.sent)

    @property
    def per_worker(self) -> float:
        return self.transmissions / len(self.pulls)

    @property
    def hit_rate(self) -> float:
        needed = sum(self.pulls) + sum(self.hits) + sum(self.received) - sum(self.gradients_received)
        return sum(self.hits) / needed if needed else 0.0

    def reward(self, before: "PlanTraffic | None" = None) -> int:
        """Return the largest push plus the largest pull; lower is better.

        The push includes the gradients of the step `before`. Sends count as pushes, and received rows count as pulls.
        Unlike Herald's reward, the value is not negated.
        """
        earlier = before.gradients if before else (0,) * len(self.pulls)
        push = max(map(sum, zip(earlier, self.write_backs, self.sent, strict=True)))
        return push + max(map(sum, zip(self.pulls, self.received, strict=True)))


def traffic(plans: Sequence[PlanCounts]) -> PlanTraffic:
    return PlanTraffic(
        pulls=tuple(plan.pulls for plan in plans),
        gradients=tuple(plan.gradients for plan in plans),
        write_backs=tuple(plan.write_backs for plan in plans),
        sent=tuple(plan.sent for plan in plans),
        received=tuple(plan.received for plan in plans),
        gradients_received=tuple(plan.gradients_received for plan in plans),
        hits=tuple(plan.hits for plan in plans),
    )
