"""How long records have waited, by one clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.planning.online.slo_metrics import MOST, PartitionEnds, lag_s


def test_record_arrival_is_interpolated_between_two_readings():
    ends = PartitionEnds()
    for at, end in ((0, 100), (10, 200), (20, 200), (30, 400)):
        ends.note(at, end)
    assert ends.arrived_at(99) is None
    assert ends.arrived_at(100) == 0 and ends.arrived_at(150) == 5
    assert ends.arrived_at(300) == pytest.approx(20)
    assert ends.arrived_at(400) == 30


def test_trained_offsets_are_forgotten_and_the_others_unchanged():
    ends = PartitionEnds()
    for at in range(10):
        ends.note(float(at), 100 * at + 1)
    before = ends.arrived_at(650)
    ends.forget(600)
    assert ends.arrived_at(650) == before and len(ends.ends) < 6


@given(st.lists(st.integers(0, 50), min_size=1, max_size=2000))
def test_number_of_points_stays_bounded_and_times_ordered(growth):
    ends, end = PartitionEnds(), 0
    for at, more in enumerate(growth):
        end += more
        ends.note(float(at), end)
    assert len(ends.ends) <= MOST and ends.ends == sorted(ends.ends) and ends.times == sorted(ends.times)
    known = [came for offset in range(0, end, 97) if (came := ends.arrived_at(offset)) is not None]
    assert known == sorted(known)


def test_valid_timestamp_is_finer_than_a_reading():
    assert lag_s(100.0, came=98.0, stamped=99.5) == 0.5


def test_future_timestamp_and_one_older_than_the_record_are_ignored():
    assert lag_s(100.0, came=98.0, stamped=3700.0) == 2.0
    assert lag_s(100.0, came=98.0, stamped=-3500.0) == 2.0


def test_record_from_before_the_first_reading_is_as_old_as_its_timestamp():
    assert lag_s(100.0, came=None, stamped=40.0) == 60.0
    assert lag_s(100.0, came=None, stamped=140.0) == 0.0
