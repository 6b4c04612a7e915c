"""A run owns its checkpoint folder and URL: other runs are refused, and a superseded one writes no more."""

import asyncio
import contextlib

import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FolderStore, UrlStore
from springtide.checkpoint.transfer import claims
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.master.checkpoint.round import CheckpointStore
from springtide.rpc.messages import messages
from tests.unit.checkpoint import stores
from tests.unit.master.checkpoint.test_schedule import OTHER, RULES, with_job
from tests.unit.master.servers import test_recovery


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


async def do_nothing(job):
    """A job body that only starts."""


async def saved(job):
    await job.train()
    job.tick()
    await job.save()
    assert job.outcomes[-1] == (1, "complete")


@pytest.mark.parametrize("by_then", [do_nothing, saved])
def test_second_run_in_a_folder_is_refused_and_changes_nothing(tmp_path, by_then):
    with_job(by_then, tmp_path)
    before = contents(tmp_path / "checkpoints")
    assert before
    with pytest.raises(errors.BadInput, match="--checkpoint-dir"):
        with_job(do_nothing, tmp_path, claim=OTHER)
    assert contents(tmp_path / "checkpoints") == before


def test_checkpoint_url_of_another_run_is_refused_and_the_folder_released(tmp_path):
    rules = CheckpointRules(every_s=30.0, url=f"file://{tmp_path}/copies")
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with_job(do_nothing, tmp_path / "first", rules=rules)
    with pytest.raises(errors.BadInput, match=r"copies belongs to run run1 .*--checkpoint-url"):
        with_job(do_nothing, tmp_path / "second", rules=rules, claim=OTHER)
    assert contents(tmp_path / "second" / "checkpoints") == {}
    assert claims.all_of(UrlStore(rules.url))[1].run == stores.RUN


def test_resumed_run_keeps_the_old_checkpoint_until_it_has_two_of_its_own(tmp_path):
    with_job(saved, tmp_path)
    folder = tmp_path / "checkpoints"

    async def again(job):
        assert checkpoint_io.numbers(job.master.parts.checkpoints.saving.place) == [1]
        await job.train(shards=1)
        job.tick()
        await job.save()
        assert [checkpoint_io.read(str(folder), number).run for number in (2, 1)] == ["run2", "run1"]
        await job.train()
        job.tick(31)
        await job.save()
        assert checkpoint_io.numbers(job.master.parts.checkpoints.saving.place) == [3, 2]

    rules = CheckpointRules(every_s=30.0, resume=str(folder), resume_number=1, resume_run=stores.RUN, numbers_after=1)
    with_job(again, tmp_path, rules=rules, claim=OTHER)


def test_superseded_run_publishes_and_removes_nothing(tmp_path):
    async def test(job):
        await saved(job)
        other, folder = RunClaim(run="run2", job="job", resumed_run=stores.RUN), FolderStore(job.folder)
        claims.take(folder, other)
        written = stores.save(stores.store(), job.folder, 2, life="server-0.9", run="run2")
        stores.publish(job.folder, 2, written, run="run2")
        theirs = {name: content for name, content in contents(job.folder).items() if ".run1." not in name}
        await job.train()
        job.tick(31)
        await job.save()
        assert job.outcomes[-1] == (2, "failed")
        assert "was taken over by run run2" in job.told()[-1]["why"]
        assert {name: content for name, content in contents(job.folder).items() if ".run1." not in name} == theirs
        assert not list(job.folder.glob("*-000002.run1.*")), "what it wrote itself does not fill the disk"
        job.master.parts.checkpoints.saving.go_back(1)
        assert checkpoint_io.read(str(job.folder), 2).run == "run2"

    with_job(test, tmp_path)


def test_successor_master_in_a_folder_of_another_run_counts_only_its_own(tmp_path):
    with_job(saved, tmp_path)
    folder = tmp_path / "checkpoints"
    claims.take(FolderStore(folder), RunClaim(run="run2", job="job", resumed_run=stores.RUN))
    written = stores.save(stores.store(), folder, 2, life="server-0.9", run="run2")
    stores.publish(folder, 2, written, run="run2")
    next_one = CheckpointStore(RULES, folder, stores.CLAIM, term=2)
    next_one.take_over(1, 0)
    assert [manifest.number for manifest in next_one.kept] == [1] and next_one.claim_name == ""
    assert checkpoint_io.read(str(folder), 2).run == "run2"


def test_claim_on_a_folder_is_released_when_a_run_ends_without_checkpoint(tmp_path):
    saving = CheckpointStore(RULES, tmp_path / "checkpoints", stores.CLAIM)
    saving.begin_run()
    assert claims.all_of(saving.place)[1].run == stores.RUN
    saving.end_run()
    CheckpointStore(RULES, tmp_path / "checkpoints", OTHER).begin_run()


def test_checkpoint_numbers_skip_newer_copies_of_the_previous_run(tmp_path):
    url = f"file://{tmp_path}/copies"
    for number, folder in ((5, tmp_path / "first"), (9, tmp_path / "copies")):
        stores.publish(folder, number, stores.save(stores.store(), folder, number))
    rules = CheckpointRules(
        every_s=30.0, url=url, resume=str(tmp_path / "first"), resume_number=5, resume_run=stores.RUN, numbers_after=5
    )
    saving = CheckpointStore(rules, tmp_path / "second", OTHER)
    saving.begin_run()
    record = test_recovery.JobRecord(JobSpec(name="job", slots=stores.SLOTS))
    assert saving.begin(record, {}, hurry=False, at=0.0).number == 10


def test_server_restoring_an_older_checkpoint_than_the_ledger_fails_the_job(tmp_path):
    """A first life: the ledger does not go back for it."""

    async def test():
        rules = CheckpointRules(every_s=30.0, resume="somewhere", resume_number=7, resume_run="run0")
        job = test_recovery.Job(tmp_path, checkpoints=rules)
        with contextlib.closing(job.story):
            await job.ask("agent", messages.JoinAgent(1))
            await job.ask("server-0", messages.JoinServer(0, 3))
            ready = messages.ServerReady("host:0", 6, "somewhere", unusable=("7 is torn",))
            asking = asyncio.create_task(job.ask("server-0", ready))
            while not job.desk.state.phase.over:
                await asyncio.sleep(0)
            asking.cancel()
            assert "could restore only checkpoint 6, but the job continues from 7" in job.desk.state.why

    asyncio.run(test())
