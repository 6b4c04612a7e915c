"""Data workers at the master: joining, notifying trainers, tuning, and a successor master."""

import asyncio
import dataclasses

import msgspec
import pytest

from springtide import errors
from springtide.cli.common import render
from springtide.domain.core.roles import Role, RoleExit, RoleKind, RoleUsage
from springtide.domain.data.data_workers import BatchName, FeedRules, FeedState, LeftOut
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.scaling import data_workers
from springtide.master.core.journal import Journal
from springtide.master.core.record import JobRecord
from springtide.master.main import build_service, rebuild
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ShareRequest, ValueRequest
from springtide.rpc.messages.data_workers import (
    PACKAGE_KEY,
    CannotFeed,
    DataWorkerReady,
    JoinDataWorker,
    Package,
    TrainedWithout,
)
from springtide.rpc.messages.types import MemberReport
from springtide.rpc.transport.listener import Peer
from springtide.telemetry.events import EventLog
from tests.unit.master.test_dispatcher import CARD, Clock, join_all_roles, with_desk

FIXED = FeedRules(workers=2, cpu=0.5)
AUTO = FeedRules(every_s=10.0, cores=8.0)
BEAT = messages.Heartbeat()


async def training(master, clock):
    """All roles have joined and a lease is granted."""
    peers = await join_all_roles(master)
    await master.handle(peers["worker-0"], messages.LeaseRequest(CARD))
    master.tick()
    return peers


async def join_data_worker(master, rank=0, incarnation=0, address="host:9"):
    peer = Peer(address="data")
    welcome = await master.handle(peer, JoinDataWorker(rank, 5, incarnation))
    await master.handle(peer, DataWorkerReady(address))
    return peer, welcome


async def wanted_data_workers(master, peers):
    outlook = await master.handle(peers["agent"], messages.AgentPoll())
    return [str(each.role) for each in outlook.wanted if each.role.kind is RoleKind.DATA_WORKER]


def test_fixed_data_workers_start_once_training_has_begun(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master)
        master.tick()
        assert await wanted_data_workers(master, peers) == []
        await master.handle(peers["worker-0"], messages.LeaseRequest(CARD))
        master.tick()
        assert await wanted_data_workers(master, peers) == ["data-worker-0", "data-worker-1"]
        status = master.status()
        assert (status.roles.data_workers.alive, status.roles.data_workers.wanted) == (0, 2)
        assert status.roles.data_workers_why == "requested at the start of the job"
        master.tick()
        assert master.state.feeding.epoch == 1

    with_desk(test, tmp_path, feeding=FIXED)


