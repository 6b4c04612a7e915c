"""An async job on a GPU pools the rows of its servers there, and trains the same rows as on the CPU."""

import gc

import pytest
import torch
from torch import nn

import springtide as st
from springtide import errors
from springtide.embedding.device.copies import copies_of
from tests.unit.worker import clicks
from tests.unit.worker.conftest import served_job as served_job
from tests.unit.worker.step.test_pulled_rows import OPTIMIZERS, assert_close, make_wide

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Let CUDA open its process-wide files before a test is checked for leaks."""
    nn.Linear(2, 2).cuda()(torch.ones(1, 2).cuda()).sum().backward()
    copies = copies_of(torch.device("cuda", torch.cuda.current_device()))
    near = copies.to_device(copies.pinned(8, dtype=torch.float32))
    copies.to_host((near, copies.pinned(8, dtype=torch.float32))).synchronize()


@pytest.fixture(autouse=True)
def _collect():
    yield
    gc.collect()
    gc.collect()


def train(served_job, make_optimizer, *, device="cuda", ids_on="cpu", make=clicks.make, epochs=4, change=None):
    job = served_job(servers=2)
    model, data = make()
    model = model.to(device)
    made = make_optimizer(model.parameters())
    model, optimizer, batches = job.prepare(model, made, data, batch_size=20, shuffle=False, epochs=epochs)
    losses = []
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        x = x.to(ids_on, non_blocking=True)
        loss = nn.functional.binary_cross_entropy_with_logits(model(change(step, x) if change else x), y.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses), {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("ids_on", ["cpu", "cuda"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_and_losses_equal_those_on_the_cpu(served_job, name, ids_on):
    ours = train(served_job, OPTIMIZERS[name], ids_on=ids_on)
    assert_close(ours, train(served_job, OPTIMIZERS[name], device="cpu"), rtol=1e-3, atol=1e-4)


def test_tables_of_several_row_lengths_equal_those_on_the_cpu(served_job):
    ours = train(served_job, OPTIMIZERS["adagrad"], ids_on="cuda", make=make_wide)
    assert_close(ours, train(served_job, OPTIMIZERS["adagrad"], device="cpu", make=make_wide), rtol=1e-3, atol=1e-4)


def test_equal_runs_are_equal_to_the_bit(served_job):
    first, second = (train(served_job, OPTIMIZERS["adagrad"], ids_on="cuda") for _ in range(2))
    assert_close(first, second, rtol=0, atol=0)


def test_step_with_other_ids_than_those_of_the_batch_is_refused(served_job):
    change = lambda step, x: x.add(1).remainder_(clicks.ROWS) if step == 12 else x  # noqa: E731
    with pytest.raises(errors.BadInput, match="Compute ids before they are moved"):
        train(served_job, OPTIMIZERS["sgd"], ids_on="cuda", change=change)


def test_half_of_the_tables_may_be_frozen(served_job):
    torch.manual_seed(0)
    job = served_job(servers=1)
    model = nn.ModuleDict({"frozen": st.EmbeddingBag(8, rows=50), "trained": st.EmbeddingBag(8, rows=50)}).cuda()
    model["frozen"].weight.requires_grad_(False)
    data = torch.utils.data.TensorDataset(torch.randint(0, 50, (64, 3)))
    made = torch.optim.SGD([model["trained"].weight], lr=0.1)
    model, optimizer, batches = job.prepare(model, made, data, batch_size=16)
    before = {name: value.cpu() for name, value in model.state_dict().items()}
    for (x,) in batches:
        optimizer.zero_grad()
        (model["frozen"](x) * model["trained"](x)).sum().backward()
        optimizer.step()
    after = {name: value.cpu() for name, value in model.state_dict().items()}
    same = {name: torch.equal(after[name], value) for name, value in before.items() if name in after}
    assert any(not equal for name, equal in same.items() if name.startswith("trained"))
    assert all(equal for name, equal in same.items() if name.startswith("frozen"))
