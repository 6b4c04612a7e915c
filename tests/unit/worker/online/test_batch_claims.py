"""Batches of a partition are the same for any reader: full ones, or cut where the master noted it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from springtide.data.stream.stream import Chunk
from springtide.domain.data.leases import Grant, ShrinkRequest
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, BatchCut, StreamCard
from springtide.worker.link.lease_tracker import LeaseTracker
from springtide.worker.online.batch_claims import MOST_AHEAD, PartitionHeads, batch_end
from tests.unit.data.stream.made_records import records_of

B = 8
CARD = DatasetCard(samples=0, batch_size=B, stream=StreamCard(url="log:///x"))


def chunk(first, next_, *, partition=0, without=(), expired=0):
    offsets = [at for at in range(first, next_) if at not in without]
    records = records_of([b"%d" % at for at in offsets], offsets=offsets, appended_at=np.array(offsets, float))
    return Chunk(partition=partition, first=first, next=next_, records=records, expired=expired)


def holding(first=0, end=FAR, *, partition=0, cuts=()):
    """A tracker with one lease, and stream heads that follow it."""
    tracker, heads = LeaseTracker(), PartitionHeads(B)
    tracker.begin_pass(CARD)
    tracker.add_grants(
        CARD, [Grant(partition, 0, partition, first, end)], cuts=[BatchCut(partition, first, at) for at in cuts]
    )
    heads.follow(tracker.tails())
    return tracker, heads


def claimed(tracker, heads):
    """All batches that can be claimed now, as (begin, end, offsets)."""
    found = []
    for whole in heads.whole():
        claim = tracker.claim_run(whole.tail, whole.end)
        if claim is None:
            heads.dropped(whole)
            continue
        heads.claimed(whole)
        found.append((claim.begin, claim.end, whole.records.offsets.tolist()))
    return found


def test_batch_ends_at_the_next_multiple_a_cut_or_the_end():
    assert batch_end(3, B, (), FAR) == 8
    assert batch_end(8, B, (), FAR) == 16
    assert batch_end(8, B, (8, 11, 13), FAR) == 11
    assert batch_end(8, B, (), 10) == 10


def test_only_whole_batches_are_claimed_for_any_chunking():
    tracker, heads = holding()
    heads.take_in(chunk(0, 5), at=0.0)
    assert claimed(tracker, heads) == []
    heads.take_in(chunk(5, 19), at=0.0)
    assert claimed(tracker, heads) == [(0, 8, list(range(8))), (8, 16, list(range(8, 16)))]
    assert heads.positions() == {0: 19}
    heads.take_in(chunk(19, 24), at=0.0)
    assert claimed(tracker, heads) == [(16, 24, list(range(16, 24)))]


def test_chunk_at_an_unexpected_offset_is_dropped():
    _, heads = holding(first=8)
    assert heads.take_in(chunk(0, 8), at=0.0) == 0
    assert heads.take_in(chunk(8, 16, partition=3), at=0.0) == 0
    assert heads.positions() == {0: 8}


def test_offset_gap_is_claimed_up_to_the_batch_where_records_resume():
    tracker, heads = holding()
    assert heads.take_in(chunk(0, 1003, without=range(1001), expired=1001), at=0.0) == 1001
    assert claimed(tracker, heads) == [(0, 1000, [])]
    heads.take_in(chunk(1003, 1008), at=0.0)
    assert claimed(tracker, heads) == [(1000, 1008, [1001, 1002, 1003, 1004, 1005, 1006, 1007])]


def test_last_batch_ends_at_the_end_of_its_partition():
    tracker, heads = holding(end=FAR)
    heads.take_in(chunk(0, 11), at=0.0)
    assert claimed(tracker, heads) == [(0, 8, list(range(8)))]
    tracker.end_run(0, 11)
    heads.follow(tracker.tails())
    assert claimed(tracker, heads) == [(8, 11, [8, 9, 10])]
    assert heads.positions() == {}


def test_lingering_records_are_cut_off_once_the_master_has_noted_the_cut():
    tracker, heads = holding()
    heads.take_in(chunk(0, 3), at=10.0)
    assert heads.lingering({0: 5}, before=20.0) == (), "there is more to read"
    assert heads.lingering({0: 3}, before=9.0) == (), "they have not waited long"
    assert heads.lingering({0: 3}, before=10.0) == (BatchCut(0, 0, 3),)
    heads.take_in(chunk(3, 9), at=11.0)
    assert claimed(tracker, heads) == [], "the master may have noted it: the batch must end there, full or not"
    assert heads.lingering({0: 9}, before=0.0) == (BatchCut(0, 0, 3),), "it is asked for until that is known"
    tracker.note_cuts([BatchCut(0, 0, 3)], era=0)
    heads.follow(tracker.tails())
    assert claimed(tracker, heads) == [(0, 3, [0, 1, 2]), (3, 8, [3, 4, 5, 6, 7])]


def test_requested_cut_at_the_end_of_a_partition_is_not_awaited():
    tracker, heads = holding()
    heads.take_in(chunk(0, 3), at=0.0)
    assert heads.lingering({0: 3}, before=1.0) == (BatchCut(0, 0, 3),)
    tracker.end_run(0, 3)
    heads.follow(tracker.tails())
    assert claimed(tracker, heads) == [(0, 3, [0, 1, 2])] and heads.lingering({0: 3}, before=1.0) == ()


def test_next_lease_holder_cuts_at_the_same_offsets():
    tracker, heads = holding(first=0, cuts=(3, 13))
    heads.take_in(chunk(0, 17), at=0.0)
    assert [(begin, end) for begin, end, _ in claimed(tracker, heads)] == [(0, 3), (3, 8), (8, 13), (13, 16)]


def test_lease_shrunk_by_the_master_ends_after_the_last_claimed_batch():
    tracker, heads = holding()
    heads.take_in(chunk(0, 10), at=0.0)
    assert claimed(tracker, heads) == [(0, 8, list(range(8)))]
    heads.take_in(chunk(10, 20), at=0.0)
    assert tracker.apply_changes((), [ShrinkRequest(0, 0, 0)])
    assert tracker.tails()[0].end == 8
    assert claimed(tracker, heads) == [], "not even what was read before"
    heads.follow(tracker.tails())
    assert heads.positions() == {}


def test_regranted_lease_is_read_from_its_beginning():
    tracker, heads = holding()
    heads.take_in(chunk(0, 20), at=0.0)
    claimed(tracker, heads)
    tracker.add_grants(CARD, [Grant(0, 0, 0, 0, FAR)], era=1)
    heads.follow(tracker.tails())
    assert heads.positions() == {0: 0}


@given(data=some.data(), gaps=some.sets(some.integers(0, 79)), noted=some.sets(some.integers(1, 79)))
def test_two_readers_of_a_partition_claim_the_same_batches(data, gaps, noted):
    noted = sorted(at for at in noted if at % B)
    runs = []
    for _ in range(2):
        tracker, heads = holding(end=80, cuts=noted)
        batches, position = [], 0
        while position < 80:
            step = data.draw(some.integers(1, 30))
            heads.take_in(chunk(position, min(80, position + step), without=gaps), at=0.0)
            position = min(80, position + step)
            batches += claimed(tracker, heads)
        assert not heads.positions()
        runs.append([(begin, end, offsets) for begin, end, offsets in batches if offsets])
        assert [at for *_, offsets in batches for at in offsets] == [at for at in range(80) if at not in gaps]
        for begin, end, offsets in runs[-1]:
            assert end == batch_end(begin, B, noted, 80) and all(begin <= at < end for at in offsets)
    assert runs[0] == runs[1]


def test_reading_ahead_is_bounded_while_a_cut_is_unanswered():
    tracker, heads = holding()
    heads.take_in(chunk(0, 5), at=0.0)
    (cut,) = heads.lingering({0: 5}, before=1.0)
    at = 5
    while heads.positions():  # a burst, and the master is away
        heads.take_in(chunk(at, at + B), at=2.0)
        at += B
        assert claimed(tracker, heads) == [] and at <= (MOST_AHEAD + 2) * B
    tracker.note_cuts([cut], 0)
    heads.follow(tracker.tails())
    assert [end for _, end, _ in claimed(tracker, heads)] == [5, *range(B, at - at % B + 1, B)]
    assert heads.positions() == {0: at}
