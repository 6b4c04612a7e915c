"""The master gathers the values of all workers that can still give one, and every worker gets the same result."""

import asyncio
import contextlib

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import EpochPlace
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.core import actions, events
from springtide.master.core import record as records
from springtide.master.core.context import MasterContext
from springtide.master.core.record import JobRecord
from springtide.master.data.shared_values import ValueGatherer
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import GatherReply, GatherRequest, Regroup
from springtide.telemetry.events import EventLog


class Workers:
    """Workers of a job, which call `gather` in tasks."""

    def __init__(self, story, *, count=2, begun=True, known=None):
        spec = JobSpec(name="job", workers=count, relaunches=10)
        self.context = MasterContext(known or JobRecord(spec), story, lambda: 0.0)
        self.record = self.context.record
        self.gatherer = ValueGatherer(self.context)
        for rank in range(count if known is None else 0):
            self.join(rank)
            if begun:
                self.record.scripts.remember(rank, {}, EpochPlace(0, 0, 1))
        self.apply(events.RoleJoined(Role(RoleKind.SERVER, 0), 0, 9))
        self.apply(events.RoleReady(Role(RoleKind.SERVER, 0), "host:1", 0))

    def apply(self, event):
        self.context.apply(event)

    def join(self, rank, incarnation=0):
        self.apply(events.RoleJoined(Role(RoleKind.WORKER, rank), incarnation, 100 + rank + 10 * incarnation))

    def kill(self, rank):
        self.apply(events.RoleExited(RoleExit(role=Role(RoleKind.WORKER, rank), pid=1, signal="SIGKILL")))

    def finish(self, rank):
        self.apply(events.ScriptFinished(Role(RoleKind.WORKER, rank), 0, 0, ""))

    def gather(self, rank, value, place=1, number=0, incarnation=0):
        request = GatherRequest(place, number, value)
        return asyncio.create_task(self.gatherer.gather(LeaseHolder(rank, incarnation), request))


async def assert_waits(task):
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()


@pytest.fixture
def run(tmp_path):
    """Run a coroutine function with an event log, and end what it has started."""

    def run(test):
        async def main():
            await test(story)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

        asyncio.run(main())

    story = EventLog(tmp_path / "events.jsonl")
    yield run
    story.close()


def test_every_worker_gets_all_values_by_rank(run):
    async def test(story):
        workers = Workers(story)
        second = workers.gather(1, b"one")
        await assert_waits(second)
        expected = GatherReply({0: b"zero", 1: b"one"})
        assert await workers.gather(0, b"zero") == await second == expected

    run(test)


def test_lost_worker_is_waited_for_and_gets_the_results_that_the_others_got(run):
    async def test(story):
        workers = Workers(story)
        first = workers.gather(0, b"zero"), workers.gather(1, b"one")
        await asyncio.gather(*first)
        waiting = workers.gather(0, b"zero", number=1)
        await assert_waits(waiting)
        workers.kill(1)
        await assert_waits(waiting)
        workers.join(1, 1)
        assert await workers.gather(1, b"again", incarnation=1) == GatherReply({0: b"zero", 1: b"one"})
        await assert_waits(waiting)
        assert (await workers.gather(1, b"new", number=1, incarnation=1)).values == {0: b"zero", 1: b"new"}
        assert (await waiting).values == {0: b"zero", 1: b"new"}

    run(test)


def test_value_counts_when_its_worker_is_lost_afterwards(run):
    async def test(story):
        workers = Workers(story)
        waiting = workers.gather(1, b"one")
        await assert_waits(waiting)
        waiting.cancel()
        workers.kill(1)
        assert (await workers.gather(0, b"zero")).values == {0: b"zero", 1: b"one"}

    run(test)


def test_worker_that_ends_is_not_waited_for(run):
    async def test(story):
        workers = Workers(story)
        waiting = workers.gather(0, b"zero")
        await assert_waits(waiting)
        workers.finish(1)
        assert (await waiting).values == {0: b"zero"}

    run(test)


