"""A temporarily full disk fails checkpoints with a message; training continues and the next one restores."""

import numpy as np
import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting, disks

pytestmark = [
    pytest.mark.process,
    pytest.mark.soak,
    disks.needs_root,
]
BATCH = 32


@pytest.mark.timeout(400)
def test_temporarily_full_disk_fails_only_checkpoints(tmp_path):
    ids = counting.draw(np.random.default_rng(41), 1200 * BATCH - 5)
    script = counting.write(tmp_path, ids)
    with disks.disk(tmp_path / "disk", "8m") as small:
        spec = JobSpec(
            name="full",
            workers=2,
            servers=2,
            slots=128,
            heartbeat_s=0.2,
            relaunches=100,
            backoff_s=0.0,
            checkpoints=CheckpointRules(every_s=0.5, folder=str(small)),
        )
        with LocalCluster(script, [tmp_path, 1, BATCH, 0.02], spec=spec, folder=tmp_path / "runs") as job:
            job.until(lambda status: status.checkpoints.number and status.samples)
            disks.fill(small / "others")
            before = job.until(lambda status: "No space left" in status.checkpoints.trouble)
            told = job.until(lambda status: status.samples > before.samples + 20 * BATCH)
            assert told.checkpoints.number == before.checkpoints.number and told.phase is JobPhase.RUNNING
            (small / "others").unlink()
            job.until(
                lambda status: status.checkpoints.number > told.checkpoints.number and not status.checkpoints.trouble
            )
            job.kill("server-1")
            status = job.wait()
    assert status.phase is JobPhase.FINISHED and status.samples == len(ids), status
    (back,) = [event for event in job.story if event["event"] == "ready" and event.get("checkpoint")]
    assert back["checkpoint"] > told.checkpoints.number, "from one that was made after there was room again"
    assert not (wrong := counting.differences(tmp_path, ids, epochs=1, batch=BATCH)), wrong


@pytest.mark.timeout(400)
def test_server_loss_before_the_first_checkpoint_loses_no_sample(tmp_path):
    ids = counting.draw(np.random.default_rng(43), 600 * BATCH)
    script = counting.write(tmp_path, ids)
    with disks.disk(tmp_path / "disk", "8m") as small:
        disks.fill(small / "others")
        spec = JobSpec(
            name="early",
            workers=2,
            servers=2,
            slots=128,
            heartbeat_s=0.2,
            relaunches=100,
            backoff_s=0.0,
            checkpoints=CheckpointRules(every_s=0.5, folder=str(small)),
        )
        with LocalCluster(script, [tmp_path, 1, BATCH, 0.01], spec=spec, folder=tmp_path / "runs") as job:
            before = job.until(lambda status: status.samples > 40 * BATCH and status.checkpoints.trouble)
            job.kill("server-1")
            job.until(lambda status: 0 < status.samples < before.samples)
            (small / "others").unlink()
            job.until(lambda status: status.checkpoints.number)
            job.kill("server-0")
            status = job.wait()
    assert status.phase is JobPhase.FINISHED and status.samples == len(ids), status
    assert any("no checkpoint is complete yet" in event.get("what", "") for event in job.story)
    assert not (wrong := counting.differences(tmp_path, ids, epochs=1, batch=BATCH)), wrong
