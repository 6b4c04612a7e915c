"""Stream partitions: whole leases, handover without a pause, and the same cuts for every reader."""

import dataclasses

from springtide.data.ledger.job_ledger import JobLedger
from springtide.data.ledger.passes import caught_up
from springtide.data.ledger.stream_ledger import MOST_CUTS, Span, join_spans
from springtide.domain.data.leases import (
    Grant,
    LeaseHolder,
    LeaseKey,
    NoLease,
    Poisoned,
    Progress,
    ReadFailure,
    ShrinkRequest,
)
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, MOST_PARTITIONS, BatchCut, PartitionRange, StreamCard
from tests.oracles import ledger_invariants

CARD = DatasetCard(samples=0, batch_size=10, stream=StreamCard(url="log:///tmp/clicks"))
LATEST = dataclasses.replace(CARD, stream=StreamCard(url="log:///tmp/clicks", start="latest"))
A, B = LeaseHolder(0), LeaseHolder(1)
TWO = (PartitionRange(0, 5, 100), PartitionRange(1, 0, 40))


def lease(book, holder, seen=(), card=CARD, known=None):
    return book.lease(holder, card, 1000, 0.0, known, seen=seen)


def test_each_worker_gets_its_partitions_from_the_first_seen_offset():
    book = JobLedger(workers=2)
    assert lease(book, A) is NoLease.WAIT  # no partition is known
    assert lease(book, A, TWO) == (Grant(0, 0, 0, 5, FAR),)
    assert lease(book, B, (PartitionRange(0, 77, 100), PartitionRange(1, 33, 50))) == (Grant(1, 0, 1, 0, FAR),)
    assert lease(book, A, TWO) is lease(book, B, TWO) is NoLease.WAIT
    assert book.totals().total == book.totals().leased == 2
    ledger_invariants.check(book)


def test_partitions_added_later_are_trained_from_their_first_record():
    book = JobLedger(workers=1)
    assert lease(book, A, (PartitionRange(0, 90, 90),), LATEST) == (Grant(0, 0, 0, 90, FAR),)
    assert lease(book, A, (PartitionRange(0, 95, 95), PartitionRange(1, 7, 7)), LATEST) == (Grant(1, 0, 1, 0, FAR),)


def test_only_changed_partition_ranges_are_journaled():
    book = JobLedger(workers=1)
    assert book.news(CARD, TWO) == TWO
    lease(book, A, TWO)
    assert book.news(CARD, TWO) == ()
    assert book.news(CARD, (*TWO, PartitionRange(2, 0, 0))) == (PartitionRange(2, 0, 0),)
    assert book.news(CARD, (PartitionRange(0, 5, 120, final=True),)) == (PartitionRange(0, 5, 120, final=True),)
    assert book.news(CARD, (PartitionRange(-1, 0, 0), PartitionRange(MOST_PARTITIONS, 0, 0))) == ()


def test_reassigned_partition_stays_with_its_holder_until_released():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    book.expect(2)
    assert book.assign([(1, 1)]) == 1
    assert book.assign([(1, 1)]) == 0
    verdict = book.report(A, [Progress(0, 5, 20, FAR), Progress(1, 0, 20, FAR)], 0.0)
    assert verdict.wishes == (ShrinkRequest(1, 0, 0),)  # as soon as it can
    assert lease(book, B) is NoLease.WAIT
    assert book.report(A, [Progress(1, 0, 20, 33)], 0.0).freed  # it has begun a batch that ends at 33
    assert lease(book, A) is NoLease.WAIT
    assert book.came_back(1) and not book.came_back(0)
    assert lease(book, B) == (Grant(1, 0, 1, 33, FAR),)
    assert not book.report(A, [Progress(1, 0, 33, 33)], 0.0).wishes
    assert book.totals().samples_done == 15 + 33
    ledger_invariants.check(book)


def test_partitions_of_a_lost_worker_resume_at_their_last_reported_offset():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    book.report(A, [Progress(0, 5, 20, FAR)], 0.0)
    assert book.fence(0, 0) == 2
    assert lease(book, B) == (Grant(0, 0, 0, 20, FAR), Grant(1, 0, 1, 0, FAR))
    assert book.report(A, [Progress(0, 5, 90, FAR)], 0.0).fenced


def test_partition_lease_missing_from_reports_expires_and_its_holder_is_told():
    book = JobLedger(workers=2, lease_s=10)
    lease(book, A, TWO)
    book.take_back(book.expired(11.0))
    assert lease(book, B) == (Grant(0, 0, 0, 5, FAR),)
    assert book.report(A, [Progress(0, 5, 20, FAR)], 11.0).revoked == (LeaseKey(0, 5),)