def test_worker_that_has_not_begun_an_epoch_is_not_waited_for_except_before_the_first(run):
    async def test(story):
        workers = Workers(story)
        workers.apply(events.WorkersScaled(3, "more"))
        values = await asyncio.gather(workers.gather(0, b"zero"), workers.gather(1, b"one"))
        assert values == [GatherReply({0: b"zero", 1: b"one"})] * 2
        workers.join(2)
        assert (await workers.gather(2, b"two")).values == {0: b"zero", 1: b"one"}, "it gets the results of the others"
        waiting = [workers.gather(rank, b"later", place=3) for rank in (0, 1)]
        await assert_waits(waiting[0])
        await workers.gather(2, b"later", place=3)
        assert len((await waiting[0]).values) == 3
        begin = Workers(story, begun=False)
        await assert_waits(begin.gather(0, b"zero", place=-1))

    run(test)


def test_worker_in_a_later_call_is_not_waited_for(run):
    async def test(story):
        workers = Workers(story)
        ahead = workers.gather(1, b"ahead", place=1, number=1)
        await assert_waits(ahead)
        assert (await workers.gather(0, b"zero", place=1, number=0)).values == {0: b"zero"}
        await workers.gather(0, b"zero", place=1, number=1)
        assert (await ahead).values == {0: b"zero", 1: b"ahead"}

    run(test)


def test_draining_worker_gets_no_result_and_is_waited_for_until_it_ends(run):
    async def test(story):
        workers = Workers(story)
        leaving = workers.gather(1, b"one")
        await assert_waits(leaving)
        workers.apply(events.WorkersScaled(1, "fewer"))
        assert isinstance(await leaving, messages.DataEnd)
        assert (await workers.gather(0, b"zero")).values == {0: b"zero", 1: b"one"}, "its value had arrived"

    run(test)


def test_group_that_lost_a_member_forms_again(run):
    async def test(story):
        workers = Workers(story)
        workers.apply(events.BspBegan())
        workers.apply(events.GroupFormed((LeaseHolder(0), LeaseHolder(1)), "all are here"))
        waiting = workers.gather(0, b"zero")
        await assert_waits(waiting)
        workers.kill(1)
        assert isinstance(await waiting, Regroup)
        workers.join(1, 1)
        workers.apply(events.GroupFormed((LeaseHolder(0), LeaseHolder(1, 1)), "all are here"))
        again = workers.gather(0, b"zero")
        await assert_waits(again)
        assert await workers.gather(1, b"one", incarnation=1) == await again

    run(test)


def test_rollback_forgets_values(run):
    async def test(story):
        workers = Workers(story)
        await asyncio.gather(workers.gather(0, b"zero"), workers.gather(1, b"one"))
        given = workers.gather(1, b"later", number=1)
        await assert_waits(given)
        workers.record.shared.gathered = {}
        for listener in workers.context._listeners:
            listener([actions.RollBack(False)])
        waiting = workers.gather(0, b"zero", number=1)
        await assert_waits(waiting)

    run(test)


def test_next_master_knows_results_that_one_worker_already_has(run):
    async def test(story):
        workers = Workers(story)
        await asyncio.gather(workers.gather(0, b"zero"), workers.gather(1, b"one"))
        successor = Workers(story, known=JobRecord.from_bytes(workers.record.to_bytes()))
        assert (await successor.gather(1, b"one")).values == {0: b"zero", 1: b"one"}

    run(test)


def test_too_large_values_are_refused_and_old_results_are_forgotten(run, monkeypatch):
    monkeypatch.setattr(records, "MAX_GATHERED_BYTES", 10)

    async def test(story):
        workers = Workers(story, count=1)
        with pytest.raises(errors.BadInput, match="11 bytes together, at most 10 are possible"):
            await workers.gather(0, b"x" * 11)
        for number in range(4):
            await workers.gather(0, b"four", number=number)
        assert list(workers.record.shared.gathered) == ["1.2", "1.3"]

    run(test)
