"""Checkpoint rounds of the master with servers that really write: complete, abandoned or failed."""

import asyncio
import dataclasses
import json

import msgspec
import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.data.ledger.passes import JobProgress
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import Progress
from springtide.domain.data.samples import DatasetCard
from springtide.domain.model.checkpoints import CheckpointRules, Lineage
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.embedding.placement.placement import even
from springtide.master import dispatcher
from springtide.master.checkpoint import schedule
from springtide.master.checkpoint.round import CheckpointStore
from springtide.master.core.record import DONE, JobRecord
from springtide.master.main import build_service
from springtide.rpc.messages import messages
from springtide.rpc.messages.checkpoints import SaveOrder, SaveReport, SaveRequest
from springtide.rpc.messages.coordination import AtStep, GroupRequest
from springtide.rpc.messages.data_workers import PACKAGE_KEY
from springtide.rpc.messages.types import RestoreOrder
from springtide.rpc.transport.listener import Peer
from springtide.server import checkpoints, recovery
from springtide.telemetry.events import EventLog
from tests.unit.checkpoint import stores
from tests.unit.master.checkpoint import test_schedule
from tests.unit.master.test_dispatcher import Clock, join_all_roles
from tests.waiting import soon

CARD = DatasetCard(samples=40, batch_size=10, shard_batches=1)  # four shards
RULES = CheckpointRules(every_s=30.0)
OTHER = RunClaim(run="run2", job="job")
"""Of another run."""


class Server:
    """A server with a real store that saves as its process would."""

    def __init__(self, rank, servers, folder, life):
        self.store, self.hurried = stores.store(), False
        owners = even(stores.SLOTS, servers).server_of_slot
        self.owns = lambda slot: owners[slot] == rank
        self.saver = checkpoints.SlotSaver(self, folder, life, run=stores.RUN, rest=lambda _: None)


class Job:
    """A master with all roles joined, and servers."""

    def __init__(self, master, clock, peers, folder, servers):
        self.master, self.clock, self.peers, self.folder = master, clock, peers, folder
        self.servers = [Server(rank, servers, folder, f"server-{rank}.0") for rank in range(servers)]
        self.asked = [(0, 0)] * servers

    def ask(self, name, request):
        return self.master.handle(self.peers[name], request)

    async def order(self, rank):
        """The save order of a server."""
        order = await asyncio.wait_for(self.ask(f"server-{rank}", SaveRequest(*self.asked[rank])), 5)
        assert isinstance(order, SaveOrder)
        self.asked[rank] = order.term, order.number, order.part
        return order

    async def save(self, *ranks):
        """These servers save as ordered; wait until the master has handled it."""
        for rank in ranks or range(len(self.servers)):
            said = self.servers[rank].saver.save(await self.order(rank))
            await self.ask(f"server-{rank}", said)
        await self.published()

    async def published(self):
        while self.master.parts.checkpoints._tasks:
            await asyncio.gather(*self.master.parts.checkpoints._tasks)

    async def train(self, *, shards=1):
        """The worker trains some shards."""
        for _ in range(shards):
            leased = await self.ask("worker-0", messages.LeaseRequest(CARD))
            grant = leased.grants[0]
            for server in self.servers:
                stores.train(server.store, range(50), batch=(0, grant.shard, grant.first, grant.end - grant.first))
            word = Progress(grant.shard, grant.first, grant.end, grant.end)
            await self.ask("worker-0", messages.Heartbeat(progress=(word,)))

    def tick(self, seconds=0.0):
        self.clock.now += seconds
        self.master.tick()

    def told(self):
        lines = (self.folder.parent / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "checkpoint"]

    @property
    def outcomes(self):
        return [(event["number"], event["outcome"]) for event in self.told()]


def with_job(test, tmp_path, *, servers=2, rules=RULES, claim=stores.CLAIM, **spec):
    """Run an async test with a job that keeps checkpoints."""

    async def run():
        story, clock = EventLog(tmp_path / "events.jsonl"), Clock()
        try:
            made = JobSpec(name="job", servers=servers, slots=stores.SLOTS, seed=5, checkpoints=rules, **spec)
            folder = tmp_path / "checkpoints"
            master = build_service(JobRecord(made), story, clock, saving=CheckpointStore(rules, folder, claim))
            master.parts.checkpoints.resume()
            await test(Job(master, clock, await join_all_roles(master, servers=servers), folder, servers))
        finally:
            story.close()

    asyncio.run(run())


