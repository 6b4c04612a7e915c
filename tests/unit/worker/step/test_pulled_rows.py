"""An async job whose rows are pooled on the device trains as if they were pooled on the CPU.

The device is the CPU here, so that pure torch kernels run the whole path. The servers are real.
"""

import gc
import itertools
import weakref

import pytest
import torch
from torch import nn

import springtide as st
from springtide import errors
from springtide.embedding.lookup import batch_copies
from springtide.embedding.lookup.pulled_rows import PulledRows
from springtide.worker.input.lease_prefetch import PrefetchedLeases
from tests.unit.worker import clicks
from tests.unit.worker.odd_bags import OddBags

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}


def make_odd():
    torch.manual_seed(1)
    return OddBags(), torch.utils.data.TensorDataset(torch.randint(0, 50, (120, 4)), torch.rand(120))


class Wide(nn.Module):
    """Two tables of different row lengths, and several tables with one output."""

    def __init__(self):
        super().__init__()
        self.short = st.EmbeddingBag(2, rows=50, optimizer="adagrad", lr=0.1, mode="mean", padding_idx=4)
        self.open = st.EmbeddingBag(6, optimizer="ftrl", lr=0.1)
        self.many = st.EmbeddingBags([4, 4, 4], optimizer="adagrad", lr=0.1)
        self.listed = st.EmbeddingBags({"a": 4, "b": 4}, optimizer="adagrad", lr=0.1, output="list")
        self.top = nn.Linear(2 + 6 + 12 + 4, 1)

    def forward(self, ids):
        first, second = self.listed(ids[:, :2])
        return self.top(torch.cat([self.short(ids), self.open(ids), self.many(ids[:, 1:]), first + second], 1)).squeeze(
            1
        )


def make_wide():
    torch.manual_seed(2)
    return Wide(), torch.utils.data.TensorDataset(torch.randint(0, 50, (120, 4)), torch.rand(120))


def train(
    served_job,
    make_optimizer=OPTIMIZERS["adagrad"],
    *,
    make=clicks.make,
    after=lambda model, optimizer: None,
    moved=False,
    forward=lambda model, x: model(x),
    **options,
):
    """Train two passes. With `moved`, the loop copies the ids of a batch before it uses them."""
    job = served_job(servers=2)
    model, data = make()
    options = {"batch_size": 20, "shuffle": False, "epochs": 2, **options}
    model, optimizer, batches = job.prepare(model, make_optimizer(model.parameters()), data, **options)
    losses, fresh = [], True
    for x, y in batches:
        if fresh:
            optimizer.zero_grad()
        fresh = batches.completes_step
        loss = nn.functional.binary_cross_entropy_with_logits(forward(model, x.clone() if moved else x), y)
        loss.backward()
        after(model, optimizer)
        if batches.completes_step:
            optimizer.step()
        losses.append(loss.item())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return losses, state, job


