"""Stream leases of the master: grants, reclaims, rebalancing, and cuts."""

import asyncio
import dataclasses

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import Grant, Progress
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, BatchCut, PartitionRange, StreamCard
from springtide.domain.spec.job_spec import JobSpec
from springtide.master.autoscale.online_loop import OnlineAutoscaler
from springtide.master.core.record import JobRecord
from springtide.master.data import leases
from springtide.master.main import build_service
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import CutRequest, CutsNoted
from springtide.telemetry.events import EventLog
from tests.unit.master.test_dispatcher import Clock, join_all_roles, with_desk

CARD = DatasetCard(samples=0, batch_size=10, stream=StreamCard(url="log:///tmp/clicks"))
FOUR = tuple(PartitionRange(partition, 0, 100) for partition in range(4))


class MemoryJournal(list):
    """An in-memory journal from which the master's record is rebuilt."""

    since_snapshot, idle, stuck = 0, True, ""

    async def committed(self):
        pass

    async def flushed_or_full(self):
        return True


def ask(progress=(), seen=FOUR, era=0):
    return messages.LeaseRequest(CARD, tuple(progress), most=99, era=era, seen=seen)


def progress_of(grants, trained=0):
    return [Progress(grant.shard, grant.first, grant.first + trained, grant.end) for grant in grants]


def test_successor_master_has_the_same_stream_leases_and_cuts(tmp_path):
    journal = MemoryJournal()

    async def run():
        story = EventLog(tmp_path / "events.jsonl")
        master = build_service(JobRecord(JobSpec(name="job", workers=1)), story, Clock(), journal)
        worker = (await join_all_roles(master))["worker-0"]
        leased = await master.handle(worker, ask())
        assert leased.grants == tuple(Grant(number, 0, number, 0, FAR) for number in range(4))
        asked = (BatchCut(0, 0, 7), BatchCut(3, 0, 13), BatchCut(9, 0, 1))
        assert await master.handle(worker, CutRequest(asked)) == CutsNoted(asked[:2])
        assert await master.handle(worker, CutRequest(asked, era=1)) == CutsNoted(())
        await master.handle(worker, messages.Heartbeat(None, tuple(progress_of(leased.grants, 20))))
        await master.handle(worker, ask(progress_of(leased.grants, 20), (*FOUR, PartitionRange(4, 0, 5, final=True))))
        lines = len(journal)
        await master.handle(worker, CutRequest(asked))
        assert len(journal) == lines, "what is known is not written again"
        story.close()
        return master

    master = asyncio.run(run())
    again = JobRecord(JobSpec(name="job", workers=1))
    for line in journal:
        again.replay(line)
    for one in (master.record.book, again.book):
        one.renew(0.0)
    assert again.book.to_state() == master.record.book.to_state()
    assert JobRecord.from_bytes(again.to_bytes()).book.to_state() == again.book.to_state()
    (flow,) = again.book.flows()
    assert flow.partitions[0].cuts == [7] and flow.partitions[4].end == 5


