"""The simpler model of a sample, by hand."""

import math
from dataclasses import replace

import pytest

from springtide.domain.cluster import Role, RoleKind
from springtide.domain.profile import Profile, TimingSum
from springtide.domain.shape import Shape
from springtide.domain.view import RoleUse
from springtide.planning import sampling
from springtide.planning.tabulate import Refused

SAMPLE = Profile(
    shape=Shape(workers=1, servers=1, worker_cpu=32.0, server_cpu=32.0), batch=512, at=0.0,
    timing=TimingSum(steps=10, total_s=1.0, gradient_s=0.4, update_s=0.2, lookup_s=0.1),
)  # fmt: skip


def uses(worker=2.5, server=5.0):
    return [
        RoleUse(role=Role(RoleKind.WORKER, 0), cpu_used=worker, cpu=32.0),
        RoleUse(role=Role(RoleKind.SERVER, 0), cpu_used=server, cpu=32.0),
    ]


def test_a_sample_tells_what_a_step_takes():
    found = sampling.demand(SAMPLE, uses())
    assert (found.worker_cpu, found.server_cpu) == (2.5, 5.0)
    assert (found.compute, found.update, found.io_s) == pytest.approx((0.1, 0.15, 0.03))


def test_the_sample_itself_is_foretold_exactly():
    found = sampling.demand(SAMPLE, uses())
    assert found.throughput(workers=1, worker_cpu=32.0, server_cpu_total=32.0) == pytest.approx(5120.0)


def test_more_workers_bring_more_until_servers_are_used_up():
    found = sampling.demand(SAMPLE, uses())
    rates = [found.throughput(workers=n, worker_cpu=3.0, server_cpu_total=20.0) for n in (1, 4, 8, 16)]
    assert rates[1] == pytest.approx(4 * rates[0])
    assert rates[2] < 1.7 * rates[1] and rates[3] < 1.4 * rates[2]


def test_a_worker_with_fewer_cores_than_it_can_use_is_slower():
    found = sampling.demand(SAMPLE, uses())
    assert found.step_s(workers=1, worker_cpu=1.0, server_cpu_total=5.0) == pytest.approx(0.03 + 0.1 + 0.03)


@pytest.mark.parametrize(
    ("profile", "used", "why"),
    [
        (replace(SAMPLE, timing=TimingSum()), uses(), "no steps"),
        (replace(SAMPLE, timing=TimingSum(steps=3, total_s=math.nan)), uses(), "no steps, or no time"),
        (SAMPLE, uses(worker=0.0), "not at work"),
        (SAMPLE, uses(server=math.nan), "not at work"),
        (SAMPLE, [], "not at work"),
    ],
)
def test_a_sample_that_says_nothing_is_refused_with_a_reason(profile, used, why):
    refused = sampling.demand(profile, used)
    assert isinstance(refused, Refused) and why in refused.why
