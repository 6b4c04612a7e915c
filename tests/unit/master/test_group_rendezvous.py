"""Members of a bsp group exchange addresses through the master and learn at once of a lost member."""

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


async def pending_request(work):
    """A request that has come to the master and is not answered."""
    task = asyncio.create_task(work)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def test_members_wait_for_values_and_get_all_that_were_shared(tmp_path):
    async def test(job):
        first = await pending_request(job.meet(0, "b", a=b"1"))
        assert await job.meet(1, "a", b=b"2") == {"a": b"1", "b": b"2"}
        assert await first == {"a": b"1", "b": b"2"}

    with_group(test, tmp_path)


def test_member_waiting_for_a_lost_member_gets_group_changed(tmp_path):
    async def test(job):
        first = await pending_request(job.meet(0, "b"))
        await job.kill_worker(1)
        with pytest.raises(errors.GroupChanged, match="group 1 is over"):
            await first

    with_group(test, tmp_path)


def test_member_waiting_for_one_in_a_new_group_joins_that_group(tmp_path):
    async def test(job):
        first = await pending_request(job.meet(0, "b", a=b"1"))
        again = await pending_request(job.form(1, generation=1))
        with pytest.raises(errors.GroupChanged):
            await first
        assert (await job.form(0, generation=1)).generation == (await again).generation == 2
        second = await pending_request(job.meet(0, "a", "b", generation=2))
        assert await job.meet(1, generation=2, a=b"3", b=b"4") == {"a": b"3", "b": b"4"}, "nothing of before is there"
        assert await second == {"a": b"3", "b": b"4"}

    with_group(test, tmp_path)


def test_member_whose_reply_was_lost_gets_the_same_group_again(tmp_path):
    async def test(job):
        first = await pending_request(job.meet(0, "b"))
        assert (await job.form(1)).generation == 1
        await job.meet(1, b=b"2")
        assert await first == {"b": b"2"}

    with_group(test, tmp_path)


def test_worker_outside_the_group_neither_reads_nor_writes_values(tmp_path):
    async def test(job):
        first = await pending_request(job.meet(0, "b", a=b"1"))
        job.peers["worker-2"] = Peer(address="worker-2")
        await job.ask("agent", messages.ScaleRequest(3, None, "asked by a test", None))
        await job.ask("worker-2", messages.JoinWorker(2, 5))
        with pytest.raises(errors.GroupChanged):
            await job.meet(2, b=b"a stranger's")
        await job.meet(1, b=b"2")
        assert await first == {"a": b"1", "b": b"2"}

    with_group(test, tmp_path)
