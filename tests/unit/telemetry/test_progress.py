"""Recorded progress of a job."""

import itertools

from springtide.telemetry import progress
from springtide.telemetry.progress import ProgressLog, ProgressPoint


def record(path, times, **sizes):
    log = ProgressLog(path, **sizes)
    for at in times:
        if log.is_due(at):
            log.add(ProgressPoint(at=at, samples=int(at), samples_per_s=1.0))
    return [point.at for point in progress.read(path)]


def test_progress_is_recorded_once_per_interval(tmp_path):
    assert record(tmp_path / "p", [0.0, 0.25, 0.5, 1.0, 1.75, 2.25], every_s=1.0) == [0.0, 1.0, 2.25]


def test_long_job_keeps_its_whole_life_in_a_bounded_number_of_points(tmp_path):
    times = record(tmp_path / "p", [float(second) for second in range(200)], every_s=1.0, most=20)
    assert len(times) <= 20 and times[0] == 0.0 and times[-1] >= 184
    steps = {later - earlier for earlier, later in itertools.pairwise(times)}
    assert steps == {16.0}


def test_new_master_continues_at_the_interval_of_its_predecessor(tmp_path):
    record(tmp_path / "p", [float(second) for second in range(100)], every_s=1.0, most=20)
    times = record(tmp_path / "p", [float(second) for second in range(100, 200)], every_s=1.0, most=20)
    assert len(times) <= 20 and times[0] == 0.0 and times[-1] >= 184


def test_clock_that_was_set_back_does_not_stop_the_record(tmp_path):
    assert record(tmp_path / "p", [1000.0, 10.0, 10.5, 11.0]) == [1000.0, 10.0, 11.0]
