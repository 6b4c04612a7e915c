"""A server and a worker that their host takes away hand over and leave: counts are exact, nothing is recovered."""

import asyncio

import numpy as np
import pytest

from springtide import config
from springtide.domain.job import JobSpec, Phase
from springtide.platforms.k8s import drain
from springtide.rpc import whereabouts
from springtide.testing.cluster import LocalCluster
from tests.process import counting

pytestmark = pytest.mark.process

BATCH = 32


def leave(job, member):
    """What the preStop hook of its pod does."""
    where = whereabouts.read(job.files.master)
    settings = config.Settings(master=where.address, member=member, secret_file=str(job.files.secret), incarnation=0)
    return asyncio.run(asyncio.wait_for(drain.drain(settings), 30))


def test_a_server_and_a_worker_leave_in_peace(tmp_path, seed):
    ids = counting.draw(np.random.default_rng(seed), 400 * BATCH - 5)
    script = counting.write(tmp_path, ids)
    spec = JobSpec(name="leaving", workers=2, servers=2, slots=64, heartbeat_s=0.2, seed=seed)
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.005], spec=spec, folder=tmp_path / "runs") as job:
        job.until(lambda status: status.samples > 0)
        assert leave(job, "server-1") and leave(job, "worker-0")
        assert leave(job, "server-1"), "it has gone, and is free"
        status = job.wait()
    assert status.phase is Phase.FINISHED and status.samples == len(ids), status
    assert not (wrong := counting.differences(tmp_path, ids, epochs=1, batch=BATCH)), wrong
    told = {(event["event"], event.get("role")) for event in job.story}
    assert {("left", "server-1"), ("joined", "server-2"), ("finished", "worker-0"), ("joined", "worker-2")} <= told
    assert "lost" not in {what for what, _ in told}, "nothing had to be brought back"
