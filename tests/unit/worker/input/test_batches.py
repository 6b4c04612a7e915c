import numpy as np
import pytest
import torch
from torch.utils import data

from springtide import config, errors
from springtide.data import source
from springtide.domain.data.leases import Grant, Progress
from springtide.domain.data.samples import Batch, DatasetCard, SampleRange
from springtide.rpc.messages import messages
from springtide.worker.input import batch_plan, batches, feeds, lease_prefetch
from springtide.worker.input.batches import LoopLength
from springtide.worker.input.reader import BatchRest
from springtide.worker.link import master_link
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTracker
from springtide.worker.link.progress import StepMeter
from springtide.worker.step.step import PushBatches


class RecordingObserver:
    """A step observer that records its calls."""

    def __init__(self, tracker=None):
        self.entries = []
        self.tracker = tracker

    def hand_out(self, now, following):
        if self.tracker:
            self.tracker.acknowledge([now.order.claim])
        self.entries.append(("hand", number(now), None if following is None else number(following)))

    def on_batch_done(self):
        self.entries.append("back")

    def pause(self):
        self.entries.append("pause")

    def skip(self, now):
        self.tracker.acknowledge([now.order.claim])
        self.entries.append(("skip", now.order.ranges[0].first))

    def close_pass(self, *, early):
        self.entries.append("left" if early else "close")
        if self.tracker:
            self.tracker.release_all()


def number(handed):
    return int(handed.batch.y[0])


def feed_of(count, batch_size, **options):
    opened = source.open_source(
        data.TensorDataset(torch.arange(count), torch.arange(count)), batch_size=batch_size, shuffle=False, **options
    )
    alone = master_link.local_link(config.load(environ={}))

    def feed(passes):
        card = DatasetCard(samples=count, batch_size=batch_size, shuffle=False, first_epoch=passes)
        return feeds.read(
            opened, batch_plan.leased(lease_prefetch.DirectLeases(alone.leases.lease), alone.leases.tracker, card)
        )

    feed.tracker = alone.leases.tracker
    return feed


def loop(feed, *, ahead):
    diary = RecordingObserver(getattr(feed, "tracker", None))
    return batches.Batches(feed, diary, StepMeter(), ahead=ahead, length=None), diary


def test_step_observer_receives_each_batch_and_its_successor():
    over, diary = loop(feed_of(6, 2), ahead=True)
    assert [batch.y.tolist() for batch in over] == [[0, 1], [2, 3], [4, 5]]
    tracker = [("hand", 0, 2), "back", ("hand", 2, 4), "back", ("hand", 4, None), "back", "pause", "close"]
    assert diary.entries == tracker


def test_without_readahead_no_batch_is_read_early():
    over, diary = loop(feed_of(4, 2), ahead=False)
    assert [type(batch) for batch in over] == [Batch, Batch]
    assert diary.entries == [("hand", 0, None), "back", ("hand", 2, None), "back", "close"]


def test_second_loop_is_the_next_epoch():
    over, _ = loop(feed_of(4, 2), ahead=True)
    epochs = [over.epoch for _ in range(2) for _ in over]
    assert epochs == [0, 0, 1, 1]


def test_break_from_a_loop_closes_the_pass():
    over, diary = loop(feed_of(8, 2), ahead=True)
    for _ in over:
        break
    assert diary.entries[-1] == "left"
    assert len(list(over)) == 4


def test_next_loop_ends_an_unfinished_loop_which_then_refuses():
    over, diary = loop(feed_of(8, 2), ahead=True)
    earlier = iter(over)
    next(earlier)
    assert len(list(over)) == 4 and diary.entries.count("left") == 1
    with pytest.raises(errors.BadInput, match="a later loop over batches has ended this loop"):
        next(earlier)
    over, diary = loop(feed_of(8, 2), ahead=True)
    with pytest.raises(errors.BadInput, match="do not nest loops over batches"):
        for _ in over:
            list(over)