def test_lost_partition_lease_reply_is_repeated():
    book = JobLedger(workers=1)
    grants = lease(book, A, TWO)
    assert lease(book, A, known=()) == grants
    assert lease(book, A, known=[LeaseKey(0, 5)]) == grants[1:]


def test_cut_applies_to_every_later_reader_of_the_partition():
    book = JobLedger(workers=1)
    grants = lease(book, A, TWO)
    assert book.cuts_of(grants) == ()
    asked = (BatchCut(0, 5, 23), BatchCut(1, 0, 7), BatchCut(1, 0, 30))
    before = book.changes
    assert book.cut(A, asked) == asked
    changes = book.changes
    assert changes == before + 2, "each new cut is journaled"
    assert book.cut(A, asked) == asked and book.changes == changes, "to repeat it does no harm"
    assert book.cut(B, asked) == () and book.cut(A, asked, era=3) == ()
    assert book.cut(A, [BatchCut(0, 6, 23), BatchCut(9, 0, 23), BatchCut(0, 5, 5), BatchCut(0, 5, FAR)]) == ()
    book.report(A, [Progress(0, 5, 23, FAR)], 0.0)
    book.fence(0, 0)
    again = lease(book, B)
    assert again == (Grant(0, 0, 0, 23, FAR), Grant(1, 0, 1, 0, FAR))
    assert book.cuts_of(again) == (BatchCut(1, 0, 7),), "where every batch of that size ends needs no note"
    assert book.cut(A, [BatchCut(1, 0, 9)]) == (), "it was given up"


def test_cuts_are_forgotten_once_no_kept_checkpoint_needs_them():
    book = JobLedger(workers=1, saves=True, keeps=2)
    lease(book, A, TWO)
    notes = []
    for at in (13, 27, 34):
        book.cut(A, [BatchCut(0, 5, at)])
        book.report(A, [Progress(0, 5, at, FAR)], 0.0)
        notes.append(book.note())
    (flow,) = book.flows()
    before = book.changes
    book.keep(notes[0])
    assert flow.partitions[0].cuts == [13, 27, 34] and book.changes == before + 1, "it is journaled"
    book.keep(notes[1])
    assert flow.partitions[0].cuts == [27, 34]
    changes = book.changes
    book.keep(notes[1])
    assert book.changes == changes
    book.keep(notes[2])
    assert flow.partitions[0].cuts == [34]


def test_cuts_stay_bounded_without_checkpoints():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    for at in range(11, 5001, 2):
        book.cut(A, [BatchCut(0, 5, at)])
        book.report(A, [Progress(0, 5, at - 2, FAR)], 0.0)
    (flow,) = book.flows()
    assert len(flow.partitions[0].cuts) <= MOST_CUTS + 2
    assert lease(book, A, known=()) and book.cuts_of(lease(book, A, known=()))[-1] == BatchCut(0, 5, 4999)
    later = JobLedger(workers=1)
    later.resume(book.note())
    assert not later.flows()[0].returns, "one that goes on from another's checkpoint forgets them too"


def test_pass_ends_when_all_partitions_are_ended_trained_and_saved():
    book = JobLedger(workers=1, saves=True)
    lease(book, A, TWO)
    sealed = (PartitionRange(0, 5, 100, final=True), PartitionRange(1, 0, 40, final=True))
    assert lease(book, A, sealed) is NoLease.WAIT
    verdict = book.report(A, [Progress(0, 5, 100, FAR), Progress(1, 0, 10, FAR)], 0.0)
    assert verdict.wishes == (ShrinkRequest(1, 0, 40),) and not verdict.revoked
    assert book.report(A, [Progress(0, 5, 100, FAR)], 0.0).revoked == (LeaseKey(0, 5),)  # so its holder drops it
    assert book.totals().done == 1
    assert book.report(A, [Progress(1, 0, 40, 40)], 0.0).freed
    assert lease(book, A) is NoLease.WAIT and book.waits_to_end, "a server may yet be lost"
    book.keep(book.note())
    assert lease(book, A) is NoLease.END
    assert lease(book, A, (PartitionRange(2, 0, 10),)) is NoLease.END, (
        "it is over: what is added now is not of this pass"
    )
    assert book.totals().samples == book.totals().samples_done == 95 + 40
    ledger_invariants.check(book)


def test_partitions_ended_before_a_lease_are_leased_to_their_end_or_not_at_all():
    book = JobLedger(workers=1)
    assert lease(book, A, (PartitionRange(0, 3, 8, final=True), PartitionRange(1, 5, 5, final=True))) == (
        Grant(0, 0, 0, 3, 8),
    )
    book.report(A, [Progress(0, 3, 8, 8)], 0.0)
    assert lease(book, A) is NoLease.END
    ledger_invariants.check(book)


