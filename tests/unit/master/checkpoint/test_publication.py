"""What the master tells of a checkpoint: failed publications, missing mirrors, copies that do not come."""

import asyncio
import contextlib
import dataclasses
import errno
from unittest import mock

import msgspec
import pytest

from tests.unit.master.checkpoint.test_schedule import RULES, with_job
from tests.unit.master.checkpoint.test_server_disks import give_private_disks, save, stored

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


def test_event_names_the_files_without_a_mirror(tmp_path):
    async def test(job):
        await job.train()
        asking = [asyncio.ensure_future(job.order(rank)) for rank in range(2)]
        for _ in range(9):
            await asyncio.sleep(0)  # both servers ask
        job.tick()
        for rank, order in enumerate(await asyncio.gather(*asking)):
            said = job.servers[rank].saver.save(order)
            await job.ask(f"server-{rank}", msgspec.structs.replace(said, unmirrored="full" if rank else ""))
        await job.published()
        assert job.told()[0]["mirror"] == "server-1.0: full"

    with_job(test, tmp_path, rules=dataclasses.replace(RULES, mirror=True))


def test_end_of_data_waits_only_while_its_checkpoint_is_being_copied(tmp_path):
    async def test(job):
        book, uploading = job.master.record.book, job.master.parts.checkpoints.uploading
        uploading.poll = mock.Mock(return_value=True)
        give_private_disks(job, tmp_path)
        await job.train(shards=4)
        for _ in range(2):  # the first began with training
            await save(job)
            job.tick()
        assert book.waits_to_end and job.outcomes == [(1, "complete"), (2, "complete")]
        uploading.poll = mock.Mock(return_value=False)
        job.tick()
        assert not book.waits_to_end and job.outcomes[-1] == (2, "skipped")
        assert f"it could not be copied to file://{tmp_path}/copy" in job.told()[-1]["why"]

    with_job(test, tmp_path, rules=stored(tmp_path))
