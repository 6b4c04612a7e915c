"""Switch a worker's feed on and off: batches stay in order at any batch."""

import dataclasses
import re
import tempfile
import threading
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from springtide import config, errors
from springtide.data import source as sources
from springtide.data.source import UnreadableBatch
from springtide.dataworker.feed.connections import WantedBatch
from springtide.dataworker.feed.worker import DataWorker
from springtide.dataworker.processes import job_package
from springtide.domain.data.data_workers import BatchName, FeedRules
from springtide.rpc.messages import data_workers
from springtide.rpc.messages.coordination import ClaimReply, ClaimRequest
from springtide.worker.input.batch_plan import Fed
from springtide.worker.input.feed_switch import DataWorkerFeed, refuse
from springtide.worker.input.reader import BatchReader
from springtide.worker.link.master_link import LocalMaster, local_link
from springtide.worker.split.controller import Splitting
from tests.waiting import until

SECRET = b"a secret of thirty-two bytes ...."[:32]


class Numbers(torch.utils.data.Dataset):
    """Sample i is i."""

    broken = -1

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == self.broken:
            raise ValueError(f"sample {index} is broken")
        return torch.tensor([index])


class Master(LocalMaster):
    """A master that wants data workers."""

    def __init__(self):
        super().__init__(config.Settings())
        self.told, self.epoch = [], 0
        self.noted = []
        self.refused, self.packaged = threading.Event(), threading.Event()
        self.link = local_link(config.Settings(), self)

    def ask(self, request):
        if isinstance(request, data_workers.WorkerDecision):
            self.noted.append((request.what, request.why))
        elif isinstance(request, data_workers.TrainedWithout):
            self.noted.append(request.left_out)
        elif isinstance(request, data_workers.CannotFeed):
            self.told.append(request.why)
            self.refused.set()
        elif isinstance(request, ClaimRequest):
            return ClaimReply(request.key not in self._shared)
        return super().ask(request)

    def share(self, asked):
        reply = super().share(asked)
        self.packaged.set()
        return reply

    def want(self, *members, wanted=1):
        self.epoch += 1
        self.link.news.feeders.take(data_workers.Feeders(self.epoch, wanted, tuple(members)))


@pytest.fixture
def worker(tmp_path):
    """A worker over Numbers, and its master."""
    made = []

    def make(dataset=None, collate_fn=None, **rules):
        master = Master()
        rules = FeedRules(**({"split": "off"} | rules))
        welcome = config_welcome(master, rules, tmp_path)
        source = sources.open_source(dataset or Numbers(), batch_size=4, collate_fn=collate_fn)
        splitting = Splitting(nn.Linear(1, 1), source, mode="off")
        made.append(BatchReader(source, master.link, welcome, lambda: DataWorkerFeed(splitting, master.link, welcome)))
        return made[-1], master

    yield make
    for each in made:
        each.close()


def config_welcome(master, rules, folder):
    welcome = master.link.join()
    spec = dataclasses.replace(welcome.spec, feeding=rules)
    return msgspec.structs.replace(welcome, spec=spec, package=str(folder / "package"), secret=SECRET)


def wanted_batches(count, first=0):
    return [WantedBatch(np.arange(4 * k, 4 * k + 4), BatchName(0, 0, 4 * k, 4)) for k in range(first, first + count)]


def numbers(one):
    batch = one.batch if isinstance(one, Fed) else one
    return batch.flatten().tolist()


def read_in_loop(feeding, wanted):
    """Batches that a loop over these gets."""
    got = []
    for one in feeding.read(wanted):
        got.append(one)
        feeding.between_batches()
    return got


def test_worker_without_data_workers_reads_its_own_batches(worker):
    feeding, _ = worker()
    got = list(feeding.read(wanted_batches(5)))
    assert [numbers(one) for one in got] == [one.indices.tolist() for one in wanted_batches(5)]
    assert feeding.state.taken == 5 and feeding.state.made == 0 and feeding.state.read_s > 0
    assert feeding.state.looped_s >= feeding.state.read_s


def test_job_without_data_workers_reports_no_feed_state(worker):
    feeding, _ = worker(workers=0)
    list(feeding.read(wanted_batches(2)))
    assert feeding.state is None


