"""Pure. The life of one process of a job: a table of legal moves, and its story.

In: `job.state` moves nodes. An illegal move raises and tells the story so far.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from springtide import errors
from springtide.domain.cluster import Role


class NodeState(StrEnum):
    """Where a process is in its life."""

    EXPECTED = "expected"
    """To be started, or started and silent so far."""
    JOINED = "joined"
    """Has called in."""
    FINISHED = "finished"
    """A worker whose script has ended well."""
    GONE = "gone"


LEGAL: dict[NodeState, frozenset[NodeState]] = {
    NodeState.EXPECTED: frozenset({NodeState.JOINED, NodeState.GONE}),  # calls in; or dies before
    NodeState.JOINED: frozenset({NodeState.FINISHED, NodeState.GONE}),  # script ends; or process ends without a word
    NodeState.FINISHED: frozenset({NodeState.GONE}),  # process exits after its script
    NodeState.GONE: frozenset(),
}


class IllegalMove(errors.SpringtideError):
    """A change that the table does not allow; the message has the story of the node."""


@dataclass(slots=True)
class Node:
    """One process."""

    role: Role
    state: NodeState = NodeState.EXPECTED
    heard_at: float = 0.0
    address: str = ""
    finished: bool = False
    story: list[str] = field(default_factory=list)

    def move(self, to: NodeState, *, at: float, why: str) -> None:
        """Go to the next state, or raise."""
        if to not in LEGAL[self.state]:
            story = ", ".join(self.story) or "nothing yet"
            raise IllegalMove(f"{self.role}: {self.state} -> {to} is not legal ({why}); story: {story}")
        self.story.append(f"{at:.1f}s {self.state}->{to}: {why}")
        self.state = to
        self.heard_at = at
        self.finished = self.finished or to is NodeState.FINISHED
