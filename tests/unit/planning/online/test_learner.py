"""What so many workers can train, learned from windows of their work."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.data.streams import StepSums
from springtide.planning.online.capacity_model import FADES_S, LearnedCapacity, WorkerRate, WorkerWork, window_s

BATCH = 64


def window(workers, pace, *, busy=1.0, sizes=(64,), at_all=0.0, seconds=20.0):
    """So many workers that were busy for a part of it, in batches of these sizes in turn."""
    work = WorkerWork(pace * busy * seconds, busy * seconds, (1 - busy) * seconds)
    steps, mean = StepSums(), sum(sizes) / len(sizes)
    for size in [*sizes] * max(1, round(work.samples / mean / len(sizes))):
        steps = steps.and_one(size, mean / pace if at_all else size / pace)
    return dict.fromkeys(range(workers), work._replace(steps=steps))


def learned(*windows):
    known = LearnedCapacity()
    for number, works in enumerate(windows):
        known = known.then(works, batch=BATCH, at=20.0 * number)
    return known


def test_with_one_number_of_workers_seen_others_are_taken_in_proportion():
    known = learned(window(2, 100))
    assert known.capacity(4, now=2, at=0) == pytest.approx((0, 100, 200, 300, 400))
    assert LearnedCapacity().capacity(4, now=2, at=0) is None and not LearnedCapacity().known and known.known


def test_with_more_the_curve_bends():
    known = learned(window(1, 100), window(2, 90), window(4, 75)).capacity(8, now=4, at=60)
    assert known[1] < known[2] < known[4] < known[8] < 600


def test_workers_that_wait_half_of_the_time_are_not_believed_beside_what_they_did_when_they_never_waited():
    known = learned(window(2, 100), *[window(2, 700, busy=0.1)] * 20)
    assert known.capacity(4, now=2, at=400)[2] == pytest.approx(200, rel=0.05)


def test_where_nobody_ever_was_busy_all_the_time_their_pace_is_what_is_known():
    assert learned(window(1, 100, busy=0.5)).capacity(2, now=1, at=0) == pytest.approx((0, 100, 200))


def test_the_first_that_never_waited_count_at_once():
    known = learned(*[window(1, 700, busy=0.2)] * 5, window(1, 100))
    assert known.capacity(2, now=1, at=100)[1] == pytest.approx(100, rel=0.05)


def test_what_was_trained_can_be_trained_though_workers_waited_meanwhile():
    known = learned(window(2, 100), *[window(2, 400, busy=0.75)] * 20)
    assert known.capacity(2, now=2, at=400)[2] == pytest.approx(600, rel=0.05)


def test_after_a_day_in_which_nobody_was_busy_all_the_time_a_little_more_is_tried():
    known = learned(window(2, 100))
    for hour in range(1, 49):
        known = known.then(window(2, 300, busy=0.1), batch=BATCH, at=3600.0 * hour)
    assert 220 < known.capacity(2, now=2, at=48 * 3600.0)[2] <= 250


def test_batches_that_were_cut_short_are_reckoned_as_full_ones_once_it_is_known_what_steps_cost():
    known = learned(*[window(2, 25, sizes=(8, 16, 24), at_all=1)] * 10)
    assert known.capacity(2, now=2, at=200)[2] == pytest.approx(200, rel=0.2)
    known = learned(*[window(2, 25, sizes=(8, 16, 24))] * 10)
    assert known.capacity(2, now=2, at=200)[2] == pytest.approx(50, rel=0.01)


def test_a_machine_that_was_busy_is_believed_less_as_hours_go_by():
    known = LearnedCapacity().then(window(4, 30), batch=BATCH, at=0.0).then(window(1, 100), batch=BATCH, at=3600.0)
    soon = known.capacity(4, now=1, at=3600.0)[4]
    for hour in range(2, 60):
        known = known.then(window(1, 100), batch=BATCH, at=3600.0 * hour)
    assert soon < 250 and known.capacity(4, now=1, at=59 * 3600.0)[4] > 1.3 * soon


def test_a_new_measurement_moves_what_was_known_by_a_part():
    assert learned(window(2, 50), window(2, 100)).seen[2].rate == pytest.approx(130.0)


def test_nobody_at_work_teaches_nothing():
    known = learned(window(2, 50))
    assert known.then({0: WorkerWork(0, 0, 20)}, batch=BATCH, at=9.0) is known


def test_the_learner_survives_encoding():
    known = learned(window(2, 50), window(3, 40, busy=0.5))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=LearnedCapacity) == known


def test_a_day_that_is_played_in_minutes_is_measured_by_a_few_heartbeats():
    assert window_s(1.0) == 20.0 and window_s(288.0) == 4.0


@given(
    st.dictionaries(st.integers(1, 6), st.tuples(st.floats(1, 1e4), st.floats(0, 9 * FADES_S)), min_size=1),
    st.integers(1, 12),
    st.sampled_from(["async", "sync"]),
)
def test_beyond_the_largest_seen_nobody_gains_more_than_in_proportion(seen, most, kind):
    known = LearnedCapacity(seen={workers: WorkerRate(*one) for workers, one in seen.items()})
    found, largest = known.capacity(max(most, *seen), now=1, at=9 * FADES_S, kind=kind), max(seen)
    assert found[0] == 0 and all(rate > 0 for rate in found[1:])
    for workers in range(largest + 1, most + 1):
        assert found[workers] <= found[largest] / largest * workers * (1 + 1e-9)