def test_iterator_of_a_finished_loop_stays_at_its_end():
    over, _ = loop(feed_of(4, 2), ahead=True)
    earlier = iter(over)
    assert len(list(earlier)) == 2
    next(iter(over))
    with pytest.raises(StopIteration):
        next(earlier)


def test_taking_exactly_the_length_again_and_again_trains_each_epoch():
    feed = feed_of(7, 2)
    diary = RecordingObserver(feed.tracker)
    over = batches.Batches(feed, diary, StepMeter(), ahead=True, length=LoopLength(lambda: 4))
    seen = []
    for _ in range(3):
        iterator = iter(over)
        seen.append([next(iterator).y.tolist() for _ in range(len(over))])
    assert seen == [[[0, 1], [2, 3], [4, 5], [6]]] * 3
    assert "left" not in diary.entries and diary.entries.count("close") == 2, "the last one is still open"


def test_pause_reports_progress_and_asks_again():
    def feed(_):
        order = batch_plan.BatchOrder(indices=np.arange(1), ranges=())
        yield batches.PAUSED
        yield batches.ReadBatch(
            batch_plan.BatchOrder(indices=order.indices, ranges=RANGE), Batch(torch.ones(1), torch.ones(1))
        )
        yield batches.PAUSED

    over, diary = loop(feed, ahead=True)
    assert len(list(over)) == 1
    assert diary.entries == ["pause", ("hand", 1, None), "back", "pause", "close"]


RANGE = (SampleRange(epoch=0, shard=0, first=0, count=1),)


def test_batches_length_is_given_when_known():
    assert (
        len(batches.Batches(feed_of(4, 2), RecordingObserver(), StepMeter(), ahead=False, length=LoopLength(lambda: 2)))
        == 2
    )
    with pytest.raises(TypeError, match="len\\(batches\\) is not known"):
        len(loop(feed_of(4, 2), ahead=False)[0])


def test_reader_processes_give_the_same_batches():
    over, diary = loop(feed_of(40, 3, num_workers=2), ahead=True)
    assert [y for batch in over for y in batch.y.tolist()] == list(range(40))
    assert diary.entries[-1] == "close"


