"""The end of a data set without a length, and ranges that nobody can read."""

from springtide.data.ledger.async_ledger import AsyncLedger, ShardRange
from springtide.domain.data.leases import LeaseHolder, LeaseKey, NoLease, Progress, ReadFailure
from springtide.domain.data.samples import DatasetCard

A, B = LeaseHolder(0), LeaseHolder(1)
ENDLESS = DatasetCard(samples=2**20, batch_size=10, shard_batches=4, endless=True)


def lease(ledger, holder, *, most=1, size=40):
    return ledger.lease(holder, most=most, size=size, budget=10**6, deadline=0.0)


def train(ledger, holder, grant, end):
    return ledger.report(holder, Progress(grant.shard, grant.first, end, grant.end), 0.0)


def test_end_of_the_data_shortens_leases_and_finishes_trained_shards():
    ledger = AsyncLedger(ENDLESS, 0)
    for grant in lease(ledger, A, most=2):
        train(ledger, A, grant, 40)
    (third,), (fourth,) = lease(ledger, A), lease(ledger, B)
    train(ledger, A, third, 10)
    assert ledger.end_at(90, 3) and not ledger.end_at(80)
    assert fourth.shard == 3 and not ledger.leases and ledger.over
    assert (ledger.done, ledger.left, ledger.totals().done, ledger.totals().samples) == (3, {}, 3, 87)


def test_lease_across_the_end_of_the_data_ends_there():
    ledger = AsyncLedger(ENDLESS, 0)
    (grant,) = lease(ledger, A)
    assert ledger.end_at(25)
    assert (ledger.leases[LeaseKey(0, 0)].end, ledger.left, ledger.done) == (25, {0: 25}, 0)
    train(ledger, A, grant, 25)
    assert ledger.over and (ledger.done, ledger.samples_done) == (1, 25)


def test_nothing_is_left_to_lease_when_the_data_end_where_leases_do():
    ledger = AsyncLedger(ENDLESS, 0)
    lease(ledger, A, size=10)
    assert ledger.end_at(10)
    assert ledger.todo.samples == 0 and lease(ledger, B) is NoLease.WAIT


def test_returned_and_unreadable_ranges_keep_their_queues_at_the_end_of_the_data():
    ledger = AsyncLedger(ENDLESS, 0)
    first, second = lease(ledger, A, most=2)
    ledger.fail(A, ReadFailure(second.shard, second.first, 20, "OSError"))
    ledger.take_back([LeaseKey(first.shard, first.first)])
    assert ledger.end_at(70)
    assert list(ledger.todo.returned) == [ShardRange(0, 0, 40)]
    assert list(ledger.todo.failed) == [ShardRange(1, 20, 30)]


def test_poisoned_range_has_its_epoch():
    ledger = AsyncLedger(DatasetCard(samples=40, batch_size=10, shard_batches=4, epochs=2, first_epoch=5), 0, 1)
    _, second = lease(ledger, A, most=2)
    ledger.fail(A, ReadFailure(second.shard, second.first, 20, "OSError"))
    (poisoned,) = ledger.poisoned
    assert (poisoned.shard, poisoned.epoch, poisoned.first, poisoned.end) == (1, 6, 20, 40)
