"""Server recovery at the master without sockets: restore orders, and ledger rollbacks."""

import asyncio
import contextlib
import dataclasses

import msgspec
import pytest

from springtide import errors
from springtide.checkpoint.format.manifest import ScriptStates, name_of
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder, Progress
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.job.core import events
from springtide.master.checkpoint.round import AT_START, CheckpointStore, scripts_of
from springtide.master.core.record import JobRecord
from springtide.master.main import build_service, rebuild
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import RestoreOrder, ServerAddresses
from springtide.rpc.transport.listener import Peer
from springtide.telemetry import events as event_log
from springtide.telemetry.events import EventLog
from tests.unit.checkpoint import stores

CARD = DatasetCard(samples=60, batch_size=10, shard_batches=2)  # three shards
SERVER = Role(RoleKind.SERVER, 1)


class MemoryJournal:
    """A journal in memory."""

    stuck = ""

    def __init__(self):
        self.entries, self.since_snapshot, self.idle = [], 0, True

    def append(self, entry):
        self.entries.append(entry)

    async def committed(self):
        pass

    async def flushed_or_full(self):
        return True


class Job:
    """A desk with two servers and a worker that has trained one shard, and a checkpoint from before that."""

    def __init__(self, folder, **spec):
        self.folder, self.now, self.journal = folder, 0.0, MemoryJournal()
        self.spec = JobSpec(name="job", servers=2, slots=64, **spec)
        self.story = EventLog(folder / "events.jsonl")
        saves = CheckpointStore(self.spec.checkpoints, folder, stores.CLAIM)
        self.desk = build_service(JobRecord(self.spec), self.story, lambda: self.now, self.journal, saving=saves)
        self.peers = {name: Peer(address=name) for name in ("agent", "server-0", "server-1", "worker-0")}

    async def ask(self, name, request):
        return await self.desk.handle(self.peers[name], request)

    async def begin(self):
        await self.ask("agent", messages.JoinAgent(1))
        joining = asyncio.create_task(self.ask("worker-0", messages.JoinWorker(0, 2)))
        for rank in range(2):
            await self.ask(f"server-{rank}", messages.JoinServer(rank, 3))
        await asyncio.gather(*(self.ask(f"server-{n}", messages.ServerReady(f"host:{n}")) for n in range(2)))
        await joining
        self.save(1)
        (grant,) = (await self.ask("worker-0", messages.LeaseRequest(CARD))).grants
        await self.ask("worker-0", messages.Heartbeat(progress=(Progress(grant.shard, 0, grant.end, grant.end),)))
        assert self.desk.record.book.samples_done == 20

    def save(self, number):
        """A checkpoint is complete."""
        note = msgspec.msgpack.encode(self.desk.record.book.note())
        stores.publish(self.folder, number, stores.save(stores.store(), self.folder, number), ledger=note)
        self.desk.context.apply(events.CheckpointSaved(number))

    async def kill(self, incarnation=0):
        ended = RoleExit(role=SERVER, pid=3, signal="SIGKILL", incarnation=incarnation)
        await self.ask("agent", messages.RoleExitReport(ended))

    async def come_back(self, incarnation=1, number=1, **said):
        """The next incarnation joins and becomes ready; return its welcome."""
        self.peers["server-1"] = Peer(address="new")
        welcome = await self.ask("server-1", messages.JoinServer(1, 9, incarnation))
        ready = messages.ServerReady("host:9", number, str(self.folder))
        await self.ask("server-1", msgspec.structs.replace(ready, **said))
        return welcome


def with_job(test, folder, **spec):
    async def run():
        job = Job(folder, **spec)
        try:
            await job.begin()
            await test(job)
        finally:
            job.story.close()

    asyncio.run(run())


