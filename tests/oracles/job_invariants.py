"""Invariants of a job's state, which hold after each event."""

from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import NodeState


def check(state: JobCore) -> None:
    workers = state.of_kind(RoleKind.WORKER)
    if state.phase is JobPhase.FINISHED:
        done = (NodeState.FINISHED, NodeState.GONE)
        assert all(node.state in done for node in workers), "finished too early"
        ended = any(node.departure.finished and not node.departure.removed for node in workers)
        assert ended, "finished, but no script has ended"
    if state.phase is JobPhase.FAILED:
        assert state.ending.blame is not Blame.NONE and state.why, "a failure without a reason"
    if not state.phase.over:
        _check_servers(state)
        _check_data_workers(state)
    if state.phase in (JobPhase.STARTING, JobPhase.RUNNING):
        working = sum(node.active or (node.departure.finished and not node.departure.removed) for node in workers)
        assert working >= state.workers, f"{working} workers work or have finished, {state.workers} are wanted"
    for node in state.nodes.values():
        assert node.faults.crashes <= state.spec.relaunches, f"{node.role} was relaunched too often"
        restored = node.role.kind is RoleKind.SERVER and node.incarnation and state.phase is not JobPhase.STARTING
        known = state.safety.known or state.safety.begun_anew or state.safety.lost.get(node.role.rank) == 0
        assert not restored or known, "a server lives again, but its slots are nowhere"
    ranks = [node.role.rank for node in workers]
    assert ranks == list(range(len(ranks))), "ranks have a gap"


def _check_servers(state: JobCore) -> None:
    servers = state.of_kind(RoleKind.SERVER)
    gone = [node for node in servers if node.state is NodeState.GONE]
    assert all(node.departure.removed for node in gone), "a job goes on without one of its servers"
    active = sum(node.active for node in servers)
    assert state.servers_wanted <= active, f"{active} servers where {state.servers_wanted} are wanted"


def _check_data_workers(state: JobCore) -> None:
    own = state.of_kind(RoleKind.DATA_WORKER)
    active, wanted = sum(node.active and not node.departure.replaced for node in own), state.feeding.wanted
    assert active <= wanted, f"{active} data workers where {wanted} are wanted"
    if state.phase in (JobPhase.STARTING, JobPhase.RUNNING):
        assert active == wanted, f"{active} data workers, {wanted} are wanted"
    assert not (state.feeding.given_up and active), "data workers were given up, and some are wanted"
