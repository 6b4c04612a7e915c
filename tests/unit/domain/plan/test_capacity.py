"""Bounds and first shape of a job on a machine or a cluster."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.domain.core.shape import Shape
from springtide.domain.plan import capacity as capacities
from springtide.domain.plan.capacity import PlatformCapacity, bounds, first_shape
from springtide.domain.spec.elastic_job import Quota, RoleWish, gpu_of
from springtide.domain.spec.planning_config import PlanRules

GIB = 2.0**30
COUNTS = st.none() | st.integers(1, 8)


def machine(cores, memory=8 * GIB, **more):
    return PlatformCapacity(
        cpu=float(cores), memory=memory, node_cpu=float(cores), node_memory=memory, own=True, **more
    )


def cluster(nodes, cores, **more):
    return PlatformCapacity(
        cpu=float(nodes * cores), memory=nodes * 8 * GIB, node_cpu=cores, node_memory=8 * GIB, **more
    )


@given(
    gpus=st.integers(0, 16),
    quota=st.none() | st.integers(0, 20),
    each=st.none() | st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.7, 1.0]),
    count=st.none() | st.integers(1, 40),
)
def test_no_more_workers_are_planned_than_gpus_can_take(gpus, quota, each, count):
    workers, limit, capacity = RoleWish(count=count, gpu=each), Quota(gpu=quota), machine(64, gpus=gpus)
    share = gpu_of(workers, limit)
    try:
        capacities.check(capacity, workers, RoleWish(), limit)
    except errors.BadInput as error:
        assert share and re.search("no GPU that|give that or less|ask for fewer", str(error))
        return
    most = bounds(capacity, workers, RoleWish(), limit).most.workers
    limits = bounds(capacity, workers, RoleWish(), limit)
    assert (
        limits.least.worker_gpu == limits.most.worker_gpu == capacities.first_shape(limits).worker_gpu == (share or 0)
    )
    assert limits.most.gpus <= limits.quota.gpu <= (gpus if quota is None else quota)
    assert count is None or most == count
    assert not share or most * share <= min(gpus, gpus if quota is None else quota) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("workers", "quota", "gpus", "said"),
    [
        ({"gpu": 1.0}, None, 0, r"workers\.gpu 1 \(--gpu\): this machine has no GPU that can be used"),
        ({}, 2, 0, r"quota\.gpu 2 \(--gpus\): this machine has no GPU"),
        ({}, 4, 2, r"quota\.gpu 4 \(--gpus\): this machine has 2; give that or less"),
        ({"count": 3}, 2, 4, "3 workers with 1 GPU each: the job may use 2 GPUs, enough for 2"),
        ({"start": 5, "gpu": 0.5}, 2, 4, "5 workers with 0.5 GPU each: the job may use 2 GPUs, enough for 4"),
    ],
)
def test_missing_gpus_are_refused(workers, quota, gpus, said):
    with pytest.raises(errors.BadInput, match=said):
        capacities.check(machine(4, gpus=gpus), RoleWish(**workers), RoleWish(), Quota(gpu=quota))


def test_platform_without_gpu_shares_refuses_them():
    with pytest.raises(errors.BadInput, match="whole GPUs only; give 1"):
        capacities.check(cluster(2, 4.0, shares_gpus=False), RoleWish(gpu=0.5), RoleWish(), Quota())
    capacities.check(cluster(2, 4.0, shares_gpus=False), RoleWish(gpu=1.0, count=99), RoleWish(), Quota())


@given(
    cores=st.integers(1, 256),
    workers=COUNTS,
    servers=COUNTS,
    cpu=st.none() | st.floats(0.1, 4),
    holds=st.booleans(),
    quota=st.none() | st.floats(0.2, 300),
    memory=st.none() | st.integers(32, 8192),
)
def test_first_shape_is_within_bounds_and_keeps_fixed_numbers(cores, workers, servers, cpu, holds, quota, memory):
    size = None if memory is None else f"{memory}M"
    wishes = RoleWish(count=workers, cpu=cpu, memory=size), RoleWish(count=servers, cpu=cpu, memory=size)
    try:
        limits = bounds(machine(cores, holds=holds), *wishes, Quota(cpu=quota))
    except errors.BadInput as error:
        assert quota is not None and (workers or servers or cpu or memory) and "raise the quota" in str(error)
        return
    first = first_shape(limits)
    assert limits.holds(first)
    assert workers is None or limits.least.workers == limits.most.workers == workers
    assert servers is None or limits.least.servers == limits.most.servers == servers
    assert cpu is None or first.worker_cpu == first.server_cpu == cpu
    assert first.worker_memory == first.server_memory == (memory or 0) << 20
    asked_for_more = workers or servers or cpu or not holds or (quota or 0) > cores
    assert limits.quota.cpu <= cores + 1e-9 or asked_for_more
    PlanRules(bounds=limits, resize=holds)


@given(
    nodes=st.integers(1, 50),
    cores=st.sampled_from([1.0, 4.0, 64.0]),
    low=COUNTS,
    more=st.integers(0, 8),
    begin=st.integers(0, 8),
    holds=st.booleans(),
    quota=st.none() | st.floats(4, 300),
)
def test_spec_bounds_limit_the_plan_and_a_role_fits_one_node(nodes, cores, low, more, begin, holds, quota):
    low = low or 1
    workers = RoleWish(min=low, max=low + more, start=min(low + begin, low + more))
    try:
        limits = bounds(cluster(nodes, cores, holds=holds), workers, RoleWish(max=3), Quota(cpu=quota))
    except errors.BadInput as error:
        assert quota is not None and "raise the quota" in str(error)
        return
    first = first_shape(limits, workers=workers.start)
    assert limits.holds(first)
    assert limits.least.workers == low and limits.most.workers <= low + more and limits.most.servers <= 3
    assert limits.most.worker_cpu <= max(cores, limits.least.worker_cpu)
    assert limits.most.server_cpu <= cores and first_shape(limits, small=True).server_cpu <= 1.0
    assert quota is None or limits.quota.cpu == quota or not holds


def test_quota_may_exceed_the_present_nodes():
    limits = bounds(cluster(2, 4.0), RoleWish(), RoleWish(), Quota(cpu=100.0))
    assert limits.quota.cpu == 100.0 and limits.most.workers > 8
    none_yet = bounds(PlatformCapacity(cpu=0, memory=0), RoleWish(), RoleWish(), Quota())
    assert none_yet.quota.cpu == capacities.UNKNOWN_CPU and none_yet.most.server_cpu <= capacities.UNKNOWN_NODE
    assert first_shape(none_yet, small=True) == Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
    PlanRules(bounds=none_yet)


def test_two_core_machine_starts_with_a_core_per_role_and_allows_three_workers():
    limits = bounds(machine(2), RoleWish(), RoleWish(), Quota())
    assert first_shape(limits) == Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
    assert (limits.most.workers, limits.most.servers, limits.quota.cpu) == (3, 2, 2.0)
    assert limits.worker_cpus == (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def test_requested_servers_reduce_the_workers_share():
    limits = bounds(machine(1), RoleWish(), RoleWish(count=2), Quota())
    assert first_shape(limits) == Shape(workers=1, servers=2, worker_cpu=0.6, server_cpu=0.2)


def test_without_limits_only_counts_are_open():
    limits = bounds(machine(2, holds=False), RoleWish(), RoleWish(), Quota())
    assert limits.least.worker_cpu == limits.most.worker_cpu and limits.most.workers == 2


@pytest.mark.parametrize(
    ("workers", "quota", "said"),
    [
        (RoleWish(cpu=8.0), Quota(), "workers.cpu 8 .*the largest node has 4 cores"),
        (RoleWish(memory="16G"), Quota(), "workers.memory 16G .*the largest node has 8G"),
        (RoleWish(), Quota(cpu=0.1), r"expected 0\.2 or more"),
        (RoleWish(), Quota(memory="4G"), "give workers.memory and servers.memory too"),
    ],
)
def test_role_too_large_for_any_node_and_invalid_quotas_are_refused(workers, quota, said):
    with pytest.raises(errors.BadInput, match=said):
        capacities.check(cluster(3, 4.0), workers, RoleWish(), quota)


def test_quota_beyond_this_machine_is_refused():
    with pytest.raises(errors.BadInput, match="this machine has 2 cores"):
        capacities.check(machine(2), RoleWish(), RoleWish(), Quota(cpu=3.0))


def test_roles_beyond_the_quota_are_refused():
    with pytest.raises(errors.BadInput, match=r"take 8\.2 cores, the quota is 4 cores; raise the quota"):
        bounds(cluster(3, 4.0), RoleWish(count=8, cpu=1.0), RoleWish(), Quota(cpu=4.0))


def test_first_cluster_server_is_small_and_no_role_takes_a_whole_node():
    limits = bounds(cluster(10, 64.0), RoleWish(), RoleWish(), Quota())
    assert limits.most.server_cpu > 1.0 and first_shape(limits, small=True).server_cpu == 1.0
    tiny = bounds(cluster(3, 1.0), RoleWish(), RoleWish(), Quota())
    assert tiny.most.worker_cpu == tiny.most.server_cpu == 0.8


def test_more_processes_than_memory_allows_are_refused():
    with pytest.raises(errors.BadInput, match=r"100000 workers and 1 servers: this machine has 8G .* 256 processes"):
        capacities.check(machine(2), RoleWish(count=100_000), RoleWish(count=1), Quota())
    with pytest.raises(errors.BadInput, match="1 workers and 300 servers"):
        capacities.check(machine(2), RoleWish(), RoleWish(min=300), Quota())
    capacities.check(machine(2), RoleWish(count=200), RoleWish(count=50), Quota())
    capacities.check(cluster(1, 2), RoleWish(count=100_000), RoleWish(), Quota())  # which may get more nodes
