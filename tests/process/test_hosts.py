"""Jobs with every role on its own simulated host: no shared network, disk, memory or process table."""

import time

import numpy as np
import pytest

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from tests.process import counting, group_counting, hosts
from tests.process.hosted_jobs import HostedJob

pytestmark = pytest.mark.process
REFUSED = hosts.refusal()
needs_hosts = pytest.mark.skipif(REFUSED is not None, reason=f"no hosts of our own here: {REFUSED}")
BATCH = 16


@pytest.fixture
def cluster(tmp_path):
    """Four hosts."""
    with hosts.Hosts(["one", "two", "three", "four"], tmp_path) as found:
        yield found


def started(folder, cluster, *, batches, pause_s=0.02, text=counting.SCRIPT, place=None, short=3, **more):
    """A counting job with its run folder on the first host's private disk, and its ids."""
    ids = counting.draw(np.random.default_rng(5), batches * BATCH - short)
    script = counting.write(folder, ids, text)
    given = dict(name="apart", workers=2, servers=2, heartbeat_s=0.2, relaunches=1000, backoff_s=0.0)
    spec = JobSpec(**(given | more))
    runs = cluster.disk / "runs"
    arguments = [folder, 1, BATCH, pause_s]
    return HostedJob(script, arguments, hosts=cluster, spec=spec, folder=runs, place=place), ids


def of_kind(status, kind):
    """Members of one kind."""
    return [view for view in status.members if view.role.kind == kind]


def counts_are_exact(folder, ids):
    """Whether every occurrence counts once."""
    return counting.differences(folder, ids, epochs=1, batch=BATCH) == {}


@needs_hosts
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_job_without_a_shared_disk_survives_worker_master_and_agent_loss(tmp_path, cluster):
    hosted, ids = started(
        tmp_path, cluster, batches=800, pause_s=0.05, workers=1, silence_s=10.0, feeding=FeedRules(workers=1)
    )
    with hosted as job:
        job.until(
            lambda status: status.data.feed is not None and status.data.feed.made > 3
        )  # its package came over the wire
        assert job.kill("worker-0")
        job.until(lambda status: all(view.usage for view in status.members if view.alive))  # they tell it themselves
        assert job.kill("master")
        trained = job.status.samples
        job.until(lambda status: status.samples > trained)
        job.replace_agent()
        counting.hurry(tmp_path)
        assert job.wait().phase is JobPhase.FINISHED
    assert counts_are_exact(tmp_path, ids)
    kinds = [event["event"] for event in job.story]
    assert kinds.count("master_replaced") == 1 and "agent_took_over" in kinds


@needs_hosts
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_temporary_network_partitions_lose_and_repeat_nothing(tmp_path, cluster):
    hosted, ids = started(tmp_path, cluster, batches=600, silence_s=30.0)
    with hosted as job:
        job.until(lambda status: status.samples > 300)
        for one, other in (("two", "three"), ("one", "two"), ("one", "four"), ("two", "four")):
            before = job.status.samples
            cluster.cut(one, other)
            time.sleep(5.0)  # so long, and no event tells its end
            cluster.mend(one, other)
            job.until(lambda status, before=before: status.samples > before + 100)
        counting.hurry(tmp_path)
        assert job.wait().phase is JobPhase.FINISHED
    assert counts_are_exact(tmp_path, ids)


@needs_hosts
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_partitioned_worker_is_replaced_and_its_late_batches_count_once(tmp_path, cluster):
    """It can still reach its servers, so it trains on as a zombie."""

    def place(life):
        return "four" if life.role == Role(RoleKind.WORKER, 1) else ("two", "three")[life.role.rank % 2]

    hosted, ids = started(tmp_path, cluster, batches=900, silence_s=3.0, place=place)
    with hosted as job:
        job.until(lambda status: status.samples > 300 and all(view.report.step for view in of_kind(status, "worker")))
        cluster.cut("one", "four")
        job.until(lambda status: status.roles.relaunches >= 1)
        before = job.status.samples
        job.until(lambda status: status.samples > before + 100)
        cluster.mend("one", "four")
        job.until(lambda status: all(view.joined for view in status.members))
        counting.hurry(tmp_path)
        assert job.wait().phase is JobPhase.FINISHED
    assert counts_are_exact(tmp_path, ids)


@needs_hosts
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_bsp_group_across_hosts_reforms_without_a_shared_disk(tmp_path, cluster):
    text = group_counting.COUNTING
    hosted, ids = started(tmp_path, cluster, batches=300, text=text, short=0, silence_s=10.0, sync="bsp")
    with hosted as job:
        job.until(lambda status: status.samples > 300)
        assert job.kill("worker-1")
        before = job.status.samples
        job.until(lambda status: status.roles.relaunches >= 1 and status.samples > before + 100)
        counting.hurry(tmp_path)
        assert job.wait().phase is JobPhase.FINISHED
    counts = dict(np.load(tmp_path / "counts.npz"))
    grown = {name: counts[name] * BATCH for name in ("small", "rows")}  # in a group gradients are means
    np.savez(tmp_path / "counts.npz", **{**counts, **grown})
    assert counts_are_exact(tmp_path, ids)
