"""How long a job was delayed, from the times of its steps."""

import numpy as np

from springtide_lab.bench.faults import rescale


def test_steady_job_is_never_below_its_pace():
    times = np.arange(0, 20, 0.02).tolist()

    assert rescale.rate(times, 5, 15) == 50
    assert rescale.seconds_below(times, 5, 15, 50) == 0


def test_gap_and_slow_stretch_are_counted_in_half_seconds():
    times = [*np.arange(0, 10, 0.02), *np.arange(12, 14, 0.1), *np.arange(14, 20, 0.02)]

    assert rescale.seconds_below(times, 5, 20, 50) == 4
    assert rescale.seconds_below(times, 10.5, 20, 50) == 3.5


def test_work_ends_with_its_last_step():
    times = [3.0, 1.0, 2.0, 5.0]

    assert rescale.done_at(times, 1.5, 2) == 3.0
    assert rescale.done_at(times, 1.5, 4) is None
