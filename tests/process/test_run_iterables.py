"""An IterableDataset of fixed order is counted exactly once while workers die and join."""

import signal

import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting, group_counting

pytestmark = pytest.mark.process

BATCH = 32
STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(Ids().ids)


job = st.join()
"""


@pytest.mark.timeout(400)
def test_iterable_is_counted_once_though_workers_are_killed_and_added(tmp_path, rng):
    ids = counting.draw(rng, 200 * BATCH - 5)
    script = counting.write(tmp_path, ids)
    text = script.read_text().replace("job = st.join()\n", STREAM).replace("optimizer, Ids(),", "optimizer, Stream(),")
    script.write_text(text)
    spec = JobSpec(name="stream", workers=2, heartbeat_s=0.2, relaunches=10, backoff_s=0.0)
    with LocalCluster(script, [tmp_path, 2, BATCH, 0.15], spec=spec, folder=tmp_path / "runs") as job:
        job.until(lambda status: status.samples > 20 * BATCH)
        job.kill_each("worker-1")
        job.scale(3)
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert status.samples == 2 * len(ids), "the last batch of an epoch is not full"
    assert not counting.differences(tmp_path, ids, epochs=2, batch=BATCH)
    assert status.roles.relaunches == 1 and status.data.shards_done == status.data.shards_total


@pytest.mark.timeout(400)
@pytest.mark.parametrize("lost", [["worker-1"], ["worker-0", "worker-1"]])
def test_bsp_group_over_an_iterable_restarts_after_lost_workers_and_counts_once(tmp_path, lost):
    def hurt(job):
        for role in lost:
            job.signal(role, signal.SIGSTOP)  # so that no survivor can tell the master
        job.kill_each(*lost)
        job.until(
            lambda _: any("restart training from the first sample" in str(each.get("what")) for each in job.story)
        )

    def spec(**more):
        rules = CheckpointRules(every_s=0.5)
        given = dict(workers=2, sync="bsp", heartbeat_s=0.2, relaunches=10, backoff_s=0.0, checkpoints=rules)
        return JobSpec(name="stream", **given, **more)

    text = group_counting.COUNTING.replace("job = st.join()\n", STREAM).replace(
        "optimizer, Ids(),", "optimizer, Stream(),"
    )
    # in a step, each of the two workers trains a mini-batch
    text = text.replace("batch_size=batch", "batch_size=batch // 2")
    _, wrong = group_counting.count(tmp_path, spec, 3, batches=100, hurt=hurt, text=text, pause_s=0.2)
    assert not wrong, wrong
