"""Rollbacks and new runs: which samples are trained again, and what stays given up."""

import dataclasses

import pytest

from springtide.data.ledger.job_ledger import JobLedger
from springtide.data.ledger.passes import HolderRegistry, caught_up
from springtide.domain.data.leases import Grant, LeaseHolder, NoLease, Progress, ReadFailure
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, MOST_PARTITIONS, BatchCut, PartitionRange, StreamCard
from tests.oracles import ledger_invariants

CARD = DatasetCard(samples=100, batch_size=10, shard_batches=4)  # shards of 40, 40 and 20 samples
SECOND = dataclasses.replace(CARD, first_epoch=1)
STREAM = DatasetCard(samples=0, batch_size=10, stream=StreamCard(url="log:///tmp/clicks"))
A, B = LeaseHolder(0), LeaseHolder(1)


def train(book, card=CARD, holder=A, most=16, seen=()):
    """Lease and train everything that is pending."""
    while not isinstance(grants := book.lease(holder, card, most, 0.0, seen=seen), NoLease):
        book.report(holder, [Progress(one.shard, one.first, one.end, one.end) for one in grants], 0.0)


def give_up(book, shard, first, at, holder=A):
    """Fail to read the lease of a ledger that gives up after one failure."""
    assert book.fail(holder, ReadFailure(shard, first, at, "bad disk"))


def restored(book, note):
    again = book.restore(note)
    ledger_invariants.check(book)
    return again


# ---- shards ----


def test_range_that_the_checkpoint_has_given_up_stays_given_up():
    book = JobLedger(workers=1, max_failures=1)
    train(book)
    book.lease(A, SECOND, 2, 0.0)
    give_up(book, shard=4, first=0, at=20)
    book.report(A, [Progress(4, 0, 20, 20)], 0.0)
    note = book.note()
    assert restored(book, note) == 0
    assert [(each.shard, each.first, each.end) for each in book.poisoned()] == [(4, 20, 40)]
    train(book, SECOND)
    assert book.samples_done == 200 - 20
    assert restored(book, note) == 60 and book.totals().poisoned == 1


def test_range_that_only_the_checkpoint_has_given_up_is_trained_again():
    book = JobLedger(workers=1, max_failures=1)
    train(book)
    book.lease(A, SECOND, 1, 0.0)
    before = book.note()
    give_up(book, shard=3, first=0, at=20)
    book.report(A, [Progress(3, 0, 20, 20)], 0.0)
    later = book.note()
    restored(book, before)
    train(book, SECOND)
    assert not book.poisoned() and book.samples_done == 200
    assert restored(book, later) == 80
    assert not book.poisoned() and book.lease(A, SECOND, 1, 0.0) == (Grant(3, 1, 0, 20, 40, returned=True),)


def test_returned_samples_stay_pending_after_a_rollback():
    book = JobLedger(workers=1)
    book.lease(A, CARD, 2, 0.0)
    book.report(A, [Progress(0, 0, 10, 40)], 0.0)
    book.fence(0, 0)
    note = book.note()
    train(book, holder=B)
    assert restored(book, note) == 90
    restored(book, note)
    grants = book.lease(B, CARD, 2, 0.0)
    assert grants == (Grant(0, 0, 0, 10, 40, returned=True), Grant(1, 0, 1, 0, 40, returned=True))


def test_shard_of_which_only_the_beginning_was_leased_goes_on_where_it_was_cut():
    book, card = JobLedger(workers=2), dataclasses.replace(CARD, samples=160, shard_batches=16)
    grants = book.lease(A, card, 1, 0.0)
    assert grants == (Grant(0, 0, 0, 0, 40),)
    book.report(A, [Progress(0, 0, 40, 40)], 0.0)
    note = book.note()
    assert restored(book, note) == 0
    assert book.lease(A, card, 1, 0.0)[0][3] == 40


def test_leased_beginning_of_a_shard_is_pending_again_after_a_rollback():
    book, card = JobLedger(workers=2), dataclasses.replace(CARD, samples=160, shard_batches=16)
    assert book.lease(A, card, 1, 0.0) == (Grant(0, 0, 0, 0, 40),)
    book.report(A, [Progress(0, 0, 10, 40)], 0.0)
    assert restored(book, book.note()) == 0
    assert book.lease(A, card, 1, 0.0) == (Grant(0, 0, 0, 10, 30, returned=True),)


