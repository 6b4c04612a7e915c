"""Tables in device memory (jobs without servers) train, read and write like tables in the store.

The device is the CPU here, so that pure torch kernels run the whole path.
"""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import springtide as st
from springtide import errors
from springtide.embedding.lookup import lookup
from tests.unit.worker import clicks
from tests.unit.worker.odd_bags import OddBags

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.01),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "dampened": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.5),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
}


def prepare_model(model, make, data, **options):
    options = {"batch_size": 20, "shuffle": False, **options}
    return st.join().prepare(model, make(model.parameters()), data, **options)


def tables_of(model):
    found = [module.springtide_binding for module in model.modules() if hasattr(module, "springtide_binding")]
    return [table for binding in found for table in binding.tables]


def train(make, *, after=lambda model, optimizer: None, copied=False, forward=lambda model, x: model(x), **options):
    model, data = clicks.make()
    model, optimizer, batches = prepare_model(model, make, data, **options)
    losses, fresh = [], True
    for x, y in batches:
        if fresh:
            optimizer.zero_grad()
        fresh = batches.completes_step
        x = x.clone() if copied else x
        loss = nn.functional.binary_cross_entropy_with_logits(forward(model, x), y)
        loss.backward()
        after(model, optimizer)
        if batches.completes_step:
            optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.clone() for name, value in model.state_dict().items()}, model


