"""When a bsp group can be formed, and of which members."""

import pytest

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.bsp_group import GroupArrival, defer, form_group, rows_lost, step_to_continue
from springtide.job.core import actions, events
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling.roles import RoleChange
from springtide.job.state import JobState

TRAINED, IN_HAND, FRESH = GroupArrival(fresh=False), GroupArrival(fresh=False, idle=False), GroupArrival()
RESTING = GroupArrival(fresh=False, resting=True)
A, B, C = (LeaseHolder(rank) for rank in range(3))
B_AGAIN = LeaseHolder(1, 1)


def form(arrived, *, ranks=(0, 1), active=(A, B), workers=2):
    return form_group(arrived, ranks=ranks, active=active, workers=workers)


def test_first_bsp_group_is_formed_by_all_with_rank_0_as_leader():
    assert form({A: FRESH}, ranks=()) is None
    first = form({A: FRESH, B: FRESH}, ranks=())
    assert (first.members, first.leader, first.known) == ((A, B), A, False)


def test_lost_rank_is_waited_for_mid_step_and_copies_the_model_of_another():
    active = (LeaseHolder(0, 1), B)
    assert form({B: IN_HAND}, active=active) is None
    again = form({B: IN_HAND, LeaseHolder(0, 1): FRESH}, active=active)
    assert (again.members, again.leader, again.known) == (active, B, True)


def test_no_new_rank_joins_in_the_middle_of_a_step():
    arrived = {A: IN_HAND, B_AGAIN: FRESH, C: FRESH}
    assert form(arrived, active=(A, B_AGAIN, C), workers=3).members == (A, B_AGAIN)


def test_bsp_group_grows_and_shrinks_between_steps():
    assert form({A: TRAINED, B: TRAINED}, active=(A, B, C), workers=3) is None
    grown = form({A: TRAINED, B: TRAINED, C: FRESH}, active=(A, B, C), workers=3)
    assert grown.members == (A, B, C) and grown.leader == A
    smaller = form({A: TRAINED, B: TRAINED, C: TRAINED}, ranks=(0, 1, 2), active=(A, B, C), workers=2)
    assert smaller.members == (A, B)


def test_shrinking_bsp_group_keeps_a_member_with_the_model():
    fresh = LeaseHolder(0, 1)
    assert form({fresh: FRESH, B: TRAINED}, active=(fresh, B), workers=1).members == (B,)


def test_finished_scripts_wait_for_all_and_can_still_lead():
    assert form({A: RESTING}) is None
    assert form({A: RESTING, B: RESTING}).over
    late = form({A: RESTING, B_AGAIN: FRESH}, active=(A, B_AGAIN))
    assert not late.over and late.leader == A and late.resting == (0,)


def test_incompletable_step_is_given_up_when_the_job_stops():
    assert form({A: IN_HAND}, active=(A,)).over


def test_group_that_lost_all_ranks_has_no_model():
    lost = form({LeaseHolder(0, 1): FRESH, B_AGAIN: FRESH}, active=(LeaseHolder(0, 1), B_AGAIN))
    assert not lost.known


def test_bsp_group_is_at_rest_when_no_member_has_a_step_in_progress():
    assert form({A: TRAINED, B_AGAIN: FRESH}, active=(A, B_AGAIN)).at_rest
    assert not form({A: TRAINED, B: IN_HAND}).at_rest
    assert form({A: FRESH, B: FRESH}, ranks=()).at_rest, "slots may still be on their way to a new server"


def test_new_rank_leads_no_group_that_keeps_only_one_member_with_the_model():
    fresh = LeaseHolder(0, 1), LeaseHolder(1, 1)
    active = (*fresh, C, LeaseHolder(3))
    arrived = {fresh[0]: FRESH, fresh[1]: FRESH, C: TRAINED, LeaseHolder(3): TRAINED}
    chosen = form(arrived, ranks=(0, 1, 2, 3), active=active, workers=2)
    assert (chosen.members, chosen.leader) == ((fresh[0], C), C)


def test_step_of_one_rank_keeps_the_others_in_the_group():
    assert form({A: TRAINED, B: IN_HAND, C: FRESH}, active=(A, B, C), workers=3).members == (A, B)
    assert not form({A: IN_HAND, B: IN_HAND}).over, "both ranks can complete the step"


@pytest.mark.parametrize(
    ("states", "who"),
    [
        ((NodeState.JOINED, NodeState.DRAINING), "a member was"),
        ((NodeState.JOINED, NodeState.GONE), "worker-1 was"),
        ((NodeState.EXPECTED, NodeState.GONE), "worker-0, worker-1 were"),
    ],
)
def test_error_names_the_workers_whose_cached_rows_are_lost(states, who):
    roles = {}
    for rank, state in enumerate(states):
        role = Role(RoleKind.WORKER, rank)
        roles[str(role)] = RoleNode(role=role, state=state)
    assert rows_lost(roles, {0: 0, 1: 0}).startswith(f"{who} lost, together with ")


def test_members_of_the_group_leave_only_between_two_shards():
    member, newcomer = (RoleNode(role=Role(RoleKind.WORKER, rank)) for rank in range(2))
    added = (Role(RoleKind.WORKER, 2),)
    assert defer(RoleChange(drop=(member, newcomer), add=added), {0: 0}) == RoleChange(drop=(newcomer,), add=added)


def test_restarts_without_a_checkpoint_are_counted_and_begin_without_delay():
    state = JobState(JobSpec(name="job", servers=1, workers=1, sync="bsp", checkpoints=CheckpointRules(every_s=60)))
    server, worker = Role(RoleKind.SERVER, 0), Role(RoleKind.WORKER, 0)
    for role in (server, worker):
        state.handle(events.RoleJoined(role), at=1)
    state.handle(events.RoleReady(server, "host:0"), at=1)
    formed = state.handle(events.GroupFormed((A,), "all are here"), at=2)
    assert formed == [actions.LogDecision("form a bsp group of 1 worker, number 1", "all are here")]
    state.handle(events.RoleExited(RoleExit(role=server, pid=1, signal="SIGKILL")), at=3)
    assert state.safety.begun_anew == 1
    assert [(want.incarnation, want.after_s) for want in state.wanted()] == [(1, 0.0), (1, 0.0)]


def test_group_at_rest_takes_its_step_from_the_model():
    assert step_to_continue(0, at_rest=True, own=7, restored=None) == 7
    assert step_to_continue(0, at_rest=True, own=0, restored=26) == 26
    assert step_to_continue(6, at_rest=False, own=5, restored=None) == 6