def test_failures_of_the_checkpoint_count_after_a_rollback():
    book = JobLedger(workers=1, max_failures=2)
    book.lease(A, CARD, 1, 0.0)
    before = book.note()
    give_up(book, shard=0, first=0, at=20)
    book.report(A, [Progress(0, 0, 20, 20)], 0.0)
    later = book.note()
    assert restored(book, later) == 0 and not book.poisoned()
    assert book.lease(A, CARD, 1, 0.0) == (Grant(0, 0, 0, 20, 40, returned=True),)
    give_up(book, shard=0, first=20, at=20)
    assert [given_up.first for given_up in book.poisoned()] == [20]
    restored(book, before)
    restored(book, later)
    assert book.ledgers()[0].tries == 1
    restored(book, JobLedger(1).note())
    restored(book, later)
    assert book.ledgers()[0].failures == {}, "the shard is not begun"


def test_new_run_goes_on_with_all_that_is_not_trained():
    book = JobLedger(workers=1, max_failures=1)
    train(book)
    book.lease(A, SECOND, 2, 0.0)
    give_up(book, shard=3, first=0, at=20)
    book.close()
    later = JobLedger(workers=1, max_failures=1)
    later.resume(book.note())
    ledger_invariants.check(later)
    assert (later.samples_done, later.leases(), later.poisoned()) == (100, (), ())
    train(later)
    grants = later.lease(B, SECOND, 4, 0.0)
    assert [(one.shard, one.first, one.end) for one in grants] == [(3, 0, 20), (4, 0, 40), (3, 20, 40), (5, 0, 20)]
    later.report(B, [Progress(one.shard, one.first, one.end, one.end) for one in grants], 0.0)
    assert later.samples_done == 200 and not later.is_cut_short(SECOND)


def test_bsp_pass_opened_after_the_checkpoint_restarts():
    book, card = JobLedger(workers=1), dataclasses.replace(CARD, in_step=True)
    note = book.note()
    book.report(A, [Progress(one.shard, 0, 40, 40) for one in book.lease(A, card, 1, 0.0)], 0.0)
    assert restored(book, note) == 40
    assert (book.samples_done, book.totals().done) == (0, 0) and book.lease(A, card, 1, 0.0)[0].first == 0


def test_pass_of_unknown_length_rolls_back_before_its_end_is_known():
    book, endless = JobLedger(workers=1), dataclasses.replace(CARD, samples=2**20, endless=True)
    note = book.note()
    book.report(A, [Progress(one.shard, 0, 40, 40) for one in book.lease(A, endless, 1, 0.0)], 0.0)
    assert restored(book, note) == 40 and book.lease(A, endless, 1, 0.0) == (Grant(0, 0, 0, 0, 40),)


def test_samples_that_do_not_exist_are_no_progress():
    book = JobLedger(workers=1)
    endless = dataclasses.replace(CARD, samples=2**20, endless=True)
    grants = book.lease(A, endless, 3, 0.0)
    assert book.end(A, endless, 90, 3)
    book.report(A, [Progress(one.shard, 0, 40, 40) for one in grants[:2]], 0.0)
    assert book.note().samples == 80
    book.report(A, [Progress(2, 0, 10, 10)], 0.0)
    assert book.note().samples == 87


# ---- streams ----


def stream_after_a_pass(book, *seen):
    """Open a stream as the second pass, whose shards begin at 3; return its grants."""
    train(book)
    return book.lease(A, STREAM, 99, 0.0, seen=seen)


def test_partition_that_ended_after_the_checkpoint_is_read_again_to_its_end():
    book = JobLedger(workers=1)
    book.lease(A, STREAM, 1, 0.0, seen=[PartitionRange(0, 0, 90)])
    book.report(A, [Progress(0, 0, 20, FAR)], 0.0)
    note = book.note()
    book.lease(A, STREAM, 1, 0.0, seen=[PartitionRange(0, 0, 40, final=True)])
    book.report(A, [Progress(0, 0, 40, 40)], 0.0)
    assert restored(book, note) == 20
    assert book.lease(A, STREAM, 1, 0.0) == (Grant(0, 0, 0, 20, 40),)


