"""A plan without changes that are soon taken back."""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from springtide.planning.online.scaling.min_workers import stabilize

PLANS = st.lists(st.integers(1, 9), min_size=1, max_size=60)


def test_the_papers_example():
    assert stabilize([4, 4, 5, 6, 6, 6], step_s=600, short_s=900) == (4, 4, 6, 6, 6, 6)


def test_a_short_dip_is_bridged_and_a_short_peak_is_left_to_the_queue():
    assert stabilize([6, 6, 4, 6, 6], step_s=300, short_s=600) == (6, 6, 6, 6, 6)
    assert stabilize([4, 4, 7, 4, 4], step_s=300, short_s=600) == (4, 4, 4, 4, 4)


def test_steps_as_long_as_what_counts_as_short_change_nothing():
    plan = (4, 5, 4, 6, 4)
    assert stabilize(plan, step_s=600, short_s=600) == plan


def test_a_change_smaller_than_asked_for_is_not_looked_at():
    assert stabilize([4, 4, 5, 9, 9], step_s=300, short_s=600, change=2) == (4, 4, 5, 9, 9)


@given(PLANS, st.integers(1, 5))
def test_a_stabilized_plan_is_as_long_changes_no_more_often_and_invents_no_number(plan, short):
    calm = stabilize(plan, step_s=1.0, short_s=float(short))
    assert len(calm) == len(plan)
    assert len(list(groupby(calm))) <= len(list(groupby(plan)))
    assert set(calm) <= set(plan)
    assert calm[0] == plan[0] and calm[-1] == plan[-1]
