"""Pure. The life of one role of a job: a table of legal moves, and its story.

In: `job.state` moves nodes. A role lives several lives, numbered by its incarnation: every move to EXPECTED after the
first begins a new one. An illegal move raises and tells the story so far.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from springtide import errors
from springtide.domain.core.roles import Role, WantedRole


class NodeState(StrEnum):
    """Where a role is in its present life."""

    EXPECTED = "expected"
    """To be started, or started and silent so far."""
    JOINED = "joined"
    """Has called in."""
    DRAINING = "draining"
    """Scaling removes it: a worker finishes the batch in hand, a server hands its slots over."""
    FINISHED = "finished"
    """A worker whose script has ended well."""
    GONE = "gone"
    """Is not there and not wanted."""


LEGAL: dict[NodeState, frozenset[NodeState]] = {
    NodeState.EXPECTED: frozenset(
        {
            NodeState.JOINED,  # calls in
            NodeState.EXPECTED,  # dies before it calls in: relaunched
            NodeState.GONE,  # removed by scaling, or dead and not replaced
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
            NodeState.FINISHED,  # its script ends, as it should
            NodeState.GONE,  # lost, or too slow; a server whose last slot has moved
            NodeState.EXPECTED,  # a server, lost before its last slot had moved: relaunched
        }
    ),
    NodeState.FINISHED: frozenset(
        {
            NodeState.GONE,  # its process exits after its script
        }
    ),
    NodeState.GONE: frozenset(
        {
            NodeState.EXPECTED,  # a rank that was removed is wanted again
        }
    ),
}

ALIVE = frozenset({NodeState.JOINED, NodeState.DRAINING})
"""Sends heartbeats and may hold leases."""

MAX_STORY = 50  # moves that are remembered: a worker that is relaunched for days must not fill the master's memory


class IllegalMove(errors.SpringtideError):
    """A change that the table does not allow; the message has the story of the node."""


@dataclass(slots=True, kw_only=True)
class RoleNode:
    """One role, in its present life."""

    role: Role
    state: NodeState = NodeState.EXPECTED
    incarnation: int = 0
    pid: int = 0
    birth: int = 0
    """Drawn by the process that called in: in containers all have the same process id."""
    since: float = 0.0
    """When the present life began: failures of a worker that has lived long are forgotten."""
    heard_at: float = 0.0
    address: str = ""
    finished: bool = False
    """Its script has ended well, in this life."""
    coming: bool = False
    """A server that was added while the job trains, and is not ready yet."""
    replaced: bool = False
    """A server or data worker that is to leave as soon as the one that was added for it is ready."""
    shunned: bool = False
    """And that is so slow that others should have its slots already."""
    removed: bool = False
    """Scaling has removed it, in this life."""
    drain_since: float = 0.0
    said: str = ""
    """What the script said before it left because of someone else's fault."""
    trace: str = ""
    failures: int = 0
    """Crashes since it last lived for long."""
    oom_kills: int = 0
    cpu: float | None = None
    memory: int | None = None
    after_s: float = 0.0
    """Pause before this life was to begin."""
    low: bool = False
    """A worker of low priority, beyond the quota: the first to go."""
    story: list[str] = field(default_factory=list)

    def move(self, to: NodeState, *, at: float, why: str) -> None:
        """Go to the next state, or raise. Going to EXPECTED begins a new life."""
        if to not in LEGAL[self.state]:
            story = ", ".join(self.story) or "nothing yet"
            raise IllegalMove(f"{self.role}: {self.state} -> {to} is not legal ({why}); story: {story}")
        self.story.append(f"{at:.1f}s {self.state}->{to}: {why}")
        del self.story[:-MAX_STORY]
        self.state = to
        self.heard_at = at
        if to is NodeState.EXPECTED:
            self.incarnation += 1
            self.since, self.address, self.said, self.trace = at, "", "", ""
            self.finished = self.removed = False
        if to is NodeState.DRAINING:
            self.removed, self.drain_since = True, at
        self.finished = self.finished or to is NodeState.FINISHED

    @property
    def wanted(self) -> WantedRole:
        """The process of this life."""
        return WantedRole(
            role=self.role,
            incarnation=self.incarnation,
            cpu=self.cpu,
            memory=self.memory,
            after_s=self.after_s,
            low=self.low,
            joined=self.state is not NodeState.EXPECTED,
        )

    @property
    def active(self) -> bool:
        """Works, or is about to: what scaling counts."""
        return self.state in (NodeState.EXPECTED, NodeState.JOINED)
