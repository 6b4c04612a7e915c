"""bsp stream ledger: all ranks get the same ranges in the same order and roll back to one step."""

import random

import msgspec
import pytest

from springtide import errors
from springtide.data.ledger.bsp_ledger import KEPT, OffsetRange, open_bsp_ledger
from springtide.data.ledger.job_ledger import JobLedger, JobLedgerState
from springtide.data.ledger.passes import JobProgress
from springtide.domain.data.leases import Grant, LeaseHolder, NoLease, Progress, Totals
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import MOST_PARTITIONS, PartitionRange, StreamCard
from tests.oracles import ledger_invariants

CARD = DatasetCard(samples=0, batch_size=10, shard_batches=3, in_step=True, stream=StreamCard(url="log:///tmp/x"))
A, B = LeaseHolder(0), LeaseHolder(1)
TWO = (PartitionRange(0, 5, 100), PartitionRange(1, 0, 24))


def ask(book, holder, seen=TWO, *, lingered=False):
    """Lease as `master.data.leases` does."""
    answer = book.lease(holder, CARD, 1, 0.0, seen=book.news(CARD, seen))
    if answer is NoLease.WAIT:
        convoy = book.bsp_stream(CARD)
        stretch, _ = convoy.choose(seen, lingered=lingered)
        if stretch is not None and book.plan(holder.rank, convoy.base, stretch):
            answer = book.lease(holder, CARD, 1, 0.0)
    ledger_invariants.check(book)
    return answer


def test_all_ranks_get_the_same_ranges_fullest_partition_first():
    book = JobLedger(workers=2)
    first = ask(book, A)
    assert first == (Grant(0, 0, 0, 5, 35),)
    second = ask(book, A)
    assert second == (Grant(1, 0, 0, 35, 65),)
    assert ask(book, B) == first and ask(book, B) == second
    assert ask(book, B) == (Grant(2, 0, 0, 65, 95),) == ask(book, A)
    assert ask(book, A) == (Grant(3, 0, 1, 0, 20),), "whole batches"
    assert ask(book, A) is NoLease.WAIT, "less than a batch is left of each"


def test_lease_whose_reply_was_lost_is_granted_again():
    card = DatasetCard(samples=60, batch_size=10, shard_batches=3, in_step=True)
    book = JobLedger(workers=1)
    (first,) = book.lease(A, card, 1, 0.0, ())
    assert book.lease(A, card, 1, 0.0, ()) == (first,)
    (second,) = book.lease(A, card, 1, 0.0, {(first.shard, first.first)})
    assert second.shard == first.shard + 1
    book.report(A, [Progress(first.shard, 0, 30, 30)], 0.0)
    assert book.lease(A, card, 1, 0.0, ()) == (second,)
    book.report(A, [Progress(second.shard, 0, 30, 30)], 0.0)
    assert book.lease(A, card, 1, 0.0, ()) is NoLease.END


def test_partial_batch_is_granted_after_waiting_or_at_the_end():
    book = JobLedger(workers=1)
    few = (PartitionRange(0, 0, 7),)
    assert ask(book, A, few) is NoLease.WAIT
    assert book.bsp_stream(CARD).choose(few, lingered=False) == (None, True)
    assert ask(book, A, few, lingered=True) == (Grant(0, 0, 0, 0, 7),)
    assert book.bsp_stream(CARD).choose(few, lingered=False) == (None, False)
    assert ask(book, A, (PartitionRange(0, 0, 9, final=True),)) == (Grant(1, 0, 0, 7, 9),)
    assert ask(book, A, (PartitionRange(0, 0, 9, final=True),)) is NoLease.END
    assert book.totals().samples == 9


def test_range_is_done_when_every_rank_has_done_its_part():
    book = JobLedger(workers=2)
    for holder in (A, B):
        ask(book, holder)
    book.report(A, [Progress(0, 5, 35, 35)], 0.0)
    assert book.samples_done == 0
    book.report(B, [Progress(0, 5, 25, 35)], 0.0)
    assert book.samples_done == 0
    book.report(B, [Progress(0, 5, 35, 35)], 0.0)
    assert book.samples_done == 30
    with pytest.raises(errors.BadInput, match="its next shard is 1"):
        ask(book, A), ask(book, A), book.report(A, [Progress(2, 65, 95, 95)], 0.0)


def test_waiting_writes_no_journal_entry():
    book = JobLedger(workers=1)
    ask(book, A, (PartitionRange(0, 0, 0),))
    changes = book.changes
    assert ask(book, A, (PartitionRange(0, 0, 5),)) is NoLease.WAIT and book.changes == changes


