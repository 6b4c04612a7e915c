"""Collects what a `JobStatus` needs: the sums of members' reports, the resource use of roles, and the delay of the
event loop. Reduces a status to a point of the recorded progress."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.domain.model.cache_rules import CacheUse, together
from springtide.rpc.messages.types import JobStatus, MemberReport
from springtide.telemetry.progress import ProgressPoint

# length in seconds of the window for the rate: long enough for a steady rate with reports every second, and short
# enough to show a change
WINDOW_S = 5.0


class ProgressTally:
    """Newest report of each member, and the growth of the total sample count."""

    def __init__(self) -> None:
        self.reports: dict[Role, MemberReport] = {}
        self.grew_at: float | None = None
        self._cache_on: bool | None = None
        """Last logged state of the cache: on or off; None if no decision was logged."""
        self._lives: dict[Role, int] = {}
        self._gone = 0
        self._heard_at: dict[Role, float] = {}
        self._left: set[Role] = set()
        self._loss: dict[Role, tuple[float, float]] = {}
        self._history: deque[tuple[float, int]] = deque()

    def take(self, role: Role, report: MemberReport, *, at: float, incarnation: int = 0) -> None:
        """Record a member's newest report. The samples of earlier incarnations stay included."""
        before = self.reports.get(role, MemberReport())
        if incarnation > self._lives.get(role, 0):
            self._lives[role] = incarnation
            self._gone += before.samples
            before = MemberReport()
        self.reports[role], self._heard_at[role] = report, at
        self._left.discard(role)
        if report.loss is not None:
            self._loss[role] = (report.loss, max(1, report.samples - before.samples))
        if role.kind is RoleKind.WORKER and report.samples > before.samples:
            self.grew_at = at

    def leave(self, role: Role) -> None:
        """Mark a member as gone. The member's samples stay counted, but its last report no longer describes the job."""
        self._left.add(role)

    def restart(self) -> None:
        """Count samples from zero, because the job trains all samples again."""
        self._gone -= self.samples

    def note(self, samples: int, *, at: float) -> None:
        self._history.append((at, samples))
        while len(self._history) > 2 and self._history[1][0] <= at - WINDOW_S:
            self._history.popleft()

    @property
    def samples(self) -> int:
        return self._gone + sum(report.samples for role, report in self.reports.items() if role.kind is RoleKind.WORKER)

    @property
    def loss(self) -> float | None:
        return self._mean(self._loss)

    @property
    def metrics(self) -> dict[str, float]:
        """Return means of the user's metrics over the members that still report them, weighted by samples."""
        found: dict[str, dict[Role, tuple[float, float]]] = {}
        for role, report in self.reports.items():
            for name, value in report.metrics.items():
                found.setdefault(name, {})[role] = (value, max(1, report.samples))
        return {name: mean for name, reports in found.items() if (mean := self._mean(reports)) is not None}

    def _mean(self, reports: Mapping[Role, tuple[float, float]]) -> float | None:
        """Return the mean over the members that are present. If all have left, return the mean over the members that
        reported last."""
        newest = max((self._heard_at[role] for role in reports), default=0.0)
        there = [pair for role, pair in reports.items() if role not in self._left]
        last = [pair for role, pair in reports.items() if self._heard_at[role] >= newest - WINDOW_S]
        pairs = there or last
        weight = sum(share for _, share in pairs)
        return sum(value * share for value, share in pairs) / weight if weight else None

    def staleness(self, which: str) -> int | None:
        counted = [
            report.counters[f"staleness_{which}"]
            for role, report in self.reports.items()
            if role.kind is RoleKind.SERVER and report.counters.get("pushes")
        ]
        return int(max(counted)) if counted else None

    @property
    def cache(self) -> CacheUse | None:
        ranked = sorted((role.rank, report.cache) for role, report in self.reports.items() if report.cache is not None)
        return together(use for _, use in ranked)

    def cache_decision(self) -> tuple[str, str] | None:
        """Return the decision about the cache, and the reason. Return None if `status` has already returned this
        decision.
        """
        use = self.cache
        if use is None or not use.why or use.passing or use.on == self._cache_on:
            return None
        self._cache_on = use.on
        return "keep rows in the workers" if use.on else "keep no rows in the workers", use.why

    def samples_per_s(self, *, at: float) -> float:
        """Return the rate over the recent window. While no reports arrive, the rate falls."""
        if len(self._history) < 2:
            return 0.0
        (since, first), (_, last) = self._history[0], self._history[-1]
        elapsed = max(at, self._history[-1][0]) - since
        # the difference is negative after a ledger rollback
        return max(0, last - first) / elapsed if elapsed > 0 else 0.0


def point_of(status: JobStatus, *, at: float) -> ProgressPoint:
    return ProgressPoint(
        at=round(at, 3),
        samples=status.samples,
        samples_per_s=round(status.training.samples_per_s, 1),
        loss=status.training.loss,
        metrics={name: value for name, value in status.training.metrics.items() if math.isfinite(value)},
        shards_done=status.data.shards_done,
        workers=status.roles.workers.alive,
        servers=status.roles.servers.alive,
        data_workers=status.roles.data_workers.alive,
        lag_s=None if status.online is None else round(status.online.lag_s, 3),
    )


STALE_S = 10.0  # seconds after which a measurement that a role made of itself is ignored


@dataclass(slots=True)
class UsageTable:
    """Resource use by role, for the newest incarnation of each."""

    _agents: dict[Role, RoleUsage] = field(default_factory=dict)
    _own: dict[Role, tuple[float, RoleUsage]] = field(default_factory=dict)

    def on_usages(self, usages: tuple[RoleUsage, ...]) -> None:
        self._agents = {report.role: report for report in usages}

    def on_report(self, role: Role, incarnation: int, usage: RoleUsage | None, *, at: float) -> None:
        if usage is not None:
            self._own[role] = (at, replace(usage, role=role, incarnation=incarnation))

    def on_exit(self, role: Role, incarnation: int) -> None:
        if role in self._own and self._own[role][1].incarnation <= incarnation:
            del self._own[role]

    def now(self, *, at: float) -> dict[Role, RoleUsage]:
        own = {role: usage for role, (when, usage) in self._own.items() if at - when <= STALE_S}
        agents = {
            role: replace(usage, gpu=own[role].gpu) if role in own and own[role].gpu else usage
            for role, usage in self._agents.items()
        }
        return {**own, **agents}


LAG_EVERY_S = 0.02
LAG_WINDOW_S = 10.0


class LoopLag:
    """Measures how late the event loop runs: sleeps briefly again and again, and records how late each sleep ends."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late: deque[tuple[float, float]] = deque()

    async def watch(self) -> None:
        while True:
            due = self._clock() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.note(self._clock() - due, at=self._clock())

    def note(self, late_s: float, *, at: float) -> None:
        while self._late and self._late[-1][1] <= late_s:
            self._late.pop()
        self._late.append((at, late_s))
        while self._late[0][0] < at - LAG_WINDOW_S:
            self._late.popleft()

    @property
    def longest_s(self) -> float:
        return max(0.0, self._late[0][1]) if self._late else 0.0
