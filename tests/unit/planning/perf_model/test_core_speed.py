"""Throughput per core, the ceiling it sets, and fits of CPU-bound shapes."""

import math
from dataclasses import replace

import pytest

from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.profile import Profile, TimingSum
from springtide.planning.perf_model import fit, measurements
from springtide.planning.perf_model.measurements import CoreSpeed
from springtide.planning.perf_model.shape_columns import columns
from tests.unit.planning import views
from tests.unit.planning.views import FACTS, profile, running, shape, speed, uses


def test_core_speed_is_throughput_per_core_used():
    job = running(shape(), uses=uses(shape(), worker=0.5, server=0.25))
    assert measurements.pace_of(job, 400.0) == pytest.approx((400 / 8, 400 / 4))


def test_role_using_more_cores_than_granted_counts_the_granted_ones():
    job = running(shape(), uses=uses(shape(), worker=1.1, server=0.25))
    pace = measurements.pace_of(job, 400.0)
    assert pace == pytest.approx((400 / 16, 400 / 4))
    assert measurements.ceiling_of(pace, shape()) == pytest.approx(400.0), "it can do what it does"


def test_unknown_core_usage_sets_no_ceiling():
    pace = measurements.pace_of(running(uses=()), 400.0)
    assert pace == CoreSpeed()
    assert measurements.ceiling(pace, columns([shape()]))[0] == math.inf


def profile_with_cores(of, *, worker, server, at=200.0):
    """A window in which workers and servers used parts of their cores."""
    workers, servers = worker * of.workers * of.worker_cpu, server * of.servers * of.server_cpu
    return replace(profile(of, at=at), worker_cores=workers, server_cores=servers)


def test_core_speed_uses_the_median_of_windows():
    windows = [profile_with_cores(shape(), worker=0.5, server=part) for part in (0.25, 0.26, 0.24, 0.01, 0.25, 0.99)]
    job = running(shape(), profiles=tuple(windows), uses=uses(shape(), worker=0.9, server=0.9))
    done = measurements.now(job).throughput
    assert measurements.pace_of(job, 1.0) == pytest.approx((done / 8, done / 4)), (
        "not what was used in the last seconds"
    )
    assert measurements.use(job, RoleKind.SERVER).used == pytest.approx(4.0)
    assert measurements.use(job, RoleKind.SERVER).share == pytest.approx(0.25)


def test_windows_of_other_shapes_count_and_usage_is_capped_at_the_grant():
    small, large = shape(workers=1), shape(workers=4)
    halves = [profile_with_cores(small, worker=1.2, server=0.1), profile_with_cores(large, worker=1.2, server=0.4)]
    job = running(large, profiles=tuple(halves))
    each = [4.0 / speed(small), 16.0 / speed(large)]
    assert measurements.pace_of(job, 1.0).worker == pytest.approx(2 / sum(each))


def test_invalid_core_counts_are_ignored():
    odd = [replace(profile(shape()), worker_cores=part, server_cores=None) for part in (math.nan, -1.0, math.inf, 0.0)]
    job = running(shape(), profiles=tuple(odd), uses=uses(shape(), worker=0.5, server=0.25))
    assert measurements.spent(job, RoleKind.WORKER) is None
    assert measurements.pace_of(job, 400.0) == pytest.approx((400 / 8, 400 / 4))


def test_ceiling_falls_with_fewer_cores_of_either_role():
    pace = CoreSpeed(worker=10.0, server=20.0)
    many = columns(
        [shape(workers=4, worker_cpu=4, servers=2, server_cpu=8), shape(workers=99, servers=1, server_cpu=1)]
    )
    assert measurements.ceiling(pace, many).tolist() == [160.0, 20.0]
    assert [measurements.ceiling_of(pace, many.shape(at)) for at in (0, 1)] == [160.0, 20.0]


def cpu_bound_profile(of, pace):
    """A profile of a CPU-bound shape: the wait is in the update time, where workers see it."""
    free = profile(of)
    longer = free.timing.total_s * (speed(of) / measurements.ceiling_of(pace, of) - 1)
    timing = replace(free.timing, update_s=free.timing.update_s + longer, total_s=free.timing.total_s + longer)
    return replace(free, timing=timing)


FREE = [shape(workers=w, servers=p) for w, p in ((1, 1), (2, 2), (2, 1))]
BOUND = [shape(workers=w, servers=1, server_cpu=1.0) for w in (8, 16, 32)]


def test_cpu_bound_shapes_do_not_mislead_the_fit():
    pace = CoreSpeed(server=1.1 * max(speed(one) for one in FREE) / 8)
    measured = [*map(profile, FREE), *(cpu_bound_profile(one, pace) for one in BOUND)]
    other = shape(workers=12, servers=6)
    right, misled = (fit.fit(measured, FACTS, known).predict(other) / speed(other) - 1 for known in (pace, CoreSpeed()))
    assert abs(right) < 0.02 < 0.05 < abs(misled)


def test_equations_allow_at_least_the_cpu_bound_when_all_are_bound():
    pace = CoreSpeed(worker=20_000.0, server=90_000.0)
    shapes = [
        shape(workers=w, servers=p, worker_cpu=a, server_cpu=b)
        for w, p, a, b in ((1, 1, 0.4, 0.2), (1, 1, 0.8, 0.1), (2, 1, 0.3, 0.05), (3, 2, 0.3, 0.2), (2, 2, 0.5, 0.1))
    ]
    measured = [by_cores(one, pace) for one in shapes]
    found = fit.fit(measured, FACTS, pace)
    assert found.mape < 0.01
    for one in shapes:
        assert found.predict(one) > 0.95 * measurements.ceiling_of(pace, one)


def by_cores(of, pace):
    """A profile of a shape that is as fast as its cores allow, timed as a whole."""
    step_s = of.workers * FACTS.batch / measurements.ceiling_of(pace, of)
    timing = TimingSum(steps=100, samples=100 * FACTS.batch, total_s=100 * step_s)
    return Profile(shape=of, batch=FACTS.batch, timing=timing, at=0.0)


def test_invalid_profiles_are_left_out_for_any_core_speed():
    odd = replace(profile(shape()), timing=TimingSum(steps=3, total_s=math.nan))
    assert measurements.throughput(odd.shape, odd.timing) is None
    assert len(fit.fit([odd, *map(profile, FREE)], FACTS, CoreSpeed(worker=views.AMPLE.cpu)).table) == len(FREE)


def test_zero_length_window_gives_no_core_speed():
    short = replace(profile(shape()), worker_cores=1.0, server_cores=1.0)
    short = replace(short, timing=replace(short.timing, total_s=5e-324))
    assert measurements.throughput(short.shape, short.timing) is None
    assert measurements.pace_of(running(profiles=(short,) * 3, uses=()), 1.0) == CoreSpeed()