def test_job_without_data_workers_prepares_for_them_once_requested(worker):
    feeding, master = worker(workers=0)
    read_in_loop(feeding, wanted_batches(2))
    assert feeding.splitting is None
    master.want()
    read_in_loop(feeding, wanted_batches(2))
    assert feeding.splitting is not None and feeding.state.taken == 4
    assert master.packaged.wait(30)


def test_worker_is_fed_while_data_workers_exist_and_reads_itself_afterwards(worker, tmp_path):
    feeding, master = worker()
    reading = feeding.read(iter(wanted_batches(200)))
    got = [next(reading)]
    master.want()
    feeding.between_batches()  # here the package is begun
    assert master.packaged.wait(20)
    serving = DataWorker(job_package.load(tmp_path / "package", secret=SECRET), 0, SECRET)
    try:
        until(lambda: feeding._feed._packaged is not None)
        master.want(data_workers.Feeder("data-worker-0.0", serving.address))
        until(lambda: feeding.fed)
        got += [next(reading) for _ in range(20)]
        assert isinstance(got[-1], Fed) and serving.made > 0 and feeding.state.workers == 1
        master.want(wanted=0)
        got += list(reading)
    finally:
        serving.close()
    assert [numbers(one) for one in got] == [one.indices.tolist() for one in wanted_batches(200)]
    assert isinstance(got[1], torch.Tensor | Fed) and isinstance(got[-1], torch.Tensor)
    state = feeding.state
    assert state.taken == 200 and 0 < state.made < 200


def test_pauses_keep_their_position_in_fed_batches(worker, tmp_path):
    feeding, master = worker()
    pause = WantedBatch(np.empty(0, dtype=np.int64), None)
    serving = start_data_worker(feeding, master, tmp_path)
    try:
        got = list(feeding.read([*wanted_batches(3), pause, *wanted_batches(2, first=3), pause]))
    finally:
        serving.close()
    assert [None if one is None else numbers(one) for one in got] == [
        *[one.indices.tolist() for one in wanted_batches(3)],
        None,
        *[one.indices.tolist() for one in wanted_batches(2, first=3)],
        None,
    ]


def start_data_worker(feeding, master, folder, **serving):
    """A data worker that feeds it."""
    master.want()
    feeding.between_batches()
    assert master.packaged.wait(20)
    made = DataWorker(job_package.load(folder / "package", secret=SECRET), 0, SECRET, **serving)
    until(lambda: feeding._feed._packaged is not None)
    master.want(data_workers.Feeder("data-worker-0.0", made.address))
    until(lambda: feeding.fed)
    return made


def test_unreadable_batch_is_reported_in_its_place_or_raised_without_other_readers(worker, tmp_path):
    broken = Numbers()
    broken.broken = 6
    feeding, master = worker(broken)
    serving = start_data_worker(feeding, master, tmp_path)
    try:
        got = list(feeding.read(wanted_batches(3), tolerant=True))
        assert isinstance(got[1], UnreadableBatch) and "sample 6 is broken" in got[1].error
        assert numbers(got[0]) == [0, 1, 2, 3] and numbers(got[2]) == [8, 9, 10, 11]
        reading = feeding.read(wanted_batches(3))
        assert numbers(next(reading)) == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="sample 6 is broken"):
            next(reading)
    finally:
        serving.close()


@pytest.mark.parametrize("by_others", [True, False])
def test_poison_sample_is_skipped_and_reported_by_index(worker, tmp_path, by_others):
    broken = Numbers()
    broken.broken = 6
    feeding, master = worker(broken, poison="skip")
    serving = start_data_worker(feeding, master, tmp_path) if by_others else None
    try:
        for tolerant in (True, False):
            first, rest, last = feeding.read(wanted_batches(3), tolerant=tolerant)
            assert [numbers(first), numbers(rest.batch), numbers(last)] == [[0, 1, 2, 3], [4, 5, 7], [8, 9, 10, 11]]
            assert rest.kept.tolist() == [0, 1, 3] and not rest.borrowed
    finally:
        if serving is not None:
            serving.close()
    told = master.noted[-2:]
    assert [(each.indices, each.batch) for each in told] == [((6,), wanted_batches(3)[1].name)] * 2
    assert all(each.error.startswith("ValueError: sample 6 is broken (test_feed_switch.py:") for each in told)
    handed = [what for what, _ in master.noted[:-2]]
    assert handed == (["hand reading and collating to data workers"] if by_others else [])


