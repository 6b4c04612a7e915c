"""Rows in GPU memory for jobs without servers: same model as on the CPU, no GPU synchronization in the loop."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import springtide as st
from springtide.embedding.device import backing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05, initial_accumulator_value=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=0.003, eps=1e-4),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.003, eps=1e-4),
}
ROWS, FIELDS, DIM = 300, 6, 16


@pytest.fixture(scope="module", autouse=True)
def _warm():
    nn.Linear(2, 2).cuda()(torch.ones(1, 2).cuda()).sum().backward()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, DIM, mode="sum") for _ in range(FIELDS))
        self.top = nn.Sequential(nn.Linear(FIELDS * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        return self.top(torch.cat([bag(ids[:, i : i + 1]) for i, bag in enumerate(self.bags)], 1)).squeeze(1)


def prepare_model(make, device, *, samples=64 * 50, epochs=1, **options):
    torch.manual_seed(0)
    model = Model().to(device)
    ids = (torch.rand(samples, FIELDS).pow(4) * ROWS).long()
    data = torch.utils.data.TensorDataset(ids, (ids.sum(1) % 3 > 0).float())
    model, optimizer, batches = st.join().prepare(
        model, make(model.parameters()), data, batch_size=64, shuffle=False, epochs=epochs, **options
    )
    return model, optimizer, batches


def step(model, optimizer, ids, y):
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(ids), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("ids_on", ["cpu", "cuda"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gpu_rows_equal_cpu_rows_after_a_thousand_steps(name, ids_on):
    states = []
    for device in ("cuda", "cpu"):
        model, optimizer, batches = prepare_model(OPTIMIZERS[name], device, epochs=20)
        losses = [step(model, optimizer, ids.to(ids_on), y.to(device)).cpu() for ids, y in batches]
        assert len(losses) == 1000
        placed = [bag.springtide_binding.tables[0].place is not None for bag in model.bags]
        assert placed == [device == "cuda"] * FIELDS
        states.append({name: value.cpu() for name, value in model.state_dict().items()})
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key], atol=2e-3, rtol=2e-2)


@pytest.fixture
def sync_is_an_error():
    """Function that makes every wait for the GPU an error until the end of the test."""

    def switch():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")

    yield switch
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("cache", [None, "20%"])
@pytest.mark.parametrize("ids_on", ["cpu", "cuda"])
def test_loop_never_waits_for_the_gpu(ids_on, cache, sync_is_an_error, monkeypatch):
    monkeypatch.setattr(backing, "STEPS_AN_EXCHANGE", 3)
    model, optimizer, batches = prepare_model(OPTIMIZERS["adagrad"], "cuda", cache=cache)
    for number, (ids, y) in enumerate(batches):
        if number == 10:  # by then kernels are compiled, and memory is reserved
            torch.cuda.synchronize()
            sync_is_an_error()
        step(model, optimizer, ids.pin_memory().to(ids_on, non_blocking=True), y.pin_memory().cuda(non_blocking=True))
        if number == 40:
            torch.cuda.set_sync_debug_mode("default")
            break


@pytest.mark.parametrize("cache", ["1%", "20%", "99%"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_few_rows_in_gpu_memory_train_to_the_same_bits_as_all(name, cache, monkeypatch):
    monkeypatch.setattr(backing, "STEPS_AN_EXCHANGE", 3)
    states = []
    for size in (None, cache):
        model, optimizer, batches = prepare_model(OPTIMIZERS[name], "cuda", epochs=4, cache=size)
        for ids, y in batches:
            step(model, optimizer, ids.cuda(), y.cuda())
        arena = model.bags[0].springtide_binding.tables[0].place.arena
        assert (arena.backing is None) == (size is None)
        states.append(model.state_dict())
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key


def test_equal_runs_are_bit_identical():
    runs = []
    for _ in range(2):
        model, optimizer, batches = prepare_model(OPTIMIZERS["adagrad"], "cuda")
        for ids, _ in batches:
            optimizer.zero_grad()
            model.bags[0](ids[:, :1]).sum().backward()
            optimizer.step()
        runs.append(model.state_dict()["bags.0.weight"])
    assert torch.equal(*runs)


def test_model_moved_back_to_the_cpu_reads_the_trained_rows():
    model, optimizer, batches = prepare_model(OPTIMIZERS["sgd"], "cuda")
    for ids, y in batches:
        step(model, optimizer, ids, y.cuda())
    on_gpu = model(ids).detach().cpu()
    model.cpu()
    out = model(ids)
    assert out.is_cpu
    torch.testing.assert_close(out.detach(), on_gpu, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("ids_on", ["cpu", "cuda"])
def test_id_outside_its_table_stops_the_loop(ids_on):
    model, optimizer, batches = prepare_model(OPTIMIZERS["sgd"], "cuda")
    with pytest.raises(st.errors.BadInput, match="outside its table"):
        for ids, y in batches:
            ids[3, 2] = ROWS
            step(model, optimizer, ids.to(ids_on), y.cuda())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
def test_compiled_top_layer_trains():
    model, optimizer, batches = prepare_model(OPTIMIZERS["sgd"], "cuda")
    model.top.compile()
    losses = [step(model, optimizer, ids, y.cuda()).cpu() for ids, y in batches]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
