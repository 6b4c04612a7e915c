"""Gradient accumulation in parts: every sample once, one name per sum, trained whole or not at all."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

import springtide as st
from springtide import config, errors
from springtide.data import shards, source
from springtide.domain.data.leases import Grant
from springtide.domain.data.samples import DatasetCard, SampleRange
from springtide.rpc.messages import messages
from springtide.worker.input import batch_plan, feeds, lease_prefetch
from springtide.worker.input.batch_plan import PAUSED, BatchOrder, ReadBatch
from springtide.worker.input.feeds import BatchReadahead
from springtide.worker.link import master_link
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTracker
from springtide.worker.step.step import PushBatches
from tests.unit.worker import clicks

PARTS = 4


def order(begin, end, *, first=0, shard=0):
    indices = np.arange(begin, end)
    return batch_plan.BatchOrder(
        indices=indices,
        ranges=(batch_plan.SampleRange(epoch=0, shard=shard, first=begin, count=end - begin),),
        claim=BatchClaim(shard, first, begin, end),
    )


def handed(*several):
    return [ReadBatch(one, int(one.indices[0])) for one in several]


@given(samples=some.integers(1, 300), size=some.integers(1, 9), accumulate=some.integers(1, 5), drop=some.booleans())
def test_split_batch_parts_cover_each_sample_once_and_keep_the_batch_name(samples, size, accumulate, drop):
    card = DatasetCard(samples=samples, batch_size=size * accumulate, shard_batches=3, drop_last=drop)
    alone = master_link.local_link(config.load(environ={}))
    wanted = batch_plan.leased(lease_prefetch.DirectLeases(alone.leases.lease), alone.leases.tracker, card)
    seen, sums, trained = [], [], PushBatches()
    for part in feeds.split(wanted, size):
        assert 0 < part.samples == len(part.indices) <= size
        seen += part.indices.tolist()
        trained.add(ReadBatch(part, None))
        if part.last:
            alone.leases.tracker.acknowledge([part.claim])
            sums.append(trained)
            trained = PushBatches()
    assert trained.ranges == [] and len(seen) == len(set(seen)) == card.samples_used
    for one in sums:
        (claim,) = one.claims
        whole = shards.size(card, claim.shard)
        assert one.ranges == [(whole, claim.shard, claim.begin, claim.end - claim.begin)]
        assert one.samples == claim.end - claim.begin


def test_parts_of_a_batch_are_handed_out_together_and_pauses_pass_through():
    first, second = feeds.parts_of(order(0, 7), 4), feeds.parts_of(order(7, 9), 4)
    given = [*handed(*first), PAUSED, *handed(*second)]
    assert [(one.batch, one.order.last) for one in feeds.complete(given) if one is not PAUSED] == [
        (0, False),
        (4, True),
        (7, True),
    ]
    assert list(feeds.complete(given))[2] is PAUSED


@given(missing=some.sets(some.integers(0, 11)), ends=some.booleans())
def test_batch_with_a_missing_part_is_not_shown_to_the_loop(missing, ends):
    all_parts = [part for at in range(3) for part in feeds.parts_of(order(8 * at, 8 * at + 8), 2)]
    feed = [one for number, one in enumerate(handed(*all_parts)) if number not in missing]
    feed = feed if ends else [*feed, PAUSED]
    whole = [at for at in range(3) if not missing & set(range(4 * at, 4 * at + 4))]
    got = [one.batch for one in feeds.complete(feed) if one is not PAUSED]
    assert got == [8 * at + 2 * part for at in whole for part in range(4)]


@given(empty=some.sets(some.integers(0, 7)))
def test_untrainable_parts_are_skipped_and_their_batch_keeps_its_name(empty):
    all_parts = [part for at in range(2) for part in feeds.parts_of(order(8 * at, 8 * at + 8), 2)]
    feed = [
        ReadBatch(one, None, empty=True) if number in empty else ReadBatch(one, number)
        for number, one in enumerate(all_parts)
    ]
    got = list(feeds.complete(feed))
    assert [one.batch for one in got if not one.empty] == sorted(set(range(8)) - empty)
    for first in (0, 8):
        mine = [one for one in got if first <= one.order.ranges[0].first < first + 8]
        assert [one.order.last for one in mine] == [*[False] * (len(mine) - 1), True]
        assert len(mine) == 1 or not any(one.empty for one in mine)
        trained = PushBatches()
        for one in mine:
            trained.add(one)
        assert trained.ranges == [(0, 0, first, 8)] and trained.claims == [BatchClaim(0, 0, first, first + 8)]


def test_batch_with_an_unreadable_part_is_returned_as_a_whole():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            if index == 13:
                raise OSError("bad block")
            return torch.tensor(index)

    tracker, card = LeaseTracker(), DatasetCard(samples=32, batch_size=8, shuffle=False, shard_batches=4)
    grants = [Grant(shard=0, epoch=0, nth=0, first=0, end=32)]

    def ask(card, most):
        if not grants:
            return messages.WaitReply()
        tracker.add_grants(card, [grants.pop()])
        return messages.LeaseReply(())

    wanted = feeds.split(batch_plan.leased(lease_prefetch.DirectLeases(ask), tracker, card), 2)
    reader = source.open_source(Broken(), batch_size=2)
    got = []
    for one in feeds.complete(feeds.read(reader, wanted, tracker)):
        if one is PAUSED:
            break
        got += one.batch.tolist()
    assert got == list(range(8))
    (failure,) = tracker.report().failures
    assert failure.offset == 8  # not 12: the sum begins there


@pytest.mark.parametrize("clip", [None, 0.05])
def test_loop_stepping_when_completes_step_says_so_equals_plain_pytorch(served_job, clip):
    results = []
    for served in (None, st.join(), served_job(servers=2)):
        model, dataset = clicks.make(samples=190)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        data = clicks.plain(dataset, 20)
        if served is not None:
            model, optimizer, data = served.prepare(
                model,
                optimizer,
                dataset,
                batch_size=20,
                accumulate=PARTS,
                shuffle=False,
                **({} if served.alone else {"max_staleness": 0}),
            )
        losses = []
        for number, (x, y) in enumerate(data):
            loss = clicks.loss_of(model, x, y) / PARTS
            loss.backward()
            losses.append(loss.item())
            completes = number % PARTS == PARTS - 1 or number == 9
            assert served is None or data.completes_step == completes
            if completes:
                if clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        results.append((losses, model.state_dict()))
    for losses, state in results[1:]:
        assert losses == pytest.approx(results[0][0], abs=1e-6)
        for name, value in results[0][1].items():
            assert torch.allclose(value, state[name], atol=1e-6), name


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("left", [0, 1])
def test_abandoned_gradient_sum_is_not_in_the_next_one(served_job, alone, left):
    """`left`: passes that end in the middle of their first sum, before one that is whole."""
    model, dataset = clicks.make(samples=80)
    model, optimizer, data = (st.join() if alone else served_job()).prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        dataset,
        batch_size=20,
        accumulate=2,
        shuffle=False,
        **({} if alone else {"max_staleness": 0}),
    )
    for breaks in [True] * left + [False]:
        for x, y in data:
            clicks.loss_of(model, x, y).backward()
            if breaks:
                break
            if data.completes_step:
                optimizer.step()
                optimizer.zero_grad()
    plain, _ = clicks.make(samples=80)
    own = torch.optim.SGD(plain.parameters(), lr=0.5)
    for number, (x, y) in enumerate(clicks.plain(dataset, 20)):
        clicks.loss_of(plain, x, y).backward()
        if number % 2:
            own.step()
            own.zero_grad()
    for name, value in plain.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-6), name


def test_step_in_the_middle_of_a_gradient_sum_is_refused():
    model, dataset = clicks.make()
    model, optimizer, data = st.join().prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=20, accumulate=2
    )
    with pytest.raises(errors.BadInput, match=r"Call step\(\) where batches\.completes_step"):
        clicks.train(model, optimizer, data)


@pytest.mark.parametrize(("accumulate", "sync"), [(0, "async"), (-1, "async"), (2, "bsp")])
def test_invalid_accumulate_values_are_refused(served_job, accumulate, sync):
    model, dataset = clicks.make()
    with pytest.raises(errors.BadInput, match=f"accumulate={accumulate}"):
        served_job(sync=sync).prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, accumulate=accumulate
        )


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_iterable_dataset_accumulates_the_same_way(accumulate):
    class Numbers(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([(torch.tensor([n % 50, 1, 2]), torch.tensor(1.0)) for n in range(37)])

    model, _ = clicks.make()
    model, optimizer, data = st.join().prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), Numbers(), batch_size=4, accumulate=accumulate
    )
    samples, steps = 0, 0
    for x, y in data:
        clicks.loss_of(model, x, y).backward()
        samples += len(x)
        if data.completes_step:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    assert (samples, steps) == (37, -(-10 // accumulate))


def batch(number):
    whole = np.arange(number, number + 4)
    one = SampleRange(epoch=0, shard=0, first=number, count=4)
    return ReadBatch(BatchOrder(indices=whole, ranges=(one,), whole=whole), number, whole=True)


REGROUP = ReadBatch(BatchOrder(indices=np.empty(0, dtype=np.int64), regroups=1), None)


def test_each_batch_knows_its_successor_and_pauses_are_skipped():
    ahead = iter(BatchReadahead(iter([batch(0), PAUSED, batch(4), PAUSED]), lambda one: one))
    first = next(ahead)
    assert first.batch == 0 and first.following().batch == 4
    second = next(ahead)
    assert second.batch == 4 and second.following() is None
    assert list(ahead) == []


def test_live_stream_batch_before_a_pause_has_no_successor():
    ahead = iter(BatchReadahead(iter([batch(0), PAUSED, PAUSED, batch(4)]), lambda one: one, pauses=True))
    first = next(ahead)
    assert first.batch == 0 and first.following() is None
    assert next(ahead) is PAUSED and next(ahead) is PAUSED
    assert next(ahead).batch == 4
    assert list(ahead) == []


def test_readahead_stops_at_a_regroup():
    read = []

    def feed():
        for one in (batch(0), REGROUP, batch(4)):
            read.append(one.batch)
            yield one

    ahead = iter(BatchReadahead(feed(), lambda one: one))
    assert next(ahead).following() is None, "no batch of this group follows"
    assert next(ahead) is REGROUP
    assert read == [0, None]
    assert next(ahead).batch == 4


def test_next_batch_is_prepared_during_this_one_and_reviewed_afterwards():
    begun, here = threading.Event(), threading.current_thread()

    def make_ready(one):
        assert threading.current_thread() is not here
        if one.batch == 4:
            begun.set()
        return one

    reviewed = []
    ahead = iter(BatchReadahead(iter([batch(0), batch(4)]), make_ready, lambda one: reviewed.append(one.batch) or one))
    next(ahead)
    assert begun.wait(30) and reviewed == [0]
    next(ahead)
    assert reviewed == [0, 4]


def test_reader_error_reaches_the_loop_and_break_closes_thread_and_feed():
    closed = []

    def feed():
        try:
            yield batch(0)
            raise OSError("no such file")
        finally:
            closed.append(True)

    ahead = iter(BatchReadahead(feed(), lambda one: one))
    with pytest.raises(OSError, match="no such file"):
        next(ahead).following()
    ahead.close()
    assert closed
    endless = iter(BatchReadahead(iter(lambda: PAUSED, None), lambda one: one))
    one = iter(BatchReadahead(iter([batch(0)]), lambda each: each))
    next(one)
    one.close()
    endless.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("springtide-ahead")]
