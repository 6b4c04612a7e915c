"""Pure. Replaces roles that their host will evict, and lets the job continue without roles that fit on no host.

The old process continues to work while its replacement starts. If no host has resources for a role, the job asks
again later, with growing delays. The job waits for resources only if the role is its last worker, or a server that
alone has some slots.
"""

from springtide.domain.core.roles import RoleExit, RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions, events, nodes
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling import data_workers, roles


def apply(state: JobCore, event: events.EvictionNoticed | events.ServerEmptied, at: float) -> list[actions.JobAction]:
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
    return []  # do nothing, because a bsp group forms again whenever it loses a member


def _replace_worker(state: JobCore, node: RoleNode, why: str, at: float) -> list[actions.JobAction]:
    node.move(NodeState.DRAINING, at=at, why=why)
    new = roles.worker_change(state.nodes, state.workers)
    roles.add_workers(state, new, at)
    instead = ", ".join(str(role) for role in new.add) or "nobody"
    return [state.decide(f"{instead} in place of {node.role}, which finishes its batch and leaves", why)]


def _replace_server(
    state: JobCore, node: RoleNode, event: events.EvictionNoticed, at: float
) -> list[actions.JobAction]:
    peers = [rank for rank in nodes.staying_servers(state.nodes) if rank != node.role.rank]
    if not node.departure.replaced:
        asked = events.ServerReplaced(node.role.rank, event.why, at_once=bool(peers))
        return [state.decide(*roles.replace_server(state, asked, at))]
    if peers:
        node.departure.shunned = True
    if event.empty and peers:
        # Slots may be on their way to this server. The server leaves once it has declared that it accepts no more slots
        # (`master.servers.migration`).
        node.move(NodeState.DRAINING, at=at, why=event.why)
    return []


def _leave(state: JobCore, node: RoleNode, at: float) -> list[actions.JobAction]:
    if node.state is not NodeState.DRAINING:
        return []
    node.move(NodeState.GONE, at=at, why="its last slot has moved")
    left = state.decide(f"release {node.role}", "its last slot has moved, and every worker knows")
    return [actions.ServerLeft(node.role), left]


def changes_anything(state: JobCore, event: events.EvictionNoticed) -> bool:
    """Return True if the event would change the state. A repeated notice need not be journaled again."""
    node = state.nodes.get(str(event.role))
    if node is None or node.state is not NodeState.JOINED or node.incarnation != event.incarnation:
        return False
    leaving = node.departure
    return not leaving.replaced or (node.role.kind is RoleKind.SERVER and (event.empty or not leaving.shunned))


def may_go(state: JobCore, event: events.EvictionNoticed) -> bool:
    """Return True if the evicted process may exit, because the job needs nothing more from this process or cannot get
    what it needs.
    """
    node = state.nodes.get(str(event.role))
    if node is None or state.phase.over or state.fenced(event.role, event.incarnation):
        return True
    if node.role.kind is RoleKind.SERVER:
        return state.phase is JobPhase.STARTING
    # a data worker exits by itself once its replacement serves and all its batches are fetched
    if node.role.kind is RoleKind.DATA_WORKER:
        return not (node.departure.replaced or node.state is NodeState.DRAINING)
    return node.state is not NodeState.DRAINING and state.phase is not JobPhase.DRAINING


FEWEST_CORES = 1.0


def continue_without(state: JobCore, node: RoleNode, ended: RoleExit, at: float) -> list[actions.JobAction] | None:
    """Let the job continue without this process. Return None if that is impossible, so that the job must wait for the
    process's next incarnation.
    """
    if node.state is not NodeState.EXPECTED:
        return []  # the process has started in the meantime, or is no longer wanted
    if state.phase is JobPhase.DRAINING:
        return None
    without = _without_server if node.role.kind is RoleKind.SERVER else _without_worker
    done = without(state, node, ended, at)
    planning = state.spec.planning
    if done is None and planning.on and planning.resize and node.cpu is not None and node.cpu > FEWEST_CORES:
        # request fewer cores, because a host may have room for a smaller process
        node.cpu = max(FEWEST_CORES, node.cpu / 2)
    return done


def requests_due(state: JobCore, *, at: float) -> list[events.JobEvent]:
    short = state.short
    if not short.any or state.phase is not JobPhase.RUNNING or at < short.again_at:
        return []
    why = f"a host may have room by now; the last request failed: {short.why}"
    requests: list[events.JobEvent] = []
    if short.workers:
        requests.append(events.WorkersScaled(state.workers + short.workers, why))
    if short.servers and state.safety.placed:
        requests.append(events.ServersScaled(state.servers_wanted + short.servers, why))
    if short.data_workers and not state.feeding.given_up:
        requests.append(state.feeding.scale_up(short.data_workers, why))
    return requests


def _without_worker(state: JobCore, node: RoleNode, ended: RoleExit, at: float) -> list[actions.JobAction] | None:
    others = [other for other in state.of_kind(RoleKind.WORKER) if other is not node]
    working = any(other.active or (other.departure.finished and not other.departure.removed) for other in others)
    if not working:
        return None
    node.remove(at=at, why=str(ended))
    # subtract one from the wanted number, because the number may not include workers whose script has ended
    state.workers = max(1, state.workers - 1)
    state.planned.note_change(at, planned=False, asked="workers")
    why = state.short.note(node, ended, at, workers=1)
    state.run_if_ready(at)
    what = f"continue with {state.workers} worker{'' if state.workers == 1 else 's'}, without {node.role}"
    fence = actions.FenceWorker(node.role, node.incarnation, str(ended))
    return [fence, state.decide(what, why), *state.end_if_done()]


def _without_server(state: JobCore, node: RoleNode, ended: RoleExit, at: float) -> list[actions.JobAction] | None:
    if node.coming:
        before = state.servers_wanted
        what, _ = roles.give_up_server(state, node, str(ended), at)
        fewer = before - state.servers_wanted
        return [state.decide(what, state.short.note(node, ended, at, servers=fewer) if fewer else str(ended))]
    others = [other for other in state.of_kind(RoleKind.SERVER) if other is not node and other.active]
    if state.safety.placed or not others:
        return None
    what, _ = roles.give_up_server(state, node, str(ended), at)
    return [state.decide(what, state.short.note(node, ended, at, servers=1)), *state.place_slots(at)]
