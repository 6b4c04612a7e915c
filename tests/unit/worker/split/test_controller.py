"""From a watched loop to data worker stages and back: batches with crossings train bit-identically."""

import dataclasses

import cloudpickle
import msgspec
import numpy as np
import pytest
import torch

from springtide.data import source as sources
from springtide.dataworker.split import split
from springtide.dataworker.split.program import arguments, moved_program, payload
from springtide.dataworker.split.program.payload import LeftTensor
from springtide.dataworker.split.report import Explanation
from springtide.dataworker.transport import codec
from springtide.domain.data.data_workers import FeedRules
from springtide.embedding.lookup import id_routes
from springtide.worker.input.batch_plan import Fed
from springtide.worker.split.controller import Splitting
from springtide.worker.split.loop_watcher import BATCHES
from springtide.worker.split.received_batches import Absent
from tests.unit.worker import hashed, watched

BATCH = 8
CALL = arguments.ModelCall(tuple(arguments.BatchLeaf(id_routes.Route((("item", place),))) for place in (0, 1)), ())


class Training:
    """A loop in one process whose batches are local or from the pipeline, as `fed(batch number)` says."""

    def __init__(
        self,
        monkeypatch,
        fed=lambda number: False,
        epochs=2,
        touch=lambda batch: None,
        job=None,
        model=None,
        dataset=None,
        **options,
    ):
        self.fed, self.number, self.touch = fed, 0, touch
        self.made = self.package = None
        training = self

        def read(source, indices, *, tolerant=False):
            for one in indices:
                yield training.read(source, one)

        monkeypatch.setattr(sources.SampleSource, "read", read)
        self.job = job or watched.join(master="", seed=1)
        model = model or hashed.make()
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        self.model, self.optimizer, self.batches = self.job.prepare(
            model, optimizer, dataset or hashed.data(), batch_size=BATCH, epochs=epochs, **options
        )
        self.splitting = self.job._splitting
        self.splitting.watch()

    def read(self, source, indices):
        if not len(indices):
            return None
        self.number += 1
        if self.splitting.ready and self.made is None:
            self.made = self.splitting.make()
            self.package = cloudpickle.loads(cloudpickle.dumps(self.made.pipeline))
        if self.made is None or not self.fed(self.number):
            return self.splitting.received.own(indices)
        return self.splitting.received.receive(over_the_wire(self.package(indices), self.made.types), indices)

    def run(self):
        losses = []
        for batch in self.batches:
            raw, dense, y = batch
            self.touch(batch)
            losses.append(hashed.step(self.model, self.optimizer, raw, dense, y))
        return losses, {name: value.clone() for name, value in self.model.state_dict().items()}


def over_the_wire(tree, types):
    """As it comes out of a connection."""
    message = codec.pack(tree).copied()
    return codec.unpack(message.header, message.keep[0], types)


def same(ours, theirs):
    return ours[0] == theirs[0] and all(torch.equal(ours[1][name], theirs[1][name]) for name in theirs[1])


@pytest.fixture
def plain(monkeypatch):
    return Training(monkeypatch).run()


@pytest.mark.parametrize(
    "fed",
    [lambda number: True, lambda number: number % 2 == 0, lambda number: number % 5 < 3, lambda number: number > 20],
)
def test_switching_the_feed_at_any_batch_leaves_the_trained_model_unchanged(monkeypatch, plain, fed):
    training = Training(monkeypatch, fed)
    assert same(training.run(), plain)
    fed_batches = sum(fed(number) for number in range(BATCHES + 1, training.number + 1))
    assert training.splitting._forward.split_calls == fed_batches > 0
    assert training.splitting._forward.whole_calls == training.splitting.received.reread == 0


def test_split_summary_is_logged_and_privately_read_leaves_are_not_sent(monkeypatch):
    training = Training(monkeypatch, lambda number: number % 4 > 0)
    training.run()
    assert training.made.moved and training.splitting._forward.split_calls > 15
    assert "operations of forward() move" in training.made.summary and "the loop was blocked" in training.made.summary
    assert training.package(np.arange(BATCH))["batch"][0] == LeftTensor(0, (BATCH, 3), "int64")


