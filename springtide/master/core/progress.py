"""Sums the reports of members: totals, the recent sample rate, and means weighted by samples.

In: `MemberReport`s on heartbeats; the clock is an argument. Out: the figures of a `JobStatus`.
"""

from collections import deque
from collections.abc import Mapping

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.model.cache_rules import CacheUse, together
from springtide.rpc.messages.messages import MemberReport

WINDOW_S = 5.0  # long enough to be steady with reports every second, short enough to show a change


class ProgressTally:
    """Newest report of each member, and the growth of the total sample count."""

    def __init__(self) -> None:
        self.reports: dict[Role, MemberReport] = {}
        self.grew_at: float | None = None
        """When a worker last reported more samples than before."""
        self.cache_on: bool | None = None
        """What was told last of a cache: that there is one, that there is none; None: nothing."""
        self._lives: dict[Role, int] = {}
        self._gone = 0
        self._heard_at: dict[Role, float] = {}
        self._left: set[Role] = set()
        self._loss: dict[Role, tuple[float, float]] = {}
        self._history: deque[tuple[float, int]] = deque()

    def take(self, role: Role, report: MemberReport, *, at: float, incarnation: int = 0) -> None:
        """Note a member's newest report. A new life of a worker counts from zero; what the one before did stays."""
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
        """This life of it is over: what it has trained stays, what it said last is not how the job is."""
        self._left.add(role)

    def note(self, samples: int, *, at: float) -> None:
        """So many samples are trained by now: what the rate is made of."""
        self._history.append((at, samples))
        while len(self._history) > 2 and self._history[1][0] <= at - WINDOW_S:
            self._history.popleft()

    @property
    def samples(self) -> int:
        """Trained by all workers so far, as they report it."""
        return self._gone + sum(report.samples for role, report in self.reports.items() if role.kind is RoleKind.WORKER)

    @property
    def loss(self) -> float | None:
        """Mean of the newest losses of workers that train, weighted by the samples they stand for."""
        return self._mean(self._loss)

    @property
    def metrics(self) -> dict[str, float]:
        """Means of the user's metrics over those who report them still, weighted by samples."""
        found: dict[str, dict[Role, tuple[float, float]]] = {}
        for role, report in self.reports.items():
            for name, value in report.metrics.items():
                found.setdefault(name, {})[role] = (value, max(1, report.samples))
        return {name: mean for name, told in found.items() if (mean := self._mean(told)) is not None}

    def _mean(self, told: Mapping[Role, tuple[float, float]]) -> float | None:
        """Of (value, weight) by member: of those who are there, or once all have left, of those who left last."""
        newest = max((self._heard_at[role] for role in told), default=0.0)
        there = [pair for role, pair in told.items() if role not in self._left]
        last = [pair for role, pair in told.items() if self._heard_at[role] >= newest - WINDOW_S]
        return weighted_mean(there or last)

    def staleness(self, which: str) -> int | None:
        """`p50` or `max` of the servers' pushes, on the server where it is largest; None before the first."""
        counted = [
            report.counters[f"staleness_{which}"]
            for role, report in self.reports.items()
            if role.kind is RoleKind.SERVER and report.counters.get("pushes")
        ]
        return int(max(counted)) if counted else None

    @property
    def cache(self) -> CacheUse | None:
        """What workers keep of the rows they train; None before any has said so."""
        ranked = sorted((role.rank, report.cache) for role, report in self.reports.items() if report.cache is not None)
        return together(use for _, use in ranked)

    def samples_per_s(self, *, at: float) -> float:
        """Rate over the last seconds; while nothing is reported it falls, as it should."""
        if len(self._history) < 2:
            return 0.0
        (since, first), (_, last) = self._history[0], self._history[-1]
        elapsed = max(at, self._history[-1][0]) - since
        return max(0, last - first) / elapsed if elapsed > 0 else 0.0  # less than before: the book has gone back


def weighted_mean(pairs: list[tuple[float, float]]) -> float | None:
    """Mean of (value, weight) pairs; None of none."""
    weight = sum(each for _, each in pairs)
    return sum(value * each for value, each in pairs) / weight if weight else None
