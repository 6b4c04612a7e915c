"""A checkpoint whose manifest cannot be written fails with a reason, and the job continues."""

import contextlib
import errno
from unittest import mock

import pytest

from tests.unit.master.checkpoint.test_schedule import with_job

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (FULL, "its manifest cannot be written to {folder}: No space left on device"),
        (RuntimeError("broken"), "RuntimeError: broken"),
    ],
)
def test_failed_publication_is_told_and_the_next_checkpoint_is_complete(tmp_path, caplog, error, why):
    async def test(job):
        await job.train()
        job.tick()
        saving = job.master.parts.checkpoints.saving
        saving.publish, saving.drop = mock.Mock(side_effect=error), mock.Mock(side_effect=FULL)
        with contextlib.suppress(RuntimeError):
            await job.save()
        await job.published()
        assert job.outcomes == [(1, "failed")] and saving.round is None
        said = why.format(folder=job.folder)
        assert job.told()[0]["why"] == said and said in job.master.status().checkpoints.trouble
        assert f"checkpoint 1 failed: {said}" in caplog.text
        assert "the remaining files of checkpoint 1 cannot be deleted" in caplog.text
        del saving.publish
        job.tick(3)
        await job.save()
        assert job.outcomes[-1] == (2, "complete")
        assert 0 <= job.told()[-1]["seconds"] < job.told()[-1]["begun_at"]

    with_job(test, tmp_path)
