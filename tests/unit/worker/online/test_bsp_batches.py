"""Ranks of a bsp group read the same stream batches, and each trains its part."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from springtide import errors
from springtide.data.ledger.job_ledger import JobLedger
from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create
from springtide.data.stream.stream import stream
from springtide.domain.data.leases import LeaseHolder, NoLease
from springtide.rpc.messages.messages import DataEnd, LeaseReply, WaitReply
from springtide.worker.bsp.group import GroupPlace
from springtide.worker.input.batch_plan import PAUSED
from springtide.worker.job import stream_card
from springtide.worker.link.lease_tracker import LeaseTracker
from springtide.worker.online.bsp_batches import BspStreamFeed

BATCH = 8


class GroupLink:
    """A rank's link to a shared ledger, like `master.data.leases` without waiting."""

    def __init__(self, book, rank):
        self.book, self.rank, self.draining = book, rank, False
        self.tracker, self.leases = LeaseTracker(), self

    def lease(self, card, most, seen=()):
        words = self.tracker.report()
        holder = LeaseHolder(self.rank)
        self.book.report(holder, words.progress, 0.0)
        self.tracker.on_reported(words)
        answer = self.book.lease(holder, card, most, 0.0, seen=self.book.news(card, seen))
        if answer is NoLease.WAIT:
            convoy = self.book.bsp_stream(card)
            stretch, _ = convoy.choose(seen, lingered=True)
            if stretch is not None and self.book.plan(self.rank, convoy.base, stretch):
                answer = self.book.lease(holder, card, most, 0.0)
        if isinstance(answer, NoLease):
            return WaitReply() if answer is NoLease.WAIT else DataEnd()
        self.tracker.add_grants(card, answer)
        return LeaseReply(answer)


@pytest.fixture
def log(tmp_path):
    made = create(tmp_path / "log", LogSettings(partitions=2))
    yield made
    made.close()


def append(log, partition, numbers, *, size=8):
    writer = log.writer()
    body = b"".join(int(number).to_bytes(size, "little") for number in numbers)
    writer.append(partition, body, size * np.arange(1, len(numbers) + 1, dtype=np.int64))
    writer.close()


def decode(bodies):
    return torch.from_numpy(np.frombuffer(b"".join(bodies), dtype=np.int64).copy())


def ranks(log, workers, **options):
    """One `InStep` a rank, over one book."""
    book, dataset = JobLedger(workers=workers), stream(f"log://{log.folder}", decode=decode, **options)
    card = stream_card(dataset, BATCH, "bsp", epochs=1, scaling=None, workers=workers)
    for rank in range(workers):
        book.report(LeaseHolder(rank), (), 0.0)  # all are there from the beginning
    feeds = [BspStreamFeed(dataset, log, card, GroupLink(book, rank)) for rank in range(workers)]
    for rank, feed in enumerate(feeds):
        feed.join_group(SimpleNamespace(place=GroupPlace(rank, workers, 1)), None)
    return feeds


def read_to_the_end(feeds):
    """Batches of each rank to the end of the stream, acknowledged as by steps."""
    found = []
    for feed in feeds:
        handed = []
        for one in feed.batches():
            if one is not PAUSED:
                feed.link.tracker.acknowledge([one.order.claim])
                feed.use.trained([one.order.claim])
                handed.append(one)
        found.append(handed)
    return found


def test_ranks_train_disjoint_parts_that_make_up_each_stream_batch(log):
    append(log, 0, range(20))
    append(log, 1, range(100, 133))
    log.seal()
    feeds = ranks(log, 2)
    first, second = read_to_the_end(feeds)
    assert [one.order.claim for one in first] == [one.order.claim for one in second]
    assert all(a.order.share + b.order.share == 1 for a, b in zip(first, second, strict=True))
    numbers = torch.cat([one.batch for one in (*first, *second)]).tolist()
    assert sorted(set(numbers)) == [*range(20), *range(100, 133)]
    rest = [one for one in first if one.batch.tolist() == [132]]
    assert len(numbers) == 54 and rest[0].order.share == 0.5, "a rest of one record is trained by both, for half each"
    assert feeds[0].report().records + feeds[1].report().records == 54


def test_untrainable_records_are_skipped_by_all_ranks_and_reported_by_one(log, tmp_path):
    append(log, 0, range(6))
    append(log, 0, [7], size=16)
    append(log, 0, range(8, 9))
    append(log, 1, range(3), size=16)  # a batch of which nothing can be trained
    log.seal()
    feeds = ranks(log, 2, max_record_bytes=12)
    first, second = read_to_the_end(feeds)
    numbers = torch.cat([one.batch for one in (*first, *second)]).tolist()
    assert sorted(numbers) == [0, 1, 2, 3, 4, 5, 8]
    assert [len(one.batch) for one in first] == [3] and [len(one.batch) for one in second] == [4]
    assert [feed.report().oversized for feed in feeds] == [4, 0]


def test_scheduler_gets_whole_stream_batches_and_can_pick_any_part(log):
    append(log, 0, range(3 * BATCH))
    append(log, 0, [7], size=16)  # not trained, and no record of any batch
    append(log, 0, range(100, 100 + BATCH - 1))
    log.seal()
    _, feed = ranks(log, 2, max_record_bytes=12)
    feed._sharing = SimpleNamespace(allotting=SimpleNamespace(wholes=True))
    first, *_, last = handed = [one for one in feed.read() if one is not PAUSED]
    assert all(one.whole for one in handed)
    assert first.batch.tolist() == list(range(BATCH)) and first.order.places.tolist() == [4, 5, 6, 7]
    numbers = [number for one in handed for number in one.order.whole.tolist()]
    assert numbers == list(range(4 * BATCH - 1)), "what can be trained is numbered through"
    assert feed.pick(last.batch, last.order.whole, np.array([0, 3]), jagged=False).tolist() == [100, 103]
    assert feed.fetch(handed[1].order.whole[-2:]).tolist() == [14, 15]


def test_stream_batch_is_reported_only_when_the_loop_gets_it(log):
    append(log, 0, range(3 * BATCH))
    log.seal()
    (feed,) = ranks(log, 1)
    feed.read = lambda read=feed.read: iter(list(read()))  # all of it is read before the loop gets any
    batches = feed.batches()
    for number in range(3):
        handed = next(batches)
        assert feed.report().partitions[0].trained == number * BATCH
        feed.use.trained([handed.order.claim])
        assert feed.report().records == (number + 1) * BATCH


def test_loop_pauses_while_no_records_arrive(log):
    (feed,) = ranks(log, 1)
    batches = feed.batches()
    assert next(batches) is PAUSED
    append(log, 1, range(BATCH))
    handed = next(batches)
    assert handed.batch.tolist() == list(range(BATCH)) and handed.order.share == 1.0
    assert [(view.partition, view.trained, view.end) for view in feed.report().partitions] == [(0, 0, 0), (1, 0, 8)]
    batches.close()


def test_temporarily_unreachable_stream_is_waited_for(log, monkeypatch):
    append(log, 0, range(BATCH))
    log.seal()
    (feed,) = ranks(log, 1)
    reader, away = log.open(), ["one", "two"]
    poll = reader.poll

    def polled(timeout_s, most):
        if away:
            raise errors.StreamUnreachable(f"no broker answers: {away.pop()}")
        return poll(timeout_s, most)

    monkeypatch.setattr(log, "open", lambda: reader)
    monkeypatch.setattr(reader, "poll", polled)
    ((handed,),) = read_to_the_end([feed])
    assert handed.batch.tolist() == list(range(BATCH)) and not away
