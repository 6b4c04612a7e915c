"""A schedule belongs to one group: any change of workers starts a new one."""

from types import SimpleNamespace

import numpy as np

from springtide.domain.data.samples import SampleRange
from springtide.worker.bsp.allreduce import GroupVerdict
from springtide.worker.bsp.group import GroupPlace
from springtide.worker.cache.sample_allocation import SampleAllocator
from springtide.worker.input.batch_plan import AllottedBatch, BatchOrder, ReadBatch

READY = GroupVerdict(
    flush=False,
    empty=False,
    torn=False,
    last=False,
    ready=True,
    alike=True,
    go=False,
    stop=False,
    paper=False,
    effort=3,
    refused=frozenset({1}),
)


class Whole:
    """Batches are lists of their samples."""

    def pick(self, batch, samples, places, *, jagged):
        return [batch[place] for place in places]


def allotting(begun):
    def begin(place, tables):
        begun.append((place, tuple(tables)))
        return SimpleNamespace(effort_within=lambda seconds: 7)

    return SampleAllocator(SimpleNamespace(fixed=False), (0, 1, 2), begin, Whole())


def scheduled(samples, mine, turn):
    """A batch of which a schedule gave this rank these samples."""
    order = BatchOrder(
        indices=np.array(mine),
        ranges=(SampleRange(epoch=0, shard=0, first=0, count=len(mine)),),
        whole=np.arange(samples),
        places=np.array(mine),
    )
    made = SimpleNamespace(step=1, rank_of_sample=np.zeros(samples, dtype=np.int32), plans=())
    return ReadBatch(order, mine, plan=AllottedBatch(list(range(samples)), made, 1, turn))


def test_new_group_starts_its_own_schedule_for_its_worker_count():
    begun = []
    one = allotting(begun)
    one.restart(GroupPlace(0, 2, 1))
    assert one.apply_verdict(READY) and one.on and one.lookups.fixed
    assert not one.apply_verdict(READY), "it has begun"
    one.restart(GroupPlace(2, 3, 2))
    assert not one.on and not one.lookups.fixed and one.effort_within(1.0) == 0
    assert one.apply_verdict(READY)
    assert begun == [(GroupPlace(0, 2, 1), (0, 2)), (GroupPlace(2, 3, 2), (0, 2))]


def test_batches_scheduled_for_the_previous_group_are_reallocated_contiguously():
    one = allotting([])
    one.restart(GroupPlace(0, 2, 1))
    one.apply_verdict(READY)
    holds = scheduled(9, [0, 3, 5, 7], turn=one._turn)
    assert one.review(holds) is holds
    one.restart(GroupPlace(2, 3, 2))
    again = one.review(holds)
    assert again.batch == [6, 7, 8] and again.plan is None
    assert again.order.places.tolist() == [6, 7, 8] and again.order.share == 3 / 9
