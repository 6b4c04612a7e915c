"""Members of a bsp group learn through the master where the others are, and hear at once when one will not come."""

import asyncio

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import GroupRequest, MeetRequest
from springtide.rpc.transport.listener import Peer
from tests.unit.master.servers.test_recovery import Job


class Group(Job):
    """Two workers that have formed their first group."""

    async def begin(self):
        self.peers["worker-1"] = Peer(address="worker-1")
        await self.ask("agent", messages.JoinAgent(1))
        for rank in range(2):
            await self.ask(f"server-{rank}", messages.JoinServer(rank, 3))
        await asyncio.gather(*(self.ask(f"server-{n}", messages.ServerReady(f"host:{n}")) for n in range(2)))
        for rank in range(2):
            await self.ask(f"worker-{rank}", messages.JoinWorker(rank, 4))
        formed = await asyncio.gather(*(self.form(rank) for rank in range(2)))
        assert [each.generation for each in formed] == [1, 1]

    async def form(self, rank, generation=0):
        async with asyncio.timeout(60):
            return await self.ask(f"worker-{rank}", GroupRequest(not generation, True, generation=generation))

    async def meet(self, rank, *wanted, generation=1, **given):
        async with asyncio.timeout(60):
            met = await self.ask(f"worker-{rank}", MeetRequest(generation, given, wanted))
        return met.values

    async def kill_worker(self, rank):
        ended = RoleExit(role=Role(RoleKind.WORKER, rank), pid=4, signal="SIGKILL", incarnation=0)
        await self.ask("agent", messages.RoleExitReport(ended))


def with_group(test, folder):
    async def run():
        job = Group(folder, sync="bsp", workers=2)
        try:
            await job.begin()
            await test(job)
        finally:
            job.story.close()

    asyncio.run(run())


async def waiting(work):
    """A request that has come to the master and is not answered."""
    task = asyncio.create_task(work)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def test_a_value_is_waited_for_and_both_have_all_that_was_given(tmp_path):
    async def test(job):
        first = await waiting(job.meet(0, "b", a=b"1"))
        assert await job.meet(1, "a", b=b"2") == {"a": b"1", "b": b"2"}
        assert await first == {"a": b"1", "b": b"2"}

    with_group(test, tmp_path)


def test_a_member_that_waits_for_a_lost_member_is_told(tmp_path):
    async def test(job):
        first = await waiting(job.meet(0, "b"))
        await job.kill_worker(1)
        with pytest.raises(errors.GroupChanged, match="group 1 is over"):
            await first

    with_group(test, tmp_path)


def test_a_member_that_waits_for_one_that_formed_another_group_joins_that_group(tmp_path):
    async def test(job):
        first = await waiting(job.meet(0, "b", a=b"1"))
        again = await waiting(job.form(1, generation=1))
        with pytest.raises(errors.GroupChanged):
            await first
        assert (await job.form(0, generation=1)).generation == (await again).generation == 2
        second = await waiting(job.meet(0, "a", "b", generation=2))
        assert await job.meet(1, generation=2, a=b"3", b=b"4") == {"a": b"3", "b": b"4"}, "nothing of before is there"
        assert await second == {"a": b"3", "b": b"4"}

    with_group(test, tmp_path)


def test_a_member_whose_answer_was_lost_is_told_the_same_group_again_and_the_others_wait_for_it(tmp_path):
    async def test(job):
        first = await waiting(job.meet(0, "b"))
        assert (await job.form(1)).generation == 1
        await job.meet(1, b=b"2")
        assert await first == {"b": b"2"}

    with_group(test, tmp_path)


def test_a_worker_that_is_not_in_the_group_reads_and_writes_nothing(tmp_path):
    async def test(job):
        first = await waiting(job.meet(0, "b", a=b"1"))
        job.peers["worker-2"] = Peer(address="worker-2")
        await job.ask("agent", messages.ScaleRequest(3, None, "asked by a test", None))
        await job.ask("worker-2", messages.JoinWorker(2, 5))
        with pytest.raises(errors.GroupChanged):
            await job.meet(2, b=b"a stranger's")
        await job.meet(1, b=b"2")
        assert await first == {"a": b"1", "b": b"2"}

    with_group(test, tmp_path)