def test_first_checkpoint_starts_with_training_and_ends_when_all_servers_wrote(tmp_path):
    async def test(job):
        job.tick()
        assert job.master.parts.checkpoints.saving.round is None, "nothing is trained yet"
        await job.train()
        job.tick()
        await job.save(0)
        assert job.outcomes == []
        await job.save(1)
        assert job.outcomes == [(1, "complete")] and job.told()[0]["full"]
        found = checkpoint_io.latest(str(job.folder)).manifest
        assert found.number == 1 and found.progress.samples == 10 and found.job == "job"
        assert job.master.status().checkpoints.number == 1

    with_job(test, tmp_path)


def test_next_checkpoint_starts_after_the_interval_and_is_incremental(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.save()
        job.tick(29)
        assert job.master.parts.checkpoints.saving.round is None
        job.tick(2)
        assert (await job.order(0)).base == 1
        job.asked[0] = (1, 1)
        await job.save()
        assert job.outcomes == [(1, "complete"), (2, "complete")] and not job.told()[1]["full"]

    with_job(test, tmp_path)


def test_ledger_is_noted_before_slots_are_copied(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.train()  # after the note, before the copies
        await job.save()
        found = checkpoint_io.latest(str(job.folder)).manifest
        note = msgspec.msgpack.decode(found.progress.ledger, type=JobProgress)
        assert note.ledgers[0].samples_done == 10
        again = stores._native.Store(slots=stores.SLOTS, seed=5)
        recovery.restore(again, str(job.folder), 1, range(stores.SLOTS))
        assert [run[0] for run in again.applied(0)] == [0, 1], "the slots have more than the ledger, never less"

    with_job(test, tmp_path)


def test_full_disk_fails_the_checkpoint_and_the_job_continues(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        order = await job.order(0)
        said = SaveReport(order.term, order.number, error="cannot write to /data: No space left on device")
        await job.ask("server-0", said)
        assert job.outcomes == [(1, "failed")]
        assert "No space left on device" in job.master.status().checkpoints.trouble
        assert job.master.state.phase is JobPhase.RUNNING
        job.tick(3)
        await job.save()
        assert job.outcomes[-1] == (2, "complete") and not job.master.status().checkpoints.trouble

    with_job(test, tmp_path)


def test_end_of_data_is_sent_after_a_checkpoint_that_includes_it(tmp_path):
    async def test(job):
        await job.train(shards=3)
        job.tick()
        await job.save()
        await job.train()
        asked = asyncio.create_task(job.ask("worker-0", messages.LeaseRequest(CARD)))
        order = await job.order(0)
        assert order.hurry and not asked.done() and job.master.parts.checkpoints.waited_for
        job.asked[0] = (1, 1)
        await job.save()
        assert not job.master.parts.checkpoints.waited_for
        assert isinstance(await asked, messages.DataEnd)

    with_job(test, tmp_path)


def test_end_of_data_is_sent_without_a_checkpoint_if_none_can_be_written(tmp_path):
    async def test(job):
        await job.train(shards=4)
        asked = asyncio.create_task(job.ask("worker-0", messages.LeaseRequest(CARD)))
        order = await job.order(1)
        await job.ask("server-1", SaveReport(order.term, order.number, error="disk full"))
        assert isinstance(await asked, messages.DataEnd)
        assert [event["outcome"] for event in job.told()] == ["failed", "skipped"]

    with_job(test, tmp_path)


def test_checkpoint_of_a_lost_server_is_abandoned_with_a_reason(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.save(0)
        ended = RoleExit(role=Role(RoleKind.SERVER, 1), pid=3, signal="SIGKILL")
        await job.ask("agent", messages.RoleExitReport(ended))
        job.tick()
        assert job.outcomes == [(1, "abandoned")]
        assert "server-1.0 was lost" in job.told()[0]["why"]
        assert checkpoint_io.latest(str(job.folder)).manifest is None

    with_job(test, tmp_path)


def test_checkpoint_begun_before_a_ledger_rollback_is_abandoned(tmp_path):
    """A server lost meanwhile is restored from the previous checkpoint, and lacks what the note has."""

    async def test(job):
        await job.train()
        job.tick()
        note = job.master.record.book.note()
        await job.save()
        await job.train()
        job.tick(31)
        await job.save(0)
        job.master.record.book.restore(note)
        await job.save(1)
        assert job.outcomes == [(1, "complete"), (2, "abandoned")]
        assert "rolled the ledger back" in job.told()[1]["why"]
        assert checkpoint_io.numbers(FolderStore(job.folder)) == [1]

    with_job(test, tmp_path)


def test_checkpoint_abandoned_during_publication_is_never_visible(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        note = job.master.record.book.note()
        await job.save(0)
        await job.ask("server-1", job.servers[1].saver.save(await job.order(1)))
        job.master.record.book.restore(note)
        await job.published()
        assert job.outcomes == [(1, "abandoned")] and checkpoint_io.numbers(FolderStore(job.folder)) == []

    with_job(test, tmp_path)


def test_stopped_job_ends_after_its_last_checkpoint(tmp_path):
    async def test(job):
        await job.train(shards=2)
        job.tick()
        await job.save()
        await job.train()
        await job.ask("agent", messages.StopRequest("stopped by Ctrl-C"))
        await job.ask("worker-0", messages.FinishRequest())
        assert job.master.state.phase is JobPhase.DRAINING and job.master.status().checkpoints.saving_last
        await job.save()
        assert job.master.state.phase is JobPhase.STOPPED
        assert checkpoint_io.latest(str(job.folder)).manifest.progress.samples == 30

    with_job(test, tmp_path)


def test_stopped_job_without_progress_ends_at_once(tmp_path):
    async def test(job):
        await job.ask("agent", messages.StopRequest("stopped by Ctrl-C"))
        await job.ask("worker-0", messages.FinishRequest())
        assert job.master.state.phase is JobPhase.STOPPED and job.outcomes == []

    with_job(test, tmp_path)


def test_failed_last_checkpoint_does_not_block_the_end(tmp_path):
    async def test(job):
        await job.train()
        await job.ask("agent", messages.StopRequest("stopped by Ctrl-C"))
        await job.ask("worker-0", messages.FinishRequest())
        order = await job.order(0)
        await job.ask("server-0", SaveReport(order.term, order.number, error="disk full"))
        assert job.master.state.phase is JobPhase.STOPPED
        assert "disk full" in job.master.state.ending.last_save

    with_job(test, tmp_path)


def test_last_checkpoint_is_uploaded_before_the_job_ends(tmp_path):
    url = f"file://{tmp_path}/copy"

    async def test(job):
        await job.train()
        job.tick()
        await job.save()
        await job.ask("agent", messages.StopRequest("stopped by Ctrl-C"))
        await job.ask("worker-0", messages.FinishRequest())
        assert job.master.state.phase is JobPhase.DRAINING
        await job.master.parts.checkpoints.uploading._task
        assert job.master.state.phase is JobPhase.STOPPED
        assert job.master.status().checkpoints.uploaded == 1
        assert checkpoint_io.latest(url).manifest.progress.samples == 10

    with_job(test, tmp_path, rules=CheckpointRules(every_s=30, url=url))


def test_checkpoints_are_uploaded_periodically_and_failures_logged(tmp_path):
    (tmp_path / "file").write_text("")

    async def test(job):
        await job.train()
        job.tick()
        await job.save()
        assert job.master.parts.checkpoints.uploading._task is None
        job.tick(101)
        await job.master.parts.checkpoints.uploading._task
        assert "could not be copied" in job.master.status().checkpoints.trouble
        assert job.master.state.phase is JobPhase.RUNNING

    with_job(test, tmp_path, rules=CheckpointRules(every_s=1000, url=f"file://{tmp_path}/file", upload_every_s=100))


def test_manifest_has_worker_objects_and_their_final_states(tmp_path):
    async def test(job):
        await job.train()
        await job.ask("worker-0", messages.Heartbeat(objects={"schedule": b"early"}))
        job.tick()
        await job.save()
        assert checkpoint_io.latest(str(job.folder)).manifest.scripts.objects == {0: {"schedule": b"early"}}
        await job.ask("agent", messages.StopRequest("stopped by Ctrl-C"))
        await job.ask("worker-0", messages.FinishRequest(objects={"schedule": b"late"}))
        assert job.master.state.phase is JobPhase.DRAINING, "nothing was trained since, but the schedule has moved"
        await job.save()
        assert job.master.state.phase is JobPhase.STOPPED
        assert checkpoint_io.latest(str(job.folder)).manifest.scripts.objects == {0: {"schedule": b"late"}}
        resumed = CheckpointRules(every_s=30, resume=str(job.folder), resume_number=2, resume_run=stores.RUN)
        other = EventLog(tmp_path / "other.jsonl")
        try:
            spec = JobSpec(name="job", workers=3, slots=stores.SLOTS, seed=5, checkpoints=resumed)
            successor = build_service(
                JobRecord(spec), other, job.clock, saving=CheckpointStore(resumed, tmp_path / "other", OTHER)
            )
            successor.parts.checkpoints.resume()
            assert (
                successor.record.scripts.objects_for(0)
                == successor.record.scripts.objects_for(2)
                == {"schedule": b"late"}
            )
            before = checkpoint_io.latest(str(job.folder)).manifest.progress.samples
            assert (
                successor.status().training.samples_before
                == JobRecord.from_bytes(successor.record.to_bytes()).span.samples_before
            )
            assert successor.status().training.samples_before == before > 0
        finally:
            other.close()

    with_job(test, tmp_path)


def test_only_the_most_recent_checkpoints_are_kept(tmp_path):
    async def test(job):
        for _ in range(4):
            await job.train()
            job.tick(31)
            await job.save()
        assert checkpoint_io.numbers(job.master.parts.checkpoints.saving.place) == [4, 3]

    with_job(test, tmp_path)


def test_successor_master_continues_from_complete_checkpoints(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.save()
        job.tick(31)
        await job.order(0)
        (job.folder / "server-0.0-000002.run1.part").write_bytes(b"")
        story = EventLog(tmp_path / "events.jsonl")
        successor = build_service(
            job.master.record, story, job.clock, term=2, saving=CheckpointStore(RULES, job.folder, stores.CLAIM, term=2)
        )
        successor.take_over()
        assert successor.parts.checkpoints.saving.last.number == 1
        assert job.outcomes[-1] == (2, "abandoned")
        job.master = successor
        job.tick()
        await job.save()
        assert job.outcomes[-1] == (3, "complete")
        assert not job.told()[-1]["full"], "servers go on with increments"
        story.close()

    with_job(test, tmp_path)


def test_deleted_segment_file_makes_the_next_checkpoint_full(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.save()
        (job.folder / "server-1.0-000001.run1.seg").unlink()
        await job.train()
        job.tick(31)
        await job.save()
        told = job.told()[-1]
        assert told["outcome"] == "complete" and "server-1.0-000001.run1.seg" in told["why"]
        found = checkpoint_io.latest(str(job.folder))
        assert found.manifest.number == 2 and not found.troubles

    with_job(test, tmp_path)


def test_another_run_resumes_from_the_checkpoint(tmp_path):
    async def first(job):
        await job.train()
        job.tick()
        await job.save()
        await job.train(shards=2)
        job.master.record.shared.claims = {"weights": DONE, PACKAGE_KEY: DONE}
        job.tick(31)
        assert not job.master.parts.checkpoints.waited_for
        await job.save()

    async def second(job):
        assert job.master.record.book.samples_done == 30
        assert job.master.record.shared.claims == {"weights": DONE}, "the package is in the other run's folder"
        leased = await job.ask("worker-0", messages.LeaseRequest(CARD))
        assert [grant.shard for grant in leased.grants] == [3]

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with_job(first, tmp_path / "a")
    where = str(tmp_path / "a" / "checkpoints")
    rules = CheckpointRules(every_s=30, resume=where, resume_number=2, resume_run=stores.RUN)
    with_job(second, tmp_path / "b", servers=3, rules=rules, claim=OTHER)
    with pytest.raises(errors.BadInput, match="checkpoints of another run"):
        with_job(second, tmp_path / "a", claim=OTHER)


def test_servers_restore_their_slots_before_they_are_ready(tmp_path):
    async def test():
        rules = CheckpointRules(every_s=30, resume="/somewhere", resume_number=7, resume_run=stores.RUN)
        spec = JobSpec(name="job", servers=2, slots=64, checkpoints=rules)
        story = EventLog(tmp_path / "events.jsonl")
        master = build_service(JobRecord(spec), story, Clock(), saving=CheckpointStore(rules, tmp_path / "new", OTHER))
        welcome = await master.handle(dispatcher.Peer(address="s"), messages.JoinServer(1, 3))
        assert welcome.restore == RestoreOrder("/somewhere", 7, tuple(range(32, 64)), Lineage("run2", "run1", 7))
        assert welcome.checkpoints == str(tmp_path / "new")
        story.close()

    asyncio.run(test())


CARD_BSP_STOP = dataclasses.replace(test_schedule.CARD, in_step=True)


async def form(job, generation=0, **more):
    """The one worker is the group."""
    return await job.ask("worker-0", GroupRequest(not generation, True, generation=generation, **more))


async def begin(job):
    """Form a group with its first shard; return the number of the due checkpoint."""
    formed = await form(job)
    assert formed.first and not formed.restored
    await job.ask("worker-0", messages.LeaseRequest(CARD_BSP_STOP))
    return (await job.ask("worker-0", messages.Heartbeat())).save


def at_step(number, step=3, **more):
    return AtStep(number, step, 0, 5, **more)


def test_bsp_group_waits_until_all_servers_copied_and_the_manifest_has_its_step(tmp_path):
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


def test_copy_made_while_a_new_group_forms_is_not_a_checkpoint(tmp_path):
    async def test(job):
        await begin(job)
        waiting = asyncio.ensure_future(job.ask("worker-0", at_step(1)))
        await job.save(0)
        assert (await form(job, generation=1)).generation == 2
        await job.save(1)
        await waiting
        assert job.outcomes == [(1, "abandoned")] and "new bsp group" in job.told()[0]["why"]

    test_schedule.with_job(test, tmp_path, sync="bsp")


def test_ending_bsp_group_writes_a_last_checkpoint_before_it_leaves(tmp_path):
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
        waiting = asyncio.ensure_future(job.ask("worker-0", at_step(2, step=4, last=True)))
        await job.save()
        await waiting
        assert job.outcomes == [(1, "complete"), (2, "complete")], "the last one is not held back by the interval"

    test_schedule.with_job(test, tmp_path, sync="bsp")


def test_waiting_server_gets_a_hurried_order_when_the_group_pauses(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "HOLD_S", 3600.0)

    async def test(job):
        await begin(job)
        early = asyncio.ensure_future(job.order(1))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(job.ask("worker-0", at_step(1)))
        assert (await early).hurry
        waiting.cancel()

    test_schedule.with_job(test, tmp_path, sync="bsp")


def test_bsp_job_without_checkpoint_rules_requests_none(tmp_path):
    async def test(job):
        assert await begin(job) == 0
        assert (await form(job, generation=1, resting=True)).save == 0

    test_schedule.with_job(test, tmp_path, sync="bsp", rules=test_schedule.CheckpointRules())


def test_bsp_group_with_a_cache_returns_to_its_checkpoint_after_a_broken_step(tmp_path):
    async def test(job):
        await begin(job)
        waiting = asyncio.ensure_future(job.ask("worker-0", at_step(1)))
        await job.save()
        await waiting
        interrupted = asyncio.ensure_future(form(job, generation=1, bound=True))
        await asyncio.sleep(0)
        state = job.master.state
        await soon(lambda: state.decision.what.startswith("roll the bsp group back to checkpoint 1"))
        assert state.decision.why == "a member was lost, together with cached rows or its position in the data"
        assert state.bsp.generation == 2 and not state.bsp.members
        interrupted.cancel()

    test_schedule.with_job(test, tmp_path, sync="bsp")


def test_checkpoint_that_a_person_asks_for_begins_now(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        for rank in (0, 1):
            await job.save(rank)
        job.tick()
        assert job.master.parts.checkpoints.saving.round is None, "the interval has just begun"
        await job.master.handle(Peer(address="a command"), messages.CheckpointRequest())
        job.tick()
        assert job.master.parts.checkpoints.saving.round is not None

    with_job(test, tmp_path)
