"""Pure. Which workers come and which go when a job is told to have another number of them.

In: `job.state` with the nodes. Out: a `Change`. Ranks are never reused for another purpose: a rank that was removed and
comes back is the same worker in its next life, so no two processes ever share a (rank, incarnation).
"""

from dataclasses import dataclass

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling.plan_state import PlanState


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChange:
    """What to do with whom."""

    drain: tuple[RoleNode, ...] = ()
    """Finish the batch in hand, then leave."""
    drop: tuple[RoleNode, ...] = ()
    """Have not called in yet: nothing to finish."""
    add: tuple[Role, ...] = ()
    add_low: tuple[Role, ...] = ()
    """Workers of low priority, beyond the quota."""

    def __str__(self) -> str:
        parts = [
            f"{verb} {', '.join(str(role) for role in roles)}"
            for verb, roles in (
                ("add", self.add),
                ("add of low priority", self.add_low),
                ("drain", [node.role for node in self.drain]),
                ("drop", [node.role for node in self.drop]),
            )
            if roles
        ]
        return ", ".join(parts) or "nobody comes or goes"


def change(nodes: dict[str, RoleNode], workers: int, *, extra: int = 0) -> RoleChange:
    """From the workers that are active now to so many: the highest ranks leave, the lowest free ranks come.

    Of them `extra` are of low priority: nobody becomes that, or is that no longer, while it runs. A worker whose script
    has ended by itself is not counted, and its rank is not used again.
    """
    if workers - extra < 1:
        raise errors.BadInput(f"{workers} workers: a job needs one at least; `springtide stop` ends it")
    own = sorted((node for node in nodes.values() if node.role.kind is RoleKind.WORKER), key=lambda node: node.role)
    active = [node for node in own if node.active]
    usual, low = [node for node in active if not node.low], [node for node in active if node.low]
    leaving = [*usual[workers - extra :], *low[extra:]]
    removed = [node.role for node in own if node.state is NodeState.GONE and node.removed]
    new = [Role(RoleKind.WORKER, rank) for rank in range(len(own), len(own) + workers)]
    free, first = [*removed, *new], max(0, workers - extra - len(usual))
    return RoleChange(
        drain=tuple(node for node in leaving if node.state is NodeState.JOINED),
        drop=tuple(node for node in leaving if node.state is NodeState.EXPECTED),
        add=tuple(free[:first]),
        add_low=tuple(free[first : first + max(0, extra - len(low))]),
    )


def add(nodes: dict[str, RoleNode], role: Role, planned: PlanState, *, at: float, low: bool = False) -> None:
    """Want a process of this role: one that the job has not had, or the next life of one that was removed."""
    if str(role) in nodes:
        node = nodes[str(role)]
        node.move(NodeState.EXPECTED, at=at, why="wanted again")
        node.failures = node.oom_kills = 0
        node.after_s = 0.0
    else:
        node = nodes[str(role)] = RoleNode(role=role, since=at, heard_at=at)
    size = planned.sizes[role.kind]
    node.cpu, node.memory, node.low = size.cpu, size.memory, low