def test_group_changes_between_two_ranges_even_while_waiting_for_records():
    book = JobLedger(workers=2)
    ask(book, A), ask(book, B)
    book.halt()
    assert ask(book, A) is NoLease.REGROUP
    book.report(A, [Progress(0, 5, 35, 35)], 0.0), book.report(B, [Progress(0, 5, 35, 35)], 0.0)
    book.regroup([0, 1, 2])
    assert ask(book, LeaseHolder(2)) == (Grant(1, 0, 0, 35, 65),)
    book.close()
    assert ask(book, A) == ask(book, B) == (Grant(1, 0, 0, 35, 65),)
    assert ask(book, A) is NoLease.END


def test_group_rolls_back_to_a_checkpoint_step_within_a_range():
    book = JobLedger(workers=2)
    for holder in (A, A, B, B):
        ask(book, holder)
    note = book.note(1, 45)  # the first stretch, and a batch of the second
    assert note.samples == 40
    for holder in (A, B):
        book.report(holder, [Progress(0, 5, 35, 35), Progress(1, 35, 65, 65)], 0.0)
    assert book.samples_done == 60
    assert book.restore(note) == 20
    ledger_invariants.check(book)
    assert ask(book, A) == (Grant(1, 0, 0, 45, 65),)
    assert ask(book, A) == (Grant(2, 0, 0, 65, 95),)
    book.restore(JobProgress())
    assert book.samples_done == 0
    assert ask(book, B) == (Grant(0, 0, 0, 5, 35),)


def test_resumed_run_learns_the_stream_end_again():
    book = JobLedger(workers=1)
    sealed = (PartitionRange(0, 0, 20, final=True),)
    ask(book, A, sealed)
    later = JobLedger(workers=3)
    later.resume(book.note(0, 20))
    assert later.samples_done == 20
    ledger_invariants.check(later)
    assert ask(later, A, sealed) is NoLease.END
    later.resume(book.note(0, 20))
    assert ask(later, A, (PartitionRange(0, 0, 40),)) == (Grant(1, 0, 0, 20, 40),)


def test_unfinished_ranges_of_a_rolled_back_group_are_left_to_the_next_run():
    book = JobLedger(workers=2)
    for holder in (A, A, B, B):
        ask(book, holder)  # 5 to 35 and 35 to 65 of partition 0
    book.restore(book.note(0, 15))
    book.close()
    ledger_invariants.check(book)
    assert book.samples_done == 10
    later = JobLedger(workers=2)
    later.resume(book.note(0, 15))
    assert later.samples_done == 10
    assert ask(later, A) == (Grant(0, 0, 0, 15, 45),)
    ledger_invariants.check(later)


def test_more_ranks_than_records_per_batch_are_refused():
    book = JobLedger(workers=1)
    ask(book, A)
    with pytest.raises(errors.BadInput, match="11 workers cannot share a batch of 10 samples"):
        book.check_group(11)


def assert_all_once(convoy, trained):
    """Check that trained and remaining ranges of rank 0 make up the whole sequence."""
    offsets = [(one.nth, n) for one in trained for n in range(one.first, one.end)]
    to_come = [one for number, one in convoy.stream.stretches.items() if number >= convoy.leased_to[0]]
    offsets += [(one.partition, n) for one in to_come for n in range(one.first, one.end)]
    assert sorted(offsets) == [(one, n) for one, place in sorted(convoy.stream.places.items()) for n in range(place)]


