"""Pure. Changes a job's number of workers.

In: `job.state`, with the nodes. Out: a `RoleChange`. A removed rank that returns is the same worker in a new
incarnation, so no two processes ever share a (rank, incarnation).
"""

from dataclasses import dataclass

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.job.core import actions, events, nodes
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import NodeState, RoleNode


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChange:
    """Roles that join and leave."""

    drain: tuple[RoleNode, ...] = ()
    """Workers that finish their batch and then leave."""
    drop: tuple[RoleNode, ...] = ()
    """Workers that have not joined yet, and have nothing to finish."""
    add: tuple[Role, ...] = ()
    add_low: tuple[Role, ...] = ()
    """Low-priority workers beyond the quota that join."""

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


def change(roles: dict[str, RoleNode], workers: int, *, extra: int = 0) -> RoleChange:
    """Return the change from the active workers to `workers`: the highest ranks leave, the lowest free ranks join.

    `extra` of the workers have low priority. A running worker keeps its priority. A worker whose script has ended does
    not count, and its rank is not used again.
    """
    if workers - extra < 1:
        raise errors.BadInput(f"{workers} workers: a job needs one at least; `springtide stop` ends it")
    own = nodes.of_kind(roles, RoleKind.WORKER)
    active = [node for node in own if node.active]
    usual, low = [node for node in active if not node.low], [node for node in active if node.low]
    leaving = [*usual[workers - extra :], *low[extra:]]
    removed = [node.role for node in own if node.state is NodeState.GONE and node.departure.removed]
    new = [Role(RoleKind.WORKER, rank) for rank in range(len(own), len(own) + workers)]
    free, first = [*removed, *new], max(0, workers - extra - len(usual))
    return RoleChange(
        drain=tuple(node for node in leaving if node.state is NodeState.JOINED),
        drop=tuple(node for node in leaving if node.state is NodeState.EXPECTED),
        add=tuple(free[:first]),
        add_low=tuple(free[first : first + max(0, extra - len(low))]),
    )


def add_missing(state: JobCore, added: RoleChange, at: float) -> None:
    for role in (*added.add, *added.add_low):
        state.add_role(role, at=at, low=role in added.add_low)


def scale(state: JobCore, event: events.WorkersScaled, made: RoleChange, at: float) -> list[actions.Action]:
    """Change the number of workers, and record the change in the plan."""
    fences: list[actions.Action] = []
    for node in made.drain:
        node.move(NodeState.DRAINING, at=at, why=event.why)
    for node in made.drop:
        node.remove(at=at, why=event.why)
        fences.append(actions.FenceWorker(node.role, node.incarnation, event.why))
    add_missing(state, made, at)
    lent = event.planned and event.extra != state.planned.extra
    state.planned.extra = event.extra
    asked = "extra_workers" if lent else "workers"
    state.planned.note_change(at, planned=event.planned, asked=asked, pinned=event.pinned)
    before, state.workers, state.short.workers = state.workers, event.workers, 0
    when = ", and form the bsp group anew before its next shard" if state.bsp.members else ""
    decision = state.decide(f"scale from {before} to {event.workers} workers: {made}{when}", event.why)
    return [*fences, decision, *state.end_if_done()]
