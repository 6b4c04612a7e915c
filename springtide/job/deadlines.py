"""Pure. What the clock says about a job: who is late, silent, or does not leave.

In: `job.state` and the time. Out: events for it. Heartbeats are not journaled, but these are.
"""

from typing import TYPE_CHECKING

from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import events
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode
from springtide.job.scaling import unschedulable

if TYPE_CHECKING:
    from springtide.job.state import JobState

SERVER_SILENCE_S = 30.0  # a silent server costs everyone time, so it gets this much at least; a worker is replaced
TAKEN_OVER = "the master before it has ended; all go on"
EXPLANATION_S = 2.0  # a symptom (a worker that cannot reach a server) waits so long for its cause


def due(state: "JobState", *, at: float) -> list[events.Event]:
    """Events to be handled now."""
    if state.phase.over:
        return []
    found: list[events.Event] = unschedulable.again(state, at=at)
    if state.suspicion and at - state.suspicion.since >= EXPLANATION_S:
        found.append(events.SuspicionExpired())
    for node in state.nodes.values():
        silent_s = at - node.heard_at
        if node.state is NodeState.EXPECTED and silent_s > state.spec.join_s:
            found.append(events.RoleLate(node.role, node.incarnation, silent_s))
        if node.state not in ALIVE or state.phase is JobPhase.STARTING:
            continue
        leaves = node.role.kind is not RoleKind.SERVER  # by itself: a server goes when its last slot has moved
        if leaves and node.state is NodeState.DRAINING and at - node.drain_since > state.spec.drain_s:
            found.append(events.DrainOverdue(node.role, node.incarnation))
        elif silent_s > patience_s(state, node):
            found.append(events.RoleSilent(node.role, node.incarnation, silent_s))
    return found


def begin_anew(state: "JobState", *, at: float) -> None:
    """Nobody could be heard until now: everyone has all the time there is to call in."""
    for node in state.nodes.values():
        node.heard_at = at


def patience_s(state: "JobState", node: RoleNode) -> float:
    """How long a role may be silent."""
    if node.role.kind is not RoleKind.SERVER:
        return state.spec.silence_s
    own = state.spec.server_silence_s
    return max(state.spec.silence_s, SERVER_SILENCE_S) if own is None else own
