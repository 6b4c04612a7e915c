"""Measures a job while its shape stays the same: step times by term, CPU use of roles, and how long roles take to
start.

Out: readings for `planning.perf_model.profiles`. Nothing is journaled: a master that takes over starts to measure
again.
"""

from collections import deque
from collections.abc import Mapping

import msgspec

from springtide.domain.core.roles import Life, Role, RoleKind, RoleUsage
from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import SUM_FIELDS, Profile, TimingSum
from springtide.domain.plan.view import LaunchTime
from springtide.domain.spec.planning_config import PlanRules
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.planning.perf_model import profiles as profiling
from springtide.planning.perf_model.profiles import CoreSeconds, WorkerReading
from springtide.rpc.messages.types import MemberReport

KEPT_S = 300.0  # seconds for which readings of one shape are kept, because older readings say little about the present
KEPT_WINDOWS = 30  # most windows to keep for each earlier shape
KEPT_PROFILES = 600
KEPT_LAUNCHES = 64
MOST_READINGS = 20_000  # most readings to keep for one shape; processing this many takes 0.1 s
USE_S = 20.0  # length in seconds of the window for the CPU use of a role
USE_EVERY_S = 1.0
MOST_COUNTS = round(KEPT_S / USE_EVERY_S)
LIVES = 1 << 20  # factor that encodes a worker's rank and incarnation in one number


class ShapePeriod(msgspec.Struct, frozen=True, kw_only=True):
    """The period since which the job has its present shape and all its roles run."""

    shape: Shape
    since: float


class Profiler:
    """Measurements of one job."""

    def __init__(self, rules: PlanRules) -> None:
        self._rules = rules
        self.era: ShapePeriod | None = None
        self.launches: deque[LaunchTime] = deque(maxlen=KEPT_LAUNCHES)
        self._readings: deque[WorkerReading] = deque(maxlen=MOST_READINGS)
        self._before: list[Profile] = []
        self._steps: dict[int, int] = {}
        """Step count of each worker incarnation at its last reading in this shape."""
        self._used: dict[Life, deque[tuple[float, float]]] = {}
        self._spent: deque[CoreSeconds] = deque(maxlen=MOST_COUNTS)
        self._spenders: frozenset[Life] = frozenset()
        self._awaited: dict[Life, float] = {}

    def on_report(self, role: Role, incarnation: int, report: MemberReport, *, at: float) -> None:
        if self.era is None or role.kind is not RoleKind.WORKER or not report.step:
            return
        life = role.rank + LIVES * incarnation
        self._readings.append(WorkerReading(at=at, worker=life, timing=timing_of(report)))
        self._steps[life] = self._readings[-1].timing.steps
        while self._readings[0].at < at - KEPT_S:
            self._readings.popleft()

    def poll(self, shape: Shape | None, nodes: list[RoleNode], usage: Mapping[Role, RoleUsage], *, at: float) -> None:
        """Observe the job at every tick. `shape` is None while the job changes or recovers."""
        self._see_launches(nodes, at)
        if self.era is None or self.era.shape != shape:
            self._close()
            self.era = None if shape is None else ShapePeriod(shape=shape, since=at)
        if self.era is not None and at >= self.era.since + self._rules.settle_s and self._warm(self.era.shape):
            self._see_use(usage, at)

    def window(self, batch: int) -> "ProfileWindow":
        """Copy the inputs of profiles. A thread builds profiles from this copy, because building them would block the
        event loop for too long.
        """
        return ProfileWindow(
            era=self.era,
            readings=tuple(self._readings),
            before=tuple(self._before),
            batch=batch,
            rules=self._rules,
            spent=tuple(self._spent),
        )

    def cpu_used(self, life: Life) -> float | None:
        seen = self._used.get(life)
        if not seen or seen[-1][0] - seen[0][0] < USE_EVERY_S:
            return None
        return max(0.0, (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]))

    def _close(self) -> None:
        """End the period of this shape, and keep the last few windows of this period."""
        if self.era is not None and self._readings:
            batch = self._readings[-1].timing.samples // max(1, self._readings[-1].timing.steps)
            own = self.window(max(1, batch)).own()
            self._before = [*self._before, *own[-KEPT_WINDOWS:]][-KEPT_PROFILES:]
        self._readings.clear()
        self._steps.clear()
        self._used.clear()
        self._spent.clear()

    def _warm(self, shape: Shape) -> bool:
        """Return True if all workers are past their first steps, during which servers use less CPU than later."""
        return sum(count >= self._rules.warm_up_steps for count in self._steps.values()) >= shape.workers

    def _see_use(self, usage: Mapping[Role, RoleUsage], at: float) -> None:
        for role, used in usage.items():
            seen = self._used.setdefault(Life(role, used.incarnation), deque())
            if not seen or at >= seen[-1][0] + USE_EVERY_S:
                seen.append((at, used.cpu_s))
            while seen[0][0] < at - USE_S:
                seen.popleft()
        self._sum_up(usage, at)

    def _sum_up(self, usage: Mapping[Role, RoleUsage], at: float) -> None:
        """Record the total CPU seconds of workers and of servers. Start again from zero if any role was replaced."""
        lives = frozenset(Life(role, used.incarnation) for role, used in usage.items())
        if lives != self._spenders:
            self._spent.clear()
            self._spenders = lives
        workers, servers = (
            sum(used.cpu_s for role, used in usage.items() if role.kind is kind)
            for kind in (RoleKind.WORKER, RoleKind.SERVER)
        )
        last = self._spent[-1] if self._spent else None
        if last is None or (at >= last.at + USE_EVERY_S and (workers, servers) != (last.workers, last.servers)):
            self._spent.append(CoreSeconds(at=at, workers=workers, servers=servers))

    def _see_launches(self, nodes: list[RoleNode], at: float) -> None:
        waiting = {Life(node.role, node.incarnation): node for node in nodes if node.state is NodeState.EXPECTED}
        for node in nodes:
            life = Life(node.role, node.incarnation)
            if node.state is NodeState.JOINED and life in self._awaited and not node.coming:
                seconds = at - self._awaited.pop(life)
                self.launches.append(
                    LaunchTime(kind=node.role.kind, cpu=node.cpu or 1.0, memory=node.memory or 0, seconds=seconds)
                )
        for life, node in waiting.items():
            self._awaited.setdefault(life, node.since + node.after_s)
        alive = {Life(node.role, node.incarnation) for node in nodes if node.active}
        self._awaited = {life: since for life, since in self._awaited.items() if life in alive}


class ProfileWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Copy of a job's measurements at one moment."""

    era: ShapePeriod | None
    readings: tuple[WorkerReading, ...]
    before: tuple[Profile, ...]
    batch: int
    rules: PlanRules
    spent: tuple[CoreSeconds, ...] = ()

    def profiles(self) -> tuple[Profile, ...]:
        return (*self.before, *self.own())

    def own(self) -> tuple[Profile, ...]:
        if self.era is None:
            return ()
        return profiling.observe(
            self.readings, self.era.shape, since=self.era.since, batch=self.batch, rules=self.rules, spent=self.spent
        )


def timing_of(report: MemberReport) -> TimingSum:
    seconds = {name: report.seconds.get(name.removesuffix("_s"), 0.0) for name in SUM_FIELDS if name.endswith("_s")}
    return TimingSum(steps=report.step, samples=report.samples, **seconds)
