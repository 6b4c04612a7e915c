"""An IterableDataset shared by leases: readers skip ahead, and the first at the end reports it."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils import data

from springtide import config, errors
from springtide.data import source
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.data.leases import LeaseHolder, NoLease
from springtide.domain.data.samples import DatasetCard
from springtide.rpc.messages import messages
from springtide.worker.bsp.group import GroupPlace
from springtide.worker.input import batches, iterable
from springtide.worker.input.iterable import IterableRounds
from springtide.worker.link import master_link
from springtide.worker.link.lease_tracker import LeaseTracker
from tests.oracles import ledger_invariants
from tests.unit.worker import clicks, ranks

CARD = DatasetCard(samples=0, batch_size=2)


class Numbers(data.IterableDataset):
    def __init__(self, count):
        self.count, self.iterations = count, 0

    def __iter__(self):
        self.iterations += 1
        return iter([(torch.tensor(i), torch.tensor(i)) for i in range(self.count)])


class Worker:
    """A link to a book that several workers share."""

    def __init__(self, book, rank):
        self.book, self.holder, self.tracker, self.draining = book, LeaseHolder(rank), LeaseTracker(), False
        self.leases = self

    def lease(self, card, most):
        words = self.tracker.report()
        self.book.report(self.holder, words.progress, 0.0)
        self.tracker.on_reported(words)
        if self.tracker.ends is not None:
            self.book.end(self.holder, card, self.tracker.ends, self.tracker.short)
        answer = self.book.lease(self.holder, card, 1, 0.0)
        if isinstance(answer, NoLease):
            return messages.WaitReply() if answer is NoLease.WAIT else messages.DataEnd()
        self.tracker.add_grants(card, answer)
        return messages.LeaseReply(answer)


def share(count, workers, epochs=1):
    """Let all workers read in turns; return the trained samples with their identities."""
    book = JobLedger(workers=workers)
    everyone = [Worker(book, rank) for rank in range(workers)]
    opened = source.open_source(Numbers(count), batch_size=2)
    feeds = [iterable.leased(opened, CARD, range(epochs), one, alone=True) for one in everyone]
    trained, names = [], []
    while feeds:
        for feed, one in list(zip(feeds, everyone, strict=False)):
            handed = next(feed, None)
            if handed is None:
                at = feeds.index(feed)
                del feeds[at], everyone[at]
            elif handed is not batches.PAUSED:
                trained += [(handed.order.epoch, int(n)) for n in handed.batch.y]
                names += [(part.shard, part.first) for part in handed.order.ranges]
                one.tracker.acknowledge([handed.order.claim])
        ledger_invariants.check(book)
    return trained, names, book


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 13, 32, 33, 64, 200])
def test_workers_share_an_iterable_and_train_each_sample_once(workers, count):
    trained, names, book = share(count, workers, epochs=2)
    assert sorted(trained) == [(epoch, n) for epoch in range(2) for n in range(count)]
    assert len(set(names)) == len(names) == 2 * -(-count // 2)
    totals = book.totals()
    assert totals.done == totals.total == 2 * -(-count // 32)
    assert totals.samples == book.samples_trained == 2 * count


def test_iterable_reader_continues_forward_and_restarts_for_earlier_positions():
    numbers = Numbers(10)
    reader = iterable.IterableReader(source.open_source(numbers, batch_size=2))
    read = [reader.read(place) for place in (0, 1, 3, 3, 1, 5, 9, 4)]
    assert [None if item is None else item[1].tolist() for item in read] == [
        [0, 1],
        [2, 3],
        [6, 7],
        [6, 7],
        [2, 3],
        None,
        None,
        [8, 9],
    ]
    assert reader.length == 5
    assert numbers.iterations == 4


def test_single_worker_reads_an_iterable_once():
    numbers = Numbers(100)
    alone = master_link.local_link(config.load(environ={}))
    feed = iterable.leased(source.open_source(numbers, batch_size=2), CARD, range(1), alone, alone=True)
    seen = []
    for handed in feed:
        if handed is not batches.PAUSED:
            seen += handed.batch.y.tolist()
            alone.leases.tracker.acknowledge([handed.order.claim])
    assert seen == list(range(100))
    assert numbers.iterations == 1


def test_iterable_dataset_warning_is_logged_once(caplog):
    iterable.say_once.cache_clear()
    for _ in range(2):
        feed = iterable.leased(
            source.open_source(Numbers(2), batch_size=2), CARD, range(1), Worker(JobLedger(workers=1), 0), alone=False
        )
        list(itertools.islice(feed, 1))
        feed.close()
    assert [record.message.split(":")[0] for record in caplog.records] == ["an IterableDataset"]


PART, RANKS = 8, 3


class RankNumbers(data.IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter([(torch.tensor(i), torch.tensor(2 * i)) for i in range(self.count)])


class Visits(data.IterableDataset):
    """Ids that come often and seldom, the same with every iteration."""

    def __init__(self, samples):
        torch.manual_seed(0)
        self.ids = (clicks.ROWS * torch.rand(samples, clicks.FIELDS) ** 3).long()
        self.hits = (torch.rand(samples) < 0.4).float()

    def __iter__(self):
        return iter(zip(self.ids, self.hits, strict=True))


def open_dataset(count, size=2, **how):
    return source.open_source(RankNumbers(count), batch_size=size, **how)


def test_every_rank_gets_equally_many_batches_of_its_own():
    read = [list(IterableRounds(open_dataset(13), rank=rank, workers=2).read(range(2))) for rank in range(2)]
    assert [len(one) for one in read] == [6, 6]
    assert [handed.batch.x.tolist() for handed in read[1][:3]] == [[2, 3], [6, 7], [10, 11]]
    assert all(handed.order.whole is None for handed in read[0])


def in_group(workers, *, rank=0, steps=0):
    """What a worker reads of 13 numbers whose job began with one worker, in a group of so many."""
    rounds = IterableRounds(open_dataset(13), rank=rank, workers=1)
    group = SimpleNamespace(place=GroupPlace(rank, workers, 1))
    return [[handed.batch.x.tolist() for handed in rounds.shared(None, group, range(1), steps=steps)] for _ in "ab"]


def test_worker_added_before_the_first_step_reads_its_share():
    assert in_group(2, rank=1) == 2 * [[[2, 3], [6, 7], [10, 11]]]


def test_worker_added_after_the_first_step_reads_nothing_in_any_pass(caplog):
    assert in_group(2, rank=1, steps=5) == [[], []]
    assert "this worker joined after step 5 of a bsp group over an IterableDataset" in caplog.text


def whole_rounds(source):
    one = IterableRounds(source, rank=1, workers=2)
    return one, list(one.read(range(1), wholes=lambda: True))


def test_iterable_round_is_one_schedulable_batch_with_samples_by_number():
    one, read = whole_rounds(open_dataset(8))
    assert [handed.batch.x.tolist() for handed in read] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(handed.whole for handed in read) and read[1].order.whole.tolist() == [4, 5, 6, 7]
    assert one.fetch(np.array([5, 7])).y.tolist() == [10, 14]
    assert one.pick(None, read[0].order.whole, np.array([2, 3]), jagged=True).x.tolist() == [2, 3]
    assert one.fetch(read[0].order.whole).x.tolist() == [0, 1, 2, 3]
    with pytest.raises(errors.JobFailed, match="sample 99 of the pass is no longer in memory"):
        one.fetch(np.array([99]))


def summed(items):
    """A batch that cannot be split by rows: the number of samples and their sum."""
    return {"samples": len(items), "sum": sum(int(x) for x, _ in items)}


@pytest.mark.parametrize("readers", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_collated_iterable_samples_can_be_regrouped_into_any_batch(readers):
    one, read = whole_rounds(open_dataset(8, collate_fn=summed, num_workers=readers))
    assert [handed.batch for handed in read] == [{"samples": 4, "sum": 0 + 1 + 2 + 3}, {"samples": 4, "sum": 22}]
    assert one.fetch(np.array([5, 7])) == {"samples": 2, "sum": 5 + 7}
    assert one.pick(None, read[0].order.whole, np.array([0, 3]), jagged=True) == {"samples": 2, "sum": 0 + 3}
    assert [handed.batch["sum"] for handed in one.read(range(1), wholes=lambda: False)] == [2 + 3, 6 + 7]
    alone = IterableRounds(open_dataset(8, collate_fn=summed), rank=1, workers=2)
    assert [handed.batch["sum"] for handed in alone.read(range(1))] == [2 + 3, 6 + 7]


@pytest.mark.parametrize("how", [{}, {"collate_fn": lambda items: torch.stack([x for x, _ in items])}])
def test_round_of_unequal_parts_is_trained_one_part_per_rank(how):
    _, uneven = whole_rounds(open_dataset(7, **how))
    assert [handed.whole for handed in uneven] == [True, False] and uneven[1].order.whole is None


def train(*, keep, **options):
    """Losses, final model and the cache's use of each rank."""
    made = []
    for _ in range(RANKS):  # not in the ranks' threads, which would share the seed
        torch.manual_seed(0)
        made.append((clicks.Clicks(), Visits(20 * RANKS * PART + 5)))

    def work(job):
        model, visits = made[job.rank]
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        model, optimizer, batches = job.prepare(model, optimizer, visits, batch_size=PART, **options)
        sharing, losses = job._wired.sharing, []
        if not keep:
            sharing.cache = None
        for x, y in batches:
            optimizer.zero_grad()
            loss = clicks.loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        job.finish()
        return losses, model.state_dict(), sharing.use()

    with ranks.Group(workers=RANKS, servers=2) as group:
        return group.run(work)


def stacked(visits):
    """A user collate_fn that equals torch's default without being recognized as such."""
    return torch.stack([ids for ids, _ in visits]), torch.stack([hit for _, hit in visits])


@pytest.mark.parametrize("how", [{"allocation": "laia"}, {"allocation": "contiguous"}, {"collate_fn": stacked}])
def test_cached_rows_of_an_iterable_job_leave_the_model_bit_identical(how):
    found, expected = (train(keep=keep, cache="30%", **how) for keep in (True, False))
    for (losses, state, use), (other_losses, other_state, _) in zip(found, expected, strict=True):
        assert losses == other_losses and len(losses) == 20
        assert all(torch.equal(value, other_state[name]) for name, value in state.items())
        assert use.hits > 0 and use.saved > 0 and use.dirty == 0
