"""When a bsp group can be formed, and of whom."""

from springtide.domain.data.leases import LeaseHolder
from springtide.job.bsp_group import GroupArrival, form_group

TRAINED, IN_HAND, FRESH = GroupArrival(fresh=False), GroupArrival(fresh=False, idle=False), GroupArrival()
RESTING = GroupArrival(fresh=False, resting=True)
A, B, C = (LeaseHolder(rank) for rank in range(3))
B_AGAIN = LeaseHolder(1, 1)


def formed(arrived, *, ranks=(0, 1), active=(A, B), workers=2):
    return form_group(arrived, ranks=ranks, active=active, workers=workers)


def test_the_first_group_is_formed_by_all_and_begins_with_rank_zeros_model():
    assert formed({A: FRESH}, ranks=()) is None
    first = formed({A: FRESH, B: FRESH}, ranks=())
    assert (first.members, first.leader, first.known) == ((A, B), A, False)


def test_in_the_middle_of_a_step_the_lost_rank_is_waited_for_and_takes_the_model_of_another():
    active = (LeaseHolder(0, 1), B)
    assert formed({B: IN_HAND}, active=active) is None
    again = formed({B: IN_HAND, LeaseHolder(0, 1): FRESH}, active=active)
    assert (again.members, again.leader, again.known) == (active, B, True)


def test_in_the_middle_of_a_step_nobody_comes_who_has_no_part_in_it():
    arrived = {A: IN_HAND, B_AGAIN: FRESH, C: FRESH}
    assert formed(arrived, active=(A, B_AGAIN, C), workers=3).members == (A, B_AGAIN)


def test_between_two_steps_the_group_grows_and_shrinks():
    assert formed({A: TRAINED, B: TRAINED}, active=(A, B, C), workers=3) is None
    grown = formed({A: TRAINED, B: TRAINED, C: FRESH}, active=(A, B, C), workers=3)
    assert grown.members == (A, B, C) and grown.leader == A
    smaller = formed({A: TRAINED, B: TRAINED, C: TRAINED}, ranks=(0, 1, 2), active=(A, B, C), workers=2)
    assert smaller.members == (A, B)


def test_a_group_that_shrinks_keeps_someone_who_has_the_model():
    fresh = LeaseHolder(0, 1)
    assert formed({fresh: FRESH, B: TRAINED}, active=(fresh, B), workers=1).members == (B,)


def test_scripts_that_have_ended_wait_until_all_have_and_hand_their_model_on_meanwhile():
    assert formed({A: RESTING}) is None
    assert formed({A: RESTING, B: RESTING}).over
    late = formed({A: RESTING, B_AGAIN: FRESH}, active=(A, B_AGAIN))
    assert not late.over and late.leader == A and late.resting == (0,)


def test_a_step_that_nobody_can_complete_is_given_up_where_the_job_stops():
    assert formed({A: IN_HAND}, active=(A,)).over


def test_when_all_ranks_are_lost_nobody_has_the_model():
    lost = formed({LeaseHolder(0, 1): FRESH, B_AGAIN: FRESH}, active=(LeaseHolder(0, 1), B_AGAIN))
    assert not lost.known


def test_a_group_is_at_rest_when_nobody_has_a_step_in_hand():
    assert formed({A: TRAINED, B_AGAIN: FRESH}, active=(A, B_AGAIN)).at_rest
    assert not formed({A: TRAINED, B: IN_HAND}).at_rest
    assert formed({A: FRESH, B: FRESH}, ranks=()).at_rest, "slots may still be on their way to a new server"
