"""Pure. A role that its host takes away soon (an eviction, a spot node that goes): what can be saved is saved before.

In: `job.state` with an `events.Leaving`, said again until the role may go, or with a server that has drained. Out:
another worker at once, while this one finishes the batch in hand; another server, while this one's slots go to its
peers; another data worker, while this one feeds on. What is not done in time is lost as it is at any kill, and
recovered so. Whoever moves a data worker to a better machine says the same of it.
"""

from typing import TYPE_CHECKING

from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions, events
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling import data_workers, servers, workers

if TYPE_CHECKING:
    from springtide.job.state import JobState


def take(state: "JobState", event: events.EvictionNoticed | events.ServerEmptied, at: float) -> list[actions.Action]:
    """Do something about it, unless that is done, or nothing can be."""
    if isinstance(event, events.ServerEmptied):
        return _left(state, state.node(event.role), at)
    node = state.nodes.get(str(event.role))
    if node is None or state.phase is not JobPhase.RUNNING or not state.safety.placed:
        return []
    if node.incarnation != event.incarnation or node.state is not NodeState.JOINED or node.coming:
        return []
    if node.role.kind is RoleKind.SERVER:
        return _server(state, node, event, at)
    if node.role.kind is RoleKind.WORKER and not state.in_step:
        return _worker(state, node, event.why, at)
    if node.role.kind is RoleKind.DATA_WORKER and not node.replaced:
        return data_workers.replace(state, node, event.why, at)
    return []  # a bsp group is formed anew when one is lost


def _worker(state: "JobState", node: RoleNode, why: str, at: float) -> list[actions.Action]:
    node.move(NodeState.DRAINING, at=at, why=why)
    new = workers.change(state.nodes, state.workers, extra=state.planned.extra)
    for role in (*new.add, *new.add_low):
        workers.add(state.nodes, role, state.planned, at=at, low=role in new.add_low)
    instead = ", ".join(str(role) for role in (*new.add, *new.add_low)) or "nobody"
    return [state.decide(f"{instead} in place of {node.role}, which finishes its batch and leaves", why)]


def _server(state: "JobState", node: RoleNode, event: events.EvictionNoticed, at: float) -> list[actions.Action]:
    peers = [rank for rank in servers.staying(state.nodes) if rank != node.role.rank]
    if not node.replaced:
        asked = events.ServerReplaced(node.role.rank, event.why, at_once=bool(peers))
        return [state.decide(*servers.replace(state, asked, at))]
    if peers:
        node.shunned = True
    if not event.empty or not peers:
        return []
    node.move(NodeState.DRAINING, at=at, why=event.why)
    # Slots may be on their way to it. It goes when it has said that it takes no more (`master.servers.migration`).
    return []


def _left(state: "JobState", node: RoleNode, at: float) -> list[actions.Action]:
    """A server that drains has nothing any more: it goes."""
    left = servers.leave(node, at)
    return [actions.ServerLeft(node.role), state.decide(*left)] if left else []


def matters(state: "JobState", event: events.EvictionNoticed) -> bool:
    """Whether anything would change: what is said every second need not be in the journal each time."""
    node = state.nodes.get(str(event.role))
    if node is None or node.state is not NodeState.JOINED or node.incarnation != event.incarnation:
        return False
    return not node.replaced or (node.role.kind is RoleKind.SERVER and (event.empty or not node.shunned))


def free(state: "JobState", event: events.EvictionNoticed) -> bool:
    """Whether the job needs nothing more of that process, or can have nothing more of it."""
    node = state.nodes.get(str(event.role))
    if node is None or state.phase.over or state.fenced(event.role, event.incarnation):
        return True
    if node.role.kind is RoleKind.SERVER:
        return state.phase is JobPhase.STARTING
    if node.role.kind is RoleKind.DATA_WORKER:  # it ends by itself once another feeds and all it made is fetched
        return not (node.replaced or node.state is NodeState.DRAINING)
    return node.state is not NodeState.DRAINING and state.phase is not JobPhase.DRAINING
