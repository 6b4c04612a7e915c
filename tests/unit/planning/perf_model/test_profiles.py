"""Profiles cover only times at which the job had the stated shape."""

from dataclasses import replace

import numpy
import pytest

from springtide.domain.plan.profile import TimingSum
from springtide.domain.spec.planning_config import PlanRules
from springtide.planning.perf_model import equations, fit, profiles
from springtide.planning.perf_model.profiles import CoreSeconds, WorkerReading
from tests.unit.planning.planted import FACTS, SHAPES, TRUE

TWO = replace(SHAPES[0], workers=2)
RULES = PlanRules(settle_s=5.0, window_s=10.0)


def worker_readings(worker, *, since=0.0, until=60.0, step_s=0.1, steps=0, every_s=1.0):
    """A worker's readings, one per second."""
    readings, at, total = [], since, 0.0
    while at <= until:
        readings.append(WorkerReading(at=at, worker=worker, timing=TimingSum(steps=steps, total_s=total)))
        more = round(every_s / step_s)
        at, steps, total = at + every_s, steps + more, total + more * step_s
    return readings


def test_steady_job_gives_one_profile_per_window():
    found = profiles.observe([*worker_readings(0), *worker_readings(1)], TWO, since=0.0, batch=512, rules=RULES)
    assert [round(profile.at) for profile in found] == [9, 19, 29, 39, 49, 59, 60]
    assert all(profile.step_s == pytest.approx(0.1) and profile.shape is TWO for profile in found)
    assert [profile.timing.steps for profile in found[:2]] == [80, 200], "no spans just after a change of shape"


def test_window_reports_core_usage_when_mostly_covered():
    counts = [CoreSeconds(at=float(at), workers=0.5 * at, servers=2.0 * at) for at in range(16, 50)]
    found = profiles.observe(
        [*worker_readings(0), *worker_readings(1)], TWO, since=0.0, batch=512, rules=RULES, spent=counts
    )
    assert [one.worker_cores for one in found] == [None, None, 0.5, 0.5, 0.5, None, None]
    assert found[2].server_cores == 2.0


def test_spans_across_a_shape_change_are_ignored():
    readings = [*worker_readings(0, until=30.0), *worker_readings(0, since=31.0, step_s=0.05, steps=300)]
    found = profiles.observe(readings, SHAPES[0], since=30.5, batch=512, rules=RULES)
    assert found and all(profile.step_s == pytest.approx(0.05) for profile in found)


def test_first_steps_are_ignored():
    slow = worker_readings(0, until=20.0, step_s=1.0)
    found = profiles.observe(slow, SHAPES[0], since=0.0, batch=512, rules=RULES)
    assert found == ()


def test_windows_without_all_workers_are_ignored():
    found = profiles.observe(
        [*worker_readings(0), *worker_readings(1, until=32.0)], TWO, since=0.0, batch=512, rules=RULES
    )
    assert len(found) == 4


def test_restarted_worker_is_detected_in_profiles():
    again = [*worker_readings(0, until=30.0), *worker_readings(0, since=31.0, steps=25)]
    found = profiles.observe(again, SHAPES[0], since=0.0, batch=512, rules=RULES)
    assert found and all(profile.step_s == pytest.approx(0.1) for profile in found)


def test_outlier_window_is_ignored():
    readings = [*worker_readings(0, until=29.0), *worker_readings(0, since=30.0, until=39.0, step_s=1.0, steps=290)]
    shift = readings[-1].timing
    rest = [
        replace(one, timing=one.timing + TimingSum(steps=shift.steps, total_s=shift.total_s))
        for one in worker_readings(0, since=40.0, until=80.0)
    ]
    readings = [
        *readings[:30],
        *(replace(one, timing=one.timing + TimingSum(total_s=29.0)) for one in readings[30:]),
        *(replace(one, timing=one.timing + TimingSum(total_s=29.0)) for one in rest),
    ]
    found = profiles.observe(readings, SHAPES[0], since=0.0, batch=512, rules=RULES)
    assert found and all(profile.step_s == pytest.approx(0.1, rel=0.2) for profile in found)


def test_readings_before_the_current_shape_are_ignored():
    found = profiles.observe(worker_readings(0, until=5.0), SHAPES[0], since=10.0, batch=512, rules=RULES)
    assert found == ()


def test_observed_profiles_can_be_fitted():
    found, done = [], TimingSum()
    for place, shape in enumerate(SHAPES):
        seconds = float(equations.step_seconds(TRUE, FACTS, shape))
        readings = [
            replace(one, timing=one.timing + done)
            for rank in range(shape.workers)
            for one in worker_readings(rank, since=100.0 * place, until=100.0 * place + 60, step_s=seconds)
        ]
        found += profiles.observe(readings, shape, since=100.0 * place, batch=FACTS.batch, rules=RULES)
        done = max((one.timing for one in readings), key=lambda timing: timing.steps)
    model = fit.fit(found, FACTS)
    numpy.testing.assert_allclose(model.coefficients.array, TRUE.array, rtol=0.01)
