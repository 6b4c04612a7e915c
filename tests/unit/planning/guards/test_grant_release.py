"""What was granted to a server goes back when it was not needed for a good while, and not before."""

from hypothesis import given
from hypothesis import strategies as some

from springtide.planning.guards import hot_servers


def eased(limit=4.0, usual=1.0, most=0.5, watched_s=hot_servers.CALM_S):
    return hot_servers.eased(limit=limit, usual=usual, most=most, watched_s=watched_s)


def test_a_server_that_needs_no_more_than_others_gets_what_they_have():
    assert eased() == 1.0


def test_one_that_needs_a_part_of_it_keeps_that_part_and_room():
    assert eased(most=2.0) == 2.0 * hot_servers.ROOM


def test_nothing_is_taken_back_too_soon_or_for_little_or_from_one_that_was_granted_nothing():
    assert eased(watched_s=hot_servers.CALM_S - 1) is None
    assert eased(most=2.5) is None
    assert eased(limit=1.0) is None


@given(some.floats(0.1, 64), some.floats(0.1, 64), some.floats(0, 64))
def test_a_lower_limit_is_lower_and_neither_below_what_others_have_nor_near_what_it_used(limit, usual, most):
    lower = eased(limit=limit, usual=usual, most=most)

    assert lower is None or (usual <= lower < limit and lower >= hot_servers.ROOM * most)
