"""A run that trains new data with the model of another run's checkpoint, at the master."""

import asyncio
import dataclasses
import json

import msgspec
import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer import claims
from springtide.domain.data.leases import Progress
from springtide.domain.data.samples import EpochPlace
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.model.tables import SHARED_KEY, DenseOutline, Outline
from springtide.master.checkpoint.round import AT_START, note_of
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ShareRequest
from tests.unit.checkpoint import stores
from tests.unit.master.checkpoint.test_schedule import CARD, OTHER, at_step, begin, form, with_job


def after(folder, job, **spec):
    """Run a job in the folder a; return the rules of a job with new data."""
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    with_job(job, folder / "a", **spec)
    where = str(folder / "a" / "checkpoints")
    return CheckpointRules(
        every_s=30, resume=where, resume_number=1, resume_run=stores.RUN, numbers_after=1, new_data=True
    )


def test_run_with_new_data_takes_the_model_and_leaves_the_other_run_alone(tmp_path):
    tomorrow = dataclasses.replace(CARD, samples=60)

    async def first(job):
        await job.train()
        await job.ask("worker-0", messages.EpochBegun(EpochPlace(4, 4, 5), {"schedule": b"late"}))
        job.tick()
        await job.save()

    async def second(job):
        record = job.master.record
        assert (record.book.samples_done, record.span.samples_before) == (0, 0)
        assert record.scripts.objects_for(0) == {"schedule": b"late"} and record.scripts.places == AT_START
        leased = await job.ask("worker-0", messages.LeaseRequest(tomorrow))
        assert leased.grants[0].shard == CARD.shards, "slots know the numbers of the other run's shards"
        word = Progress(leased.grants[0].shard, 0, 10, 10)
        await job.ask("worker-0", messages.Heartbeat(progress=(word,)))
        job.tick()
        await job.save()
        made = checkpoint_io.latest(str(job.folder)).manifest
        assert (made.number, made.run, made.progress.samples) == (2, OTHER.run, 10)
        assert note_of(made).next_shard == CARD.shards + tomorrow.shards
        assert claims.all_of(FolderStore(job.folder))[1].resumed_run == ""

    rules = after(tmp_path, first)
    folder = tmp_path / "a" / "checkpoints"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with_job(second, tmp_path / "b", rules=rules, claim=OTHER)
    with pytest.raises(errors.BadInput, match="checkpoints of another run; choose another place"):
        with_job(second, tmp_path / "a", rules=rules, claim=OTHER)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    story = [json.loads(line) for line in (tmp_path / "b" / "events.jsonl").read_text().splitlines()]
    assert [(event["number"], event["samples"]) for event in story if event["event"] == "new_data"] == [(1, 10)]


@pytest.mark.parametrize("new_data", [True, False])
def test_model_with_its_dense_layers_elsewhere_is_refused(tmp_path, new_data):
    parts = [dict(shape=(4, 2), dtype="float32", table=7, first=first, chunks=1) for first in (0, 1)]

    def share(*names):
        dense = tuple(DenseOutline(name=name, **part) for name, part in zip(names, parts, strict=False))
        return ShareRequest(SHARED_KEY, msgspec.msgpack.encode(Outline(dense=dense)))

    async def first(job):
        await job.ask("worker-0", share("net.0.weight", "net.2.weight"))
        await job.train()
        job.tick()
        await job.save()

    async def second(job):
        said = "'net.1.weight' of shape .4, 2. where the servers have 'net.2.weight'"
        with pytest.raises(errors.BadInput, match=said):
            await job.ask("worker-0", share("net.0.weight", "net.1.weight"))
        await job.ask("worker-0", share("net.0.weight"))
        await job.ask("worker-0", ShareRequest(SHARED_KEY, b"of another version"))

    rules = after(tmp_path, first)
    with_job(second, tmp_path / "b", rules=dataclasses.replace(rules, new_data=new_data), claim=OTHER)


def test_bsp_group_with_new_data_takes_the_model_from_the_servers(tmp_path):
    async def first(job):
        await begin(job)
        waiting = asyncio.ensure_future(job.ask("worker-0", at_step(1)))
        await job.save()
        await waiting

    async def second(job):
        formed = await form(job)
        assert formed.first and formed.restored

    rules = after(tmp_path, first, sync="bsp")
    with_job(second, tmp_path / "b", rules=rules, claim=OTHER, sync="bsp")
