"""What so many workers can train, by what was seen of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.planning.online.observed import (
    Work,
    believed,
    capacity,
    full,
    held_to,
    noted,
    surely,
    together,
    utilization,
)


def test_a_worker_that_waits_half_of_the_time_is_as_fast_as_it_is_at_work():
    half = Work(1000, 10, 10).since(Work(500, 5, 5))
    assert half.pace == 100 and utilization({0: half}) == 0.5
    assert together({0: half, 1: half}) == 200


def test_one_that_had_nothing_to_do_counts_as_the_others_and_nobody_at_work_is_no_measurement():
    assert together({0: Work(100, 1, 0), 1: Work(0, 0, 5)}) == 200
    assert together({0: Work(0, 0, 5)}) is None and utilization({}) == 0


def test_workers_whose_batches_were_cut_short_say_little_of_what_they_can_do():
    works = {0: Work(960, 10, 0, 100), 1: Work(300, 10, 0, 100), 2: Work(0, 0, 10, 0)}
    assert set(full(works, batch=10)) == {0}


def test_a_worker_that_began_anew_has_done_nothing_rather_than_less_than_nothing():
    assert Work(10, 1, 1).since(Work(500, 60, 7)) == Work(0, 0, 0)


def test_with_one_number_of_workers_seen_others_are_taken_in_proportion():
    assert capacity({2: 200.0}, 4) == (0, 100, 200, 300, 400)
    assert capacity({}, 4) is None


def test_with_more_the_curve_bends_and_is_what_the_workers_that_there_are_train_now():
    seen = {1: 100.0, 2: 180.0, 4: 300.0}
    known = capacity(seen, 8)
    assert known[1] < known[2] < known[4] < known[8] < 600
    slower = capacity({**seen, 2: 90.0}, 8, now=2)  # everything is slower than it was: so are other numbers
    assert slower[2] == pytest.approx(90.0) and slower[4] < known[4]


def test_a_number_that_was_measured_while_the_machine_was_busy_does_not_make_fewer_workers_the_better():
    known = capacity({1: 379.0, 2: 300.0, 4: 290.0}, 4, now=1)
    assert known[1] == pytest.approx(379.0) and known[1] <= known[2] <= known[4]


@given(st.dictionaries(st.integers(1, 6), st.floats(1, 1e4), min_size=1), st.integers(1, 12))
def test_beyond_the_largest_seen_nobody_gains_more_than_in_proportion(seen, most):
    known, largest = capacity(seen, max(most, max(seen))), max(seen)
    assert known[0] == 0 and all(rate > 0 for rate in known[1:])
    for workers in range(largest + 1, most + 1):
        assert known[workers] <= known[largest] / largest * workers * (1 + 1e-9)


def test_a_number_that_came_out_badly_is_tried_again_after_a_while_and_good_ones_are_kept():
    seen, since = {1: 100.0, 2: 90.0, 3: 270.0}, {1: 0.0, 2: 0.0, 3: 0.0}
    assert believed(seen, since, 1, at=600.0) == seen
    assert believed(seen, since, 1, at=4000.0) == {1: 100.0, 3: 270.0}
    assert believed(seen, since, 2, at=4000.0) == seen


def test_a_new_measurement_moves_what_was_known_by_a_part():
    assert noted({}, 2, 100.0) == {2: 100.0}
    assert noted({2: 100.0}, 2, 200.0)[2] == pytest.approx(130.0)


def test_what_workers_can_train_at_least_says_nothing_beside_a_measurement_on_full_batches():
    assert surely({2: 640.0, 4: 2600.0}, (4,)) == {4: 2600.0}
    assert surely({2: 640.0}, ()) == {2: 640.0}


def test_a_smaller_number_that_was_not_enough_lately_is_not_gone_back_to():
    known = (0.0, 1200.0, 2400.0, 3600.0, 4800.0)
    assert held_to(known, {2: 1200.0, 4: 4800.0}, {2: 1000.0, 4: 1500.0}, 4, at=2000.0) == (0, 1200, 1200, 3600, 4800)
    assert held_to(known, {2: 1200.0, 4: 4800.0}, {2: 1000.0, 4: 1500.0}, 4, at=9000.0) == known, "long ago: try again"
    assert held_to(known, {4: 300.0}, {4: 1500.0}, 2, at=2000.0) == known, "more workers than there are"