class Baskets(torch.utils.data.Dataset):
    """Sample i is a basket of items; a batch has a list of them, with one tensor for each basket or for each item."""

    def __init__(self, *, each_item):
        self.each_item = each_item

    def __len__(self):
        return 124  # the last batch has fewer than the others

    def __getitem__(self, index):
        return torch.arange(5 - index % 5) * 7 + index, float(index % 3)

    def collate(self, samples):
        baskets = [ids for ids, _ in samples]
        items = list(torch.cat(baskets).split(1)) if self.each_item else baskets
        return items, torch.tensor([len(ids) for ids in baskets]), torch.tensor([y for _, y in samples])


class OfLists(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(hashed.ROWS, 1)

    def forward(self, items, sizes):
        values = self.items(torch.cat(items) * 31 % hashed.ROWS).squeeze(1)
        of = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        return torch.zeros(len(sizes)).index_add(0, of, values)


@pytest.mark.parametrize("each_item", [True, False], ids=["a list of another length each time", "shorter at the end"])
def test_batches_with_tensor_lists_of_any_length_are_trained(monkeypatch, each_item):
    def trained(fed):
        torch.manual_seed(0)
        model, dataset = OfLists(), Baskets(each_item=each_item)
        training = Training(monkeypatch, fed, model=model, dataset=dataset, collate_fn=dataset.collate, shuffle=False)
        losses = []
        for items, sizes, y in training.batches:
            training.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(training.model(items, sizes), y)
            loss.backward()
            training.optimizer.step()
            losses.append(loss.item())
        return (losses, training.model.state_dict()), training

    plain, _ = trained(lambda number: False)
    found, training = trained(lambda number: True)
    assert same(found, plain) and len(found[0]) == 2 * 16
    assert training.made is not None
    if each_item:
        assert "not called in the same way with every batch (test_controller.py:" in training.made.why


def test_rows_of_crossings_are_prefetched_before_the_model_asks(monkeypatch):
    training = Training(monkeypatch, lambda number: True)
    training.run()
    lookups = training.job._wired.step._context.lookups
    assert lookups.hits == training.splitting._forward.split_calls - 1


def test_rows_of_crossings_on_servers_are_prefetched_one_batch_ahead(monkeypatch, served_job):
    job = served_job()
    spec = dataclasses.replace(job._welcome.spec, feeding=FeedRules())
    job._welcome = msgspec.structs.replace(job._welcome, spec=spec)
    training = Training(monkeypatch, lambda number: number % 3 > 0, job=job)
    step = training.job._wired.step
    ahead = []
    training.touch = lambda batch: ahead.append(
        bool(step._prefetcher._expected and step._prefetcher._expected[1].calls)
    )
    training.run()
    fed = training.splitting._forward.split_calls
    assert step._context.lookups.hits == fed - 2  # the second was here already when the first showed where its ids are
    assert fed - 3 <= sum(ahead) <= fed


def test_leaf_read_only_by_the_moved_part_is_not_sent(monkeypatch):
    training = Training(monkeypatch, lambda number: True)
    training.run()
    tree = training.package(np.arange(4))
    raw, dense, y = tree["batch"]
    assert raw == LeftTensor(0, (4, 3), "int64") and type(dense) is type(y) is torch.Tensor
    fed = training.splitting.received.receive(tree, np.arange(4))
    assert type(fed.batch[0]) is Absent and torch.equal(fed.batch[0].clone(), hashed.data()[:4][0])


def test_leaf_read_by_the_loop_is_sent(monkeypatch):
    training = Training(monkeypatch, lambda number: True, touch=lambda batch: batch[0].sum())
    training.run()
    assert training.splitting.received.reread == 0 and type(training.package(np.arange(4))["batch"][0]) is torch.Tensor


def test_leaf_needed_later_is_reread_and_then_requested(monkeypatch, plain):
    training = Training(monkeypatch, lambda number: True)
    training.touch = lambda batch: batch[0].sum() if training.number > 20 else None
    assert same(training.run(), plain)
    assert training.splitting.received.reread == 10 and training.splitting.received.asks(None) == (0,)
    assert type(training.package.stages[0].run.keeping(np.arange(4), (0,))["batch"][0]) is torch.Tensor


def test_batch_unfit_for_the_moved_part_is_sent_whole(monkeypatch):
    training = Training(monkeypatch)
    training.run()
    first = training.package.stages[0].run
    (kind,) = {one for one in first.run.kinds.values() if one.dtype is torch.int64}
    other = dataclasses.replace(kind, dtype=torch.int32)
    first.run.kinds = {number: other if one == kind else one for number, one in first.run.kinds.items()}
    assert set(first(np.arange(4))) == {"batch", "unsplit"}


def test_moved_part_that_fits_no_batch_is_not_split(monkeypatch, plain):
    monkeypatch.setattr(payload.FirstStage, "made", lambda self, batch, asked: {"batch": batch, "unsplit": "it is odd"})
    training = Training(monkeypatch)
    assert same(training.run(), plain)
    assert not training.made.moved and training.made.why == "the moved part does not run by itself: it is odd"


def test_failing_moved_part_falls_back_to_the_trainer(monkeypatch, plain, caplog):
    def breaks(batch):
        if training.number == 20:
            monkeypatch.setattr(moved_program.MovedProgram, "__call__", lambda self, leaves: [1 / 0])

    training = Training(monkeypatch, lambda number: True, touch=breaks)
    assert same(training.run(), plain)
    assert "ZeroDivisionError" in caplog.text


def test_dropped_split_trains_remaining_batches_with_the_own_forward(monkeypatch, plain):
    training = Training(monkeypatch, lambda number: True)
    training.touch = lambda batch: training.splitting.drop("others cut otherwise") if training.number == 20 else None
    assert same(training.run(), plain)
    assert "forward" not in vars(training.model)


def test_two_stage_split_becomes_two_package_stages(monkeypatch, plain):
    monkeypatch.setattr(split, "device_of", lambda call: "cuda" if call.name.endswith("remainder") else "cpu")
    training = Training(monkeypatch, lambda number: True)
    assert same(training.run(), plain)
    assert [stage.name for stage in training.package.stages] == ["read", "forward-1"]


def test_failed_split_moves_only_the_dataset(monkeypatch, plain, caplog):
    def fails(*given, **more):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(split, "split", fails)
    training = Training(monkeypatch, lambda number: True)
    assert same(training.run(), plain)
    assert not training.made.moved and "no such operator" in caplog.text
    assert set(training.package(np.arange(4))) == {"batch"}
    assert training.made.summary.startswith(
        "data workers read the data set, but forward() stays whole: the search for a split failed"
    )


@pytest.mark.parametrize("enabled", [True, False])
def test_split_analysis_leaves_the_loops_random_state(monkeypatch, enabled):
    if not enabled:
        monkeypatch.setattr(split, "split", lambda *_, **__: split.Unsplit(Explanation(why="so")))
    training = Training(monkeypatch)
    splitting, same_after = training.splitting, []
    make, source = splitting.make, splitting._source

    def noisy(indices):
        torch.rand(1)
        return source.fetch(indices)

    def looked_at():
        before = torch.get_rng_state()
        made = make()
        same_after.append(torch.equal(torch.get_rng_state(), before))
        return made

    monkeypatch.setattr(splitting, "make", looked_at)
    monkeypatch.setattr(splitting, "_source", dataclasses.replace(source, fetch=noisy))
    training.run()
    assert same_after == [True] and training.made.moved is enabled


def test_movable_compute_time_is_known_before_and_after_the_split(monkeypatch):
    training = Training(monkeypatch, lambda number: number > 10)
    seen = []
    training.touch = lambda batch: seen.append(training.splitting.stateless_s)
    training.run()
    assert seen[BATCHES] > 0 and 0 < seen[8] < seen[9] and seen[10] == seen[-1]


def test_equal_programs_have_equal_digests():
    def digest(*, named=False):
        model = hashed.make()
        splitting = Splitting(model, sources.open_source(hashed.data(), batch_size=BATCH))
        splitting.watch()
        for first in range(0, BATCHES * BATCH, BATCH):
            handed = type("Handed", (), {})()
            handed.batch = splitting.received.own(np.arange(first, first + BATCH)).batch
            handed.crossing, handed.order = None, type("Order", (), {"indices": np.arange(first, first + BATCH)})
            raw, dense, _ = splitting.hand_out(handed)
            model(raw, dense=dense) if named else model(raw, dense)
            splitting.on_batch_done()
        return splitting.make().digest

    assert digest() == digest() != digest(named=True)


def test_locally_made_batch_has_no_crossings():
    splitting = Splitting(hashed.make(), sources.open_source(hashed.data()), mode="off")
    assert splitting.ready and splitting.make().why
    fed = splitting.received.own(np.arange(3))
    assert isinstance(fed, Fed) and fed.crossing is None and len(fed.batch[0]) == 3