def test_next_incarnation_gets_a_restore_order_and_the_ledger_rolls_back(tmp_path):
    async def test(job):
        await job.kill()
        assert [each.incarnation for each in job.desk.state.wanted() if each.role == SERVER] == [1]
        welcome = await job.come_back()
        assert welcome.restore == RestoreOrder(str(tmp_path), 1, tuple(range(32, 64)), stores.LINEAGE)
        assert welcome.placement == job.desk.record.slots.placement
        book = job.desk.record.book
        assert (book.samples_done, book.era) == (0, 1)
        pulse = await job.ask("worker-0", messages.Heartbeat())
        assert (pulse.era, pulse.servers) == (1, ServerAddresses(("host:0", "host:9"), (0, 1)))
        leased = await job.ask("worker-0", messages.LeaseRequest(CARD))
        assert (leased.era, leased.servers) == (1, pulse.servers)
        old = (Progress(0, 0, 20, 20),)
        await job.ask("worker-0", messages.Heartbeat(progress=old, era=0))
        assert book.samples_done == 0, "a word from before the return counts"
        await job.ask("worker-0", messages.Heartbeat(progress=old, era=1))
        assert book.samples_done == 20
        again = rebuild(job.spec, None, job.journal.entries)
        assert again.book.to_state() == book.to_state() and again.slots.addresses == job.desk.record.slots.addresses

    with_job(test, tmp_path)


def test_partial_recovery_keeps_the_ledger(tmp_path):
    async def test(job):
        await job.kill()
        await job.come_back()
        assert (job.desk.record.book.samples_done, job.desk.record.book.era) == (20, 0)

    with_job(test, tmp_path, recovery="partial")


def test_ledger_rolls_back_to_the_checkpoint_that_was_actually_read(tmp_path):
    async def test(job):
        job.save(2)
        await job.kill()
        said = ("checkpoint 2 in there cannot be used: the image of slot 3 is damaged",)
        assert (await job.come_back(number=1, unusable=said)).restore.number == 2
        assert job.desk.record.book.samples_done == 0
        (told,) = [event for event in event_log.read(tmp_path / "events.jsonl") if event.get("unusable")]
        assert (told["event"], told["checkpoint"], tuple(told["unusable"])) == ("ready", 1, said)
        assert job.desk.state.safety.saved == 1, "the next loss would be told of the damaged one again"

    with_job(test, tmp_path)


def test_rollback_invalidates_newer_checkpoints_still_being_stored(tmp_path):
    book, saving = JobLedger(workers=1), CheckpointStore(CheckpointRules(every_s=1.0), tmp_path, stores.CLAIM)
    notes = {}
    for number in (1, 2):
        (grant,) = book.lease(LeaseHolder(0), CARD, 1, 0.0)
        book.report(LeaseHolder(0), [Progress(grant.shard, 0, grant.end, grant.end)], 0.0)
        notes[number] = book.note()
        written = stores.save(stores.store(), tmp_path, number, life=f"server-0.{number}")
        made = stores.publish(tmp_path, number, written, ledger=msgspec.msgpack.encode(notes[number]))
        saving.complete(made)
    lost = msgspec.structs.replace(made, apart={"": "n0"})  # only a copy in storage would have outlasted that host
    record = JobRecord(JobSpec(name="job", slots=64))
    record.book = book
    saving.begin(record, {}, hurry=False, at=0.0)
    saving.abandon("a server was lost", 0.0)
    book.restore(notes[1])
    saving.go_back(1)
    assert saving.is_stored(lost) is None and saving.stored == 0
    order = saving.begin(record, {}, hurry=False, at=0.0)
    assert order.base == 1 and order.number > 2 and not (tmp_path / name_of(2)).exists()


def test_repeated_ready_message_rolls_back_once(tmp_path):
    async def test(job):
        await job.kill()
        await job.come_back()
        await job.ask("server-1", messages.ServerReady("host:9", 1, str(tmp_path)))  # to the next master, perhaps
        assert job.desk.record.book.era == 1

    with_job(test, tmp_path)


def test_heartbeats_and_new_workers_wait_while_a_server_is_restored(tmp_path):
    async def test(job):
        await job.kill()
        assert (await job.ask("worker-0", messages.Heartbeat())).healing
        beating = asyncio.create_task(job.ask("worker-0", messages.Heartbeat()))
        again = Peer(address="worker-0 again")
        joining = asyncio.create_task(job.desk.handle(again, messages.JoinWorker(0, 2)))
        await asyncio.sleep(0)
        await job.come_back()
        pulse, welcome = await beating, await joining
        assert not pulse.healing and pulse.era == 1
        assert (welcome.servers, welcome.lives) == (("host:0", "host:9"), (0, 1))

    with_job(test, tmp_path)


def test_previous_incarnation_is_fenced(tmp_path):
    async def test(job):
        old = job.peers["server-1"]
        await job.kill()
        for words in (messages.Heartbeat(), messages.ServerReady("host:1")):
            with pytest.raises(errors.Fenced, match="server-1 of incarnation 0 was fenced"):
                await job.desk.handle(old, words)

    with_job(test, tmp_path)


