"""Pure. Finds roles that join late, miss heartbeats, or drain too slowly.

In: `job.state` and the time. Out: events for `job.state`. These events are journaled; heartbeats are not.
"""

from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import events
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode
from springtide.job.scaling import unschedulable

# lower bound for servers: losing a server costs all workers time, while a worker is replaced sooner
SERVER_SILENCE_S = 30.0
EXPLANATION_S = 2.0  # a symptom, such as a worker that cannot reach a server, waits this long for its cause


def due(state: JobCore, *, at: float) -> list[events.Event]:
    if state.phase.over:
        return []
    found = unschedulable.requests_due(state, at=at)
    if state.ending.suspicion and at - state.ending.suspicion.since >= EXPLANATION_S:
        found.append(events.SuspicionExpired())
    for node in state.nodes.values():
        silent_s = at - node.heard_at
        if node.state is NodeState.EXPECTED and silent_s > state.spec.join_s:
            found.append(events.RoleLate(node.role, node.incarnation, silent_s))
        if node.state not in ALIVE or state.phase is JobPhase.STARTING:
            continue
        leaves = node.role.kind is not RoleKind.SERVER  # a server leaves only when its last slot has moved
        draining = node.state is NodeState.DRAINING
        if leaves and draining and at - node.departure.drain_since > state.spec.drain_s:
            found.append(events.DrainOverdue(node.role, node.incarnation))
        elif silent_s > patience_s(state, node):
            found.append(events.RoleSilent(node.role, node.incarnation, silent_s))
    return found


def patience_s(state: JobCore, node: RoleNode) -> float:
    """Return how long a role may go without a heartbeat."""
    if node.role.kind is not RoleKind.SERVER:
        return state.spec.silence_s
    own = state.spec.server_silence_s
    return max(state.spec.silence_s, SERVER_SILENCE_S) if own is None else own
