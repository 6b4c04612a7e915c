"""Shard leases: grants, progress, fencing, expiry, failures, eras, and matching dataset cards."""

import dataclasses

import pytest

from springtide import errors
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.data.leases import (
    Grant,
    LeaseHolder,
    LeaseKey,
    NoLease,
    Progress,
    ReadFailure,
    ShrinkRequest,
    Totals,
)
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import PartitionRange, StreamCard
from tests.oracles import ledger_invariants

CARD = DatasetCard(samples=100, batch_size=10, shard_batches=4, epochs=2)  # 3 shards an epoch: 40, 40, 20
MANY = DatasetCard(samples=100_000, batch_size=10, shard_batches=16)  # 625 shards of 160
A, B = LeaseHolder(0), LeaseHolder(1)


def completed(*grants):
    """Progress of a holder that trained all of these grants."""
    return [Progress(grant.shard, grant.first, grant.end, grant.end) for grant in grants]


def test_single_worker_gets_whole_shards_in_epoch_order():
    book = JobLedger(workers=1)
    assert book.lease(A, CARD, 16, 0.0) == (
        Grant(0, 0, 0, 0, 40),
        Grant(1, 0, 1, 0, 40),
        Grant(2, 0, 2, 0, 20),
        Grant(3, 1, 0, 0, 40),
        Grant(4, 1, 1, 0, 40),
        Grant(5, 1, 2, 0, 20),
    )