def test_partition_that_ended_where_the_checkpoint_was_is_over():
    book = JobLedger(workers=1)
    book.lease(A, STREAM, 1, 0.0, seen=[PartitionRange(0, 0, 90)])
    book.report(A, [Progress(0, 0, 40, FAR)], 0.0)
    note = book.note()
    book.lease(A, STREAM, 1, 0.0, seen=[PartitionRange(0, 0, 40, final=True)])
    assert restored(book, note) == 0 and book.flows()[0].over


def test_batch_of_a_stream_that_the_checkpoint_has_given_up_stays_given_up():
    book = JobLedger(workers=1, max_failures=1)
    stream_after_a_pass(book, PartitionRange(0, 0, 90), PartitionRange(1, 5, 90))
    book.report(A, [Progress(3, 0, 20, FAR), Progress(4, 5, 20, FAR)], 0.0)
    give_up(book, shard=4, first=5, at=20)
    note = book.note()
    assert restored(book, note) == 0 and book.samples_done == 100 + 20 + 15
    assert book.lease(A, STREAM, 9, 0.0) == (Grant(3, 0, 0, 20, FAR), Grant(4, 0, 1, 30, FAR))


def test_batch_of_a_stream_given_up_after_the_checkpoint_is_read_again():
    book = JobLedger(workers=1, max_failures=1)
    stream_after_a_pass(book, PartitionRange(0, 0, 90), PartitionRange(1, 5, 90))
    note = book.note()
    give_up(book, shard=4, first=5, at=20)
    book.report(A, [Progress(4, 5, 20, 20)], 0.0)
    assert restored(book, note) == 15 and not book.poisoned()
    assert book.lease(A, STREAM, 9, 0.0) == (Grant(3, 0, 0, 0, FAR), Grant(4, 0, 1, 5, FAR))


def test_partition_that_was_given_up_is_over_but_not_done():
    book = JobLedger(workers=1, max_failures=1)
    stream_after_a_pass(book, PartitionRange(0, 0, 20, final=True), PartitionRange(1, 5, 10, final=True))
    book.report(A, [Progress(3, 0, 20, 20)], 0.0)
    give_up(book, shard=4, first=5, at=5)
    assert book.flows()[0].over and (book.totals().done, book.totals().poisoned) == (3 + 1, 1)


def test_cuts_of_a_batch_that_was_given_up_stay_for_the_next_run():
    book = JobLedger(workers=1, max_failures=1, keeps=1)
    stream_after_a_pass(book, PartitionRange(0, 0, 90), PartitionRange(1, 5, 90))
    book.cut(A, [BatchCut(4, 5, 7), BatchCut(4, 5, 13)])
    book.report(A, [Progress(4, 5, 7, FAR)], 0.0)
    give_up(book, shard=4, first=5, at=7)
    train_from = book.lease(A, STREAM, 9, 0.0)
    book.report(A, [Progress(4, train_from[0].first, 40, FAR)], 0.0)
    book.keep(book.note())
    flow = book.flows()[0]
    assert flow.floors == [{0: 0, 1: 7}] and flow.partitions[1].cuts == [13]


def test_new_run_tries_to_read_what_the_run_before_gave_up():
    book = JobLedger(workers=1, max_failures=1)
    stream_after_a_pass(book, PartitionRange(0, 0, 90), PartitionRange(1, 5, 90))
    give_up(book, shard=4, first=5, at=20)
    book.report(A, [Progress(4, 5, 20, 20)], 0.0)
    later = JobLedger(workers=1, max_failures=2)
    later.resume(book.note())
    ledger_invariants.check(later)
    train(later)
    assert later.lease(A, STREAM, 9, 0.0) == (Grant(3, 0, 0, 0, FAR), Grant(4, 0, 1, 20, FAR))
    give_up(later, shard=4, first=20, at=20)
    assert not later.poisoned(), "tries of the run before do not count"
    later.lease(A, STREAM, 9, 0.0)
    give_up(later, shard=4, first=20, at=20)
    assert [given_up.first for given_up in later.poisoned()] == [20]


