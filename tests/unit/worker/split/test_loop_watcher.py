"""What a few batches of a loop show: the model call, and leaves the loop reads itself."""

import dataclasses
import warnings

import pytest
import torch
from torch import nn

from springtide.domain.data.samples import Batch
from springtide.worker.split.loop_watcher import BATCHES, EVERY, PATIENCE, Leading, Watching


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.top = nn.Linear(3, 1)

    def forward(self, x, scale=1.0):
        return self.top(x * scale)


def watch_loop(use, *, model=None, batches=BATCHES):
    """Watch a loop that does `use(model, batch)`."""
    model = model or Net()
    watching = Watching(model)
    watching.begin()
    for seed in range(batches):
        x = torch.rand(4, 3, generator=torch.Generator().manual_seed(seed))
        use(model, watching.hand_out(Batch(x, torch.ones(4))))
        watching.on_batch_done()
    return watching


def test_watcher_knows_the_model_call_after_some_batches():
    watching = watch_loop(lambda model, batch: model(batch.x, scale=2.0))
    assert watching.ready and not watching.why and not watching.touched
    assert watching.seen == BATCHES and watching.recorded.forward_s > 0
    logs = watching.recorded.logs
    assert [[call.name for call in log.calls.values()] for log in logs] == [["Tensor.mul"]] * (BATCHES - 1)
    last = torch.rand(4, 3, generator=torch.Generator().manual_seed(BATCHES - 1))
    assert torch.equal(logs[-1].leaves[0], last) and logs[-1].leaves[1] == 2.0
    assert torch.equal(next(iter(logs[-1].calls.values())).parts[0].value, last * 2)
    assert watching.place.startswith("test_loop_watcher.py:")


def test_watched_forward_runs_once_per_batch():
    times = []

    class Counting(Net):
        def forward(self, x):
            times.append(type(x))
            return super().forward(x)

    watch_loop(lambda model, batch: model(batch.x), model=Counting())
    assert times == [torch.Tensor] * BATCHES


def test_watcher_leaves_no_hook():
    model = Net()
    watch_loop(lambda model, batch: model(batch.x), model=model)
    assert not model._forward_pre_hooks and not model._forward_hooks and "forward" not in vars(model)


def test_second_model_call_with_a_batch_counts_as_a_read():
    assert not watch_loop(lambda model, batch: model(batch.x) + model(batch.x)).touched


def test_watched_loop_gets_the_same_numbers():
    model = Net()
    outs = []
    watch_loop(lambda model, batch: outs.append(model(batch.x)), model=model)
    plain = [model(torch.rand(4, 3, generator=torch.Generator().manual_seed(seed))) for seed in range(BATCHES)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(outs, plain, strict=True))


def test_leaves_read_by_the_loop_are_noted():
    def use(model, batch):
        (model(batch.x) + batch.x.sum() + len(batch.x)).sum()

    assert watch_loop(use).touched == {(("item", 0),)}


def test_reading_a_leafs_shape_is_not_a_read():
    assert not watch_loop(lambda model, batch: (model(batch.x.to("cpu")), batch.x.shape[0])).touched


def test_evaluating_the_current_batch_is_a_read():
    def use(model, batch):
        model(batch.x)
        model.eval()
        model(batch.x)
        model.train()

    assert watch_loop(use).touched == {(("item", 0),)}


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda model, batch: model(batch.x + 1), r"argument 1 of model.* computes it \(test_loop_watcher.py:\d+\)"),
        (lambda model, batch: model(torch.ones(4, 3)), "argument 1 of model"),
        (lambda model, batch: model(batch.x, scale=float(batch.y[0] + id(batch) % 7919)), "not called in the same way"),
    ],
)
def test_unsplittable_call_is_reported_with_its_line(use, why):
    watching = watch_loop(use)
    assert watching.ready
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(watching.why)


def test_watcher_waits_a_bounded_number_of_batches_for_a_model_call():
    assert not watch_loop(lambda model, batch: None, batches=PATIENCE - 1).ready
    watching = watch_loop(lambda model, batch: None, batches=PATIENCE)
    assert watching.ready and "not called" in watching.why


def test_second_call_of_another_kind_is_ignored():
    def use(model, batch):
        model(batch.x)
        model(batch.x * 2)

    watching = watch_loop(use)
    assert watching.ready and not watching.why and watching.touched


def test_watcher_is_off_by_default():
    model = Net()
    watching = Watching(model)
    batch = Batch(torch.ones(4, 3), torch.ones(4))
    assert watching.hand_out(batch) is batch and not model._forward_pre_hooks


def test_watcher_only_observes_until_data_workers_are_wanted():
    model = Net()
    watching = Watching(model)
    watching.begin(looking=True)
    for _ in range(PATIENCE + 2):
        batch = Batch(torch.rand(4, 3), torch.ones(4))
        assert watching.hand_out(batch) is batch
        model(batch.x)
        watching.on_batch_done()
    assert watching.call is not None and watching.eager and not watching.ready and not watching.seen
    watching.begin()
    for _ in range(BATCHES):
        model(watching.hand_out(Batch(torch.rand(4, 3), torch.ones(4))).x)
        watching.on_batch_done()
    assert watching.ready and not watching.why and watching.seen == BATCHES


@dataclasses.dataclass
class Columns:
    columns: torch.Tensor


def test_batch_of_a_user_class_reaches_the_model_with_real_tensors():
    seen = []

    class Whole(Net):
        def forward(self, batch):
            seen.append(type(batch.columns))
            return self.top(batch.columns)

    model = Whole()
    watching = Watching(model)
    watching.begin()
    for _ in range(BATCHES):
        model(watching.hand_out(Columns(torch.rand(4, 3))))
        watching.on_batch_done()
    assert watching.ready and not watching.why and not watching.touched, "only the model has read it"
    assert seen == [torch.Tensor] * BATCHES


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Hashing(nn.Module):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.tower = nn.Sequential(nn.Identity(), nn.Linear(2, 2), nn.Linear(2, 1))

    def forward(self, x):
        self.clock.now += 3.0
        out = self.tower(x)
        self.clock.now += 5.0
        return out


def hooks(model):
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_one_sampled_batch_estimates_the_movable_time_of_all():
    clock = Clock()
    model = Hashing(clock)
    leading = Leading(model, clock)
    for _ in range(EVERY + 1):
        leading.hand_out()
        model(torch.ones(1, 2))
        leading.on_batch_done()
    assert leading.seconds == 2 * EVERY * 3.0 and hooks(model) == 0


def test_evaluation_is_not_included_in_measured_time():
    clock = Clock()
    model = Hashing(clock).eval()
    leading = Leading(model, clock)
    leading.hand_out()
    model(torch.ones(1, 2))
    assert leading.seconds == 0.0


def test_compiled_parts_get_no_hooks():
    inner = nn.Linear(1, 1)
    inner._compiled_call_impl = lambda *given: None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch is about to leave it behind
        script = torch.jit.script(nn.Linear(1, 1))
    model = nn.Sequential(nn.Linear(1, 1), inner, script)
    leading = Leading(model)
    leading.hand_out()
    assert hooks(model) == 2 and not inner._forward_pre_hooks
    whole = torch.compile(nn.Sequential(nn.Linear(1, 1)), backend="eager")
    Leading(whole).hand_out()
    assert hooks(whole) == 0