def test_lease_call_grants_at_most_sixteen_or_half_a_fair_share():
    book = JobLedger(workers=2)
    assert len(book.lease(A, MANY, 99, 0.0)) == 16
    while not isinstance(grants := book.lease(A, MANY, 16, 0.0), NoLease):
        left = book.todo_samples + sum(grant.end - grant.first for grant in grants)
        assert sum(grant.end - grant.first for grant in grants) <= max(10, left // 4 + 160)
    assert sum(lease.end - lease.first for _, _, lease in book.leases()) == 100_000


def test_idle_worker_waits_while_another_holds_a_lease():
    book = JobLedger(workers=1)
    grants = book.lease(A, CARD, 16, 0.0)
    assert book.lease(B, CARD, 1, 0.0) is NoLease.WAIT
    assert book.lease(A, CARD, 1, 0.0) is NoLease.END  # the rest is its own: no one to wait for
    assert book.report(A, completed(*grants), 0.0).freed
    assert book.lease(B, CARD, 1, 0.0) is NoLease.END
    assert book.totals() == Totals(total=6, leased=0, done=6, samples=200, samples_done=200)


def test_repeated_or_foreign_progress_changes_nothing():
    book = JobLedger(workers=1)
    (grant,) = book.lease(A, CARD, 1, 0.0)
    before = book.changes
    book.lease(B, CARD, 1, 0.0)
    assert book.report(B, [Progress(0, 0, 20, 40)], 0.0).revoked == (LeaseKey(0, 0),)
    assert book.report(B, [Progress(99, 0, 20, 40)], 0.0).revoked == (LeaseKey(99, 0),)
    assert book.totals().samples_done == 0
    book.report(A, completed(grant), 0.0)
    said = book.changes
    assert not book.report(A, completed(grant), 0.0).freed
    assert (book.totals().done, book.changes) == (1, said)
    assert said > before


def test_fenced_worker_loses_unreported_work_and_is_told():
    book = JobLedger(workers=1)
    book.lease(A, CARD, 1, 0.0)
    book.report(A, [Progress(0, 0, 25, 40)], 0.0)  # two whole batches
    assert book.fence(0, 0) == 1
    assert book.report(A, [Progress(0, 0, 40, 40)], 0.0).fenced
    assert book.lease(A, CARD, 1, 0.0) is NoLease.FENCED
    assert book.lease(B, CARD, 1, 0.0) == (Grant(0, 0, 0, 20, 40, returned=True),)
    assert book.totals().samples_done == 20


def test_started_shards_of_a_lost_worker_are_granted_before_all_others():
    book = JobLedger(workers=2)
    first, second, third = book.lease(A, MANY, 3, 0.0)
    assert not any(one.returned for one in (first, second, third))
    book.report(A, [Progress(second.shard, second.first, 10, second.end)], 0.0)
    book.fence(0, 0)
    mine = book.lease(B, MANY, 4, 0.0)
    assert [one.shard for one in mine] == [second.shard, first.shard, third.shard, 3]
    assert [one.returned for one in mine] == [True, True, True, False]
    assert mine[0].first == 10
    assert book.lease(B, MANY, 4, 0.0, known=[]) == mine, "an answer that was lost says it again"
    again = JobLedger.from_state(book.to_state())
    assert again.lease(B, MANY, 4, 0.0, known=[]) == mine, "and so does the next master's"
    book.fence(1, 0)
    third_of_all = book.lease(LeaseHolder(2), MANY, 1, 0.0)
    assert third_of_all[0].shard == second.shard, "what came from another is gone on with first"


def test_new_incarnation_of_a_worker_ends_the_previous():
    book = JobLedger(workers=1)
    book.lease(A, CARD, 1, 0.0)
    assert book.lease(LeaseHolder(0, 1), CARD, 1, 0.0) == (Grant(0, 0, 0, 0, 40, returned=True),)
    assert book.report(A, [Progress(0, 0, 40, 40)], 0.0).fenced


def test_lease_missing_from_reports_expires():
    book = JobLedger(workers=1, lease_s=30)
    book.lease(A, CARD, 2, 0.0)
    book.report(A, [Progress(0, 0, 10, 40)], 20.0)
    assert book.expired(31.0) == (LeaseKey(1, 0),)
    assert book.take_back(book.expired(31.0)) == 1
    assert book.report(A, [Progress(1, 0, 10, 40)], 32.0).revoked == (LeaseKey(1, 0),)
    assert book.lease(B, CARD, 1, 32.0) == (Grant(1, 0, 1, 0, 40, returned=True),)


def test_lost_lease_reply_is_repeated():
    book = JobLedger(workers=1)
    first = book.lease(A, CARD, 2, 0.0)
    changes = book.changes
    assert book.lease(A, CARD, 2, 0.0, known=[]) == first
    assert book.lease(A, CARD, 2, 0.0, known=[LeaseKey(0, 0)]) == first[1:]
    assert book.changes == changes


def test_slow_worker_gets_smaller_leases_of_the_same_shards():
    book = JobLedger(workers=2)
    book.resize(0, 2)
    book.resize(1, 1)
    assert book.lease(A, MANY, 1, 0.0) == (Grant(0, 0, 0, 0, 40),)
    assert book.lease(B, MANY, 2, 0.0) == (Grant(0, 0, 0, 40, 120), Grant(0, 0, 0, 120, 160))
    book.resize(0, 0)
    assert book.lease(A, MANY, 1, 0.0) == (Grant(1, 0, 1, 0, 160),)


def test_shrink_request_is_repeated_until_the_holder_answers():
    book = JobLedger(workers=1)
    book.lease(A, CARD, 1, 0.0)
    assert book.wish(ShrinkRequest(0, 0, 15))
    assert book.report(A, [Progress(0, 0, 0, 40)], 0.0).wishes == (ShrinkRequest(0, 0, 20),)
    assert book.report(A, [], 0.0).wishes == (ShrinkRequest(0, 0, 20),)
    assert not book.wish(ShrinkRequest(0, 0, 30)), "a wish for less is there already"
    answered = book.report(A, [Progress(0, 0, 10, 30)], 0.0)
    assert answered.freed and answered.wishes == ()
    assert book.lease(B, CARD, 1, 0.0) == (Grant(0, 0, 0, 30, 40, returned=True),)


def test_unreadable_shard_is_retried_last_and_dropped_after_three_failures():
    book = JobLedger(workers=1, max_failures=3)
    card = dataclasses.replace(CARD, epochs=1)
    for _ in range(3):
        grants = book.lease(A, card, 16, 0.0)
        assert grants[-1].shard == 0 or len(grants) == 3
        assert book.fail(A, ReadFailure(0, grants[0].first if len(grants) == 3 else grants[-1].first, 20, "bad disk"))
        book.report(A, completed(*(grant for grant in grants if grant.shard)), 0.0)
    assert book.lease(A, card, 1, 0.0) is NoLease.END
    assert not book.fail(B, ReadFailure(0, 0, 20, "not mine"))
    (given_up,) = book.poisoned()
    assert str(given_up) == "samples 20 to 40 of shard 0 (epoch 0) could not be read, tried 3 times: bad disk"
    book.report(A, [Progress(0, 0, 20, 20)], 0.0)  # what came before the failure is trained
    assert book.totals() == Totals(total=3, leased=0, done=2, poisoned=1, samples=100, samples_done=80)


def unreadable(book, holder, card):
    """Lease as this holder and fail every read; return the grants."""
    grants = book.lease(holder, card, 1, 0.0)
    for grant in () if isinstance(grants, NoLease) else grants:
        assert book.fail(holder, ReadFailure(grant.shard, grant.first, grant.first, "bad mount"))
    return grants


def test_shard_unreadable_by_one_worker_goes_to_another_first():
    book, card = JobLedger(workers=2), dataclasses.replace(CARD, epochs=1, samples=40)
    book.report(B, completed(*book.lease(B, card, 1, 0.0)), 0.0)
    while not isinstance(unreadable(book, A, card), NoLease):
        assert not book.hopeless
    assert unreadable(book, A, card) is NoLease.WAIT and book.todo_samples
    while not isinstance(grants := book.lease(B, card, 1, 0.0), NoLease):
        book.report(B, completed(*grants), 0.0)
    assert grants is NoLease.END and not book.poisoned() and book.samples_done == 40


def test_worker_that_cannot_read_is_paused_while_another_can():
    book, card = JobLedger(workers=2), dataclasses.replace(CARD, epochs=1, samples=4000)
    assert book.lease(B, card, 1, 0.0)
    assert [unreadable(book, A, card) is NoLease.WAIT for _ in range(5)] == [False] * 3 + [True] * 2
    again = LeaseHolder(A.rank, A.incarnation + 1)
    assert not isinstance(unreadable(book, again, card), NoLease), "another life may have a better disk"
    book.fence(B.rank, B.incarnation)
    assert all(not isinstance(unreadable(book, again, card), NoLease) for _ in range(5)), "there is nobody else"


def test_data_is_hopeless_once_every_worker_failed_to_read_it():
    book, card = JobLedger(workers=2), dataclasses.replace(CARD, epochs=1, samples=4000)
    for _ in range(4):
        unreadable(book, A, card)
    assert not book.hopeless, "the other may read it"
    assert unreadable(book, A, card) is NoLease.WAIT
    unreadable(book, B, card)
    assert book.hopeless
    assert JobLedger.from_state(book.to_state()).hopeless


def test_second_pass_continues_shard_numbers_and_is_visible_to_new_workers():
    book = JobLedger(workers=1)
    book.report(A, completed(*book.lease(A, CARD, 16, 0.0)), 0.0)
    following = dataclasses.replace(CARD, first_epoch=2)
    assert book.lease(A, following, 1, 0.0) == (Grant(6, 2, 0, 0, 40),)
    assert book.epochs == 4
    again = LeaseHolder(1, 3)
    assert book.lease(again, CARD, 1, 0.0) is NoLease.END
    assert book.lease(again, following, 1, 0.0) == (Grant(7, 2, 1, 0, 40),)


def test_workers_with_different_datasets_are_refused():
    book = JobLedger(workers=2)
    book.lease(A, CARD, 1, 0.0)
    wrong = dataclasses.replace(CARD, samples=99)
    with pytest.raises(
        errors.BadInput, match="worker-1 has a data set with samples=99, but this job trains one with samples=100"
    ):
        book.lease(B, wrong, 1, 0.0)


def test_empty_dataset_ends_at_once():
    assert JobLedger(workers=1).lease(A, DatasetCard(samples=0, batch_size=10), 1, 0.0) is NoLease.END


def test_stopping_job_grants_no_lease_even_for_returned_shards():
    book = JobLedger(workers=2)
    grants = book.lease(A, CARD, 1, 0.0)
    book.close()
    assert book.lease(B, CARD, 1, 0.0) is NoLease.END
    book.fence(0, 0)
    assert book.lease(B, CARD, 1, 0.0) is NoLease.END
    assert grants and book.totals().leased == 0


def test_bsp_ranks_all_get_every_shard():
    book, card = JobLedger(workers=2), dataclasses.replace(CARD, in_step=True)
    first = [book.lease(holder, card, 16, 0.0) for holder in (A, B)]
    assert first == [(Grant(0, 0, 0, 0, 40),)] * 2
    book.report(A, [Progress(0, 0, 40, 40)], 0.0)
    assert (book.totals().leased, book.totals().done) == (1, 0)
    for _ in range(2):
        book.report(B, [Progress(0, 0, 40, 40)], 0.0)
    assert (book.totals().leased, book.totals().done) == (0, 1)
    with pytest.raises(errors.BadInput, match="its next shard is 1"):
        book.report(A, [Progress(2, 0, 20, 20)], 0.0)
    with pytest.raises(errors.BadInput, match="worker-2 is not in the bsp group of 2"):
        book.lease(LeaseHolder(2), card, 1, 0.0)
    while not isinstance(grants := book.lease(A, card, 1, 0.0), NoLease):
        book.report(A, completed(*grants), 0.0)
    assert grants is NoLease.END


def test_bsp_ranks_keep_their_progress_in_a_new_group_despite_rank_gaps():
    book, card = JobLedger(workers=2), dataclasses.replace(CARD, in_step=True)
    book.regroup([0, 1])
    (grant,) = {book.lease(holder, card, 1, 0.0) for holder in (A, B)}
    for holder in (A, B):
        book.report(holder, completed(*grant), 0.0)
    (ahead,) = book.lease(B, card, 1, 0.0)
    book.regroup([1, 4])  # worker-0 has left while 2 and 3 were on their way out
    late = LeaseHolder(4)
    assert book.lease(late, card, 1, 0.0) == (ahead,), "a newcomer begins with what not all have finished"
    assert not book.report(A, completed(ahead), 0.0).fenced and book.totals().done == 1, "who has left has no say"
    for holder in (B, late):
        book.report(holder, completed(ahead), 0.0)
    assert book.totals().done == 2
    again = JobLedger.from_state(book.to_state())
    assert again.lease(LeaseHolder(4, 1), card, 1, 0.0) == again.lease(B, card, 1, 0.0) != NoLease.END
    with pytest.raises(errors.BadInput, match="worker-0 is not in the bsp group of 2"):
        again.lease(A, card, 1, 0.0)
    ledger_invariants.check(again)


def test_bsp_group_rolls_back_to_the_sample_of_its_checkpoint():
    book, card = JobLedger(workers=2), dataclasses.replace(CARD, in_step=True)
    for _ in range(2):
        grants = [book.lease(holder, card, 1, 0.0) for holder in (A, B)]
        for holder, each in zip((A, B), grants, strict=True):
            book.report(holder, completed(*each), 0.0)
    note = book.note(1, 20)
    assert note.samples == 60 and book.note(1, 40) == book.note(2, 0) and book.note(1, 40).samples == 80
    assert book.samples_done == 80 and book.restore(note) == 20
    assert (book.samples_done, book.era, book.totals().done) == (60, 1, 1)
    assert book.lease(A, card, 1, 0.0) == (Grant(1, 0, 1, 0, 40),), "where in it the group was, its leader knows"
    ledger_invariants.check(book)
    other = JobLedger(workers=3)
    other.resume(note)
    assert other.samples_done == 60 and JobLedger.from_state(other.to_state()).samples_done == 60
    assert [other.lease(LeaseHolder(rank), card, 1, 0.0) for rank in range(3)] == [(Grant(1, 0, 1, 0, 40),)] * 3


def test_restored_ledger_grants_again_what_its_note_lacks():
    book = JobLedger(workers=1)
    one, two = book.lease(A, CARD, 2, 0.0)
    book.report(A, [*completed(one), Progress(two.shard, 0, 20, 40)], 0.0)
    note = book.note()
    book.report(A, completed(two), 0.0)
    book.report(A, completed(*book.lease(A, CARD, 1, 0.0)), 0.0)
    assert book.samples_done == 100
    assert book.restore(note) == 40
    assert (book.samples_done, book.era, book.leases()) == (60, 1, ())
    assert book.lease(A, CARD, 2, 0.0) == (Grant(1, 0, 1, 20, 40, returned=True), Grant(2, 0, 2, 0, 20))
    ledger_invariants.check(book)


def test_progress_of_an_earlier_era_is_revoked_even_for_a_regranted_lease():
    book = JobLedger(workers=1)
    note = book.note()
    (grant,) = book.lease(A, CARD, 1, 0.0)
    book.restore(note)
    assert book.lease(A, CARD, 1, 0.0, [LeaseKey(0, 0)], era=0) == (grant,)
    assert book.report(A, completed(grant), 0.0, era=0).revoked == (LeaseKey(0, 0),)
    assert book.samples_done == 0
    assert book.lease(A, CARD, 1, 0.0, [LeaseKey(0, 0)], era=0) == (grant,)  # granted again: it knows nothing yet
    book.report(A, completed(grant), 0.0, era=1)
    assert book.samples_done == 40


def test_end_is_given_only_when_a_checkpoint_has_the_whole_pass():
    book = JobLedger(workers=1, saves=True)
    grants = book.lease(A, CARD, 16, 0.0)
    early = book.note()
    assert book.lease(A, CARD, 1, 0.0) is NoLease.WAIT
    book.report(A, completed(*grants), 0.0)
    assert book.waits_to_end and book.lease(A, CARD, 1, 0.0) is NoLease.WAIT
    book.keep(early)
    assert book.waits_to_end
    book.keep(book.note())
    assert not book.waits_to_end and book.lease(A, CARD, 1, 0.0) is NoLease.END
    book.restore(early)  # the last checkpoint turned out to be torn
    assert book.samples_done == 0
    again = book.lease(A, CARD, 16, 0.0)
    book.report(A, completed(*again), 0.0)
    assert book.lease(A, CARD, 1, 0.0) is NoLease.WAIT
    book.close()
    assert book.lease(A, CARD, 1, 0.0) is NoLease.END


def test_failures_after_the_note_are_retried_after_a_restore():
    book = JobLedger(workers=1, max_failures=1)
    note = book.note()
    book.lease(A, CARD, 1, 0.0)
    assert book.fail(A, ReadFailure(0, 0, 10, "bad"))
    assert book.poisoned()
    book.restore(note)
    assert not book.poisoned()
    assert book.lease(A, CARD, 1, 0.0) == (Grant(0, 0, 0, 0, 40),)
    ledger_invariants.check(book)


def test_pass_opened_after_the_note_restarts():
    book = JobLedger(workers=1)
    note = book.note()
    book.report(A, completed(*book.lease(A, CARD, 16, 0.0)), 0.0)
    later = dataclasses.replace(CARD, first_epoch=2)
    book.report(A, completed(*book.lease(A, later, 16, 0.0)), 0.0)
    assert book.restore(note) == 400
    assert len(book.lease(A, later, 16, 0.0)) == len(book.lease(A, CARD, 16, 0.0)) == 6
    ledger_invariants.check(book)


def test_known_data_end_survives_a_restore():
    endless = dataclasses.replace(CARD, samples=2**20, epochs=1, endless=True)
    book = JobLedger(workers=1)
    book.lease(A, endless, 1, 0.0)
    note = book.note()
    book.lease(A, endless, 2, 0.0)
    assert book.end(A, endless, 90, 3)
    book.restore(note)
    ledger_invariants.check(book)
    assert book.totals().samples == 87, "3 of the 90 would be in mini-batches that are not full"
    assert book.lease(A, endless, 16, 0.0) == (
        Grant(0, 0, 0, 0, 40, returned=True),
        Grant(1, 0, 1, 0, 40),
        Grant(2, 0, 2, 0, 10),
    )


def stream_card(id):
    """A card of a stream that says this of itself."""
    return DatasetCard(samples=0, batch_size=10, shard_batches=1, stream=StreamCard(url="log:///clicks", id=id))


@pytest.mark.parametrize("in_step", [False, True])
def test_recreated_stream_is_refused_after_a_resume(in_step):
    before, now = (dataclasses.replace(stream_card(id), in_step=in_step) for id in ("first", "second"))
    book, again = JobLedger(workers=1), JobLedger(workers=1)
    book.lease(A, before, 1, 0.0, seen=(PartitionRange(0, 0, 40),))
    again.resume(book.note())
    with pytest.raises(errors.StreamReplaced, match="its id is second, and was first"):
        again.lease(A, now, 1, 0.0, seen=(PartitionRange(0, 0, 90),))
    again.lease(A, before, 1, 0.0, seen=(PartitionRange(0, 0, 90),))


@pytest.mark.parametrize("in_step", [False, True])
def test_new_data_begins_with_shard_numbers_that_the_checkpoint_does_not_have(in_step):
    book, card = JobLedger(workers=1), dataclasses.replace(CARD, in_step=in_step)
    grant = book.lease(A, card, 1, 0.0)
    other = dataclasses.replace(card, samples=60, epochs=1)
    book.report(A, completed(*grant), 0.0)
    note = dataclasses.replace(book.note(1, 0), next_shard=book.next_shard + 3)  # a pass that began during the copy
    today = JobLedger(workers=1)
    today.resume(note, "checkpoint 4 in monday", new_data=True)
    assert (today.samples_done, today.totals(), today.has_model) == (0, Totals(), True)
    first, *_ = grants = today.lease(A, other, 1, 0.0)
    assert first == Grant(book.next_shard + 3, 0, 0, 0, 40), "slots would skip lower numbers"
    today = JobLedger.from_state(today.to_state())
    today.report(A, completed(*grants), 0.0)
    assert today.samples_done == 40 and today.restore(note) == 40, "a lost server goes back to the other run's end"
    assert today.lease(A, other, 1, 0.0) == (first,)
    assert today.note().next_shard == today.next_shard == first.shard + other.shards
    ledger_invariants.check(today)
    today.report(A, completed(first), 0.0)
    later, tomorrow = JobLedger(workers=1), JobLedger(workers=1)
    later.resume(today.note(first.shard + 1, 0))
    tomorrow.resume(later.note(first.shard + 1, 0), new_data=True)
    assert (tomorrow.next_shard, tomorrow.note().samples_before) == (today.next_shard, 40 + 40)


def test_new_data_after_a_checkpoint_without_a_count_begins_after_its_passes():
    book = JobLedger(workers=1)
    book.lease(A, CARD, 1, 0.0)
    today = JobLedger(workers=1)
    today.resume(dataclasses.replace(book.note(), next_shard=0), new_data=True)
    assert today.next_shard == 6


@pytest.mark.parametrize("in_step", [False, True])
def test_new_data_in_the_other_mode_is_refused(in_step):
    book, today = JobLedger(workers=1), JobLedger(workers=1)
    book.lease(A, dataclasses.replace(CARD, in_step=not in_step), 1, 0.0)
    today.resume(book.note(), "checkpoint 4 in monday", new_data=True)
    said = 'sync="async"' if in_step else 'sync="bsp"'
    with pytest.raises(errors.BadInput, match=f"checkpoint 4 in monday, .* was made with {said}"):
        today.lease(A, dataclasses.replace(CARD, in_step=in_step), 1, 0.0)


def test_resume_with_other_data_names_the_checkpoint_and_continue_from():
    book, again = JobLedger(workers=1), JobLedger(workers=2)
    book.lease(A, CARD, 1, 0.0)
    again.resume(book.note(), "checkpoint 4 in monday")
    said = "worker-0 has .* samples=90, but checkpoint 4 in monday, .* with samples=100.* use --continue-from"
    with pytest.raises(errors.BadInput, match=said):
        again.lease(A, dataclasses.replace(CARD, samples=90), 1, 0.0)
    again.lease(A, CARD, 1, 0.0)
    second = dataclasses.replace(CARD, first_epoch=2)
    again.lease(A, second, 1, 0.0)
    again.lease(B, CARD, 1, 0.0)
    with pytest.raises(errors.BadInput, match=r"epochs=3, but this job trains one with epochs=2"):
        again.lease(B, dataclasses.replace(second, epochs=3), 1, 0.0)


def test_resume_after_the_last_epoch_of_the_checkpoint_refuses_other_data():
    book, again = JobLedger(workers=1), JobLedger(workers=1)
    book.lease(A, CARD, 1, 0.0)
    again.resume(book.note(), "checkpoint 4 in monday")
    following = dataclasses.replace(CARD, first_epoch=2)
    with pytest.raises(errors.BadInput, match=r"samples=90, but checkpoint 4 in monday, .* use --continue-from"):
        again.lease(A, dataclasses.replace(following, samples=90), 1, 0.0)
    assert not isinstance(again.lease(A, following, 1, 0.0), NoLease)


def test_stream_id_is_learned_from_the_first_worker_that_knows_it():
    book = JobLedger(workers=2)
    book.lease(A, stream_card(""), 1, 0.0, seen=(PartitionRange(0, 0, 40),))
    book.lease(B, stream_card("first"), 1, 0.0)
    book.lease(LeaseHolder(0, 1), stream_card(""), 1, 0.0)
    with pytest.raises(errors.StreamReplaced):
        book.lease(LeaseHolder(1, 1), stream_card("second"), 1, 0.0)


def test_worker_starting_at_a_later_epoch_opens_that_pass():
    passes = [DatasetCard(samples=40, batch_size=10, shard_batches=2, first_epoch=epoch) for epoch in range(4)]
    book, card = JobLedger(workers=1), passes[0]
    for card in passes[:3]:
        while not isinstance(grants := book.lease(LeaseHolder(0), card, 1, 0.0), NoLease):
            book.report(LeaseHolder(0), [Progress(one.shard, one.first, one.end, one.end) for one in grants], 0.0)
            if card is passes[2]:
                break
    (rest,) = book.lease(LeaseHolder(0, 1), passes[2], 1, 0.0)
    assert (rest.epoch, rest.first, rest.returned) == (2, 0, False) and rest.shard == 5
    assert book.lease(LeaseHolder(1, 0), passes[1], 1, 0.0) is NoLease.END, "another may look at an earlier one"
    (new,) = book.lease(LeaseHolder(0, 2), passes[3], 1, 0.0)
    assert (new.epoch, new.shard) == (3, 6), "nobody had opened it: the life before was lost on the way there"
    with pytest.raises(errors.BadInput, match="batch_size=5"):
        book.lease(LeaseHolder(2, 0), dataclasses.replace(passes[2], batch_size=5), 1, 0.0)
    ledger_invariants.check(book)


@pytest.mark.parametrize("in_step", [False, True])
def test_pass_cut_short_is_distinct_from_a_finished_pass(in_step):
    first = DatasetCard(samples=40, batch_size=10, shard_batches=2, in_step=in_step)
    second = dataclasses.replace(first, first_epoch=1)
    book = JobLedger(workers=1)
    while not isinstance(grants := book.lease(LeaseHolder(0), first, 1, 0.0), NoLease):
        book.report(LeaseHolder(0), [Progress(one.shard, one.first, one.end, one.end) for one in grants], 0.0)
    assert not book.is_cut_short(first)
    (grant,) = book.lease(LeaseHolder(0), second, 1, 0.0)
    book.close()
    book.report(LeaseHolder(0), [Progress(grant.shard, 0, grant.end, grant.end)], 0.0)
    assert book.lease(LeaseHolder(0), second, 1, 0.0) is NoLease.END
    assert book.is_cut_short(second) and not book.is_cut_short(first)


def test_every_change_counts_for_the_journal_and_repeated_calls_do_not():
    book = JobLedger(workers=2, max_failures=9)
    assert book.changes == 0
    first, *_ = book.lease(A, CARD, 2, 0.0)
    book.lease(B, CARD, 1, 0.0)

    def counted(call, *args):
        before = book.changes
        call(*args)
        return book.changes - before

    failure = ReadFailure(first.shard, first.first, 20, "OSError")
    assert counted(book.fail, A, failure) == 1
    assert counted(book.take_back, [LeaseKey(first.shard, first.first)]) == 1
    assert counted(book.take_back, [LeaseKey(first.shard, first.first)]) == 0
    assert counted(book.resize, 0, 1) == 1
    assert counted(book.report, LeaseHolder(0, 1), [], 0.0) == 1, "an incarnation is new"
    assert counted(book.report, LeaseHolder(0, 1), [], 0.0) == 0
    assert counted(book.expect, 3) == 1 and book.holders.expected == 3
    assert counted(book.fence, 1, 0) > 0 and counted(book.fence, 1, 0) == 0
    assert book.fence(1, 0) == 0
    assert counted(book.halt) == 1 and book.group.halted
    assert counted(book.regroup, [0]) == 1 and not book.group.halted
    assert counted(book.close) == 1
    assert counted(book.restore, book.note()) == 1 and book.era == 1


def test_at_least_one_worker_is_expected():
    book = JobLedger(workers=2)
    book.expect(0)
    assert book.holders.expected == 1


def test_lease_expires_only_after_its_deadline():
    book = JobLedger(workers=1)
    (grant,) = book.lease(A, CARD, 1, 5.0)
    deadline = 5.0 + book.lease_s
    assert book.expired(deadline) == ()
    assert book.expired(deadline + 0.5) == (LeaseKey(grant.shard, grant.first),)


def test_finished_report_of_an_unknown_lease_is_not_revoked():
    book = JobLedger(workers=1)
    book.lease(A, CARD, 1, 0.0)
    assert book.report(A, [Progress(99, 0, 40, 40)], 0.0).revoked == ()


def test_end_of_a_data_set_is_journaled_once():
    endless = dataclasses.replace(CARD, samples=2**20, epochs=1, endless=True)
    book = JobLedger(workers=1)
    book.lease(A, endless, 1, 0.0)
    before = book.changes
    assert book.end(A, endless, 90) and book.changes == before + 1
    assert not book.end(A, endless, 80) and book.changes == before + 1
    book.fence(0, 0)
    assert not book.end(A, endless, 70)


@pytest.mark.parametrize(("halvings", "size"), [(-1, 160), (0, 160), (1, 80), (2, 40), (3, 40)])
def test_lease_size_is_halved_at_most_twice(halvings, size):
    book = JobLedger(workers=1)
    book.resize(0, halvings)
    assert book.lease(A, MANY, 1, 0.0) == (Grant(0, 0, 0, 0, size),)


def test_group_is_limited_by_the_smallest_batch_of_all_passes():
    book = JobLedger(workers=1)
    assert book.largest_group is None
    for epoch, batch_size in enumerate((10, 20)):
        book.lease(
            A, dataclasses.replace(CARD, in_step=True, epochs=1, first_epoch=epoch, batch_size=batch_size), 1, 0.0
        )
    assert book.largest_group == 10
    book.check_group(10)
    with pytest.raises(errors.BadInput, match="11 workers cannot share a batch of 10 samples"):
        book.check_group(11)
