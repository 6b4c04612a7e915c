"""What a few batches of a loop show: how the model is called, and which leaves the loop reads itself."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from springtide.domain.data.samples import Batch
from springtide.worker.split.loop_watcher import BATCHES, PATIENCE, Watching

INDICES = np.arange(4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.top = nn.Linear(3, 1)

    def forward(self, x, scale=1.0):
        return self.top(x * scale)


def watched(use, *, model=None, batches=BATCHES):
    """What is seen of a loop that does `use(model, batch)`."""
    model = model or Net()
    watching = Watching(model)
    watching.begin()
    for seed in range(batches):
        x = torch.rand(4, 3, generator=torch.Generator().manual_seed(seed))
        use(model, watching.hand_out(Batch(x, torch.ones(4)), INDICES))
        watching.taken_back()
    return watching


def test_after_some_batches_the_call_is_known_and_all_but_the_first_are_recorded():
    watching = watched(lambda model, batch: model(batch.x, scale=2.0))
    assert watching.ready and not watching.why and not watching.touched
    assert len(watching.samples) == BATCHES and watching.recorded.forward_s > 0
    logs = watching.recorded.logs
    assert [[call.name for call in log.calls.values()] for log in logs] == [["Tensor.mul"]] * (BATCHES - 1)
    last = torch.rand(4, 3, generator=torch.Generator().manual_seed(BATCHES - 1))
    assert torch.equal(logs[-1].leaves[0], last) and logs[-1].leaves[1] == 2.0
    assert torch.equal(next(iter(logs[-1].calls.values())).parts[0].value, last * 2)
    assert watching.place.startswith("test_loop_watcher.py:")


def test_forward_runs_once_for_each_batch():
    times = []

    class Counting(Net):
        def forward(self, x):
            times.append(type(x))
            return super().forward(x)

    watched(lambda model, batch: model(batch.x), model=Counting())
    assert times == [torch.Tensor] * BATCHES


def test_no_hook_is_left_behind():
    model = Net()
    watched(lambda model, batch: model(batch.x), model=model)
    assert not model._forward_pre_hooks and not model._forward_hooks and "forward" not in vars(model)


def test_a_second_call_with_a_batch_is_the_models_own_reading_too():
    assert not watched(lambda model, batch: model(batch.x) + model(batch.x)).touched


def test_the_loop_gets_the_same_numbers_while_it_is_watched():
    model = Net()
    outs = []
    watched(lambda model, batch: outs.append(model(batch.x)), model=model)
    plain = [model(torch.rand(4, 3, generator=torch.Generator().manual_seed(seed))) for seed in range(BATCHES)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(outs, plain, strict=True))


def test_leaves_that_the_loop_reads_itself_are_noted():
    def use(model, batch):
        (model(batch.x) + batch.x.sum() + len(batch.x)).sum()

    assert watched(use).touched == {(("item", 0),)}


def test_a_look_at_the_shape_is_no_reading():
    assert not watched(lambda model, batch: (model(batch.x.to("cpu")), batch.x.shape[0])).touched


def test_evaluation_with_the_batch_in_hand_is_reading():
    def use(model, batch):
        model(batch.x)
        model.eval()
        model(batch.x)
        model.train()

    assert watched(use).touched == {(("item", 0),)}


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda model, batch: model(batch.x + 1), r"argument 1 of model.* computed it \(test_loop_watcher.py:\d+\)"),
        (lambda model, batch: model(torch.ones(4, 3)), "argument 1 of model"),
        (lambda model, batch: model(batch.x, scale=float(batch.y[0] + id(batch) % 7919)), "not called alike"),
    ],
)
def test_what_cannot_be_split_is_told_with_the_line_of_the_call(use, why):
    watching = watched(use)
    assert watching.ready
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(watching.why)


def test_a_model_that_is_never_called_is_waited_for_so_long():
    assert not watched(lambda model, batch: None, batches=PATIENCE - 1).ready
    watching = watched(lambda model, batch: None, batches=PATIENCE)
    assert watching.ready and "not called" in watching.why


def test_a_second_call_of_another_kind_is_left_alone():
    def use(model, batch):
        model(batch.x)
        model(batch.x * 2)

    watching = watched(use)
    assert watching.ready and not watching.why and watching.touched


def test_nothing_is_watched_unasked():
    model = Net()
    watching = Watching(model)
    batch = Batch(torch.ones(4, 3), torch.ones(4))
    assert watching.hand_out(batch, INDICES) is batch and not model._forward_pre_hooks


def test_until_data_workers_are_wanted_it_only_looks_and_keeps_nothing():
    model = Net()
    watching = Watching(model)
    watching.begin(looking=True)
    for _ in range(PATIENCE + 2):
        batch = Batch(torch.rand(4, 3), torch.ones(4))
        assert watching.hand_out(batch, INDICES) is batch
        model(batch.x)
        watching.taken_back()
    assert watching.call is not None and watching.eager and not watching.ready and not watching.samples
    watching.begin()
    for _ in range(BATCHES):
        model(watching.hand_out(Batch(torch.rand(4, 3), torch.ones(4)), INDICES).x)
        watching.taken_back()
    assert watching.ready and not watching.why and len(watching.samples) == BATCHES


@dataclasses.dataclass
class Columns:
    columns: torch.Tensor


def test_a_batch_of_the_users_own_class_comes_to_the_model_with_real_tensors():
    seen = []

    class Whole(Net):
        def forward(self, batch):
            seen.append(type(batch.columns))
            return self.top(batch.columns)

    model = Whole()
    watching = Watching(model)
    watching.begin()
    for _ in range(BATCHES):
        model(watching.hand_out(Columns(torch.rand(4, 3)), INDICES))
        watching.taken_back()
    assert watching.ready and not watching.why and not watching.touched, "only the model has read it"
    assert seen == [torch.Tensor] * BATCHES
