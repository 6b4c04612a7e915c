"""Pure. Finds servers that slow the job down. From a hot server, slots should move away; a slow server should be
replaced.

A hot server has more load than its peers and no spare CPU. A slow server has no more load than its peers, but takes
far longer per key, or is throttled by its machine nearly all the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

import msgspec

from springtide.domain.spec.job_spec import GuardRules

LEAST_KEYS = 1000.0
"""A server's timing says something about its machine only if the server gets at least this many keys per second."""
PERIOD_S = 0.1
"""Quota period of the kernel in seconds."""


class Cause(StrEnum):
    """Reason why a server slows the job down."""

    NONE = "none"
    HOT = "hot"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPace:
    """Activity of one server over the recent window."""

    rank: int
    keys_s: float
    """Keys looked up and updated per second."""
    ns_a_key: float
    """Wall-clock nanoseconds per key in the server's tables, including waits for a CPU."""
    cpu: float
    cpu_limit: float | None = None

    @property
    def at_work(self) -> float:
        """Return the share of time in which tables were busy, summed over threads."""
        return self.keys_s * self.ns_a_key / 1e9


class ServerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Diagnosis of one server."""

    rank: int
    cause: Cause
    why: str


def judge(paces: Sequence[ServerPace], rules: GuardRules) -> tuple[ServerVerdict, ...]:
    return tuple(_judge_one(pace, [other for other in paces if other.rank != pace.rank], rules) for pace in paces)


def far_behind(latest: Sequence[ServerPace], rules: GuardRules) -> ServerVerdict | None:
    """Return a server that is far slower than its peers between the last two reports."""
    if len(latest) < 2:
        return None
    verdicts = judge(latest, replace(rules, slower=rules.far_slower))
    return next((verdict for verdict in verdicts if verdict.cause is Cause.SLOW), None)


class CpuQuotaUse(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time that the kernel granted to one server over the recent window."""

    rank: int
    cpu: float
    due: float
    """Number of cores that the server should get."""
    throttled: float
    """Share of time in throttled periods, in which the server used up its quota."""
    seconds: float = 1.0
    """Length of the window in seconds."""


def cut_short(quotas: Sequence[CpuQuotaUse], rules: GuardRules) -> ServerVerdict | None:
    """Return the server whose machine grants far less CPU than the server's limit, while the other servers get all CPU
    up to their limits. One window is enough evidence that the machine throttles the server. The kernel throttles a
    period only if its quota was used up. So if the total usage is below the CPU time due in the throttled periods, the
    real quota is smaller than the limit. A pause or a burst of work cannot have this effect. The first period may have
    begun before the window, so it is ignored.
    """
    found = [
        quota
        for quota in quotas
        if quota.throttled >= rules.throttled and quota.cpu < rules.given * quota.due * _whole_periods(quota)
    ]
    if not found or len(found) == len(quotas):
        return None
    worst = min(found, key=lambda verdict: verdict.cpu / verdict.due)
    why = (
        f"server-{worst.rank} gets {worst.cpu:.2g} of the {worst.due:.2g} CPUs that it should have, and was throttled "
        f"{min(1.0, worst.throttled):.0%} of the time: its machine is the cause"
    )
    return ServerVerdict(rank=worst.rank, cause=Cause.SLOW, why=why)


def _whole_periods(use: CpuQuotaUse) -> float:
    """Return the share of time in periods that were certainly throttled from start to end."""
    return max(0.0, min(1.0, use.throttled) - PERIOD_S / use.seconds)


def _judge_one(pace: ServerPace, others: Sequence[ServerPace], rules: GuardRules) -> ServerVerdict:
    who = f"server-{pace.rank}"
    busy_peers = [other for other in others if other.keys_s >= LEAST_KEYS]
    if not busy_peers:
        return ServerVerdict(rank=pace.rank, cause=Cause.NONE, why=f"{who} has no working peer for a comparison")
    keys, ns = median(other.keys_s for other in busy_peers), median(other.ns_a_key for other in busy_peers)
    load, time = pace.keys_s / keys, pace.ns_a_key / max(ns, 1e-9)
    reason = f"{who} has {load:.1f} times its peers' load and takes {time:.1f} times as long a key"
    if pace.at_work < rules.at_work:
        idle = f"{reason}, but works only {pace.at_work:.0%} of the time, so it delays no worker"
        return ServerVerdict(rank=pace.rank, cause=Cause.NONE, why=idle)
    used = pace.at_work if pace.cpu_limit is None else pace.cpu / pace.cpu_limit
    if load > rules.hotter and used >= rules.busy:
        return ServerVerdict(rank=pace.rank, cause=Cause.HOT, why=f"{reason}: the load is the cause")
    if time > rules.slower and pace.keys_s > 0 and load <= rules.hotter:
        return ServerVerdict(rank=pace.rank, cause=Cause.SLOW, why=f"{reason}: its machine is the cause")
    return ServerVerdict(rank=pace.rank, cause=Cause.NONE, why=reason)