def test_only_the_unreadable_batch_is_dropped():
    book = JobLedger(workers=1, max_failures=2)
    lease(book, A, TWO)
    book.report(A, [Progress(0, 5, 20, FAR)], 0.0)
    book.cut(A, [BatchCut(0, 5, 33)])
    assert book.fail(A, ReadFailure(0, 5, 30, "bad bytes"))
    assert lease(book, A) == (Grant(0, 0, 0, 30, FAR),)  # and 20 to 30 is still its own
    assert book.fail(A, ReadFailure(0, 30, 30, "bad bytes"))
    assert [(each.first, each.end) for each in book.poisoned()] == [(30, 33)]
    assert lease(book, A) == (Grant(0, 0, 0, 33, FAR),)
    assert not book.hopeless
    ledger_invariants.check(book)


def test_unreadable_stream_is_hopeless():
    book = JobLedger(workers=1, max_failures=2)
    lease(book, A, (PartitionRange(0, 0, 50),))
    for first in (0, 10, 20):
        assert not book.hopeless, "later offsets may be readable"
        book.cut(A, [BatchCut(0, first, first + 10)])
        for _ in range(2):
            assert book.fail(A, ReadFailure(0, first, first, "bad bytes"))
            lease(book, A)
    assert book.hopeless
    assert JobLedger.from_state(book.to_state()).hopeless
    ledger_invariants.check(book)


def test_restore_rereads_partitions_from_the_checkpoint_with_the_same_cuts():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    book.report(A, [Progress(0, 5, 20, FAR)], 0.0)
    note = book.note()
    book.cut(A, [BatchCut(0, 5, 27)])
    book.report(A, [Progress(0, 5, 60, FAR), Progress(1, 0, 10, FAR)], 0.0)
    lease(book, A, (*TWO, PartitionRange(2, 4, 9, final=True)))
    assert book.restore(note) == 40 + 10
    grants = lease(book, A)
    assert grants == (Grant(0, 0, 0, 20, FAR), Grant(1, 0, 1, 0, FAR), Grant(2, 0, 2, 4, 9))
    assert book.cuts_of(grants) == (BatchCut(0, 20, 27),)
    assert book.restore(book.note()) == 0
    ledger_invariants.check(book)


def test_resumed_run_learns_partition_ends_again():
    book = JobLedger(workers=1)
    lease(book, A, (PartitionRange(0, 5, 30, final=True), PartitionRange(1, 0, 10, final=True)))
    book.report(A, [Progress(0, 5, 30, 30), Progress(1, 0, 7, 10)], 0.0)
    later = JobLedger(workers=3)
    later.resume(book.note())
    ledger_invariants.check(later)
    assert later.samples_done == 25 + 7
    assert lease(later, LeaseHolder(2), (PartitionRange(0, 0, 50),)) == (Grant(0, 0, 0, 30, FAR),)
    assert lease(later, A) == (Grant(1, 0, 1, 7, FAR),)


def test_restarted_stream_loop_continues_by_its_card():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    book.report(A, [Progress(0, 5, 20, 20), Progress(1, 0, 0, 0)], 0.0)
    assert lease(book, A) == (Grant(0, 0, 0, 20, FAR), Grant(1, 0, 1, 0, FAR))
    shards = DatasetCard(samples=100, batch_size=10, shard_batches=4)
    assert book.lease(A, shards, 1, 0.0)[0].shard == MOST_PARTITIONS, "numbers of passes do not overlap"


def test_stopping_job_grants_no_partition():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    book.close()
    book.report(A, [Progress(0, 5, 20, 20), Progress(1, 0, 0, 0)], 0.0)
    assert lease(book, A) is NoLease.END and not book.came_back(0)


def test_cuts_made_during_a_checkpoint_copy_are_kept_by_the_next_run():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    book.report(A, [Progress(0, 5, 20, FAR)], 0.0)
    note = book.note()  # slots that are copied after it may have all that follows
    book.cut(A, [BatchCut(0, 5, 27)])
    lease(book, A, (*TWO, PartitionRange(2, 0, 9), PartitionRange(3, 0, 14, final=True)))
    book.cut(A, [BatchCut(2, 0, 4)])
    book.report(A, [Progress(0, 5, 27, FAR), Progress(2, 0, 4, FAR)], 0.0)
    later = JobLedger(workers=1)
    later.resume(caught_up(note, book.passes))
    ledger_invariants.check(later)
    assert later.samples_done == note.samples == 15
    grants = lease(later, A)
    assert grants == (*(Grant(one, 0, one, first, FAR) for one, first in ((0, 20), (1, 0), (2, 0), (3, 0))),)
    assert later.cuts_of(grants) == (BatchCut(0, 20, 27), BatchCut(2, 0, 4), BatchCut(3, 0, 14))


