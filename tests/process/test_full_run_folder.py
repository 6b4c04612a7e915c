"""A full disk of the run folder: the job waits, reports it, and trains every sample once."""

import numpy as np
import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.platforms.local import job_handle
from springtide.telemetry import logs
from springtide.testing.cluster import LocalCluster
from tests.process import counting, disks, running

pytestmark = [pytest.mark.process, disks.needs_root]
BATCH = 32


def spec_of(tmp_path, **others):
    """Checkpoints are elsewhere: they have tests of their own."""
    return JobSpec(
        name="full",
        workers=2,
        servers=1,
        slots=64,
        heartbeat_s=0.1,
        relaunches=100,
        backoff_s=0.0,
        checkpoints=CheckpointRules(every_s=0.5, folder=str(tmp_path / "checkpoints")),
        **others,
    )


def test_job_waits_for_a_full_run_folder_disk_despite_kills(tmp_path):
    ids = counting.draw(np.random.default_rng(47), 300 * BATCH - 5)
    script = counting.write(tmp_path, ids)
    with (
        disks.disk(tmp_path / "disk", "8m") as small,
        LocalCluster(script, [tmp_path, 1, BATCH, 0.1], spec=spec_of(tmp_path), folder=small) as job,
    ):
        job.until(lambda status: status.checkpoints.number and status.samples > 20 * BATCH)
        disks.fill(small / "others")
        told = job.until(lambda status: "journal.db since" in status.master.disk_trouble)
        assert told.phase is JobPhase.RUNNING
        (run,) = logs.find_runs(small)
        assert "free some space" in job_handle.LocalJobHandle(run).status().master.disk_trouble, (
            "`springtide status` says it"
        )
        job.kill("worker-1")
        assert job.status.phase is JobPhase.RUNNING
        (small / "others").unlink()
        job.until(lambda status: not status.master.disk_trouble and status.roles.relaunches)
        disks.fill(small / "others")
        job.until(lambda status: status.master.disk_trouble)
        job.kill("master")  # the next one has nothing to write its journal to
        job.kill("worker-0")
        (small / "others").unlink()
        job.until(lambda status: status.master.term == 2)
        counting.hurry(tmp_path)
        status = job.wait()
        assert status.phase is JobPhase.FINISHED and status.samples == counting.told_samples(job) == len(ids), status
    assert not (wrong := counting.differences(tmp_path, ids, epochs=1, batch=BATCH)), wrong


def test_run_folder_disk_that_stays_full_fails_the_job_and_is_named(tmp_path):
    script = tmp_path / running.script(tmp_path, running.endless_loop())
    with (
        disks.disk(tmp_path / "disk", "8m") as small,
        LocalCluster(script, spec=spec_of(tmp_path, disk_s=1.0), folder=small) as job,
    ):
        job.until(lambda status: status.samples)
        disks.fill(small / "others")
        status = job.wait()
    assert status.phase is JobPhase.FAILED
    assert status.why.startswith(f"no room left to write {small}/full/journal.db; free some space")
    assert "tried for 1 s (--disk-wait)" in status.why
