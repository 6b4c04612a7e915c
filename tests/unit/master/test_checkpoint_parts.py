"""Checkpoints while slots move and servers leave: new owners save moved slots in another part."""

import msgspec

from springtide.checkpoint.format.manifest import Covered
from springtide.data.ledger.passes import JobProgress
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut, PartitionRange, StreamCard
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.core import events
from springtide.master.checkpoint.round import MOST_PARTS, CheckpointStore
from springtide.master.core.record import JobRecord
from springtide.rpc.messages.checkpoints import SaveOrder
from springtide.rpc.messages.types import SlotsMoved
from springtide.server import recovery
from tests.unit.checkpoint import stores
from tests.unit.master.checkpoint.test_schedule import with_job


def give(job, slots, source, target):
    """Move slots from one server to another and report it to the master."""
    owners = list(job.master.record.slots.owners)
    for slot in slots:
        owners[slot] = target
    for rank, server in enumerate(job.servers):
        server.owns = lambda slot, rank=rank: owners[slot] == rank
    return job.ask(f"server-{source}", SlotsMoved(tuple(slots), target))


def holds_what_server_0_has(job, number):
    """Whether the whole of a checkpoint is what was trained (all servers of these tests are trained alike)."""
    again = stores._native.Store(slots=stores.SLOTS, seed=5)
    recovery.restore(again, str(job.folder), number, range(stores.SLOTS))
    return stores.contents(again) == stores.contents(job.servers[0].store)


def test_stream_cuts_made_while_slots_are_copied_are_in_the_manifest(tmp_path):
    """Slots may contain batches that end there, and another run must read the same ones."""
    record, saving = (
        JobRecord(JobSpec(name="job", slots=stores.SLOTS)),
        CheckpointStore(CheckpointRules(every_s=1.0), tmp_path, stores.CLAIM),
    )
    card = DatasetCard(samples=0, batch_size=10, stream=StreamCard(url="log:///tmp/x"))
    record.book.lease(LeaseHolder(0), card, 1, 0.0, seen=(PartitionRange(0, 0, 4),))
    saving.begin(record, {}, hurry=False, at=0.0)
    record.book.cut(LeaseHolder(0), [BatchCut(0, 0, 4)])
    manifest = saving.round.manifest(record, Covered((), (), ()), stores.RUN)
    (state,) = msgspec.msgpack.decode(manifest.progress.ledger, type=JobProgress).flows
    assert state.partitions[0].cuts == [4] and manifest.progress.samples == 0


def test_slots_moved_during_a_checkpoint_are_saved_by_their_new_owner(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.save()
        await job.train()
        job.tick(31)
        await job.save(1)
        await give(job, range(5), 0, 1)  # its new owner has written its part already
        await job.save(0)
        assert job.outcomes == [(1, "complete")]
        await give(job, [3], 1, 0)  # and one of them comes back
        await job.save(0, 1)
        assert job.outcomes == [(1, "complete"), (2, "complete")]
        assert holds_what_server_0_has(job, 2)
        await job.train()
        job.tick(31)
        await job.save()
        assert job.outcomes[-1] == (3, "complete") and holds_what_server_0_has(job, 3)

    with_job(test, tmp_path)


def test_planned_server_removal_does_not_abort_a_checkpoint(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.order(0)
        await job.ask("server-0", job.servers[0].saver.save(SaveOrder(1, 1)))
        job.master.context.apply(events.ServersScaled(1, "test"))
        await give(job, range(32, 64), 1, 0)
        job.master.context.apply(events.ServerEmptied(Role(RoleKind.SERVER, 1)))
        job.tick()
        assert job.outcomes == []
        await job.save(0)
        assert job.outcomes == [(1, "complete")] and holds_what_server_0_has(job, 1)

    with_job(test, tmp_path)


def test_checkpoint_is_abandoned_when_slots_keep_moving(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        job.servers[0].owns = job.servers[1].owns = lambda slot: slot > 3
        for _ in range(MOST_PARTS + 1):
            await job.save()
        ((number, outcome),) = job.outcomes
        assert (number, outcome) == (1, "abandoned")
        assert "4 slots keep changing servers" in job.told()[0]["why"]

    with_job(test, tmp_path)