def test_error_names_the_poison_index_when_skipping_is_off(worker):
    broken = Numbers()
    broken.broken = 6
    feeding, master = worker(broken)
    got = list(feeding.read(wanted_batches(3), tolerant=True))
    assert got[1].error.startswith("sample 6: ValueError: sample 6 is broken") and not master.noted


class Broken(Numbers):
    """Samples before `good` cannot be made."""

    good = 1000

    def __getitem__(self, index):
        if index < self.good:
            raise ValueError("no such disk")
        return super().__getitem__(index)


@pytest.mark.parametrize("tolerant", [True, False])
def test_batch_of_only_poison_samples_is_empty_and_fully_reported(worker, tolerant):
    feeding, master = worker(Broken(), poison="skip")
    (one,) = feeding.read(wanted_batches(1), tolerant=tolerant)
    assert one.batch is None and not len(one.kept)
    (told,) = master.noted
    assert (told.batch, told.indices) == (wanted_batches(1)[0].name, (0, 1, 2, 3))
    assert told.error.startswith("ValueError: no such disk")


def test_samples_that_fail_to_collate_together_are_all_skipped(worker):
    class Ragged(Numbers):
        def __getitem__(self, index):
            return torch.zeros(1 + index)

    feeding, master = worker(Ragged(), poison="skip")
    (one,) = feeding.read(wanted_batches(1), tolerant=True)
    assert one.batch is None and master.noted[0].indices == (0, 1, 2, 3)
    assert "stack expects each tensor to be equal size" in master.noted[0].error


def test_rank_without_readable_samples_borrows_one_from_the_group(worker):
    broken = Broken()
    broken.good = 6
    feeding, master = worker(broken, poison="skip")
    own = wanted_batches(1)[0]
    group = WantedBatch(np.arange(8), BatchName(0, 0, 0, 8))
    (one,) = feeding.read([own._replace(group=group)])
    assert numbers(one.batch) == [6] and one.borrowed
    assert master.noted[0].indices == (0, 1, 2, 3) and master.noted[0].batch == own.name


def test_group_without_readable_samples_reports_its_whole_batch_on_all_ranks(worker):
    feeding, master = worker(Broken(), poison="skip")
    group = WantedBatch(np.arange(8), BatchName(0, 0, 0, 8))
    parts = [one._replace(group=group) for one in wanted_batches(2)]
    assert [one.batch for one in feeding.read(parts)] == [None, None]
    assert [(each.batch, each.indices) for each in master.noted] == [(group.name, tuple(range(8)))] * 2


def test_dataset_that_cannot_be_sent_is_refused_and_read_locally(worker):
    stuck = Numbers()
    stuck.handle = threading.Lock()
    feeding, master = worker(stuck)
    master.want()
    got = read_in_loop(feeding, wanted_batches(3))
    assert [numbers(one) for one in got] == [one.indices.tolist() for one in wanted_batches(3)]
    assert master.refused.wait(20)
    assert "lock" in master.told[0].lower()
    assert not feeding.fed


class OwnBatch:
    """A batch of the user's own class."""

    def __init__(self, samples):
        self.x = torch.stack(samples)


class OwnTensor(torch.Tensor):
    """A tensor of the user's own class."""


@dataclasses.dataclass
class Summed:
    """A batch whose class sets more than its fields."""

    x: torch.Tensor

    def __post_init__(self):
        self.total = self.x.sum()


def marked_tensor(samples):
    x = torch.stack(samples)
    x.source = "clicks"
    return x


