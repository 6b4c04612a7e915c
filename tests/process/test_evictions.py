"""Evicted servers and workers hand over and leave: counts are exact without a recovery."""

import asyncio

import numpy as np
import pytest

from springtide import config
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.platforms.k8s.job import role_pod
from springtide.rpc.transport import addresses
from springtide.testing.cluster import LocalCluster
from tests.process import counting

pytestmark = pytest.mark.process

BATCH = 32


def leave(job, member):
    """Do what the preStop hook of a role's pod does."""
    where = addresses.read_master(job.files.master)
    settings = config.Settings(master=where.address, member=member, secret_file=str(job.files.secret), incarnation=0)
    return asyncio.run(asyncio.wait_for(role_pod.drain(settings), 90))


def logged_events(job):
    return {(event["event"], event.get("role")) for event in job.story}


def decisions(job):
    return "; ".join(str(event["what"]) for event in job.story if event["event"] == "decision")


BOTH = pytest.param({"server-1": "server-2", "worker-0": "worker-2"}, id="both", marks=pytest.mark.soak)


@pytest.mark.parametrize("successors", [pytest.param({"server-1": "server-2"}, id="server"), BOTH])
def test_evicted_server_and_worker_hand_over_without_a_failure(tmp_path, seed, successors):
    workers = len(successors)
    ids = counting.draw(np.random.default_rng(seed), 200 * workers * BATCH - 5)
    script = counting.write(tmp_path, ids)
    spec = JobSpec(name="leaving", workers=workers, servers=2, slots=64, heartbeat_s=0.2, seed=seed)
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.5], spec=spec, folder=tmp_path / "runs") as job:
        job.until(lambda status: status.samples > 0 and {("joined", each) for each in successors} <= logged_events(job))
        for member in successors:
            assert leave(job, member)
        assert leave(job, "server-1"), "it has gone, and is free"
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED and status.samples == len(ids), status
    assert not (wrong := counting.differences(tmp_path, ids, epochs=1, batch=BATCH)), wrong
    assert ("left", "server-1") in logged_events(job) and ("joined", "server-2") in logged_events(job)
    assert all(f"in place of {each}" in decisions(job) for each in successors if each.startswith("worker"))
    assert "lost" not in {what for what, _ in logged_events(job)}, "nothing had to be brought back"
