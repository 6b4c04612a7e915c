"""Pure. A role of a job: its states, the legal transitions between them, and the role's history.

Each transition to EXPECTED, except the first, begins a new incarnation. An illegal transition raises an error that
shows the history.
"""

import operator
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind, WantedRole


class NodeState(StrEnum):
    """State of a role in its present incarnation."""

    EXPECTED = "expected"
    """The role must be started, or has been started and has not joined yet."""
    JOINED = "joined"
    DRAINING = "draining"
    """Scaling removes the role: a worker finishes its batch, a server hands over its slots."""
    FINISHED = "finished"
    GONE = "gone"


LEGAL: dict[NodeState, frozenset[NodeState]] = {
    NodeState.EXPECTED: frozenset(
        {
            NodeState.JOINED,  # the process joins
            NodeState.EXPECTED,  # the process exits before it joins, and is relaunched
            NodeState.GONE,  # scaling removes the role, or its process exits and is not replaced
        }
    ),
    NodeState.JOINED: frozenset(
        {
            NodeState.DRAINING,  # scaling removes the role
            NodeState.FINISHED,  # the script of the role ends
            NodeState.EXPECTED,  # the process is lost and relaunched
            NodeState.GONE,  # the process is lost and not replaced, because the job ends or drains
        }
    ),
    NodeState.DRAINING: frozenset(
        {
            NodeState.FINISHED,  # the script of the role ends as expected
            NodeState.GONE,  # the process is lost or too slow, or it is a server whose last slot has moved
            # the process is a server that was lost before its last slot had moved; it is relaunched
            NodeState.EXPECTED,
        }
    ),
    NodeState.FINISHED: frozenset({NodeState.GONE}),  # the process exits after the end of its script
    NodeState.GONE: frozenset({NodeState.EXPECTED}),  # the job wants a removed rank again
}

ALIVE = frozenset({NodeState.JOINED, NodeState.DRAINING})
"""States in which a role sends heartbeats and may hold leases."""

# most transitions to keep in the history, because a worker that is relaunched for days must not fill the master's
# memory
MAX_HISTORY = 50


class IllegalMove(errors.SpringtideError):
    """A transition that the table does not allow. The message has the node's history."""


class ProcessIdentity(msgspec.Struct, kw_only=True):
    """The process that joined as the role's present incarnation."""

    pid: int = 0
    birth: int = 0
    """Random number that the process drew at its start. In containers, all processes may have the same process id."""


class RoleFaults(msgspec.Struct, kw_only=True):
    """Recent failures of a role."""

    crashes: int = 0
    """Number of crashes since the role last ran for a long time."""
    oom_kills: int = 0
    said: str = ""
    """Error that the script reported before it exited, although another role's failure was the cause."""
    trace: str = ""


class Departure(msgspec.Struct, kw_only=True):
    """Way in which the present incarnation leaves the job."""

    finished: bool = False
    removed: bool = False
    replaced: bool = False
    """True for a server or data worker that leaves once its replacement is ready."""
    shunned: bool = False
    """True for a replaced server that is so slow that its peers take over its slots immediately."""
    drain_since: float = 0.0


class RoleNode(msgspec.Struct, kw_only=True):
    """A role of the job, in its present incarnation."""

    role: Role
    state: NodeState = NodeState.EXPECTED
    incarnation: int = 0
    process: ProcessIdentity = msgspec.field(default_factory=ProcessIdentity)
    since: float = 0.0
    """Time when the present incarnation began. Earlier failures of a worker that has run for a long time are
    forgotten."""
    heard_at: float = 0.0
    address: str = ""
    coming: bool = False
    """True for a server that was added during training and is not ready yet."""
    departure: Departure = msgspec.field(default_factory=Departure)
    faults: RoleFaults = msgspec.field(default_factory=RoleFaults)
    cpu: float | None = None
    memory: int | None = None
    after_s: float = 0.0
    """Seconds to wait before this incarnation may start."""
    history: list[str] = msgspec.field(default_factory=list)

    def move(self, to: NodeState, *, at: float, why: str) -> None:
        """Move to another state, or raise. A move to EXPECTED begins a new incarnation."""
        if to not in LEGAL[self.state]:
            history = ", ".join(self.history) or "nothing yet"
            raise IllegalMove(f"{self.role}: {self.state} -> {to} is not legal ({why}); history: {history}")
        self.history.append(f"{at:.1f}s {self.state}->{to}: {why}")
        del self.history[:-MAX_HISTORY]
        self.state = to
        self.heard_at = at
        if to is NodeState.EXPECTED:
            self.incarnation += 1
            self.since, self.address, self.faults.said, self.faults.trace = at, "", "", ""
            self.departure.finished = self.departure.removed = False
        if to is NodeState.DRAINING:
            self.departure.removed, self.departure.drain_since = True, at
        if to is NodeState.FINISHED:
            self.departure.finished = True

    def remove(self, *, at: float, why: str) -> None:
        """Remove the role immediately, because it has nothing to finish."""
        self.departure.removed = True
        self.move(NodeState.GONE, at=at, why=why)

    @property
    def wanted(self) -> WantedRole:
        return WantedRole(
            role=self.role,
            incarnation=self.incarnation,
            cpu=self.cpu,
            memory=self.memory,
            after_s=self.after_s,
            joined=self.state is not NodeState.EXPECTED,
        )

    @property
    def active(self) -> bool:
        return self.state in (NodeState.EXPECTED, NodeState.JOINED)


_BY_RANK = operator.attrgetter("role.rank")


def of_kind(nodes: Mapping[str, RoleNode], kind: RoleKind) -> list[RoleNode]:
    found = [node for node in nodes.values() if node.role.kind is kind]
    found.sort(key=_BY_RANK)
    return found


def needed_servers(nodes: Mapping[str, RoleNode]) -> list[RoleNode]:
    servers = [node for node in nodes.values() if node.role.kind is RoleKind.SERVER and not node.coming]
    servers = [node for node in servers if node.state is not NodeState.GONE]
    servers.sort(key=_BY_RANK)
    return servers


def all_servers_ready(nodes: Mapping[str, RoleNode]) -> bool:
    for node in nodes.values():
        needed = node.role.kind is RoleKind.SERVER and node.state is not NodeState.GONE and not node.coming
        if needed and not node.address:
            return False
    return True


def staying_servers(nodes: Mapping[str, RoleNode]) -> tuple[int, ...]:
    """Return the ranks of servers that may get slots: servers that are ready and will not leave."""
    ready = (node for node in of_kind(nodes, RoleKind.SERVER) if node.address and node.active)
    return tuple(node.role.rank for node in ready if not node.coming and not node.departure.shunned)


def lost_members(nodes: Mapping[str, RoleNode], group: Mapping[int, int]) -> list[RoleNode]:
    """Return the members of a bsp group whose process is lost or was replaced. `group` has the incarnation of each
    rank."""
    members: Iterable[tuple[RoleNode, int]] = (
        (nodes[str(Role(RoleKind.WORKER, rank))], incarnation) for rank, incarnation in group.items()
    )
    return [node for node, life in members if node.incarnation != life or node.state not in ALIVE]