@pytest.mark.parametrize(
    ("collate_fn", "why"),
    [
        (OwnBatch, r"batch is of type .*\.OwnBatch; expected tensors"),
        (lambda samples: [torch.stack(samples).as_subclass(OwnTensor)], r"batch\[0\] .*a plain tensor, not a subclass"),
        (lambda samples: {"x": torch.stack(samples).to_sparse()}, r"batch\['x'\] .*torch\.sparse_coo.*in forward\(\)"),
        (lambda samples: Summed(torch.stack(samples)), "attributes that __post_init__ sets would be lost"),
        (marked_tensor, r"its own attributes \(source\), which would not be sent"),
    ],
)
def test_unsendable_batches_are_made_locally_without_asking_data_workers(worker, collate_fn, why):
    feeding, master = worker(collate_fn=collate_fn)
    master.want()
    got = read_in_loop(feeding, wanted_batches(3))
    assert len(got) == 3 and type(got[0]) is type(collate_fn([torch.zeros(1)]))
    assert master.refused.wait(20)
    assert re.search(why, master.told[0]) and not master.packaged.is_set()


@pytest.mark.parametrize("tolerant", [True, False])
def test_single_unsendable_batch_is_made_locally_and_logged_once(worker, tmp_path, tolerant):
    def collate(samples):
        stacked = torch.stack(samples)
        return stacked.to_sparse() if int(stacked[0]) in (4, 8) else stacked

    feeding, master = worker(collate_fn=collate)
    serving = start_data_worker(feeding, master, tmp_path)
    try:
        got = list(feeding.read(wanted_batches(4), tolerant=tolerant))
    finally:
        serving.close()
    assert [one.batch.to_dense().flatten().tolist() for one in got] == [
        one.indices.tolist() for one in wanted_batches(4)
    ]
    ((what, why),) = master.noted[1:]
    assert what == "read batches here that data workers cannot read" and "torch.sparse_coo" in why


def test_unwritable_package_is_refused_and_batches_read_locally(worker, tmp_path, monkeypatch):
    (tmp_path / "package").write_text("no folder")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "package"))
    feeding, master = worker()
    master.want()
    assert len(read_in_loop(feeding, wanted_batches(3))) == 3
    assert master.refused.wait(20) and "cannot be written" in master.told[0]


def test_search_for_poison_samples_leaves_the_loops_random_state(worker):
    class Noisy(Numbers):
        broken = 2

        def __getitem__(self, index):
            torch.rand(3)
            return super().__getitem__(index)

    feeding, _ = worker(Noisy(), poison="skip")
    failed, before = UnreadableBatch("torn"), torch.get_rng_state()
    assert numbers(feeding._replacement(failed, wanted_batches(1)[0], True, False).batch) == [0, 1, 3]
    assert torch.equal(torch.get_rng_state(), before)


def test_trainer_with_a_different_split_program_is_not_fed(worker):
    feeding, master = worker()
    other, _ = worker()
    other._feed._link = master.link  # the second worker of the same job
    master.want()
    feeding.between_batches()
    assert master.packaged.wait(20)
    master._shared = {key: value.replace(b"whole", b"other") for key, value in master._shared.items()}
    other._feed._on_feeders(data_workers.Feeders(9, 1))
    other.between_batches()
    until(lambda: other._feed._unfed)
    assert "split differently" in other._feed._unfed and not other.fed


def test_master_is_told_why_a_dataset_without_indices_cannot_be_fed(worker):
    master = Master()
    refuse(master.link, "no indices")
    master.want(wanted=0)
    assert not master.told
    master.want()
    assert master.refused.wait(20) and master.told == ["no indices"]


def test_unreachable_master_does_not_fail_the_feed(worker):
    master = Master()
    asked = threading.Event()

    def gone(why):
        asked.set()
        raise errors.MasterUnreachable("gone")

    master.link.reports.unfed = gone
    refuse(master.link, "no indices")
    master.want()
    assert asked.wait(20)


def test_undeliverable_package_is_reported_and_settled(worker, monkeypatch):
    feeding, master = worker()
    settled = []
    monkeypatch.setattr(master.link.shared, "settle", settled.append)
    monkeypatch.setattr(master.link.shared, "deliver", Mock(side_effect=errors.BadInput("far too large for the wire")))
    master.want()
    assert len(read_in_loop(feeding, wanted_batches(2))) == 2
    assert master.refused.wait(20) and "far too large" in master.told[0]
    assert settled == [data_workers.PACKAGE_KEY], "checkpoints begin only when all that is done once is done"
