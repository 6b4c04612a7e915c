"""Pure. One role of a job: its states, the legal moves between them, and its history.

Each move to EXPECTED after the first begins a new incarnation. An illegal move raises and shows the history.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

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
            NodeState.JOINED,  # joins
            NodeState.EXPECTED,  # exits before it joins: relaunched
            NodeState.GONE,  # removed by scaling, or exits and is not replaced
        }
    ),
    NodeState.JOINED: frozenset(
        {
            NodeState.DRAINING,  # removed by scaling
            NodeState.FINISHED,  # its script ends
            NodeState.EXPECTED,  # lost: relaunched
            NodeState.GONE,  # lost, and not replaced: the job ends or drains
        }
    ),
    NodeState.DRAINING: frozenset(
        {
            NodeState.FINISHED,  # its script ends as expected
            NodeState.GONE,  # it is lost or too slow, or it is a server whose last slot has moved
            NodeState.EXPECTED,  # a server was lost before its last slot had moved, and is relaunched
        }
    ),
    NodeState.FINISHED: frozenset({NodeState.GONE}),  # its process exits after its script
    NodeState.GONE: frozenset({NodeState.EXPECTED}),  # the job wants a removed rank again
}

ALIVE = frozenset({NodeState.JOINED, NodeState.DRAINING})
"""States in which a role sends heartbeats and may hold leases."""

# most moves kept in the history: a worker that is relaunched for days must not fill the master's memory
MAX_HISTORY = 50


class IllegalMove(errors.SpringtideError):
    """A move that the table does not allow. The message has the node's history."""


@dataclass(slots=True, kw_only=True)
class ProcessIdentity:
    """The process that joined as the present incarnation."""

    pid: int = 0
    birth: int = 0
    """Random number that the process drew at its start. In containers, all processes may have the same process id."""


@dataclass(slots=True, kw_only=True)
class RoleFaults:
    """Recent failures of a role."""

    crashes: int = 0
    """Number of crashes since the role last ran for long."""
    oom_kills: int = 0
    said: str = ""
    """Error that the script reported before it exited because of another role's failure."""
    trace: str = ""


@dataclass(slots=True, kw_only=True)
class Departure:
    """Way in which the present incarnation leaves the job."""

    finished: bool = False
    removed: bool = False
    replaced: bool = False
    """True for a server or data worker that leaves once its replacement is ready."""
    shunned: bool = False
    """True for a replaced server that is so slow that peers take its slots at once."""
    drain_since: float = 0.0


@dataclass(slots=True, kw_only=True)
class RoleNode:
    """One role of the job, in its present incarnation."""

    role: Role
    state: NodeState = NodeState.EXPECTED
    incarnation: int = 0
    process: ProcessIdentity = field(default_factory=ProcessIdentity)
    since: float = 0.0
    """When the present incarnation began. Failures of a worker that has run for long are forgotten."""
    heard_at: float = 0.0
    address: str = ""
    coming: bool = False
    """True for a server that was added during training and is not ready yet."""
    departure: Departure = field(default_factory=Departure)
    faults: RoleFaults = field(default_factory=RoleFaults)
    cpu: float | None = None
    memory: int | None = None
    after_s: float = 0.0
    """Delay before this incarnation may start, in seconds."""
    history: list[str] = field(default_factory=list)

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


def of_kind(nodes: Mapping[str, RoleNode], kind: RoleKind) -> list[RoleNode]:
    return sorted((node for node in nodes.values() if node.role.kind is kind), key=lambda node: node.role)


def needed_servers(nodes: Mapping[str, RoleNode]) -> list[RoleNode]:
    servers = of_kind(nodes, RoleKind.SERVER)
    return [node for node in servers if node.state is not NodeState.GONE and not node.coming]


def all_servers_ready(nodes: Mapping[str, RoleNode]) -> bool:
    return all(node.address for node in needed_servers(nodes))


def staying_servers(nodes: Mapping[str, RoleNode]) -> tuple[int, ...]:
    """Return the ranks of servers that may get slots: ready, and not about to leave."""
    ready = (node for node in of_kind(nodes, RoleKind.SERVER) if node.address and node.active)
    return tuple(node.role.rank for node in ready if not node.coming and not node.departure.shunned)


def lost_members(nodes: Mapping[str, RoleNode], group: Mapping[int, int]) -> list[RoleNode]:
    """Return the members of a bsp group (incarnation by rank) whose process is lost or was replaced."""
    members: Iterable[tuple[RoleNode, int]] = (
        (nodes[str(Role(RoleKind.WORKER, rank))], incarnation) for rank, incarnation in group.items()
    )
    return [node for node, life in members if node.incarnation != life or node.state not in ALIVE]
