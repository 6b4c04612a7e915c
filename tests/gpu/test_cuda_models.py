"""Compare training on a GPU with the CPU: models moved by user calls, ids on either device."""

import numpy as np
import pytest
import torch
from torch import nn

import springtide as st
from tests.process import running
from tests.unit.worker import clicks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01),
}


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Let CUDA open its process-wide files before a test is checked for leaks."""
    nn.Linear(2, 2).cuda()(torch.ones(1, 2).cuda()).sum().backward()


def train(optimizer, *, before=False, after=False, ids_on="cpu", context=False):
    """Train the clicks model and return its losses and its rows."""
    with torch.device("cuda" if context else "cpu"):
        with torch.device("cpu"):
            model, dataset = clicks.make()
        model = model.cuda() if before else model
        model, made, batches = st.join().prepare(model, optimizer(model), dataset, batch_size=20, shuffle=False)
        model = model.to("cuda") if after else model
        losses = []
        for *inputs, target in batches:
            made.zero_grad()
            out = model(*(one.to(ids_on) for one in inputs))
            assert out.device.type == ("cuda" if before or after else "cpu")
            loss = nn.functional.binary_cross_entropy_with_logits(out, target.to(out.device))
            loss.backward()
            made.step()
            losses.append(loss.detach().cpu())
    return torch.stack(losses), {name: value.cpu() for name, value in model.state_dict().items()}


def assert_close(first, second):
    torch.testing.assert_close(first[0], second[0], atol=1e-5, rtol=1e-4)
    assert first[1].keys() == second[1].keys()
    for name in first[1]:
        torch.testing.assert_close(first[1][name], second[1][name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_model_moved_before_prepare_trains_as_on_the_cpu(name):
    assert_close(train(OPTIMIZERS[name], before=True), train(OPTIMIZERS[name]))


def test_model_moved_after_prepare_trains_as_on_the_cpu():
    if_moved = train(OPTIMIZERS["sgd"], after=True)
    assert_close(if_moved, train(OPTIMIZERS["sgd"]))


def test_ids_may_be_on_the_gpu():
    assert_close(train(OPTIMIZERS["adagrad"], before=True, ids_on="cuda"), train(OPTIMIZERS["adagrad"]))


def test_loop_inside_a_device_context_trains_as_outside():
    assert_close(train(OPTIMIZERS["sgd"], before=True, ids_on="cuda", context=True), train(OPTIMIZERS["sgd"]))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 8, mode="sum")
        self.scale = nn.Parameter(torch.ones(50))
        self.top = nn.Linear(8, 1)

    def forward(self, ids):
        return self.top(self.bag(ids, per_sample_weights=self.scale[ids.to(self.scale.device)])).squeeze(1)


def prepared(model):
    data = [(torch.randint(0, 50, (4,)), torch.tensor(float(i % 2))) for i in range(64)]
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    return st.join().prepare(model, made, data, batch_size=16, shuffle=False)


def test_per_sample_weights_on_the_gpu_get_their_gradient():
    torch.manual_seed(0)
    model, optimizer, batches = prepared(Pooled().cuda())
    before = model.scale.detach().clone()
    for ids, y in batches:
        nn.functional.mse_loss(model(ids), y.cuda()).backward()
        assert model.scale.grad.is_cuda
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(before, model.scale)


def test_table_weight_is_read_on_the_models_device():
    model, _, _ = prepared(Pooled().cuda())
    assert {param.device.type for param in model.parameters()} == {"cuda"}
    whole = model.bag.weight.detach() * 1
    assert whole.device.type == "cuda" and whole.shape == (50, 8)
    model.cpu()
    assert (model.bag.weight.detach() * 1).device.type == "cpu"


def test_autocast_grad_scaler_and_clipping_work_as_on_the_cpu():
    torch.manual_seed(0)
    model, optimizer, batches = prepared(Pooled().cuda())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
    before = model.state_dict()["bag.weight"].clone()
    for ids, y in batches:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(ids.cuda()).float(), y.cuda())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert not torch.equal(before, model.state_dict()["bag.weight"])


SCRIPT = """
import numpy as np
import torch

import springtide as st
from springtide import zoo
from springtide.zoo.clicklog.dataset import ClickLog

data = ClickLog(12_000)
job = st.join()
torch.manual_seed(0)
model = zoo.model("deepfm", tables=data.tables, dim=4)
model = model.to("{device}")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=100, num_workers=0, sync="{sync}")
for x, y in batches:
    optimizer.zero_grad()
    x = type(x)(*(part.to("{device}") for part in x))
    zoo.loss(model(x), y.to("{device}")).backward()
    optimizer.step()
if job.rank == 0:
    np.savez("state.npz", **{{name: value.cpu().numpy() for name, value in model.state_dict().items()}})
"""


def job_state(folder, *, device, sync, workers):
    folder.mkdir()
    script = running.script(folder, SCRIPT.format(device=device, sync=sync))
    with running.springtide("run", script, "--workers", str(workers), "--servers", "2", folder=folder) as job:
        code, out = job.finish()
    assert code == 0, out
    return dict(np.load(folder / "state.npz"))


@pytest.mark.timeout(600)
def test_bsp_group_on_one_gpu_gives_the_cpu_model(tmp_path):
    gpu = job_state(tmp_path / "gpu", device="cuda", sync="bsp", workers=2)
    cpu = job_state(tmp_path / "cpu", device="cpu", sync="bsp", workers=2)
    for name, value in cpu.items():
        torch.testing.assert_close(torch.tensor(gpu[name]), torch.tensor(value), atol=1e-3, rtol=1e-2)


@pytest.mark.timeout(600)
def test_async_workers_share_one_gpu(tmp_path):
    state = job_state(tmp_path / "gpu", device="cuda", sync="async", workers=2)
    assert all(torch.tensor(value).isfinite().all() for value in state.values())