@pytest.mark.parametrize("seed", range(12))
def test_bsp_group_trains_every_stream_offset_once_under_random_events(seed):
    """Records arrive, ranks run ahead, the group rolls back; a replayed journal gives the same ledger."""
    chance, book, journal = random.Random(seed), JobLedger(workers=2), []
    ends, trained, notes = {0: 0, 1: 0}, [], [(JobProgress(), [])]
    hands = [[], []]

    def call(name, *arguments, **named):
        before = book.changes
        answer = getattr(book, name)(*arguments, **named)
        if book.changes != before:
            journal.append((name, arguments, named))
        return answer

    call("report", A, (), 0.0), call("report", B, (), 0.0)  # both are there from the beginning
    for turn in range(300):
        sealed = turn > 200
        if not sealed:
            ends[chance.choice(list(ends))] += chance.randrange(25)
            if chance.random() < 0.01:
                ends[len(ends)] = 0
        seen = tuple(PartitionRange(one, 0, end, sealed) for one, end in ends.items())
        rank = chance.randrange(2)
        answer = call("lease", LeaseHolder(rank), CARD, 1, 0.0, seen=book.news(CARD, seen))
        if answer is NoLease.WAIT:
            stretch, _ = book.bsp_stream(CARD).choose(seen, lingered=chance.random() < 0.3)
            if stretch is not None:
                call("plan", rank, 0, OffsetRange(*stretch))
        elif not isinstance(answer, NoLease):
            hands[rank] += answer
        for each in (0, 1):
            if hands[each] and chance.random() < 0.7:
                grant = hands[each].pop(0)
                call("report", LeaseHolder(each), [Progress(grant.shard, grant.first, grant.end, grant.end)], 0.0)
                if each == 0:
                    trained.append(grant)
        if chance.random() < 0.1 and len(hands[0]) == len(hands[1]) and trained and not any(hands):
            last = trained[-1]
            note = msgspec.msgpack.decode(msgspec.msgpack.encode(book.note(last.shard, last.end)), type=JobProgress)
            notes.append((note, list(trained)))
        if chance.random() < 0.02 and not sealed:
            trained, hands = list(notes[-1][1]), [[], []]
            call("restore", notes[-1][0])
        ledger_invariants.check(book)
        book = JobLedger.from_state(
            msgspec.msgpack.decode(msgspec.msgpack.encode(book.to_state()), type=JobLedgerState)
        )
        book.changes = len(journal)
    while any(hands):
        for each in (0, 1):
            if hands[each]:
                grant = hands[each].pop(0)
                call("report", LeaseHolder(each), [Progress(grant.shard, grant.first, grant.end, grant.end)], 0.0)
                trained += [grant] if each == 0 else []
    assert_all_once(book.bsp_stream(CARD), trained)
    again = JobLedger(workers=2)
    for name, arguments, named in journal:
        getattr(again, name)(*arguments, **named)
    again.renew(0.0), book.renew(0.0)
    assert again.to_state() == book.to_state()


def test_empty_offsets_count_once_for_the_whole_group():
    book = JobLedger(workers=2)
    for holder in (A, B):
        ask(book, holder)
    book.report(A, [Progress(0, 5, 35, 35, 4)], 0.0)
    assert (book.samples_done, book.samples_trained) == (0, 0)
    book.report(B, [Progress(0, 5, 35, 35, 0)], 0.0)  # it joined when these were done
    assert (book.samples_done, book.samples_trained) == (30, 26)
    for number in range(1, 9):
        seen = (PartitionRange(0, 5, 35 + 30 * number),)
        for holder in (A, B):
            (grant,) = ask(book, holder, seen)
            book.report(holder, [Progress(grant.shard, grant.first, grant.end, grant.end, number % 2)], 0.0)
    assert (book.samples_done, book.samples_trained) == (270, 262)
    assert JobLedger.from_state(book.to_state()).samples_trained == 262
    note = book.bsp_stream(CARD).note(9, 275)
    assert JobProgress(locksteps=(note,)).samples == 262
    assert JobProgress(locksteps=(book.bsp_stream(CARD).note(0, 0),)).samples == 0


SHARDS = DatasetCard(samples=45, batch_size=10, shard_batches=2, epochs=3, first_epoch=4, in_step=True)  # 20, 20, 5


def test_smallest_batch_limits_the_ranks_of_a_group():
    ledger = open_bsp_ledger(SHARDS, 0, 2)
    assert ledger.smallest == 5
    ledger.check_group(5)
    with pytest.raises(errors.BadInput, match="6 workers cannot share a batch of 5 samples"):
        ledger.check_group(6)


def test_next_incarnation_of_a_rank_begins_where_the_slowest_other_is():
    ledger = open_bsp_ledger(SHARDS, 0, 3)
    ledger.leased_to, ledger.done_by = [4, 3, 5], [4, 2, 3]
    ledger.rejoin(1)
    assert (ledger.leased_to, ledger.done_by) == ([4, 3, 5], [4, 3, 3])
    for seat in (None, 3):
        ledger.rejoin(seat)
    assert (ledger.leased_to, ledger.done_by) == ([4, 3, 5], [4, 3, 3])


def test_shard_that_was_not_granted_cannot_be_done():
    ledger = open_bsp_ledger(SHARDS, 0, 1)
    with pytest.raises(errors.BadInput, match="reports shard 0 as done"):
        ledger.report(0, Progress(0, 0, 20, 20))


