"""Where every slot and shard of a job is, as the dashboard asks for it."""

import pytest

from springtide.domain.data.leases import Progress
from springtide.domain.data.samples import DatasetCard
from springtide.master import job_map
from springtide.rpc.messages import messages
from springtide.rpc.transport.listener import Peer
from springtide.server import slot_loads
from tests.unit.master.test_dispatcher import join_all_roles, with_desk

CARD = DatasetCard(samples=30, batch_size=10, shard_batches=1)  # three shards


def test_map_shows_every_slot_and_shard_of_a_job(tmp_path):
    async def test(master, clock):
        peers = await join_all_roles(master, servers=2)
        assert (await master.handle(Peer(address="somebody"), messages.MapRequest())).shards.total == 0
        loads = slot_loads.pack([slot_loads.SlotCount(0, 100, 7)])
        await master.handle(peers["server-0"], messages.Heartbeat(slots=loads))
        await master.handle(peers["worker-0"], messages.LeaseRequest(CARD))
        done = (Progress(0, 0, 10, 10),)
        await master.handle(peers["worker-0"], messages.LeaseRequest(CARD, progress=done))
        found = await master.handle(Peer(address="somebody"), messages.MapRequest())
        assert found.shards.states == "dlp" and found.shards.total == 3 and not found.partitions
        slots = found.slots
        assert len(slots.owners) == len(slots.bytes) == len(slots.requests) == master.state.spec.slots
        assert set(slots.owners) == {0, 1} and slots.bytes[0] == 100.0 and slots.requests[0] == 7.0 and not slots.goals

    with_desk(test, tmp_path, servers=2, slots=64)


@pytest.mark.parametrize(
    ("states", "shown"), [("ddddp", "ddddp"), ("d" * 8 + "p", "ddp"), ("ddddlddpxddd", "dlx"), ("", "")]
)
def test_many_shards_share_letters_but_none_hides(states, shown, monkeypatch):
    monkeypatch.setattr(job_map, "MOST_STATES", 5 if len(states) <= 5 else 3)
    assert job_map.shards_of(states).states == shown and job_map.shards_of(states).total == len(states)