def test_stream_lease_includes_known_cuts_above_it(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HOLD_S", 0.01)

    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        first = await master.handle(peers["worker-0"], ask())
        assert len(first.grants) == 2
        await master.handle(peers["worker-0"], CutRequest((BatchCut(0, 0, 7),)))
        clock.now = 40.0  # nobody has named its leases for long
        master.tick()
        await master.handle(peers["worker-0"], messages.Heartbeat())
        leased = await master.handle(peers["worker-1"], ask())
        assert BatchCut(0, 0, 7) in leased.cuts

    with_desk(test, tmp_path, workers=2, heartbeat_s=60)


async def with_idle_second_worker(master, clock):
    """Two workers of which one does not read; the other one, and its four leases."""
    peers = await join_all_roles(master, workers=2)
    zero, one = peers["worker-0"], peers["worker-1"]
    mine = (await master.handle(zero, ask())).grants
    clock.now = leases.PATIENCE_S + 1
    master.tick()
    clock.now += leases.PATIENCE_S + 1
    master.tick()
    mine += (await master.handle(zero, ask(progress_of(mine)))).grants
    assert len(mine) == 4, "the other one does not read"
    return zero, one, mine


def test_late_worker_gets_partitions_released_by_heartbeats_of_others(tmp_path):
    async def test(master, clock):
        zero, one, mine = await with_idle_second_worker(master, clock)
        waiting = asyncio.create_task(master.handle(one, ask()))
        await asyncio.sleep(0)
        clock.now += 1
        master.tick()
        pulse = await master.handle(zero, messages.Heartbeat(None, tuple(progress_of(mine, 20))))
        assert len(pulse.truncate) == 2 and not waiting.done()
        assert "2 move to workers with fewer partitions" in master.status().master.decision_why
        ended = [Progress(wish.shard, wish.first, 20, 30) for wish in pulse.truncate]
        await master.handle(zero, messages.Heartbeat(None, tuple(ended)))
        got = (await waiting).grants
        assert [(grant.shard, grant.first) for grant in got] == [(wish.shard, 30) for wish in pulse.truncate]
        clock.now += 1
        master.tick()
        assert len(master.record.book.flows()[0].held[1]) == 2

    with_desk(test, tmp_path, workers=2, heartbeat_s=60)


def test_slow_worker_gives_up_all_partitions_but_one_and_regains_some_later(tmp_path, monkeypatch):
    async def test(master, clock):
        zero, one, mine = await with_idle_second_worker(master, clock)
        monkeypatch.setattr(OnlineAutoscaler, "slow", (0,))
        monkeypatch.setattr(leases, "SLOW_S", 5.0)
        waiting = asyncio.create_task(master.handle(one, ask()))
        await asyncio.sleep(0)
        clock.now += 1
        master.tick()
        pulse = await master.handle(zero, messages.Heartbeat(None, tuple(progress_of(mine, 20))))
        assert len(pulse.truncate) == 3 and "3 move away from slow workers" in master.status().master.decision_why
        ended = [Progress(wish.shard, wish.first, 20, 30) for wish in pulse.truncate]
        left = [one for one in progress_of(mine, 20) if one.shard not in {wish.shard for wish in pulse.truncate}]
        await master.handle(zero, messages.Heartbeat(None, (*left, *ended)))
        await waiting
        flow = master.record.book.flows()[0]
        monkeypatch.setattr(OnlineAutoscaler, "slow", ())
        for later_s, owned in ((4, 1), (2, 2)):
            clock.now += later_s
            master.tick()
            assert [one.owner for one in flow.partitions.values()].count(0) == owned

    with_desk(test, tmp_path, workers=2, heartbeat_s=60)


def test_partitions_of_a_lost_worker_go_to_others_at_once(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        mine = (await master.handle(peers["worker-0"], ask())).grants
        await master.handle(peers["worker-1"], ask())
        lost = RoleExit(role=Role(RoleKind.WORKER, 1), pid=2, signal="SIGKILL")
        master.tick()
        waiting = asyncio.create_task(master.handle(peers["worker-0"], ask(progress_of(mine))))
        await asyncio.sleep(0)
        assert not waiting.done(), "each worker already has its share"
        await master.handle(peers["agent"], messages.RoleExitReport(lost))
        more = await waiting
        assert {grant.shard for grant in (*mine, *more.grants)} == {0, 1, 2, 3}, "without another tick"
        assert "2 free partitions get a worker" in master.status().master.decision_why


def test_unleased_partitions_are_reserved_for_workers_still_starting(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HOLD_S", 0.01)

    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        mine = (await master.handle(peers["worker-0"], ask())).grants
        master.tick()
        clock.now = leases.PATIENCE_S - 0.1
        master.tick()
        assert await master.handle(peers["worker-0"], ask(progress_of(mine))) == messages.WaitReply()
        clock.now += leases.LOOK_S
        master.tick()
        assert (await master.handle(peers["worker-0"], messages.Heartbeat(None, tuple(progress_of(mine))))).hurry
        more = await master.handle(peers["worker-0"], ask(progress_of(mine)))
        assert {grant.shard for grant in (*mine, *more.grants)} == {0, 1, 2, 3}

    with_desk(test, tmp_path, workers=2, heartbeat_s=60)


def test_bsp_ranks_get_equal_stream_grants_and_a_partial_batch_after_waiting(tmp_path):
    card = dataclasses.replace(CARD, in_step=True, shard_batches=2)

    async def test(master, clock):
        peers = await join_all_roles(master, workers=2)
        zero, one = peers["worker-0"], peers["worker-1"]

        def request(*held):
            seen = (PartitionRange(0, 0, 35), PartitionRange(1, 0, 4))
            return messages.LeaseRequest(card, tuple(progress_of(held)), seen=seen)

        first = await master.handle(zero, request())
        assert first.grants == (Grant(0, 0, 0, 0, 20),)
        assert await master.handle(one, request()) == first
        assert await master.handle(zero, request()) == first, "its reply was lost"
        second = await master.handle(zero, request(*first.grants))
        assert second.grants == (Grant(1, 0, 0, 20, 30),)
        held = (*first.grants, *second.grants)
        assert await master.handle(zero, request(*held)) == messages.WaitReply()
        clock.now += leases.LINGER_S
        assert (await master.handle(zero, request(*held))).grants == (Grant(2, 0, 0, 30, 35),)

    with_desk(test, tmp_path, workers=2, heartbeat_s=60, sync="bsp")