def test_pass_opened_during_a_checkpoint_copy_keeps_its_start():
    book = JobLedger(workers=1)
    note = book.note()
    lease(book, A, (PartitionRange(0, 90, 90),), LATEST)
    book.cut(A, [BatchCut(0, 90, 93)])
    later = JobLedger(workers=1)
    later.resume(caught_up(note, book.passes))
    grants = lease(later, A, (PartitionRange(0, 200, 200),), LATEST)
    assert grants == (Grant(0, 0, 0, 90, FAR),)
    assert later.cuts_of(grants) == (BatchCut(0, 90, 93),)


def test_last_batch_before_a_provisional_end_stays_a_batch_in_the_next_run():
    book = JobLedger(workers=1)
    lease(book, A, (PartitionRange(0, 0, 15, final=True),))
    book.report(A, [Progress(0, 0, 10, 15)], 0.0)  # of the last batch some slots may know
    later = JobLedger(workers=1)
    later.resume(book.note())
    grants = lease(later, A, (PartitionRange(0, 0, 50),))
    assert grants == (Grant(0, 0, 0, 10, FAR),)
    assert later.cuts_of(grants) == (BatchCut(0, 10, 15),)
    ledger_invariants.check(later)


def test_empty_offsets_count_once_and_roll_back_with_the_others():
    book = JobLedger(workers=1)
    lease(book, A, [PartitionRange(0, 0, 100, False)])
    word = Progress(0, 0, 20, FAR, 3)
    for _ in range(2):
        book.report(A, [word], 0.0)
    assert (book.samples_done, book.samples_trained) == (20, 17)
    note = book.note()
    book.report(A, [Progress(0, 0, 60, FAR, 8)], 0.0)
    assert book.samples_trained == 52 and JobLedger.from_state(book.to_state()).samples_trained == 52
    assert note.samples == 17
    book.restore(note)
    assert (book.samples_done, book.samples_trained) == (20, 17)
    lease(book, A)
    book.report(A, [Progress(0, 20, 60, FAR, 5)], 0.0)
    assert (book.samples_done, book.samples_trained) == (60, 52)
    ledger_invariants.check(book)


def test_fenced_rank_is_assigned_no_partition_until_it_returns():
    book = JobLedger(workers=1)
    lease(book, A, [PartitionRange(0, 0, 100, False)])
    book.fence(*A)
    assert book.assign([(0, A.rank)]) == 0 and book.flows()[0].partitions[0].owner is None
    assert not isinstance(lease(book, B), NoLease)
    lease(book, LeaseHolder(A.rank, 1))
    assert book.assign([(0, A.rank)]) == 1


def test_cuts_after_the_first_untrained_offset_of_a_kept_checkpoint_stay():
    book = JobLedger(workers=1, keeps=1)
    lease(book, A, TWO)
    for at in (13, 27):
        book.cut(A, [BatchCut(0, 5, at)])
    assert book.fail(A, ReadFailure(0, 5, 20, "bad bytes"))
    lease(book, B)
    book.report(B, [Progress(0, 20, 40, 40)], 0.0)
    book.take_back([LeaseKey(0, 5)])
    (flow,) = book.flows()
    assert flow.partitions[0].waiting == [(5, 20), (40, FAR)]
    book.keep(book.note())
    assert flow.partitions[0].cuts == [13, 27] and flow.floors == [{0: 5, 1: 0}]


def test_spans_are_joined_where_they_touch():
    assert join_spans([Span(6, 9), Span(0, 2), Span(5, 7), Span(9, 9), Span(12, 20), Span(13, 15)]) == [
        (0, 2),
        (5, 9),
        (12, 20),
    ]


def test_only_progress_that_ends_a_lease_frees_offsets():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    assert not book.report(A, [Progress(0, 5, 20, FAR)], 0.0).freed
    assert book.report(A, [Progress(0, 5, 30, 40)], 0.0).freed, "the end of the lease is pending again"
    assert not book.report(A, [Progress(0, 5, 35, 40)], 0.0).freed
    assert book.report(A, [Progress(0, 5, 40, 40)], 0.0).freed


