"""Jobs with several passes: shard numbers, what a checkpoint has completely, a stream as a later pass."""

import dataclasses

import pytest

from springtide import errors
from springtide.data.ledger import stream_ledger
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.data.leases import LeaseHolder, LeaseKey, Progress
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import PartitionRange, StreamCard

CARD = DatasetCard(samples=100, batch_size=10, shard_batches=4, epochs=2)  # six shards
SECOND = dataclasses.replace(CARD, first_epoch=2)
STREAM = DatasetCard(samples=0, batch_size=10, stream=StreamCard(url="log:///clicks"))
A, B = LeaseHolder(0), LeaseHolder(1)


def completed(*grants):
    """Progress of a holder that trained all of these grants."""
    return [Progress(grant.shard, grant.first, grant.end, grant.end) for grant in grants]


def test_leases_of_each_pass_are_taken_back_from_that_pass():
    book, second = JobLedger(workers=1), SECOND
    book.lease(A, CARD, 1, 0.0)
    grants = book.lease(A, second, 2, 0.0)
    assert [grant.shard for grant in grants] == [6, 7]
    assert book.take_back([LeaseKey(6, 0), LeaseKey(0, 0), LeaseKey(7, 9), LeaseKey(99, 0)]) == 2
    assert [key for _, key, _ in book.leases()] == [LeaseKey(7, 0)]


def test_rollback_forgets_no_pass_that_a_checkpoint_has_completely():
    book, second = JobLedger(workers=1, saves=True), SECOND
    book.report(A, completed(*book.lease(A, CARD, 16, 0.0)), 0.0)
    book.keep(book.note())
    book.report(A, completed(*book.lease(A, second, 16, 0.0)), 0.0)
    assert book.kept == {0}
    assert book.restore(book.note()) == 0 and book.kept == {0} and book.waits_to_end
    book.keep(book.note())
    assert book.kept == {0, 6} and not book.waits_to_end


def test_shard_numbers_of_passes_of_different_sizes_do_not_overlap():
    book = JobLedger(workers=1)
    cards = [dataclasses.replace(CARD, first_epoch=epoch, epochs=epochs) for epoch, epochs in ((0, 1), (1, 3), (4, 1))]
    assert [book.lease(A, card, 1, 0.0)[0].shard for card in cards] == [0, 3, 12]
    assert book.next_shard == 15


def test_run_that_goes_on_from_a_checkpoint_before_any_pass_has_shard_0():
    book = JobLedger(workers=1)
    book.resume(JobLedger(workers=1).note())
    assert (book.changes, book.next_shard, book.has_model) == (1, 0, False)
    assert book.lease(A, dataclasses.replace(CARD, in_step=True), 1, 0.0)[0].shard == 0


def test_workers_of_a_job_with_new_data_are_compared_with_each_other():
    book, today = JobLedger(workers=1), JobLedger(workers=2)
    book.lease(A, CARD, 1, 0.0)
    today.resume(book.note(), "checkpoint 4 in monday", new_data=True)
    today.lease(A, CARD, 1, 0.0)
    with pytest.raises(errors.BadInput, match=r"epochs=3, but this job trains one with epochs=2"):
        today.lease(B, dataclasses.replace(CARD, epochs=3), 1, 0.0)


# ---- a stream as a later pass ----


def stream_after_a_pass(book, partitions, holder=A, most=1000):
    """Open a stream as the second pass, whose shards begin at 6; return its grants."""
    book.lease(holder, CARD, 1, 0.0)
    seen = tuple(PartitionRange(number, 0, 90) for number in range(partitions))
    return book.lease(holder, STREAM, most, 0.0, seen=seen)


def test_partitions_are_shared_evenly_by_the_expected_workers():
    book = JobLedger(workers=2)
    assert [grant.nth for grant in stream_after_a_pass(book, 5)] == [0, 1, 2]
    assert [grant.nth for grant in stream_after_a_pass(book, 5, B)] == [3, 4]
    alone = JobLedger(workers=1)
    assert [grant.nth for grant in stream_after_a_pass(alone, 5, most=2)] == [0, 1]
    assert len(stream_after_a_pass(JobLedger(workers=1), 300)) == stream_ledger.MOST_GRANTS


def test_partition_of_a_later_pass_is_assigned_by_its_shard():
    book = JobLedger(workers=2)
    stream_after_a_pass(book, 2)
    stream_after_a_pass(book, 2, B)
    before = book.changes
    assert book.assign([(7, 0), (0, 1), (99, 1)]) == 1 and book.changes == before + 1
    assert [partition.owner for partition in book.flows()[0].partitions.values()] == [0, 0]
    assert book.assign([(7, 0)]) == 0 and book.changes == before + 1
    assert book.assign([(6, 1), (7, 1)]) == 2 and book.changes == before + 2


def test_work_in_any_stream_came_back():
    book = JobLedger(workers=1)
    book.lease(A, STREAM, 9, 0.0, seen=(PartitionRange(0, 0, 0, final=True),))
    later = dataclasses.replace(STREAM, first_epoch=1)
    grants = book.lease(A, later, 9, 0.0, seen=(PartitionRange(0, 0, 40),))
    assert not book.came_back(0)
    book.take_back([LeaseKey(grants[0].shard, 0)])
    assert book.came_back(0)
