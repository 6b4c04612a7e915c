"""Servers are lost on a virtual clock: no batch is lost or doubled, and the cost is bounded."""

import pytest

from springtide.domain.data.samples import DatasetCard
from tests.sim.virtual_job import VirtualJob

CARD = DatasetCard(samples=64_000, batch_size=16, shard_batches=16)  # 4000 batches: 20 s of four workers


class Slots:
    """Slots of two servers, as sets of applied batches; one server is lost and restored from a checkpoint."""

    def __init__(self, job, *, every_s, losses):
        self.job, self.every_s, self.losses = job, every_s, list(losses)
        self.healthy, self.restored = set(), set()
        self.saved, self.due, self.skipped = None, 0.0, 0

    def apply(self, claim):
        """A batch is applied where it is not known yet."""
        name = (claim.shard, claim.begin)
        self.skipped += name in self.healthy
        self.healthy.add(name)
        self.restored.add(name)

    def change(self, job, now):
        """Save when it is time, then lose a server when it is time."""
        for worker in job.workers:
            worker.apply = self.apply
        if now >= self.due:
            self.saved, self.due = (job.book.note(), set(self.restored)), now + self.every_s
        if self.losses and now >= self.losses[0]:
            self.losses.pop(0)
            note, images = self.saved
            self.restored = set(images)
            job.book.restore(note)


@pytest.mark.parametrize("losses", [(), (3.1,), (3.1, 3.3, 9.95), (5.0, 10.0, 15.0, 19.0)])
def test_every_slot_has_every_batch_and_only_work_since_the_checkpoint_repeats(losses):
    job = VirtualJob(CARD, [1.0] * 4, batch_s=0.02)
    slots = Slots(job, every_s=2.0, losses=losses)
    took_s = job.run(slots.change)
    everything = {(shard, first) for shard in range(CARD.shards) for first in range(0, CARD.shard_size, 16)}
    everything = {(shard, first) for shard, first in everything if shard * CARD.shard_size + first < CARD.samples}
    assert slots.healthy == slots.restored == everything
    assert not slots.losses, "the job was over before"
    again_s = 2.0 + 1.0 + 0.5  # since the checkpoint, not yet told with a heartbeat, and the batches in hand
    assert took_s <= job.ideal_s + 1.5 + again_s * len(losses)
    assert bool(slots.skipped) == bool(losses)
