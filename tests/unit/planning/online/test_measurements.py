"""Work of workers between two readings, and the time full batches would take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.data.streams import StepSums
from springtide.planning.online.capacity_model import (
    WorkerWork,
    full,
    quicker_when_full,
    summed,
    together,
    utilization,
)


def steps_of(sizes, at_all, by_sample):
    """Steps of these sizes with a fixed cost and a cost per sample."""
    done = StepSums()
    for size in sizes:
        done = done.and_one(size, at_all + by_sample * size)
    return done


def test_pace_excludes_waiting_time():
    half = WorkerWork(1000, 10, 10).since(WorkerWork(500, 5, 5))
    assert half.pace == 100 and utilization({0: half}) == 0.5
    assert together({0: half, 1: half}) == 200


def test_idle_worker_counts_like_the_others_and_none_busy_is_no_measurement():
    assert together({0: WorkerWork(100, 1, 0), 1: WorkerWork(0, 0, 5)}) == 200
    assert together({0: WorkerWork(0, 0, 5)}) is None and utilization({}) == 0


def test_workers_with_partial_batches_are_not_counted_as_full():
    works = {rank: WorkerWork(1, 10, 0, steps_of([size] * 100, 0.1, 0)) for rank, size in ((0, 9.6), (1, 3))}
    assert set(full({**works, 2: WorkerWork(0, 0, 10)}, batch=10)) == {0}


def test_restarted_worker_has_no_negative_work():
    assert WorkerWork(10, 1, 1).since(WorkerWork(500, 60, 7, StepSums(5, 5, 5, 5, 5))) == WorkerWork(0, 0, 0)


def test_fixed_step_cost_makes_fuller_batches_faster():
    sizes = [8, 16, 24, 32] * 100
    assert quicker_when_full(steps_of(sizes, 0.08, 0.0), 64, 16) == pytest.approx(4.0, rel=0.1)
    assert quicker_when_full(steps_of(sizes, 0.0, 0.001), 64, 16) == pytest.approx(1.0)
    assert 1.5 < quicker_when_full(steps_of(sizes, 0.04, 0.0025), 64, 16) < 2.5
    assert quicker_when_full(steps_of(sizes, 0.08, 0.0), 64, 64) == 1.0


def test_steps_of_one_size_are_assumed_to_cost_per_sample():
    assert quicker_when_full(steps_of([16] * 500, 0.08, 0.0), 64, 16) == pytest.approx(1.0)
    assert quicker_when_full(StepSums(), 64, 16) == 1.0


@given(st.lists(st.tuples(st.floats(1, 64), st.floats(1e-3, 1)), min_size=1), st.floats(1, 64))
def test_speedup_of_full_batches_is_bounded_by_the_missing_room(steps, size):
    done = StepSums()
    for one in steps:
        done = done.and_one(*one)
    assert 1 - 1e-9 <= quicker_when_full(done, 64, size) <= 64 / size * (1 + 1e-9)


def test_step_sums_of_all_workers_are_added():
    assert summed(
        {0: WorkerWork(1, 1, 1, StepSums(1, 2, 3, 4, 5)), 1: WorkerWork(1, 1, 1, StepSums(1, 1, 1, 1, 1))}
    ) == (
        2,
        3,
        4,
        5,
        6,
    )
