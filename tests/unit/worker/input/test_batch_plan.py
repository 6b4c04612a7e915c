import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from springtide import config, errors
from springtide.domain.data.leases import Grant
from springtide.domain.data.samples import DatasetCard
from springtide.rpc.messages import messages
from springtide.worker.input import batch_plan, lease_prefetch
from springtide.worker.link import master_link
from springtide.worker.link.lease_tracker import LeaseTracker


def all_of(card, rank=0, group=1):
    """All batch orders of a pass, each acknowledged at once."""
    alone = master_link.local_link(config.load(environ={}))
    found = []
    for order in batch_plan.leased(
        lease_prefetch.DirectLeases(alone.leases.lease), alone.leases.tracker, card, place=lambda: (rank, group, 0)
    ):
        alone.leases.tracker.acknowledge([order.claim])
        found.append(order)
    return found


@given(samples=some.integers(1, 500), batch_size=some.integers(1, 40), epochs=some.integers(1, 3), drop=some.booleans())
def test_single_worker_gets_every_sample_of_every_epoch_once(samples, batch_size, epochs, drop):
    card = DatasetCard(samples=samples, batch_size=batch_size, epochs=epochs, shard_batches=3, drop_last=drop)
    found = all_of(card)
    assert len(found) == card.batches
    for epoch in range(epochs):
        drawn = [int(i) for order in found if order.epoch == epoch for i in order.indices]
        assert len(set(drawn)) == len(drawn) == card.samples_used
    names = [(one.epoch, one.shard, one.first + k) for order in found for one in order.ranges for k in range(one.count)]
    assert len(set(names)) == len(names) == card.samples_used * epochs


@given(samples=some.integers(8, 400), batch_size=some.integers(8, 64), group=some.integers(1, 8))
def test_ranks_split_each_batch_and_none_gets_an_empty_part(samples, batch_size, group):
    card = batch_plan.fit_to_group(DatasetCard(samples=samples, batch_size=batch_size, shard_batches=2), group)
    ranks = [all_of(card, rank=rank, group=group) for rank in range(group)]
    assert len({len(found) for found in ranks}) == 1
    for parts in zip(*ranks, strict=True):
        assert all(part.samples == len(part.indices) > 0 for part in parts)
        assert sum(part.share for part in parts) == pytest.approx(1)
        assert len({part.claim for part in parts}) == 1
    drawn = sorted(int(i) for order in itertools.chain(*ranks) for i in order.indices)
    assert drawn == list(range(samples))


@given(samples=some.integers(60, 400), each=some.integers(1, 6), sizes=some.lists(some.integers(1, 4), min_size=1))
def test_weak_scaling_keeps_the_batch_size_of_each_rank(samples, each, sizes):
    card = DatasetCard(samples=samples, batch_size=each * 3, shard_batches=4, in_step=True)
    changes = dict(enumerate(sizes, start=1))  # before shard n the group has so many ranks, and keeps them until n + 1
    alone, shard, ranks = master_link.local_link(config.load(environ={})), 0, 3

    def ask(card, most):
        nonlocal shard, ranks
        shard, ranks = shard + 1, changes.get(shard, ranks)
        return alone.leases.lease(card, most)

    wholes: dict[int, list[tuple[int, int]]] = {}
    for order in batch_plan.leased(
        lease_prefetch.DirectLeases(ask), alone.leases.tracker, card, each=each, place=lambda: (0, ranks, 1)
    ):
        alone.leases.tracker.acknowledge([order.claim])
        wholes.setdefault(order.ranges[0].shard, []).append((len(order.whole), ranks))
    assert sum(whole for batches in wholes.values() for whole, _ in batches) == samples
    for batches in wholes.values():
        assert all(whole == each * group for whole, group in batches[:-1])
        assert batches[-1][0] < each * batches[-1][1] + batches[-1][1], "the rest of a shard joins the one before it"


def test_group_larger_than_its_batch_is_refused():
    with pytest.raises(errors.BadInput, match="cannot be shared by 5 workers"):
        batch_plan.fit_to_group(DatasetCard(samples=100, batch_size=4), 5)


def test_wait_reply_pauses_and_end_counts_only_with_no_lease_held():
    tracker = LeaseTracker()
    answers = iter(
        [messages.WaitReply(), messages.LeaseReply((Grant(7, 1, 0, 2, 5),)), messages.DataEnd(), messages.DataEnd()]
    )

    def ask(card, most):
        answer = next(answers)
        if isinstance(answer, messages.LeaseReply):
            tracker.add_grants(card, answer.grants)
        return answer

    card = DatasetCard(samples=10, batch_size=2, shuffle=False)
    told = batch_plan.leased(lease_prefetch.DirectLeases(ask), tracker, card)
    assert next(told) is batch_plan.PAUSE
    found = [next(told), next(told)]
    assert [order.indices.tolist() for order in found] == [[2, 3], [4]]
    assert [(order.ranges[0].shard, order.ranges[0].first) for order in found] == [(7, 2), (7, 4)]
    assert next(told) is batch_plan.PAUSE, "what was handed out is not trained yet"
    tracker.acknowledge(order.claim for order in found)
    assert list(told) == []


def test_draining_job_stops_reading_within_a_shard():
    alone = master_link.local_link(config.load(environ={}))
    card = DatasetCard(samples=100, batch_size=10)
    told = batch_plan.leased(
        lease_prefetch.DirectLeases(alone.leases.lease), alone.leases.tracker, card, draining=lambda: len(seen) == 3
    )
    seen = []
    seen.extend(itertools.islice(told, 3))
    assert list(told) == []


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("samples", [3, 9, 10, 11, 12, 95, 100])
def test_number_of_batches_of_a_group_is_exact_and_a_share_covers_all(samples, group):
    ends = [*range(10, samples, 10), samples]
    if len(ends) > 1 and ends[-1] - ends[-2] < group:
        del ends[-2]  # a last batch that is smaller than the group is added to the previous batch
    assert batch_plan.count_batches(samples, 10, workers=group, in_step=True) == len(ends)
    share = batch_plan.count_batches(samples, 10, workers=group)
    assert share * group >= -(-samples // 10) > (share - 1) * group
