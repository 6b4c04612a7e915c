"""Full disks: a checkpoint fails and the next is complete; the journal waits for space."""

import asyncio
import contextlib

import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.samples import DatasetCard
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.master import dispatcher
from springtide.master.core import journal as journals
from springtide.master.core.record import JobRecord
from springtide.master.main import build_service, rebuild
from springtide.rpc.messages import messages
from springtide.rpc.transport.listener import Peer
from springtide.server import recovery
from springtide.telemetry import events
from springtide.telemetry.events import EventLog
from tests.full_disks import no_file_longer_than
from tests.unit.checkpoint import stores
from tests.unit.master.checkpoint.test_schedule import with_job
from tests.unit.master.test_dispatcher import Clock, join_all_roles
from tests.waiting import soon


def files(job):
    return sorted(path.name for path in job.folder.iterdir() if path.name.startswith(("server-", "manifest-")))


def test_disk_that_fills_during_a_checkpoint_fails_it_and_leaves_no_file(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.save()
        before = files(job)
        for attempt in (2, 3):
            await job.train()
            stores.train(job.servers[1].store, range(5_000), value=0.5)
            job.tick(31)
            with no_file_longer_than(60_000):
                await job.save()
            assert job.outcomes[-1] == (attempt, "failed")
            assert "server-1.0: cannot write to" in job.told()[-1]["why"]
            assert job.master.status().checkpoints.trouble and job.master.state.phase is JobPhase.RUNNING
            assert files(job) == before, "what server-0 had written would fill the disk further"
        job.tick(3)
        await job.save()
        assert job.outcomes[-1] == (4, "complete") and not job.master.status().checkpoints.trouble
        again = stores._native.Store(slots=stores.SLOTS, seed=5)
        found = checkpoint_io.latest(str(job.folder))
        assert found.manifest is not None and (found.manifest.number, found.troubles) == (4, ())
        recovery.restore(again, str(job.folder), 4, range(stores.SLOTS))
        held = [stores.contents(server.store) for server in job.servers]
        mine = [server.owns(slot) for server in job.servers[1:] for slot in range(stores.SLOTS)]
        assert [held[second][1][slot] for slot, second in enumerate(mine)] == stores.contents(again)[1]
        assert again.rows() == sum(sum(map(server.owns, slots_of(server.store))) for server in job.servers)

    with_job(test, tmp_path)


def slots_of(store):
    """The slot of every row."""
    rows, _ = stores.contents(store)
    return store.slot_of(stores.TABLE.id, stores.np.array(sorted(rows))).tolist()


def test_manifest_without_disk_space_fails_its_checkpoint_and_the_next_is_complete(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        for rank in (0, 1):
            said = job.servers[rank].saver.save(await job.order(rank))
            with no_file_longer_than(1500):
                await job.ask(f"server-{rank}", said)
                await job.published()
        assert job.outcomes == [(1, "failed")] and "its manifest cannot be written" in job.told()[0]["why"]
        assert files(job) == []
        job.tick(3)
        await job.save()
        assert job.outcomes[-1] == (2, "complete") and checkpoint_io.latest(str(job.folder)).manifest.number == 2

    with_job(test, tmp_path)


CARD = DatasetCard(samples=20, batch_size=10, shard_batches=1)


def with_journal(test, tmp_path, monkeypatch, **spec):
    """Run an async test with a master whose journal is a file."""
    monkeypatch.setattr(journals, "AGAIN_S", 0.01)

    async def run():
        clock, record = Clock(), JobRecord(JobSpec(name="job", **spec))
        with contextlib.closing(EventLog(tmp_path / "events.jsonl")) as story:
            journal = journals.Journal(tmp_path / "journal.db", term=1, now=0.0, patience_s=record.state.spec.disk_s)
            try:
                await test(build_service(record, story, clock, journal), clock)
            finally:
                journal.close()

    asyncio.run(run())


def test_roles_wait_while_the_journal_cannot_be_written(tmp_path, monkeypatch):
    async def test(master, clock):
        peers = await join_all_roles(master)
        before = await master.handle(peers["agent"], messages.AgentPoll(()))
        with no_file_longer_than(0):
            lease = asyncio.create_task(master.handle(peers["worker-0"], messages.LeaseRequest(CARD)))
            await soon(lambda: master.status().master.disk_trouble, "it is noticed")
            shown = await master.handle(peers["agent"], messages.AgentPoll(()))
            assert shown.wanted == before.wanted and "grants no leases" in shown.status.master.disk_trouble
            status = await master.handle(Peer(address="command"), messages.StatusRequest())
            assert status.phase is JobPhase.RUNNING and "free some space" in status.master.disk_trouble
            with pytest.raises(errors.TemporaryError, match="accepts no commands while its journal cannot be written"):
                await master.handle(Peer(address="command"), messages.ScaleRequest(3, None))
            lost = messages.RoleExitReport(RoleExit(role=Role(RoleKind.WORKER, 0), pid=2, signal="SIGKILL"))
            with pytest.raises(errors.TemporaryError):
                await master.handle(peers["agent"], lost)
            clock.now = 1000.0  # far more than a silence, and than a lease lasts
            master.tick()
            assert not lease.done()
        assert (await lease).grants[0].shard == 0
        master.tick()
        assert not master.status().master.disk_trouble and master.status().roles.relaunches == 0, "nobody was silent"
        assert master.status().data.shards_leased == 1, "and no lease has run out"
        await master.handle(peers["agent"], lost)
        assert master.status().roles.relaunches == 1

    with_journal(test, tmp_path, monkeypatch)
    (full,) = [event for event in events.read(tmp_path / "events.jsonl") if event["event"] == "disk_full"]
    assert "cannot write" in full["why"]


def test_master_that_takes_over_with_a_full_disk_orders_the_same_roles(tmp_path, monkeypatch):
    async def test(master, clock):
        peers = await join_all_roles(master)
        orders = await master.handle(peers["agent"], messages.AgentPoll(()))
        assert orders.wanted
        master.context.journal.close()
        with contextlib.closing(EventLog(tmp_path / "next.jsonl")) as story:
            journal = journals.Journal(tmp_path / "journal.db", term=2, now=0.0, patience_s=10.0)
            snapshot, entries = journal.read()
            following = build_service(rebuild(master.state.spec, snapshot, entries), story, clock, journal, term=2)
            with no_file_longer_than(0):
                following.take_over()
                await soon(lambda: following.context.stuck, "it is noticed")
                shown = await following.handle(Peer(address="agent"), messages.AgentPoll(()))
            assert shown.wanted == orders.wanted and "cannot write" in shown.status.master.disk_trouble
            await journal.committed()
            journal.close()

    with_journal(test, tmp_path, monkeypatch)


def test_journal_unwritable_past_the_limit_fails_the_job(tmp_path, monkeypatch):
    async def test(master, clock):
        peers = await join_all_roles(master)
        with no_file_longer_than(0):
            await master.handle(peers["worker-0"], messages.LeaseRequest(CARD))
        status = (await master.handle(peers["agent"], messages.AgentPoll(()))).status
        assert status.phase is JobPhase.FAILED and "The master retried for 0.05 s (--disk-wait)" in status.why

    with_journal(test, tmp_path, monkeypatch, disk_s=0.05)


def test_snapshot_without_disk_space_is_harmless(tmp_path, monkeypatch):
    monkeypatch.setattr(dispatcher, "SNAPSHOT_ENTRIES", 1)

    async def test(master, clock):
        await join_all_roles(master)
        with no_file_longer_than(0):
            master.tick()
        assert master.status().phase is JobPhase.RUNNING

    with_journal(test, tmp_path, monkeypatch)
