"""On a virtual clock, one slow worker hardly lengthens a job beyond its capacity."""

import pytest

from springtide.domain.data.samples import DatasetCard
from tests.sim.virtual_job import VirtualJob


def batches(count):
    return DatasetCard(samples=count * 8, batch_size=8, shard_batches=256)


@pytest.mark.parametrize("slow", [0.03, 0.25, 0.5])
@pytest.mark.parametrize("seconds", [60, 300])
def test_one_slow_worker_of_four_costs_less_than_fifteen_percent(slow, seconds):
    job = VirtualJob(batches(round((3 + slow) * seconds / 0.02)), [1, 1, slow, 1])
    took = job.run()
    assert took <= 1.15 * job.ideal_s, f"{took:.1f} s, ideal {job.ideal_s:.1f} s"
    assert job.static_s > 1.4 * took, "equal parts would have been as good"


def test_slow_worker_delays_the_job_without_rebalancing():
    job = VirtualJob(batches(round(3.03 * 60 / 0.02)), [1, 1, 0.03, 1], balanced=False)
    assert job.run() > 1.3 * job.ideal_s


def test_equal_workers_are_not_resized_and_lose_no_time():
    job = VirtualJob(batches(4 * 3000), [1, 1.02, 0.97, 1])
    took = job.run()
    assert not job.resizes
    assert took <= 1.03 * job.ideal_s


def test_straggler_gets_smaller_leases_within_a_minute_and_larger_on_recovery():
    job = VirtualJob(batches(4 * 10_000), [1, 1, 1, 1])

    def change(job, now):
        job.workers[2].batch_s = 0.02 / (0.1 if 30 <= now < 100 else 1)

    job.run(change)
    told = [(resize.rank, resize.halvings) for _, resize in job.resizes]
    assert told == [(2, 1), (2, 2), (2, 1), (2, 0)]
    times = [at for at, _ in job.resizes]
    assert 30 < times[0] <= 90 and times[2] > 100
    assert all("of its peers' median" in resize.why for _, resize in job.resizes)
