"""bsp groups are split unless something forbids it, with a correct reason."""

from types import SimpleNamespace

import cloudpickle
import msgspec
import pytest
import torch

from springtide.data import source as sources
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.model import cache_rules
from springtide.rpc.messages.data_workers import Feeders
from springtide.worker.cache import coordinator
from springtide.worker.link.subscriptions import Subscriptions
from springtide.worker.split import controller
from tests.unit.worker import hashed, ranks

BATCH = 16


@pytest.fixture
def all_fed(monkeypatch):
    """Every rank gets batches as data workers would make them."""

    def begin(self, begin=Subscriptions.__init__):
        begin(self)
        self.feeders.take(Feeders(1, 1))

    monkeypatch.setattr(Subscriptions, "__init__", begin)
    fed = {}

    def read(source, indices, *, tolerant=False):
        for one in indices:
            parts = fed.get(id(source))
            yield (
                source.fetch(one) if parts is None or not len(one) else parts.received.receive(parts.package(one), one)
            )

    def make(self, make=controller.Splitting.make):
        made = make(self)
        if made.moved:
            self.package = cloudpickle.loads(cloudpickle.dumps(made.pipeline))
            fed[id(self._source)] = self
        return made

    monkeypatch.setattr(sources.SampleSource, "read", read)
    monkeypatch.setattr(controller.Splitting, "make", make)


def train(tmp_path, *, rules, split="auto", **options):
    """Of each rank: its losses, the model in the end, its splitting and its sharing."""
    models = [hashed.make() for _ in range(2)]

    def work(job):
        model = models[job.rank]
        job._welcome = msgspec.structs.replace(job._welcome, package=str(tmp_path / f"package-{job.rank}"))
        model, optimizer, batches = job.prepare(
            model, torch.optim.Adagrad(model.parameters(), lr=0.1), hashed.data(), batch_size=BATCH, epochs=2, **options
        )
        losses = [hashed.step(model, optimizer, *batch) for batch in batches]
        job.finish()
        return losses, model.state_dict(), job._splitting, job._wired.sharing

    with ranks.Group(workers=2, rules=rules, feeding=FeedRules(workers=1, split=split), report_every_s=60.0) as group:
        return group.run(work)


def same(ours, theirs):
    return all(
        one[0] == other[0] and all(torch.equal(one[1][name], other[1][name]) for name in other[1])
        for one, other in zip(ours, theirs, strict=True)
    )


def test_group_with_automatic_cache_is_split_and_uses_no_cache(all_fed, tmp_path):
    whole = train(tmp_path / "whole", rules=cache_rules.OFF, split="off")
    found = train(tmp_path / "split", rules=cache_rules.CacheRules())
    assert same(found, whole)
    for _, _, parts, shared in found:
        assert parts._made.moved and parts._forward.split_calls > 5 and parts._forward.whole_calls == 0
        assert not shared.allotting.wholes and shared.allotting.why == coordinator.SPLIT
    assert all(parts._made.why == controller.OFF for _, _, parts, _ in whole)


@pytest.mark.parametrize(
    ("rules", "options", "why"),
    [
        (cache_rules.CacheRules(share=0.5), {}, coordinator.ASKED),
        (cache_rules.OFF, {"allocation": "laia"}, coordinator.ASKED),
        (cache_rules.OFF, {"reduction": "batch-order:8"}, 'reduction="batch-order"'),
    ],
)
def test_reason_against_splitting_a_group_is_given(all_fed, tmp_path, rules, options, why):
    for _, _, parts, _ in train(tmp_path, rules=rules, **options):
        assert not parts._made.moved and why in parts._made.why


def test_group_with_a_requested_cache_is_not_split():
    def made(**how):
        return coordinator.CacheCoordinator(None, SimpleNamespace(permitted=False), None, save_due=lambda: False, **how)

    assert made().forbids_split == coordinator.ASKED
    shared = made(deciding=SimpleNamespace())
    assert not shared.forbids_split
    shared.allotting.permitted = True
    assert shared.forbids_split == coordinator.KEPT
