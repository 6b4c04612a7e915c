"""Lowers the limits of servers that got extra resources and have not needed them for a long time.

In: servers and the agent's measurements, on every check of `master.servers.guards`. Out: an event that lowers a limit,
with its reason, or None. `planning.guards.hot_servers` decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from springtide.domain.core.roles import Role, RoleUsage
from springtide.job.core import events
from springtide.job.core.job_core import RoleSize
from springtide.job.core.nodes import RoleNode
from springtide.planning.guards import hot_servers

LEAST_S = 1.0  # shortest interval between two measurements for computing CPU use
GIB = 2.0**30


@dataclass(slots=True)
class GrantWatch:
    """Peak use of one server incarnation under one pair of limits."""

    limits: tuple[int, float | None, int | None]
    """Incarnation of the server, and its CPU and memory limits."""
    began: float
    at: float
    cpu_s: float
    most_cpu: float = 0.0
    most_memory: float = 0.0


class GrantRelease:
    """Grants of one job's servers."""

    def __init__(self) -> None:
        self._since: dict[int, GrantWatch] = {}

    def look(
        self, nodes: Sequence[RoleNode], usage: Mapping[Role, RoleUsage], usual: RoleSize, now: float
    ) -> events.ServerGranted | None:
        """Return an event for the first server that needs less than it was granted."""
        for node in nodes:
            used = usage.get(node.role)
            if used is None or not (_above(node.cpu, usual.cpu) or _above(node.memory, usual.memory)):
                self._since.pop(node.role.rank, None)
                continue
            event = self._ease(node, self._watch(node, used, now), usual, now)
            if event is not None:
                del self._since[node.role.rank]
                return event
        return None

    def _watch(self, node: RoleNode, used: RoleUsage, now: float) -> GrantWatch:
        limits = (node.incarnation, node.cpu, node.memory)
        seen = self._since.get(node.role.rank)
        if seen is None or seen.limits != limits:
            seen = self._since[node.role.rank] = GrantWatch(limits, now, now, used.cpu_s)
        if now - seen.at >= LEAST_S:
            seen.most_cpu = max(seen.most_cpu, (used.cpu_s - seen.cpu_s) / (now - seen.at))
            seen.at, seen.cpu_s = now, used.cpu_s
        seen.most_memory = max(seen.most_memory, float(used.memory))
        return seen

    def _ease(self, node: RoleNode, seen: GrantWatch, usual: RoleSize, now: float) -> events.ServerGranted | None:
        def eased(limit: float | None, first: float | None, most: float) -> float | None:
            if limit is None or first is None:
                return None
            return hot_servers.eased(
                hot_servers.ServerGrant(limit=limit, usual=first, most=most, watched_s=now - seen.began)
            )

        cpu = eased(node.cpu, usual.cpu, seen.most_cpu)
        memory = eased(node.memory, usual.memory, seen.most_memory)
        if cpu is None and memory is None:
            return None
        why = (
            f"in {now - seen.began:.0f} s {node.role} used {seen.most_cpu:.2g} CPUs and "
            f"{seen.most_memory / GIB:.2g} GiB at most"
        )
        cpu = node.cpu if cpu is None else cpu
        return events.ServerGranted(node.role.rank, cpu, why, None if memory is None else int(memory))


def _above(limit: float | None, usual: float | None) -> bool:
    return limit is not None and usual is not None and limit > usual
