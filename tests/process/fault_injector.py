"""Injects random faults into a job; equal seeds give equal faults.

In: a `LocalCluster` and a `FaultPlan`. Out: the injected faults in order, so that a failing run can be explained.
"""

import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from springtide import errors
from springtide.testing.cluster import LocalCluster

KINDS: Mapping[str, int] = {
    "kill workers": 6,
    "kill master": 2,
    "kill master and worker": 1,
    "stop worker": 2,
    "scale": 3,
}
"""Kinds of faults with their relative frequencies."""

WITH_SERVERS: Mapping[str, int] = {
    **KINDS,
    "kill server": 4,
    "kill two servers": 1,
    "kill server, worker and master": 1,
    "stop server": 1,
}
"""Kinds of faults for jobs with checkpoints, which may also lose servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Kinds and timing of the faults."""

    seed: int
    pause_s: tuple[float, float] = (0.3, 1.5)
    """Shortest and longest seconds between two faults."""
    most_workers: int = 4
    silence_s: float = 2.0
    """Silence limit of the job and its servers, in seconds. Stopped processes wake after they have been
    declared lost.
    """
    kinds: Mapping[str, int] = field(default_factory=lambda: KINDS)


@dataclass(slots=True)
class FaultInjector:
    """Injects the faults of a plan, one at a time, until the job is over."""

    plan: FaultPlan
    job: LocalCluster
    done: list[str] = field(default_factory=list)
    _asleep: dict[int, float] = field(default_factory=dict)

    def run(self, *, at_most: int = 1_000_000) -> list[str]:
        """Inject up to `at_most` faults until the job is over. Stopped processes are always woken."""
        chance = random.Random(self.plan.seed)
        while not self.job.over and len(self.done) < at_most:
            self._rest(chance.uniform(*self.plan.pause_s))
            kinds = list(self.plan.kinds)
            kind = chance.choices(kinds, [self.plan.kinds[each] for each in kinds])[0]
            told = self._do(kind, chance)
            if told:
                self.done.append(told)
        while self._asleep and not self.job.over:
            self._rest(0.1)
        return self.done

    def _do(self, kind: str, chance: random.Random) -> str:
        """Inject one fault and describe it; empty if no process qualifies."""
        workers, servers = (
            sorted(role for role in self.job.pids() if role.startswith(kind)) for kind in ("worker-", "server-")
        )
        match kind:
            case "kill workers":
                return self._kill(chance.sample(workers, min(len(workers), chance.randint(1, 4))))
            case "kill master":
                return self._kill(["master"])
            case "kill master and worker":
                return self._kill(["master", *chance.sample(workers, min(len(workers), 1))])
            case "stop worker":
                return self._stop(chance.choice(workers)) if workers else ""
            case "kill server" | "kill two servers":
                return self._kill(chance.sample(servers, min(len(servers), 1 + (kind != "kill server"))))
            case "kill server, worker and master":
                some = [chance.choice(roles) for roles in (servers, workers) if roles]
                return self._kill([*some, "master"])
            case "stop server":
                return self._stop(chance.choice(servers)) if servers else ""
            case "scale":
                return self._scale(chance.randint(1, self.plan.most_workers))
            case _:
                raise errors.UnknownName("fault", kind, WITH_SERVERS)

    def _kill(self, roles: Sequence[str]) -> str:
        hit = [role for role in roles if self.job.kill(role)]
        return f"killed {', '.join(hit)}" if hit else ""

    def _stop(self, role: str) -> str:
        pid = self.job.signal(role, signal.SIGSTOP)
        if pid is None:
            return ""
        self._asleep[pid] = time.monotonic() + 1.5 * self.plan.silence_s
        return f"stopped {role}"

    def _scale(self, workers: int) -> str:
        try:
            self.job.scale(workers)
        except (errors.SpringtideError, OSError, AssertionError):
            return ""  # no master runs just now, or the job is over
        return f"scaled to {workers}"

    def _rest(self, pause_s: float) -> None:
        """Wait, and wake stopped processes when they are due."""
        until = time.monotonic() + pause_s
        while (now := time.monotonic()) < until and not self.job.over:
            for pid in [pid for pid, wake in self._asleep.items() if wake <= now]:
                del self._asleep[pid]
                self.job.wake(pid)
            time.sleep(min(0.05, until - now))
