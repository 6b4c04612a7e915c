"""Pure. What a bsp group means for the workers of a job: who is in it, and who comes and goes only with it.

In: `job.state`, with the nodes and the incarnation of each rank of the group. When one can be formed: `job.rendezvous`.
"""

from collections.abc import Mapping

from springtide.domain.cluster import Role, RoleKind
from springtide.job.nodes import ALIVE, Node, NodeState
from springtide.job.scaling import Change

ALL_LOST = "all ranks of the bsp group were lost, and with them its dense parameters"


def lost(nodes: Mapping[str, Node], group: Mapping[int, int]) -> bool:
    """Whether a member is: then the others must form a new group."""
    members = [(nodes[str(Role(RoleKind.WORKER, rank))], incarnation) for rank, incarnation in group.items()]
    return any(node.incarnation != incarnation or node.state not in ALIVE for node, incarnation in members)


def later(change: Change, group: Mapping[int, int]) -> Change:
    """What of a change can be done at once: a group changes between two shards, and lets others go then."""
    return Change(drop=tuple(node for node in change.drop if node.role.rank not in group), add=change.add)


def let_go(nodes: Mapping[str, Node], group: Mapping[int, int], *, at: float) -> None:
    """Workers that waited for this group and are not in it drain."""
    for node in nodes.values():
        joined = node.role.kind is RoleKind.WORKER and node.state is NodeState.JOINED
        if joined and node.role.rank not in group:
            node.move(NodeState.DRAINING, at=at, why="the group goes on without it")


def words(group: Mapping[int, int]) -> str:
    """The decision, for people."""
    return f"form a bsp group of {len(group)} worker{'' if len(group) == 1 else 's'}"