class PartlyUnreadable(data.Dataset):
    """A data set with one sample that cannot be read."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5:
            raise OSError("bad sector")
        return index, index


@pytest.mark.parametrize("readers", [0, 2])
def test_unreadable_batch_ends_its_lease_and_other_leases_continue(readers):
    opened = source.open_source(PartlyUnreadable(), batch_size=2, shuffle=False, num_workers=readers)
    card = DatasetCard(samples=12, batch_size=2, shuffle=False, shard_batches=4)
    answers = iter([messages.LeaseReply((Grant(0, 0, 0, 0, 8), Grant(1, 0, 1, 0, 4)))])
    tracker = LeaseTracker()

    def ask(card, most):
        answer = next(answers, messages.DataEnd())
        if isinstance(answer, messages.LeaseReply):
            tracker.add_grants(card, answer.grants)
        return answer

    wanted = batch_plan.leased(lease_prefetch.DirectLeases(ask), tracker, card)
    read = []
    for handed in feeds.read(opened, wanted, tracker):
        if handed is not batches.PAUSED:
            read.append(handed.batch.y.tolist())
            tracker.acknowledge([handed.order.claim])
    assert read == [[0, 1], [2, 3], [8, 9], [10, 11]], "4 to 8 are another's now, though 6 and 7 could be read"
    words = tracker.report()
    assert words.progress == (Progress(0, 0, 4, 4), Progress(1, 0, 4, 4))
    assert [(one.shard, one.first, one.offset) for one in words.failures] == [(0, 0, 4)]
    assert words.failures[0].error.startswith("OSError: bad sector (test_batches.py:")


@pytest.mark.parametrize("readers", [0, 2])
def test_draining_job_returns_batches_read_ahead_untrained(readers):
    opened = source.open_source(data.TensorDataset(torch.arange(16)), batch_size=2, shuffle=False, num_workers=readers)
    card = DatasetCard(samples=16, batch_size=2, shuffle=False, shard_batches=8)
    answers = iter([messages.LeaseReply((Grant(0, 0, 0, 0, 16),))])
    tracker, stops = LeaseTracker(), []

    def ask(card, most):
        answer = next(answers, messages.DataEnd())
        if isinstance(answer, messages.LeaseReply):
            tracker.add_grants(card, answer.grants)
        return answer

    wanted = batch_plan.leased(lease_prefetch.DirectLeases(ask), tracker, card, draining=lambda: bool(stops))
    read = []
    for handed in feeds.read(opened, wanted, tracker, draining=lambda: bool(stops)):
        read.append(handed.batch[0].tolist())
        tracker.acknowledge([handed.order.claim])
        if len(read) == 2:
            stops.append("Ctrl-C")
    assert read == [[0, 1], [2, 3]]
    tracker.release_all()
    assert tracker.report().progress == (Progress(0, 0, 4, 4),)


def test_reader_error_ends_the_loop_of_a_single_worker():
    opened = source.open_source(PartlyUnreadable(), batch_size=2, shuffle=False)
    alone = master_link.local_link(config.load(environ={}))
    card = DatasetCard(samples=12, batch_size=2, shuffle=False)
    with pytest.raises(OSError, match="bad sector"):
        list(
            feeds.read(
                opened, batch_plan.leased(lease_prefetch.DirectLeases(alone.leases.lease), alone.leases.tracker, card)
            )
        )


class Skipping:
    """A reader that leaves samples out: those under `good`."""

    def __init__(self, good):
        self.good = good

    def read(self, wanted, *, tolerant=False):
        for one in wanted:
            kept = np.flatnonzero(one >= self.good)
            part = torch.from_numpy(one[kept])
            yield BatchRest(Batch(part, part) if len(kept) else None, kept) if len(one) else None


@pytest.mark.parametrize("ahead", [True, False])
def test_empty_batch_is_skipped_and_counts_as_trained(ahead):
    alone = master_link.local_link(config.load(environ={}))
    card = DatasetCard(samples=9, batch_size=3, shuffle=False)

    def feed(_):
        return feeds.read(
            Skipping(good=5),
            batch_plan.leased(lease_prefetch.DirectLeases(alone.leases.lease), alone.leases.tracker, card),
        )

    feed.tracker = alone.leases.tracker
    over, diary = loop(feed, ahead=ahead)
    assert [batch.y.tolist() for batch in over] == [[5], [6, 7, 8]]
    assert diary.entries[0] == ("skip", 0) and diary.entries[-1] == "close"


def test_batch_with_skipped_samples_keeps_its_name_and_places():
    order = batch_plan.order_of(
        Grant(shard=0, epoch=0, nth=0, first=0, end=8), BatchClaim(0, 0, 0, 8), np.arange(10, 18), 1, 2
    )
    (handed,) = feeds.read(Skipping(good=15), [order])
    assert handed.order.indices.tolist() == [15, 16, 17] and handed.order.places.tolist() == [5, 6, 7]
    assert (handed.order.ranges, handed.order.share) == (order.ranges, order.share)
    (none,) = feeds.read(Skipping(good=99), [order])
    assert none.empty and none.order.ranges == order.ranges
    with pytest.raises(errors.UnreadableSample, match="every rank needs"):
        list(feeds.read(Skipping(good=99), [order], plain=False))


def test_borrowed_sample_does_not_count_as_trained():
    order = batch_plan.order_of(
        Grant(shard=0, epoch=0, nth=0, first=0, end=8), BatchClaim(0, 0, 0, 8), np.arange(8), 1, 2
    )
    own, none = PushBatches(), PushBatches()
    own.add(batches.ReadBatch(order, None))
    none.add(
        batches.ReadBatch(batch_plan.without(order, np.empty(0, dtype=np.int64), whole=False, borrowed=True), None)
    )
    assert (own.share, none.share) == (0.5, 0.0) and own.samples == none.samples == 4