def assert_close(first, second, *, rtol=1e-5, atol=1e-6):
    torch.testing.assert_close(first[0], second[0], rtol=rtol, atol=atol)
    assert first[1].keys() == second[1].keys()
    for name, value in first[1].items():
        torch.testing.assert_close(value, second[1][name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Wait for leases, because a batch that is late is not requested ahead, and has newer rows."""
    answered = PrefetchedLeases._answered
    monkeypatch.setattr(PrefetchedLeases, "_answered", lambda own, wait_s: answered(own, 30.0 if wait_s else 0))


@pytest.fixture(autouse=True)
def _collect():
    """Collect twice: a lookup whose output was not used is in a cycle through autograd."""
    yield
    gc.collect()
    gc.collect()


@pytest.fixture
def pooled(monkeypatch):
    """Number of requests for rows that were pooled on the device."""
    made = []
    begin = PulledRows.__init__
    monkeypatch.setattr(
        PulledRows, "__init__", lambda self, *given, **options: (made.append(1), begin(self, *given, **options))[1]
    )
    return made


@pytest.mark.parametrize("moved", [False, True], ids=["batch", "moved"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_and_losses_equal_those_pooled_on_the_cpu(rows_in_device, served_job, pooled, name, moved):
    ours = train(served_job, OPTIMIZERS[name], moved=moved)
    assert pooled
    rows_in_device(False)
    assert_close(ours, train(served_job, OPTIMIZERS[name]))


@pytest.mark.parametrize("make", [make_odd, make_wide])
@pytest.mark.parametrize("moved", [False, True], ids=["batch", "moved"])
def test_all_kinds_of_bags_train_as_on_the_cpu(rows_in_device, served_job, pooled, make, moved):
    ours = train(served_job, make=make, moved=moved)
    assert pooled
    rows_in_device(False)
    assert_close(ours, train(served_job, make=make), rtol=1e-4, atol=1e-5)


def test_equal_runs_are_equal_to_the_bit(rows_in_device, served_job):
    first, second = (train(served_job, moved=True) for _ in range(2))
    assert_close(first, second, rtol=0, atol=0)


def clip(model, optimizer):
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def replace(model, optimizer):
    weight = model.bags[0].weight
    weight.grad = weight.grad * 2


def drop(model, optimizer):
    model.rows.weight.grad = None


def read(model, optimizer):
    assert all(len(weight.grad) <= 20 for weight in model.table_weights())


@pytest.mark.parametrize("change", [clip, replace, drop, read])
def test_changes_of_gradients_are_pushed(rows_in_device, served_job, change):
    ours = train(served_job, after=change)
    rows_in_device(False)
    assert_close(ours, train(served_job, after=change))


def test_gradients_of_several_batches_are_summed(rows_in_device, served_job):
    ours = train(served_job, accumulate=2)
    rows_in_device(False)
    assert_close(ours, train(served_job, accumulate=2))


def test_table_called_twice_in_a_step_gets_the_sum(rows_in_device, served_job):
    twice = lambda model, x: model(x) + model(x.flip(0)).flip(0)  # noqa: E731
    ours = train(served_job, forward=twice)
    rows_in_device(False)
    assert_close(ours, train(served_job, forward=twice))


@pytest.mark.parametrize("moved", [False, True], ids=["batch", "moved"])
def test_model_may_change_its_lookups_from_step_to_step(rows_in_device, served_job, moved):
    def train_changing(**options):
        steps = itertools.count()

        def forward(model, x):
            step = next(steps)
            bags = list(model.bags) if step % 5 < 3 else list(reversed(model.bags))
            with torch.no_grad():
                model(x)
            parts = [bag(x[:, i : i + 1]) for i, bag in enumerate(bags)]
            rows = model.rows(x[:, -1]) if step % 4 else torch.zeros(len(x), clicks.DIM)
            return model.mlp(torch.cat([*parts, rows], 1)).squeeze(1)

        return train(served_job, forward=forward, epochs=3, **options)

    ours = train_changing(moved=moved)
    rows_in_device(False)
    assert_close(ours, train_changing())


def test_moved_ids_are_requested_one_batch_ahead(rows_in_device, served_job, monkeypatch):
    asked = []
    monkeypatch.setattr(batch_copies, "_equal", lambda leaf, whole: asked.append(leaf) or torch.equal(leaf, whole))
    *_, job = train(served_job, moved=True, epochs=4)
    lookups = job._wired.step._context.lookups
    assert len(asked) == batch_copies.TRIES  # afterwards, the device compares
    assert lookups.hits > 10 * lookups.misses


def test_ids_computed_on_the_device_are_looked_up_as_they_are(rows_in_device, served_job):
    compute = lambda model, x: model((x + 1) % clicks.ROWS)  # noqa: E731
    ours = train(served_job, forward=compute, moved=True)
    rows_in_device(False)
    assert_close(ours, train(served_job, forward=compute))


def test_step_with_other_ids_than_those_of_the_batch_is_refused(rows_in_device, served_job):
    count = itertools.count()

    def forward(model, x):
        return model((x + 1) % clicks.ROWS if next(count) == 8 else x)

    with pytest.raises(errors.BadInput, match="Compute ids before they are moved"):
        train(served_job, forward=forward, moved=True)


def test_gradient_that_is_not_finite_is_not_pushed(rows_in_device, served_job):
    job = served_job(servers=1)
    model, data = clicks.make()
    model, optimizer, batches = job.prepare(model, OPTIMIZERS["sgd"](model.parameters()), data, batch_size=20)
    before = model.state_dict()["rows.weight"].clone()
    with pytest.raises(errors.NonFiniteGradient, match="'rows', key"):
        for x, _ in batches:
            optimizer.zero_grad()
            (model.rows(x[:, 2]) * torch.inf).sum().backward()
            optimizer.step()
    assert torch.equal(model.state_dict()["rows.weight"], before)


def test_later_steps_use_the_memory_of_earlier_rows(rows_in_device, served_job, monkeypatch):
    alive, most = weakref.WeakSet(), []
    begin = PulledRows.__init__

    def count(self, *given, **options):
        begin(self, *given, **options)
        alive.add(self)
        most.append(len(alive))

    monkeypatch.setattr(PulledRows, "__init__", count)
    gc.disable()
    try:
        train(served_job, moved=True, epochs=3)
    finally:
        gc.enable()
    assert max(most[10:]) <= 4  # requested, used, pushed
