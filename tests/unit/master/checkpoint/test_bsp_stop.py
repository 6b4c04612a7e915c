"""Checkpoints of a bsp group: its lowest rank waits after a step until the slots are copied, and nobody goes on."""

import asyncio
import dataclasses

from springtide.checkpoint.format import checkpoint_io
from springtide.rpc.messages import messages
from tests.unit.master.checkpoint import test_schedule
from tests.waiting import soon

CARD = dataclasses.replace(test_schedule.CARD, in_step=True)


async def form(job, generation=0, **more):
    """The one worker is the group."""
    return await job.ask("worker-0", messages.GroupRequest(not generation, True, generation=generation, **more))


async def begin(job):
    """A group that has been given its first shard; the number of the checkpoint that is due."""
    formed = await form(job)
    assert formed.first and not formed.restored
    await job.ask("worker-0", messages.LeaseRequest(CARD))
    return (await job.ask("worker-0", messages.Heartbeat())).save


def at_step(number, step=3, **more):
    return messages.AtStep(number, step, 0, 5, **more)


def test_the_group_waits_until_all_servers_have_copied_and_the_manifest_has_the_step(tmp_path):
    async def test(job):
        assert await begin(job) == 1
        waiting = asyncio.ensure_future(job.ask("worker-0", at_step(1)))
        await job.save(0)
        assert not waiting.done()
        await job.save(1)
        assert isinstance(await waiting, messages.Ok)
        assert (await job.ask("worker-0", messages.Heartbeat())).save == 0, "the next one is due later"
        manifest = checkpoint_io.read(str(job.folder), 1)
        assert (manifest.progress.step, manifest.progress.samples) == (3, 5)
        late = await asyncio.wait_for(job.ask("worker-0", at_step(1, step=3)), 5)
        assert isinstance(late, messages.WaitReply), "a word that comes twice begins nothing"
        assert job.outcomes == [(1, "complete")]

    test_schedule.with_job(test, tmp_path, sync="bsp")


def test_what_is_copied_while_another_group_is_formed_is_no_checkpoint(tmp_path):
    async def test(job):
        await begin(job)
        waiting = asyncio.ensure_future(job.ask("worker-0", at_step(1)))
        await job.save(0)
        assert (await form(job, generation=1)).generation == 2
        await job.save(1)
        await waiting
        assert job.outcomes == [(1, "abandoned")] and "formed anew" in job.told()[0]["why"]

    test_schedule.with_job(test, tmp_path, sync="bsp")


def test_a_group_that_ends_makes_a_last_one_which_is_complete_before_it_goes(tmp_path):
    async def test(job):
        await begin(job)
        over = await form(job, generation=1, resting=True)
        assert over.over and over.save == 1 and over.leader == 0
        waiting = asyncio.ensure_future(job.ask("worker-0", at_step(1, last=True)))
        await job.save()
        await waiting
        assert checkpoint_io.read(str(job.folder), 1).progress.step == 3
        again = await asyncio.wait_for(job.ask("worker-0", at_step(2, last=True)), 5)
        assert isinstance(again, messages.Ok) and job.outcomes == [(1, "complete")], "nothing was trained since"

    test_schedule.with_job(test, tmp_path, sync="bsp")


def test_a_job_without_checkpoints_asks_for_none(tmp_path):
    async def test(job):
        assert await begin(job) == 0
        assert (await form(job, generation=1, resting=True)).save == 0

    test_schedule.with_job(test, tmp_path, sync="bsp", rules=test_schedule.CheckpointRules())


def test_a_group_that_keeps_rows_goes_back_to_its_checkpoint_when_a_step_is_interrupted(tmp_path):
    async def test(job):
        await begin(job)
        waiting = asyncio.ensure_future(job.ask("worker-0", at_step(1)))
        await job.save()
        await waiting
        interrupted = asyncio.ensure_future(form(job, generation=1, bound=True))
        await asyncio.sleep(0)
        state = job.master.state
        await soon(lambda: state.decision.what.startswith("take the bsp group back to checkpoint 1"))
        assert state.decision.why == "a member was lost, and rows that only its cache had were lost with it"
        assert state.bsp.generation == 2 and not state.bsp.members
        interrupted.cancel()

    test_schedule.with_job(test, tmp_path, sync="bsp")