@pytest.mark.parametrize(("end", "cuts"), [(15, [15]), (20, [])])
def test_end_of_a_partition_is_a_cut_only_within_a_batch(end, cuts):
    book = JobLedger(workers=1)
    seen = (PartitionRange(0, 0, end, final=True), PartitionRange(1, 0, 7))
    book.lease(A, STREAM, 9, 0.0, seen=seen)
    (flow,) = caught_up(book.note(), book.passes).flows
    assert flow.partitions[0].cuts == cuts and flow.partitions[1].cuts == []
    later = JobLedger(workers=1)
    later.resume(book.note())
    assert later.flows()[0].partitions[0].cuts == cuts


def test_checkpoint_without_a_pass_takes_in_no_stream_opened_after_it():
    book = JobLedger(workers=1)
    note = book.note()
    stream_after_a_pass(book, PartitionRange(0, 0, 90))
    assert caught_up(note, book.passes).flows == ()
    begun = JobLedger(workers=1)
    begun.lease(A, CARD, 1, 0.0)
    (flow,) = caught_up(begun.note(), book.passes).flows
    assert flow.base == 3 and flow.samples_done == 0 and not flow.closed


def test_cuts_are_those_of_a_leases_own_pass():
    book = JobLedger(workers=1)
    book.lease(A, STREAM, 9, 0.0, seen=[PartitionRange(0, 0, 90)])
    book.cut(A, [BatchCut(0, 0, 7)])
    grants = book.lease(A, STREAM, 9, 0.0, known=())
    assert book.cuts_of(grants) == (BatchCut(0, 0, 7),) and book.cuts_of(()) == ()
    assert book.of_shard(MOST_PARTITIONS - 1) is book.passes[0] and book.of_shard(MOST_PARTITIONS) is None


def test_job_with_a_stream_among_its_passes_is_on_a_stream():
    book = JobLedger(workers=2, max_failures=2)
    book.lease(A, CARD, 1, 0.0)
    assert not book.on_stream and not book.in_step
    book.lease(A, STREAM, 9, 0.0, seen=[PartitionRange(0, 0, 90), PartitionRange(1, 0, 90)])
    assert book.on_stream
    give_up(book, shard=3, first=0, at=0)
    assert not book.hopeless
    give_up(book, shard=0, first=0, at=0)
    assert book.hopeless, "the other worker reads other partitions"


def test_bsp_group_finds_the_stream_of_a_card():
    book, card = JobLedger(workers=1), dataclasses.replace(STREAM, in_step=True)
    other = dataclasses.replace(card, stream=StreamCard(url="log:///tmp/other"))
    book.lease(A, card, 1, 0.0)
    assert book.in_step and book.bsp_stream(card) is book.passes[0] and book.bsp_stream(other) is None


# ---- workers ----


def test_trained_samples_are_counted_for_each_worker():
    book = JobLedger(workers=1)
    first, second, third = book.lease(A, CARD, 3, 0.0)
    book.report(A, [Progress(first.shard, 0, 10, 40)], 0.0)
    book.report(A, [Progress(first.shard, 0, 40, 40), Progress(second.shard, 0, 20, 20)], 0.0)
    assert book.holders.trained == {0: 60}
    train(book, holder=B)
    book.report(A, [Progress(third.shard, 0, 20, 20)], 0.0)
    assert book.holders.trained == {0: 80, 1: 20}


def test_rank_that_cannot_read_leaves_work_to_ranks_that_never_failed():
    holders = HolderRegistry(2, 1)
    holders.living = {0: 0, 1: 0}
    holders.add_read_failure(0)
    assert holders.should_leave_work(0) and not holders.should_leave_work(1)
    holders.add_read_failure(1)
    assert not holders.should_leave_work(0), "nobody else can read either"
    assert holders.all_failed_to_read
    holders.add_trained(1, 5)
    assert holders.should_leave_work(0) and not holders.all_failed_to_read
    holders.fenced[1] = 0
    assert not holders.should_leave_work(0) and holders.here == {0}
    holders.expected = 3
    assert holders.should_leave_work(0) and not holders.all_failed_to_read, "a rank is still to come"


def test_rank_that_has_not_called_yet_counts_as_here_until_it_is_fenced():
    holders = HolderRegistry(2)
    assert holders.is_here(1)
    holders.fenced[1] = 0
    assert not holders.is_here(1)
    holders.living[1] = 1
    assert holders.is_here(1)