def test_holder_that_agrees_to_an_end_is_not_asked_again():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    lease(book, A, (PartitionRange(1, 0, 40, final=True),))
    assert book.report(A, [Progress(1, 0, 10, FAR)], 0.0).wishes == (ShrinkRequest(1, 0, 40),)
    agreed = book.report(A, [Progress(1, 0, 20, 40)], 0.0)
    assert agreed.freed and not agreed.wishes
    assert not book.report(A, [Progress(1, 0, 30, 40)], 0.0).freed


def test_holder_trained_no_fewer_samples_than_none():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    book.report(A, [Progress(0, 5, 20, FAR, 99)], 0.0)
    assert (book.samples_done, book.samples_trained) == (15, 0)


def test_partition_assigned_to_a_lost_worker_is_free_for_others():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    lease(book, B)
    book.assign([(1, 1)])
    book.report(A, [Progress(1, 0, 20, 20)], 0.0)
    assert not book.came_back(0)
    book.fence(1, 0)
    assert book.came_back(0) and lease(book, A) == (Grant(1, 0, 1, 20, FAR),)
    assert book.flows()[0].partitions[0].owner == 0


def test_partition_that_ends_before_anybody_leased_it_is_done():
    book = JobLedger(workers=2)
    lease(book, A, TWO)
    lease(book, A, (PartitionRange(1, 0, 0, final=True),))
    assert (book.totals().leased, book.totals().done, book.totals().samples) == (1, 1, 0)
    ledger_invariants.check(book)


def test_end_before_trained_offsets_is_moved_behind_them():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    book.report(A, [Progress(0, 5, 30, FAR), Progress(1, 0, 20, 20)], 0.0)
    lease(book, A, (PartitionRange(0, 5, 3, final=True), PartitionRange(1, 0, 3, final=True)))
    assert [partition.end for partition in book.flows()[0].partitions.values()] == [30, 20]
    assert lease(book, A) is NoLease.END and book.totals().samples == 25 + 20
    ledger_invariants.check(book)


def test_unreadable_batch_ends_at_its_first_cut():
    book = JobLedger(workers=1, max_failures=1)
    lease(book, A, TWO)
    for at in (13, 17):
        book.cut(A, [BatchCut(0, 5, at)])
    assert book.fail(A, ReadFailure(0, 5, 10, "bad bytes"))
    assert book.poisoned() == (Poisoned(0, 0, 10, 13, 1, "bad bytes"),)
    assert book.flows()[0].tries == 0, "the next offset was never tried"


def test_stream_never_begins_below_its_first_offset():
    book = JobLedger(workers=1)
    assert lease(book, A, (PartitionRange(0, -5, 9),)) == (Grant(0, 0, 0, 0, FAR),)


def test_failure_beyond_a_lease_or_of_another_worker_changes_no_offset():
    book = JobLedger(workers=1, max_failures=1)
    lease(book, A, (PartitionRange(0, 0, 40, final=True),))
    assert not book.fail(B, ReadFailure(0, 0, 10, "not mine"))
    assert book.fail(A, ReadFailure(0, 0, 40, "late"))
    assert not book.poisoned() and book.flows()[0].leases[0, 0].end == 40
    ledger_invariants.check(book)


def test_report_of_a_partition_extends_its_lease():
    book = JobLedger(workers=1, lease_s=10)
    lease(book, A, TWO)
    book.report(A, [Progress(0, 5, 20, FAR)], 5.0)
    assert book.expired(11.0) == (LeaseKey(1, 0),)


def test_partition_of_another_worker_hides_no_free_partition():
    book = JobLedger(workers=2)
    lease(book, A, TWO)
    lease(book, B)
    book.report(A, [Progress(0, 5, 5, 5)], 0.0)
    book.assign([(0, 1)])
    assert not book.came_back(0) and book.came_back(1)
    book.fail(B, ReadFailure(1, 0, 0, "bad bytes"))
    assert book.came_back(0)


def test_cuts_of_untrained_offsets_stay_without_checkpoints():
    book = JobLedger(workers=1)
    lease(book, A, TWO)
    book.cut(A, [BatchCut(0, 5, 13)])
    book.fail(A, ReadFailure(0, 5, 20, "bad bytes"))
    lease(book, B)
    for at in range(21, 221, 2):
        book.cut(B, [BatchCut(0, 20, at)])
        book.report(B, [Progress(0, 20, at, FAR)], 0.0)
    assert book.flows()[0].partitions[0].cuts[0] == 13
    book.report(A, [Progress(0, 5, 20, 20)], 0.0)
    book.cut(B, [BatchCut(0, 20, 223)])
    book.report(B, [Progress(0, 20, 222, FAR)], 0.0)
    assert book.flows()[0].partitions[0].cuts == [223]
