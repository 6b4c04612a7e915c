"""Worker capacity learned from measurement windows."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.data.streams import StepSums
from springtide.planning.online.capacity_model import FADES_S, LearnedCapacity, WorkerRate, WorkerWork, window_s

BATCH = 64


def window(workers, pace, *, busy=1.0, sizes=(64,), at_all=0.0, seconds=20.0):
    """A window of this many workers, busy for part of it, with these batch sizes in turn."""
    work = WorkerWork(pace * busy * seconds, busy * seconds, (1 - busy) * seconds)
    steps, mean = StepSums(), sum(sizes) / len(sizes)
    for size in [*sizes] * max(1, round(work.samples / mean / len(sizes))):
        steps = steps.and_one(size, mean / pace if at_all else size / pace)
    return dict.fromkeys(range(workers), work._replace(steps=steps))


def learn_from(*windows):
    known = LearnedCapacity()
    for number, works in enumerate(windows):
        known = known.then(works, batch=BATCH, at=20.0 * number)
    return known


def test_capacity_is_proportional_when_one_worker_count_was_seen():
    known = learn_from(window(2, 100))
    assert known.capacity(4, now=2, at=0) == pytest.approx((0, 100, 200, 300, 400))
    assert LearnedCapacity().capacity(4, now=2, at=0) is None and not LearnedCapacity().known and known.known


def test_capacity_curve_bends_with_more_measurements():
    known = learn_from(window(1, 100), window(2, 90), window(4, 75)).capacity(8, now=4, at=60)
    assert known[1] < known[2] < known[4] < known[8] < 600


def test_pace_of_mostly_waiting_workers_does_not_override_busy_ones():
    known = learn_from(window(2, 100), *[window(2, 700, busy=0.1)] * 20)
    assert known.capacity(4, now=2, at=400)[2] == pytest.approx(200, rel=0.05)


def test_pace_of_waiting_workers_is_used_when_none_was_ever_busy():
    assert learn_from(window(1, 100, busy=0.5)).capacity(2, now=1, at=0) == pytest.approx((0, 100, 200))


def test_first_fully_busy_window_counts_at_once():
    known = learn_from(*[window(1, 700, busy=0.2)] * 5, window(1, 100))
    assert known.capacity(2, now=1, at=100)[1] == pytest.approx(100, rel=0.05)


def test_observed_throughput_counts_even_if_workers_waited():
    known = learn_from(window(2, 100), *[window(2, 400, busy=0.75)] * 20)
    assert known.capacity(2, now=2, at=400)[2] == pytest.approx(600, rel=0.05)


def test_capacity_estimate_rises_slowly_after_a_day_without_busy_workers():
    known = learn_from(window(2, 100))
    for hour in range(1, 49):
        known = known.then(window(2, 300, busy=0.1), batch=BATCH, at=3600.0 * hour)
    assert 220 < known.capacity(2, now=2, at=48 * 3600.0)[2] <= 250


def test_partial_batches_are_scaled_to_full_ones_once_step_costs_are_known():
    known = learn_from(*[window(2, 25, sizes=(8, 16, 24), at_all=1)] * 10)
    assert known.capacity(2, now=2, at=200)[2] == pytest.approx(200, rel=0.2)
    known = learn_from(*[window(2, 25, sizes=(8, 16, 24))] * 10)
    assert known.capacity(2, now=2, at=200)[2] == pytest.approx(50, rel=0.01)


def test_measurement_on_a_busy_machine_loses_weight_over_hours():
    known = LearnedCapacity().then(window(4, 30), batch=BATCH, at=0.0).then(window(1, 100), batch=BATCH, at=3600.0)
    soon = known.capacity(4, now=1, at=3600.0)[4]
    for hour in range(2, 60):
        known = known.then(window(1, 100), batch=BATCH, at=3600.0 * hour)
    assert soon < 250 and known.capacity(4, now=1, at=59 * 3600.0)[4] > 1.3 * soon


def test_new_measurement_is_blended_with_the_known_rate():
    assert learn_from(window(2, 50), window(2, 100)).seen[2].rate == pytest.approx(130.0)


def test_idle_workers_teach_nothing():
    known = learn_from(window(2, 50))
    assert known.then({0: WorkerWork(0, 0, 20)}, batch=BATCH, at=9.0) is known


def test_learned_capacity_survives_encoding():
    known = learn_from(window(2, 50), window(3, 40, busy=0.5))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=LearnedCapacity) == known


def test_sped_up_day_uses_shorter_measurement_windows():
    assert window_s(1.0) == 20.0 and window_s(288.0) == 4.0


@given(
    st.dictionaries(st.integers(1, 6), st.tuples(st.floats(1, 1e4), st.floats(0, 9 * FADES_S)), min_size=1),
    st.integers(1, 12),
    st.sampled_from(["async", "sync"]),
)
def test_capacity_beyond_the_largest_seen_count_is_at_most_proportional(seen, most, kind):
    known = LearnedCapacity(seen={workers: WorkerRate(*one) for workers, one in seen.items()})
    found, largest = known.capacity(max(most, *seen), now=1, at=9 * FADES_S, kind=kind), max(seen)
    assert found[0] == 0 and all(rate > 0 for rate in found[1:])
    for workers in range(largest + 1, most + 1):
        assert found[workers] <= found[largest] / largest * workers * (1 + 1e-9)
