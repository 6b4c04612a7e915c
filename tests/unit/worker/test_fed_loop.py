"""A loop fed over real connections trains a bit-identical model."""

from collections import deque

import pytest
import torch

from springtide.data import source as sources
from springtide.data.source import UnreadableBatch
from springtide.dataworker.feed.connections import WantedBatch
from springtide.dataworker.feed.feed import BatchFeed
from springtide.dataworker.feed.worker import DataWorker
from springtide.dataworker.processes import job_package
from springtide.worker.input.batch_plan import Fed
from tests import waiting
from tests.unit.worker import hashed, watched

SECRET, BATCH = b"of this test", 8


class FedLoop:
    """A local loop that, once split, is fed by a `Serving` while `fed(batch number)` is true."""

    def __init__(self, monkeypatch, folder, fed):
        self.number, self.folder, self.fed = 0, folder, fed
        monkeypatch.setattr(sources.SampleSource, "read", lambda source, indices, *, tolerant=False: self.read(indices))
        model = hashed.make()
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        job = watched.join(master="", seed=1)
        self.model, self.optimizer, self.batches = job.prepare(
            model, optimizer, hashed.data(), batch_size=BATCH, epochs=2
        )
        self.splitting = job._splitting
        self.splitting.watch()
        self.feed = self.serving = None

    def read(self, indices):
        wanted = iter(indices)
        while not self.splitting.ready:
            yield self.splitting.received.own(next(wanted))
        self.serve(self.splitting.make())
        under_way = deque()

        def naming():
            for one in wanted:
                under_way.append(one)
                yield WantedBatch(one, None)

        for made in self.feed.read(naming(), self.splitting.received.own, fed=lambda: self.fed(self.number)):
            one = under_way.popleft()
            self.number += 1
            as_it_is = made is None or isinstance(made, Fed | UnreadableBatch)
            yield made if as_it_is else self.splitting.received.receive(made, one)

    def serve(self, made):
        job_package.write(self.folder, made.pipeline, secret=SECRET, paths=[])
        self.serving = DataWorker(job_package.load(self.folder, secret=SECRET), 0, SECRET, seed=1)
        self.feed = BatchFeed(SECRET, seed=1, types=made.types, asks=self.splitting.received.asks)
        self.feed.attach("data-worker-0", self.serving.address)
        waiting.until(lambda: self.feed.state.workers, "a connection to the data worker")

    def run(self, touch=lambda batch: None):
        losses = []
        try:
            for batch in self.batches:
                touch(batch)
                losses.append(hashed.step(self.model, self.optimizer, *batch))
        finally:
            if self.serving is not None:
                self.feed.close()
                self.serving.close()
        return losses, {name: value.clone() for name, value in self.model.state_dict().items()}


@pytest.fixture
def plain():
    model = hashed.make()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    model, optimizer, batches = watched.join(master="", seed=1).prepare(
        model, optimizer, hashed.data(), batch_size=BATCH, epochs=2
    )
    losses = [hashed.step(model, optimizer, *batch) for batch in batches]
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


def same(ours, theirs):
    return ours[0] == theirs[0] and all(torch.equal(ours[1][name], theirs[1][name]) for name in theirs[1])


@pytest.mark.parametrize("fed", [lambda number: True, lambda number: number < 2 or number > 14])
def test_fed_loop_trains_the_same_model(monkeypatch, tmp_path, plain, fed):
    loop = FedLoop(monkeypatch, tmp_path, fed)
    assert same(loop.run(), plain)
    forward = loop.splitting._forward
    assert (
        forward.split_calls == loop.feed.state.made > 5 and forward.whole_calls == loop.splitting.received.reread == 0
    )
    assert (loop.feed.state.read_s > 0) is not fed(9)


def test_leaf_needed_later_is_reread_until_it_is_sent(monkeypatch, tmp_path, plain):
    loop = FedLoop(monkeypatch, tmp_path, lambda number: True)
    assert same(loop.run(lambda batch: batch[0].sum()), plain)
    assert loop.splitting.received.reread == 0  # seen while it was watched: it travels from the first batch on
    later = FedLoop(monkeypatch, tmp_path / "later", lambda number: True)
    assert same(later.run(lambda batch: batch[0].sum() if later.number > 4 else None), plain)
    assert 0 < later.splitting.received.reread < later.feed.state.made // 2