def test_failed_restore_fails_the_job_with_the_servers_error(tmp_path):
    async def test(job):
        await job.kill()
        with contextlib.suppress(errors.SpringtideError):
            await job.come_back(number=0, address="", error="no checkpoint has its slots: checkpoint 1 is torn")
        assert job.desk.state.phase is JobPhase.FAILED
        assert job.desk.state.why == (
            "server-1 could not be restored: no checkpoint has its slots: checkpoint 1 is torn"
        )

    with_job(test, tmp_path)


def test_unreadable_ledger_fails_the_job(tmp_path):
    async def test(job):
        await job.kill()
        (tmp_path / name_of(1)).unlink()
        await job.come_back(number=1)
        assert job.desk.state.phase is JobPhase.FAILED
        assert job.desk.state.why.startswith(f"the ledger of checkpoint 1 in {tmp_path} cannot be read")

    with_job(test, tmp_path)


def test_two_servers_restored_from_different_checkpoints_use_the_older(tmp_path):
    async def test(job):
        job.save(2)  # has the first shard
        for rank in range(2):
            ended = RoleExit(role=Role(RoleKind.SERVER, rank), pid=3, signal="SIGKILL")
            await job.ask("agent", messages.RoleExitReport(ended))
        await job.come_back(number=1)
        first = Peer(address="server-0 again")
        await job.desk.handle(first, messages.JoinServer(0, 8, 1))
        await job.desk.handle(first, messages.ServerReady("host:8", 2, str(tmp_path)))
        assert job.desk.record.book.samples_done == 0 and not job.desk.state.healing

    with_job(test, tmp_path)


def test_job_that_fails_during_recovery_is_not_recovered(tmp_path):
    async def test(job):
        await job.kill()
        job.desk.context.apply(events.MasterFailed("the disk is full"))
        assert not job.desk.state.healing

    with_job(test, tmp_path)


def test_bsp_rollback_resumes_the_epoch_and_schedules_of_the_checkpoint(tmp_path):
    async def test(job):
        early, late = EpochPlace(1, 1, 2), EpochPlace(4, 4, 5)
        note = msgspec.msgpack.encode(job.desk.record.book.note())
        written = stores.save(stores.store(), tmp_path, 2)
        scripts = ScriptStates(objects={0: {"schedule": b"early"}}, places={0: early})
        stores.publish(tmp_path, 2, written, ledger=note, scripts=scripts)
        job.desk.context.apply(events.CheckpointSaved(2))
        await job.ask("worker-0", messages.EpochBegun(late, {"schedule": b"late"}))
        record = job.desk.record
        assert record.scripts.place_for(0) == late
        job.desk.context.apply(events.BspBegan())
        await job.kill()
        await job.come_back(number=2)
        assert record.scripts.place_for(0) == early and record.scripts.objects_for(0) == {"schedule": b"early"}
        again = rebuild(job.spec, None, job.journal.entries)
        assert (again.scripts.places, again.scripts.objects) == (record.scripts.places, record.scripts.objects)

    with_job(test, tmp_path, sync="bsp")


def test_bsp_rollback_to_the_other_runs_checkpoint_begins_scripts_with_new_data_at_their_start(tmp_path):
    scripts = ScriptStates(objects={0: {"schedule": b"early"}}, places={0: EpochPlace(4, 4, 5)})
    manifest = stores.publish(tmp_path, 2, stores.save(stores.store(), tmp_path, 2), scripts=scripts)
    own = CheckpointRules(resume="elsewhere", resume_number=1, resume_run="run0", new_data=True)
    assert scripts_of(manifest, own) == scripts, "a checkpoint of its own"
    other = dataclasses.replace(own, resume_run=stores.RUN)
    assert scripts_of(manifest, other) == ScriptStates(objects=scripts.objects, places=AT_START)
    assert scripts_of(manifest, dataclasses.replace(other, new_data=False)) == scripts


def test_async_workers_keep_their_epoch_while_a_server_is_restored(tmp_path):
    async def test(job):
        await job.ask("worker-0", messages.EpochBegun(EpochPlace(4, 4, 5), {"schedule": b"late"}))
        await job.kill()
        await job.come_back()
        assert job.desk.record.scripts.place_for(0) == EpochPlace(4, 4, 5)

    with_job(test, tmp_path)
