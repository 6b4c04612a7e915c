"""Pure. Replaces a role that its host will evict soon, such as on a spot node.

In: `job.state`, with an `events.EvictionNoticed` that repeats until the role may go, or with a drained server. Out: a
new worker at once, while the old worker finishes its batch; a new server, while peers take the slots of the old server;
a new data worker, while the old one still serves. Work that is not finished in time is recovered as after any kill. An
operator that moves a data worker to a better machine sends the same event.
"""

from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions, events, nodes
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling import data_workers, servers, workers


def apply(state: JobCore, event: events.EvictionNoticed | events.ServerEmptied, at: float) -> list[actions.Action]:
    """Replace an evicted role, if possible and not already done."""
    if isinstance(event, events.ServerEmptied):
        return _leave(state, state.node(event.role), at)
    node = state.nodes.get(str(event.role))
    if node is None or state.phase is not JobPhase.RUNNING or not state.safety.placed:
        return []
    if node.incarnation != event.incarnation or node.state is not NodeState.JOINED or node.coming:
        return []
    if node.role.kind is RoleKind.SERVER:
        return _replace_server(state, node, event, at)
    if node.role.kind is RoleKind.WORKER and not state.bsp.in_step:
        return _replace_worker(state, node, event.why, at)
    if node.role.kind is RoleKind.DATA_WORKER and not node.departure.replaced:
        return data_workers.replace(state, node, event.why, at)
    return []  # a bsp group forms again when a member is lost


def _replace_worker(state: JobCore, node: RoleNode, why: str, at: float) -> list[actions.Action]:
    node.move(NodeState.DRAINING, at=at, why=why)
    new = workers.change(state.nodes, state.workers, extra=state.planned.extra)
    workers.add_missing(state, new, at)
    instead = ", ".join(str(role) for role in (*new.add, *new.add_low)) or "nobody"
    return [state.decide(f"{instead} in place of {node.role}, which finishes its batch and leaves", why)]


def _replace_server(state: JobCore, node: RoleNode, event: events.EvictionNoticed, at: float) -> list[actions.Action]:
    peers = [rank for rank in nodes.staying_servers(state.nodes) if rank != node.role.rank]
    if not node.departure.replaced:
        asked = events.ServerReplaced(node.role.rank, event.why, at_once=bool(peers))
        return [state.decide(*servers.replace(state, asked, at))]
    if peers:
        node.departure.shunned = True
    if event.empty and peers:
        # Slots may be on their way to this server. It leaves once it has declared that it accepts no more
        # (`master.servers.migration`).
        node.move(NodeState.DRAINING, at=at, why=event.why)
    return []


def _leave(state: JobCore, node: RoleNode, at: float) -> list[actions.Action]:
    """Release a draining server that has no slots left."""
    if node.state is not NodeState.DRAINING:
        return []
    node.move(NodeState.GONE, at=at, why="its last slot has moved")
    left = state.decide(f"let {node.role} go", "its last slot has moved, and every worker knows")
    return [actions.ServerLeft(node.role), left]


def changes_anything(state: JobCore, event: events.EvictionNoticed) -> bool:
    """Return True if the event would change the state. A notice that repeats every second need not be
    journaled again.
    """
    node = state.nodes.get(str(event.role))
    if node is None or node.state is not NodeState.JOINED or node.incarnation != event.incarnation:
        return False
    leaving = node.departure
    return not leaving.replaced or (node.role.kind is RoleKind.SERVER and (event.empty or not leaving.shunned))


def may_go(state: JobCore, event: events.EvictionNoticed) -> bool:
    """Return True if the job needs nothing more from that process, or can get nothing more."""
    node = state.nodes.get(str(event.role))
    if node is None or state.phase.over or state.fenced(event.role, event.incarnation):
        return True
    if node.role.kind is RoleKind.SERVER:
        return state.phase is JobPhase.STARTING
    # it exits by itself once its replacement serves and all its batches are fetched
    if node.role.kind is RoleKind.DATA_WORKER:
        return not (node.departure.replaced or node.state is NodeState.DRAINING)
    return node.state is not NodeState.DRAINING and state.phase is not JobPhase.DRAINING