def test_job_without_data_workers_starts_none_until_asked(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        assert await wanted_data_workers(master, peers) == []
        await master.handle(peers["worker-0"], messages.ScaleRequest(data_workers=1))
        assert await wanted_data_workers(master, peers) == ["data-worker-0"]

    with_desk(test, tmp_path)


def test_workers_receive_the_data_worker_list_only_when_it_changed(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        worker = peers["worker-0"]
        pulse = await master.handle(worker, BEAT)
        assert pulse.feeders.wanted == 2 and pulse.feeders.members == ()
        _, welcome = await join_data_worker(master)
        assert welcome.package == str(tmp_path / "package") and welcome.spec.name == "job"
        news = (await master.handle(worker, messages.Heartbeat(feeders=pulse.feeders.epoch))).feeders
        assert [(each.name, each.address) for each in news.members] == [("data-worker-0.0", "host:9")]
        assert (await master.handle(worker, messages.Heartbeat(feeders=news.epoch))).feeders is None
        killed = RoleExit(role=Role(RoleKind.DATA_WORKER, 0), pid=5, signal="SIGKILL")
        await master.handle(peers["agent"], messages.RoleExitReport(killed))
        assert (await master.handle(worker, messages.Heartbeat(feeders=news.epoch))).feeders.members == ()

    with_desk(test, tmp_path, feeding=FIXED)


def test_data_worker_waits_for_the_package_and_receives_drain(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        peer = Peer(address="data")
        await master.handle(peer, JoinDataWorker(1, 5))
        waiting = asyncio.create_task(master.handle(peer, ValueRequest(PACKAGE_KEY)))
        await asyncio.sleep(0)
        assert not waiting.done()
        await master.handle(peers["worker-0"], ShareRequest(PACKAGE_KEY, b"it is there"))
        assert (await waiting).value == b"it is there"
        assert not (await master.handle(peer, BEAT)).drain
        await master.handle(peers["worker-0"], messages.ScaleRequest(data_workers=1))
        assert (await master.handle(peer, BEAT)).drain
        with pytest.raises(errors.BadInput, match="may not send LeaseRequest"):
            await master.handle(peer, messages.LeaseRequest(CARD))

    with_desk(test, tmp_path, feeding=FIXED)


def test_fenced_data_worker_is_told(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        peer, _ = await join_data_worker(master)
        killed = RoleExit(role=Role(RoleKind.DATA_WORKER, 0), pid=5, signal="SIGKILL")
        await master.handle(peers["agent"], messages.RoleExitReport(killed))
        for request in (BEAT, DataWorkerReady("host:9")):
            with pytest.raises(errors.Fenced):
                await master.handle(peer, request)

    with_desk(test, tmp_path, feeding=FIXED)


def test_trainer_that_cannot_be_fed_removes_data_workers_with_its_reason(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        await master.handle(peers["worker-0"], CannotFeed("an IterableDataset has no indices"))
        assert await wanted_data_workers(master, peers) == []
        assert master.status().roles.data_workers_why == "worker-0: an IterableDataset has no indices"
        clock.now += 100
        master.tick()
        assert await wanted_data_workers(master, peers) == []

    with_desk(test, tmp_path, feeding=FIXED)


def test_skipped_samples_are_reported_by_index(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        left_out = LeftOut(BatchName(0, 3, 8, 4), (17, 19), "ValueError: broken")
        for _ in range(2):  # a batch that is trained again counts once
            await master.handle(peers["worker-0"], TrainedWithout(left_out))
        again = JobRecord.from_bytes(master.record.to_bytes())
        assert again.left_out == master.record.left_out
        status = master.status()
        assert (status.data.left_out, status.data.samples_left_out) == ((left_out,), 2)
        assert status.master.decision == "train without samples 17, 19 (shard 3, epoch 0)"
        assert status.master.decision_why == "worker-0: ValueError: broken"
        assert render.left_out(status) == [
            "without 2 samples that could not be made (--poison skip):",
            "  samples 17, 19 (shard 3, epoch 0): ValueError: broken",
        ]

    with_desk(test, tmp_path)


def test_job_without_any_readable_sample_reports_them_all(tmp_path):
    async def test(master, clock):
        await training(master, clock)
        assert master.record.all_left_out() == ""
        master.record.leave_out(LeftOut(BatchName(0, 3, 8, 4), (17, 19), "ValueError: broken"))
        said = "none of the 2 samples could be read; samples 17, 19 (shard 3, epoch 0): ValueError: broken"
        assert master.record.all_left_out() == said

    with_desk(test, tmp_path)


def feed(steps, *, read_share):
    """A trainer's report after this many steps of a tenth of a second."""
    return FeedState(taken=steps, looped_s=0.1 * steps, read_s=0.1 * steps * read_share)


async def train(master, clock, peers, seconds, *, read_share):
    """A trainer's reports and the agent's measurements, a second apart."""
    for _ in range(seconds):
        clock.now += 1.0
        report = MemberReport(step=1, samples=1, feed=feed(int(clock.now * 10), read_share=read_share))
        await master.handle(peers["worker-0"], messages.Heartbeat(report))
        usage = RoleUsage(role=Role(RoleKind.WORKER, 0), cpu_s=clock.now)
        await master.handle(peers["agent"], messages.AgentPoll((usage,)))
        master.tick()


def test_tuning_starts_one_data_worker_when_reading_dominates_a_step(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        await train(master, clock, peers, 9, read_share=0.6)
        assert await wanted_data_workers(master, peers) == []
        await train(master, clock, peers, 4, read_share=0.6)
        assert await wanted_data_workers(master, peers) == ["data-worker-0"]
        assert "60%" in master.status().roles.data_workers_why
        assert master.status().data.feed.taken == int(clock.now * 10)

    with_desk(test, tmp_path, feeding=AUTO, silence_s=1e9)


@pytest.mark.parametrize("packaged", [False, True])
def test_data_workers_are_not_late_while_the_trainer_prepares_the_package(tmp_path, packaged):
    async def test(master, clock):
        peers = await training(master, clock)
        await train(master, clock, peers, 13, read_share=0.6)
        if packaged:
            await master.handle(peers["worker-0"], ShareRequest(PACKAGE_KEY, msgspec.msgpack.encode(Package("it"))))
        await train(master, clock, peers, 70, read_share=0.6)
        assert await wanted_data_workers(master, peers) == ([] if packaged else ["data-worker-0"])
        await train(master, clock, peers, 270, read_share=0.6)
        assert await wanted_data_workers(master, peers) == [], "it has had its time"

    with_desk(test, tmp_path, feeding=AUTO, silence_s=1e9)


def test_data_workers_stay_within_the_cores_granted_by_the_brain(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        master.parts.autoscaler.data_cores = 0.0
        await train(master, clock, peers, 13, read_share=0.6)
        assert (
            await wanted_data_workers(master, peers) == []
            and "no cores are free (0)" in master.status().roles.data_workers_why
        )
        assert master.parts.data_workers.share is None
        master.parts.autoscaler.data_cores = 2.0
        await train(master, clock, peers, 10, read_share=0.6)
        assert await wanted_data_workers(master, peers) == ["data-worker-0"]
        told = master.parts.data_workers.share
        assert (told.trainers, told.least) == (1, 1.0) and told.capable > told.speed > 0
        await train(master, clock, peers, 10, read_share=0.3)
        assert master.parts.data_workers.share is told, (
            "cores of one that does not feed yet say nothing of what they bring"
        )
        await master.handle(peers["worker-0"], messages.ScaleRequest(data_workers=3))
        master.tick()
        assert master.parts.data_workers.share is None, "what the user has fixed is nobody's to share out"

    with_desk(test, tmp_path, feeding=AUTO, silence_s=1e9)


def test_no_data_worker_starts_when_reading_takes_little_and_the_reason_is_logged(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        await train(master, clock, peers, 13, read_share=0.01)
        assert await wanted_data_workers(master, peers) == [] and "too little" in master.status().roles.data_workers_why
        await train(master, clock, peers, 30, read_share=0.01)
        told = [line for line in (tmp_path / "events.jsonl").read_text().splitlines() if '"feeding"' in line]
        assert len(told) == 2, "each reason once"

    with_desk(test, tmp_path, feeding=AUTO, silence_s=1e9)


def test_tuning_keeps_a_manually_set_number_of_data_workers(tmp_path):
    async def test(master, clock):
        peers = await training(master, clock)
        await master.handle(peers["worker-0"], messages.ScaleRequest(data_workers=3))
        await train(master, clock, peers, 30, read_share=0.6)
        assert len(await wanted_data_workers(master, peers)) == 3

    with_desk(test, tmp_path, feeding=AUTO, silence_s=1e9)


def test_successor_master_continues_tuning(tmp_path):
    spec = JobSpec(name="job", feeding=dataclasses.replace(AUTO, cpu=1.0), silence_s=1e9)

    async def first():
        clock, story = Clock(), EventLog(tmp_path / "events.jsonl")
        journal = Journal(tmp_path / "journal.db", term=1, now=0.0)
        master = build_service(JobRecord(spec), story, clock, journal)
        peers = await training(master, clock)
        await train(master, clock, peers, 13, read_share=0.6)
        await join_data_worker(master)
        await journal.committed()
        snapshot, kept = journal.read()
        story.close()
        journal.close()
        return master.record, rebuild(spec, snapshot, kept)

    before, after = asyncio.run(first())
    assert after.state.feeding == before.state.feeding and after.state.feeding.wanted == 1
    assert after.shared == before.shared and len(after.shared.values) == 1
    assert [(each.name, each.address) for each in data_workers.roster(after.state)] == [("data-worker-0.0", "host:9")]
