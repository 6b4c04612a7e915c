"""Jobs whose roles share no loopback, no disk, no /dev/shm and no process table: each is on a host of its own."""

import numpy as np
import pytest

from springtide.domain.job import JobSpec, Phase
from springtide.testing import hosts
from springtide.testing.hosted import HostedJob
from tests.process import counting

pytestmark = pytest.mark.process
REFUSED = hosts.refusal()
needs_hosts = pytest.mark.skipif(REFUSED is not None, reason=f"no hosts of our own here: {REFUSED}")
BATCH = 8


@pytest.fixture
def cluster(tmp_path):
    """Four hosts."""
    with hosts.Hosts(["one", "two", "three", "four"], tmp_path) as found:
        yield found


@needs_hosts
def test_without_a_common_disk_a_worker_and_the_master_are_killed_and_every_occurrence_counts_once(tmp_path, cluster):
    ids = counting.draw(np.random.default_rng(5), 2000)
    script = counting.write(tmp_path, ids)
    spec = JobSpec(name="apart", workers=2, servers=2, silence_s=10.0)
    with HostedJob(script, [tmp_path, 1, BATCH, 0.01], hosts=cluster, spec=spec, folder=tmp_path / "runs") as job:
        job.until(lambda status: status.samples > 200)
        assert job.kill("worker-1")
        job.until(lambda status: status.samples > 600)
        assert job.kill("master")
        job.until(lambda status: status.samples > 1000)
        job.replace_agent()
        ended = job.wait()
    assert ended.phase is Phase.FINISHED
    assert counting.differences(tmp_path, ids, epochs=1, batch=BATCH) == {}
    kinds = [event["event"] for event in job.story]
    assert kinds.count("master_replaced") == 1 and "agent_took_over" in kinds