def test_bsp_pass_counts_epochs_and_samples_over_all_of_them():
    ledger = open_bsp_ledger(SHARDS, 0, 1)
    grants = []
    while not isinstance(granted := ledger.lease(0, 0), NoLease):
        grants += granted
    assert [(grant.shard, grant.epoch, grant.nth, grant.end) for grant in grants[2:5]] == [
        (2, 4, 2, 5),
        (3, 5, 0, 20),
        (4, 5, 1, 20),
    ]
    for grant in grants[:8]:
        assert ledger.report(0, Progress(grant.shard, 0, grant.end, grant.end))
    assert ledger.totals() == Totals(total=9, leased=1, done=8, samples=135, samples_done=130)
    assert ledger.void == 0


def stream_ledger(seen, workers=1, **stream):
    card = DatasetCard(samples=0, batch_size=10, in_step=True, stream=StreamCard(url="log:///tmp/x", **stream))
    ledger = open_bsp_ledger(card, 0, workers)
    ledger.see(seen)
    return ledger


def test_stream_is_over_when_every_partition_is_planned_to_its_end():
    ledger = stream_ledger([PartitionRange(0, 0, 10, final=True), PartitionRange(1, 0, 10, final=True)])
    assert ledger.plan(0, OffsetRange(0, 0, 10)) and not ledger.over
    assert ledger.lease(0, 0) and ledger.plan(0, OffsetRange(1, 0, 10)) and ledger.over
    assert not stream_ledger([PartitionRange(0, 2**40, 2**40)]).over, "it has no end yet"


def test_partition_beyond_the_most_is_ignored():
    assert stream_ledger([]).news([PartitionRange(MOST_PARTITIONS, 0, 5), PartitionRange(-1, 0, 5)]) == ()
    assert len(stream_ledger([]).news([PartitionRange(MOST_PARTITIONS - 1, 0, 5), PartitionRange(0, 0, 5)])) == 2


@pytest.mark.parametrize(("start", "place"), [("earliest", 7), ("latest", 0)])
def test_partition_that_appears_later_is_read_from_its_first_record(start, place):
    ledger = stream_ledger([PartitionRange(0, -3, 10)], start=start)
    assert ledger.stream.places == {0: 0}
    ledger.see([PartitionRange(1, 7, 10), PartitionRange(0, 5, 10)])
    assert ledger.stream.places == {0: 0, 1: place} == ledger.stream.starts


def test_only_a_rank_with_nothing_left_of_an_open_stream_asks_for_more():
    ledger = stream_ledger([PartitionRange(0, 0, 90)])
    assert ledger.wants(0) and not ledger.wants(1) and not ledger.wants(None)
    ledger.halt()
    assert not ledger.wants(0), "the group changes first"
    ledger.regroup([0])
    assert ledger.plan(0, OffsetRange(0, 0, 10)) and not ledger.wants(0), "it has that range to lease"
    ledger.lease(0, 0)
    ledger.close()
    assert not ledger.wants(0)


def test_partition_with_most_records_is_next_and_of_equals_the_first():
    ledger = stream_ledger([PartitionRange(0, 0, 0), PartitionRange(1, 0, 0), PartitionRange(2, 0, 0)])
    assert ledger.choose([], lingered=True) == (None, False)
    assert ledger.choose([PartitionRange(0, 0, 0)], lingered=True) == (None, False)
    assert ledger.choose([PartitionRange(0, 0, 1)], lingered=True) == (OffsetRange(0, 0, 1), False)
    assert ledger.choose(
        [PartitionRange(9, 0, 50), PartitionRange(2, 0, 20), PartitionRange(1, 0, 20)], lingered=False
    ) == (
        OffsetRange(1, 0, 20),
        False,
    )


def test_finished_ranges_are_forgotten_and_totals_count_partitions():
    ledger = stream_ledger([PartitionRange(0, 5, 500), PartitionRange(1, 2, 12, final=True)], workers=1)
    for running in range(KEPT + 2):
        assert ledger.plan(0, OffsetRange(0, 5 + 10 * running, 15 + 10 * running)) and ledger.lease(0, 0)
        assert ledger.report(0, Progress(running, 0, 15 + 10 * running, 15 + 10 * running, void=1))
    assert min(ledger.stream.stretches) == 2 and ledger.stream.void == 2 and ledger.void == KEPT + 2
    assert ledger.plan(0, OffsetRange(1, 2, 12))
    assert (ledger.totals().total, ledger.totals().leased, ledger.totals().done) == (2, 1, 0)
    ledger.lease(0, 0)
    ledger.report(0, Progress(KEPT + 2, 2, 12, 12))
    assert (ledger.totals().leased, ledger.totals().done, ledger.totals().samples) == (0, 1, 0)
    ledger.see([PartitionRange(0, 5, 65, final=True)])
    assert (ledger.totals().done, ledger.totals().samples, ledger.samples_done) == (2, 70, 70)