def assert_equal(first, second, **tolerance):
    torch.testing.assert_close(first[0], second[0], **tolerance)
    assert first[1].keys() == second[1].keys()
    for name in first[1]:
        torch.testing.assert_close(first[1][name], second[1][name], **tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("copied", [False, True], ids=["batch", "copied"])
def test_device_optimizers_train_the_same_rows_bit_for_bit(rows_in_device, name, copied):
    ours = train(OPTIMIZERS[name], copied=copied)
    assert all(table.place is not None for table in tables_of(ours[2]))
    rows_in_device(False)
    native = train(OPTIMIZERS[name], copied=copied)
    assert all(table.place is None for table in tables_of(native[2]))
    assert_equal(ours, native, rtol=0, atol=0)


def test_calls_with_ids_of_one_tensor_share_their_kernels(rows_in_device, monkeypatch):
    sizes = []
    look_up = lookup.device_lookup.look_up
    monkeypatch.setattr(
        lookup.device_lookup,
        "look_up",
        lambda tables, calls, *rest: sizes.append(len(calls)) or look_up(tables, calls, *rest),
    )
    for copied in (False, True):
        sizes.clear()
        train(OPTIMIZERS["sgd"], copied=copied)
        assert set(sizes[3:]) == {3}, sizes


def clip(model, optimizer):
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def replace(model, optimizer):
    weight = model.bags[0].weight
    weight.grad = weight.grad * 2


def drop(model, optimizer):
    model.rows.weight.grad = None


@pytest.mark.parametrize("change", [clip, replace, drop])
def test_modified_gradients_are_applied(rows_in_device, change):
    ours = train(OPTIMIZERS["adagrad"], after=change)
    rows_in_device(False)
    assert_equal(ours, train(OPTIMIZERS["adagrad"], after=change), rtol=1e-5, atol=1e-6)


def test_accumulated_gradients_are_summed_by_row(rows_in_device):
    ours = train(OPTIMIZERS["adagrad"], accumulate=2)
    rows_in_device(False)
    assert_equal(ours, train(OPTIMIZERS["adagrad"], accumulate=2), rtol=1e-5, atol=1e-6)


def test_table_called_twice_in_a_step_gets_the_gradient_sum(rows_in_device):
    twice = lambda model, x: model(x) + model(x.flip(0)).flip(0)  # noqa: E731
    ours = train(OPTIMIZERS["adam"], forward=twice)
    rows_in_device(False)
    assert_equal(ours, train(OPTIMIZERS["adam"], forward=twice), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("copied", [False, True], ids=["batch", "copied"])
def test_model_may_change_its_lookups_from_step_to_step(rows_in_device, copied):
    def train_changing():
        steps = itertools.count()

        def forward(model, x):
            step = next(steps)
            bags = list(model.bags) if step % 5 < 3 else list(reversed(model.bags))
            columns = range(2) if step % 7 else (1, 0)
            with torch.no_grad():
                model(x)
            parts = [bag(x[:, i : i + 1]) for bag, i in zip(bags, columns, strict=True)]
            rows = model.rows(x[:, -1]) if step % 4 else torch.zeros(len(x), clicks.DIM)
            return model.mlp(torch.cat([*parts, rows], 1)).squeeze(1)

        return train(OPTIMIZERS["adagrad"], forward=forward, copied=copied, epochs=3)

    ours = train_changing()
    rows_in_device(False)
    assert_equal(ours, train_changing(), rtol=0, atol=0)


def test_ids_that_change_in_place_are_looked_up_again(rows_in_device):
    def forward(model, x):
        first = model.bags[0](x[:, :1])
        x[:, 1] = (x[:, 1] + 1) % clicks.ROWS
        return model.mlp(torch.cat([first, model.bags[1](x[:, 1:2]), model.rows(x[:, -1])], 1)).squeeze(1)

    ours = train(OPTIMIZERS["sgd"], forward=forward, copied=True)
    rows_in_device(False)
    assert_equal(ours, train(OPTIMIZERS["sgd"], forward=forward, copied=True), rtol=0, atol=0)


def train_odd(make, dtype=torch.float32, **options):
    torch.manual_seed(1)
    model = OddBags(dtype)
    data = torch.utils.data.TensorDataset(torch.randint(0, 50, (120, 4)), torch.rand(120))
    model, optimizer, batches = prepare_model(model, make, data, epochs=2, **options)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict(), model


@pytest.mark.parametrize("name", ["adam", "adagrad"])
def test_all_kinds_of_bags_train_as_in_the_store(rows_in_device, name):
    ours = train_odd(OPTIMIZERS[name])
    assert {table.place is None for table in tables_of(ours[2])} == {True, False}
    rows_in_device(False)
    assert_equal(ours, train_odd(OPTIMIZERS[name]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_rows_are_rounded_as_in_the_store(rows_in_device, dtype):
    ours = train_odd(OPTIMIZERS["adagrad"], dtype)
    rows_in_device(False)
    assert_equal(ours, train_odd(OPTIMIZERS["adagrad"], dtype), rtol=0.02, atol=0.02)


def test_weight_state_dict_and_copy_have_the_trained_rows(rows_in_device):
    _, state, model = train(OPTIMIZERS["adagrad"])
    bag = model.bags[0]
    assert torch.equal(bag.weight.detach() * 1, state["bags.0.weight"])
    assert torch.equal(copy.deepcopy(bag.weight).detach(), state["bags.0.weight"])
    client = bag.springtide_binding.client
    ids = np.array([4, 0, 49])
    assert np.array_equal(client.read("bags.0", ids), state["bags.0.weight"][ids].numpy())
    keys, rows = client.scan("bags.0")
    assert np.array_equal(keys, np.arange(50)) and np.array_equal(rows, state["bags.0.weight"].numpy())
    plain, _ = clicks.make(1)
    plain.load_state_dict(state)
    x = torch.randint(0, 50, (8, 3))
    torch.testing.assert_close(plain(x), model(x))


def test_state_dict_loads_into_device_rows(rows_in_device):
    other, _ = clicks.make(5)
    *_, model = train(OPTIMIZERS["adagrad"])
    model.load_state_dict(other.state_dict())
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_penalty_on_a_weight_reaches_every_row(rows_in_device):
    def train_with_penalty():
        model, data = clicks.make()
        model, optimizer, batches = prepare_model(model, OPTIMIZERS["sgd"], data)
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            (loss + 0.01 * model.rows.weight.square().sum()).backward()
            optimizer.step()
        return [], model.state_dict()

    ours = train_with_penalty()
    rows_in_device(False)
    assert_equal(ours, train_with_penalty(), rtol=1e-5, atol=1e-6)


def test_id_outside_its_table_is_refused(rows_in_device):
    *_, model = train(OPTIMIZERS["sgd"])
    bad = torch.tensor([[1, 50, 2]])
    with pytest.raises(errors.BadInput, match=r"outside its table: table 'bags.1', 50 rows"), torch.no_grad():
        model(bad)
        model(bad)


def test_non_finite_gradient_changes_no_row(rows_in_device):
    model, data = clicks.make()
    model, optimizer, batches = prepare_model(model, OPTIMIZERS["sgd"], data)
    tables = {name: value for name, value in model.state_dict().items() if "mlp" not in name}
    with pytest.raises(errors.NonFiniteGradient):
        for x, _ in batches:
            optimizer.zero_grad()
            out = model.rows(x[:, 2]) * torch.inf
            out.sum().backward()
            optimizer.step()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in tables.items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_model_moved_after_some_steps_takes_its_rows_and_their_state_along(rows_in_device, name):
    rows_in_device(False)
    native = train(OPTIMIZERS[name], epochs=2)
    model, data = clicks.make()
    model, optimizer, batches = prepare_model(model, OPTIMIZERS[name], data, epochs=2)
    losses = []
    for step, (x, y) in enumerate(batches):
        if step == 4:
            rows_in_device(True)
            for table in tables_of(model):
                table.follow_device(torch.device("cuda"))
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(table.place is not None for table in tables_of(model))
    assert_equal((losses, model.state_dict()), native, rtol=0, atol=0)


class OpenModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = st.EmbeddingBag(8, rows=50, optimizer="rowwise_adagrad", lr=0.1)
        self.rows = st.Embedding(8, rows=50, optimizer="ftrl", init=("normal", 0.0, 0.1))
        self.top = nn.Linear(8, 1)

    def forward(self, x):
        return self.top(self.bag(x[:, :2]) + self.rows(x[:, 2])).squeeze(1)


def test_tables_with_their_own_optimizer_train_as_in_the_store(rows_in_device):
    def train_open():
        torch.manual_seed(0)
        _, data = clicks.make()
        model, optimizer, batches = prepare_model(OpenModel(), OPTIMIZERS["sgd"], data)
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
            optimizer.step()
        return model

    ours = train_open()
    assert all(table.place is not None for table in tables_of(ours))
    rows_in_device(False)
    ids = np.arange(50)
    native = train_open()
    for name in ("bag", "rows"):
        rows = [model.bag.binding.client.read(name, ids) for model in (ours, native)]
        assert np.array_equal(*rows)
    assert torch.equal(ours.state_dict()["bag.rows"], torch.from_numpy(ours.bag.binding.client.read("bag", ids)))
