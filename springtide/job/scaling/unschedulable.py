"""Pure. Continues a job without a process that no host has room for, and asks for room again later.

In: `job.state`, when a platform has waited long enough (`RoleExit.unplaced`). Out: actions, and the new numbers of
roles. The first retry comes after as long as the platform waited, and each further retry after twice as long. The job
waits for a role that it needs: its last worker, or a server whose slots no other server has. If a plan sets cores, such
a role asks for fewer cores each time. Next: `job.deadlines` decides when to retry.
"""

from springtide.domain.core.roles import RoleExit, RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions, events
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling import servers

FEWEST_CORES = 1.0


def apply(state: JobCore, node: RoleNode, ended: RoleExit, at: float) -> list[actions.Action] | None:
    """Continue without this process. Return None if the job must wait for its next incarnation."""
    if node.state is not NodeState.EXPECTED:
        return []  # the process has started after all, or is no longer wanted
    if state.phase is JobPhase.DRAINING:
        return None
    without = _without_server if node.role.kind is RoleKind.SERVER else _without_worker
    done = without(state, node, ended, at)
    planning = state.spec.planning
    if done is None and planning.on and planning.resize and node.cpu is not None and node.cpu > FEWEST_CORES:
        node.cpu = max(FEWEST_CORES, node.cpu / 2)  # a host may have room for a smaller process
    return done


def requests_due(state: JobCore, *, at: float) -> list[events.Event]:
    """Return requests for the missing roles, if it is time."""
    short = state.short
    if not short.any or state.phase is not JobPhase.RUNNING or at < short.again_at:
        return []
    why = f"there may be room by now; before: {short.why}"
    requests: list[events.Event] = []
    if short.workers:
        requests.append(events.WorkersScaled(state.workers + short.workers, why, extra=state.planned.extra))
    if short.servers and state.safety.placed:
        requests.append(events.ServersScaled(state.servers_wanted + short.servers, why))
    if short.data_workers and not state.feeding.given_up:
        requests.append(state.feeding.scale_up(short.data_workers, why))
    return requests


def _without_worker(state: JobCore, node: RoleNode, ended: RoleExit, at: float) -> list[actions.Action] | None:
    others = [other for other in state.of_kind(RoleKind.WORKER) if other is not node and not other.low]
    working = any(other.active or (other.departure.finished and not other.departure.removed) for other in others)
    if not node.low and not working:
        return None
    node.remove(at=at, why=str(ended))
    state.planned.extra -= node.low
    state.workers = max(state.planned.extra + 1, state.workers - 1)  # workers whose script has ended may not be counted
    state.planned.note_change(at, planned=False, asked="workers")
    why = str(ended) if node.low else state.short.note(node, ended, at, workers=1)
    state.run_if_ready(at)
    what = f"go on with {state.workers} worker{'' if state.workers == 1 else 's'}, without {node.role}"
    fence = actions.FenceWorker(node.role, node.incarnation, str(ended))
    return [fence, state.decide(what, why), *state.end_if_done()]


def _without_server(state: JobCore, node: RoleNode, ended: RoleExit, at: float) -> list[actions.Action] | None:
    if node.coming:
        before = state.servers_wanted
        what, _ = servers.give_up(state, node, str(ended), at)
        fewer = before - state.servers_wanted
        return [state.decide(what, state.short.note(node, ended, at, servers=fewer) if fewer else str(ended))]
    others = [other for other in state.of_kind(RoleKind.SERVER) if other is not node and other.active]
    if state.safety.placed or not others:
        return None
    what, _ = servers.give_up(state, node, str(ended), at)
    return [state.decide(what, state.short.note(node, ended, at, servers=1)), *state.place_slots(at)]
