"""Pure. What must be true of a job at any moment; tests look after each event.

In: a `job.state.JobState`. Out: nothing, or an AssertionError that says what is wrong.
"""

from typing import TYPE_CHECKING

from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.job.core.nodes import NodeState
from springtide.job.scaling import data_workers, servers

if TYPE_CHECKING:
    from springtide.job.state import JobState


def check(state: "JobState") -> None:
    """Every invariant."""
    workers = state.of_kind(RoleKind.WORKER)
    if state.phase is JobPhase.FINISHED:
        done = (NodeState.FINISHED, NodeState.GONE)
        assert all(node.state in done for node in workers), "finished too early"
        assert any(node.finished and not node.removed for node in workers), "finished without anyone's having ended"
    if state.phase is JobPhase.FAILED:
        assert state.blame is not Blame.NONE and state.why, "a failure without a reason"
    if not state.phase.over:
        servers.check(state)
        data_workers.check(state)
    if state.phase in (JobPhase.STARTING, JobPhase.RUNNING):
        working = sum(node.active or (node.finished and not node.removed) for node in workers)
        assert working >= state.workers, f"{working} workers work or have finished, {state.workers} are wanted"
        low = sum(node.low and node.active for node in workers)
        assert low <= state.planned.extra < state.workers, (
            f"{low} workers of low priority, {state.planned.extra} wanted"
        )
    for node in state.nodes.values():
        assert node.failures <= state.spec.relaunches, f"{node.role} was relaunched too often"
        restored = node.role.kind is RoleKind.SERVER and node.incarnation and state.phase is not JobPhase.STARTING
        known = state.safety.known or state.safety.begun_anew or state.safety.lost.get(node.role.rank) == 0
        assert not restored or known, "a server lives again, but what it held is nowhere"
    ranks = [node.role.rank for node in workers]
    assert ranks == list(range(len(ranks))), "ranks have a gap"
