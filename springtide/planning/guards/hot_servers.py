"""Pure. Finds servers that slow the job down, with the cause and the remedy.

In: recent activity of each server (`ServerPace`, from its counters and its agent). Out: one `ServerVerdict` per server,
with the reason. Only a server that works for a good part of the time can slow others down. Timings of an idle server
are mostly noise. Next: the master moves slots, grants CPU, or replaces the server.

* **Hot**: more load than its peers and no spare CPU. Slots move to other servers. If most load is on one slot that
  would make any other server hot too, the server gets more CPU.
* **Slow**: no more load than its peers, but each key takes far longer. The machine is the cause, so the server is
  replaced.
* **Slow for certain**: throttled nearly all the time, with far less CPU than its limit. No comparison is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from springtide.domain.spec.guard_rules import GuardRules

LEAST_KEYS = 1000.0
"""A second: a server that is asked for less says nothing about its machine."""
PERIOD_S = 0.1
"""Of a quota, as the kernel counts it."""


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
    """Keys looked up and updated, a second."""
    ns_a_key: float
    """Time in its tables, as the clock on the wall has it: waiting for a processor counts."""
    cpu: float
    """Processors it used."""
    cpu_limit: float | None = None

    @property
    def at_work(self) -> float:
        """Part of the time that its tables were at work, over all of its threads."""
        return self.keys_s * self.ns_a_key / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerVerdict:
    """Diagnosis of one server."""

    rank: int
    cause: Cause
    why: str
    sure: bool = False
    """It is so bad that nothing more need be waited for."""


def judge(paces: Sequence[ServerPace], rules: GuardRules) -> tuple[ServerVerdict, ...]:
    return tuple(_judge_one(one, [other for other in paces if other.rank != one.rank], rules) for one in paces)


def far_behind(latest: Sequence[ServerPace], rules: GuardRules) -> ServerVerdict | None:
    """The server that is slower than its peers by far, going by what each did from one report to the next."""
    found = [
        verdict for verdict in judge(latest, replace(rules, slower=rules.far_slower)) if verdict.cause is Cause.SLOW
    ]
    return replace(found[0], sure=True) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQuotaUse:
    """CPU that the kernel granted to one server over the recent window."""

    rank: int
    cpu: float
    """Processors it used."""
    due: float
    """Processors it is to have."""
    throttled: float
    """Part of the time whose quota was used up: of that it had all that it was let have."""
    seconds: float = 1.0
    """How long that was."""


def cut_short(quotas: Sequence[CpuQuotaUse], rules: GuardRules) -> ServerVerdict | None:
    """The server whose machine gives it far less than it is to have, while another has its due.

    Nothing has to be compared or waited for: a period's quota is used up only by using it, so whoever used less in all
    than these periods should have brought has a smaller quota than it is to have. No hiccup and no burst looks so. One
    period may have begun, and brought its due, before anyone looked: it does not count.
    """
    found = [
        one
        for one in quotas
        if one.throttled >= rules.throttled and one.cpu < rules.given * one.due * _whole_periods(one)
    ]
    if not found or len(found) == len(quotas):
        return None
    worst = min(found, key=lambda one: one.cpu / one.due)
    why = (
        f"server-{worst.rank} gets {worst.cpu:.2g} of the {worst.due:.2g} CPUs that it is to have, and had to wait for "
        f"{min(1.0, worst.throttled):.0%} of the time: its machine is the cause"
    )
    return ServerVerdict(rank=worst.rank, cause=Cause.SLOW, why=why, sure=True)


def _whole_periods(one: CpuQuotaUse) -> float:
    """The part of the time that was throttled from beginning to end of a period, for certain."""
    return max(0.0, min(1.0, one.throttled) - PERIOD_S / one.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """Remedy for a hot server."""

    cpu: float | None
    """Processors that it may use from now on; None: slots move instead."""
    why: str


def relieve(
    hot: ServerPace, paces: Sequence[ServerPace], rules: GuardRules, *, heaviest: float, per_worker: float, workers: int
) -> Relief:
    """Move slots if that can level loads, else more CPU: s = min(s_hot / s_total * s_one * workers, most).

    `heaviest`: the part of all requests that goes to its heaviest slot. `per_worker`: processors that all servers
    together use for one worker that they do not hold up (s_one), as far as that was ever seen. What a server at its
    limit uses does not say what it would use, so it is given half as much again at least.
    """
    others = max(1, len(paces) - 1)
    alone = heaviest * others / max(1.0 - heaviest, 1e-9)
    said = f"its heaviest slot alone has {alone:.1f} times the load of a peer"
    if alone <= rules.hotter or hot.cpu_limit is None:
        return Relief(cpu=None, why=f"slots can be spread: {said}")
    if hot.cpu_limit >= rules.most_cpu:
        return Relief(cpu=None, why=f"{said}, but it has {hot.cpu_limit:g} CPUs, the most that one gets")
    total = sum(one.cpu for one in paces)
    needed = hot.cpu / total * per_worker * workers if total else 0.0
    cpu = min(max(needed, 1.5 * hot.cpu_limit), rules.most_cpu)
    return Relief(cpu=cpu, why=f"{said}: moving it would only move the trouble")


def _judge_one(one: ServerPace, others: Sequence[ServerPace], rules: GuardRules) -> ServerVerdict:
    who = f"server-{one.rank}"
    busy_peers = [other for other in others if other.keys_s >= LEAST_KEYS]
    if not busy_peers:
        return ServerVerdict(rank=one.rank, cause=Cause.NONE, why=f"{who} has no peer at work to be compared with")
    keys, ns = median(other.keys_s for other in busy_peers), median(other.ns_a_key for other in busy_peers)
    load, time = one.keys_s / keys, one.ns_a_key / max(ns, 1e-9)
    said = f"{who} has {load:.1f} times its peers' load and takes {time:.1f} times as long a key"
    if one.at_work < rules.at_work:
        idle = f"{said}, but is at work for {one.at_work:.0%} of the time only: it holds nobody up"
        return ServerVerdict(rank=one.rank, cause=Cause.NONE, why=idle)
    used = one.at_work if one.cpu_limit is None else one.cpu / one.cpu_limit
    if load > rules.hotter and used >= rules.busy:
        return ServerVerdict(rank=one.rank, cause=Cause.HOT, why=f"{said}: the load is the cause")
    if time > rules.slower and one.keys_s > 0 and load <= rules.hotter:
        return ServerVerdict(rank=one.rank, cause=Cause.SLOW, why=f"{said}: its machine is the cause")
    return ServerVerdict(rank=one.rank, cause=Cause.NONE, why=said)


CALM_S = 300.0
"""So long nothing may have come near the limit: a raise that is taken back at once would only be asked for again."""
ROOM = 1.5
"""Above the most that it used."""
WORTH = 0.8
"""Of the limit that it has: for less than a fifth nothing is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGrant:
    """Limit and usage of one resource of a server: CPUs or bytes."""

    limit: float
    usual: float
    """What servers of the job have that were granted nothing."""
    most: float
    """That it used at any moment while it was watched."""
    watched_s: float


def eased(extra: ServerGrant) -> float | None:
    if extra.limit <= extra.usual or extra.watched_s < CALM_S:
        return None
    enough = max(extra.usual, ROOM * extra.most)
    return enough if enough <= WORTH * extra.limit else None
