"""What a job may become on one machine, and what it begins with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.domain.own_machine import Fixed, bounds, first_shape
from springtide.domain.plan_rules import PlanRules
from springtide.domain.shape import Shape

GIB = 2.0**30
COUNTS = st.none() | st.integers(1, 8)


@given(
    cores=st.integers(1, 256), workers=COUNTS, servers=COUNTS, cpu=st.none() | st.floats(0.1, 4), resize=st.booleans(),
    quota=st.none() | st.floats(0.2, 300), memory=st.none() | st.integers(1 << 25, 1 << 33),
)  # fmt: skip
def test_there_is_always_a_first_shape_within_bounds_that_keep_to_what_was_fixed(
    cores, workers, servers, cpu, resize, quota, memory
):
    fixed = Fixed(workers=workers, servers=servers, cpu=cpu, memory=memory, quota=quota)
    limits = bounds(cores, 8 * GIB, fixed, resize=resize)
    first = first_shape(limits)
    assert limits.holds(first)
    assert workers is None or limits.least.workers == limits.most.workers == workers
    assert servers is None or limits.least.servers == limits.most.servers == servers
    assert cpu is None or first.worker_cpu == first.server_cpu == cpu
    assert first.worker_memory == first.server_memory == (memory or 0)
    asked_for_more = workers or servers or cpu or not resize
    assert limits.quota.cpu <= cores + 1e-9 or asked_for_more
    PlanRules(bounds=limits, resize=resize)


def test_two_cores_begin_with_a_core_each_and_may_have_three_workers():
    limits = bounds(2, 8 * GIB, Fixed(), resize=True)
    assert first_shape(limits) == Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
    assert (limits.most.workers, limits.most.servers, limits.quota.cpu) == (3, 2, 2.0)
    assert limits.worker_cpus == (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def test_servers_that_were_asked_for_leave_a_worker_less_than_its_usual_share():
    limits = bounds(1, 8 * GIB, Fixed(servers=2), resize=True)
    assert first_shape(limits) == Shape(workers=1, servers=2, worker_cpu=0.6, server_cpu=0.2)


def test_without_limits_only_numbers_are_open():
    limits = bounds(2, 8 * GIB, Fixed(), resize=False)
    assert limits.least.worker_cpu == limits.most.worker_cpu and limits.most.workers == 2


@pytest.mark.parametrize("quota", [-1.0, 0.0, 0.1, float("nan"), float("inf")])
def test_a_quota_that_is_none_or_too_small_for_two_roles_is_refused(quota):
    with pytest.raises(errors.BadInput, match=r"wanted 0\.2 or more"):
        Fixed(quota=quota)
