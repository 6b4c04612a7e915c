"""A forward that prepares features on the CPU and then on a GPU moves in two stages. Needs a GPU."""

import copy
import pickle

import cloudpickle
import pytest
import torch
from torch import nn

from springtide.dataworker.split.recorder import pytree
from springtide.dataworker.split.recorder.bit_compare import same
from springtide.dataworker.split.split import Split
from tests.unit.dataworker.recorded import answered, splitting

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Let CUDA open its process-wide files before a test is checked for leaks."""
    nn.Linear(2, 2).cuda()(torch.ones(1, 2).cuda()).sum().backward()


class OnGpu(nn.Module):
    """Hashes in main memory, buckets and logarithms on the GPU, and a model that lives there."""

    def __init__(self):
        super().__init__()
        self.top = nn.Linear(3 + 3 + 4, 1).cuda()
        self.drop = nn.Dropout(0.2)
        self.register_buffer("edges", torch.linspace(0, 2, 9).cuda())

    def forward(self, ids, dense):
        hashed = (ids * 2654435761 + 17) % 1000
        scaled = torch.log1p(dense.cuda().abs())
        bucket = torch.bucketize(scaled, self.edges).float()
        on_gpu = (hashed.cuda() % 7).float()
        return self.top(self.drop(torch.cat([scaled, bucket, on_gpu], 1))).squeeze(1)


def call(size, seed=0):
    draw = torch.Generator().manual_seed(size + seed)
    return (torch.randint(0, 1 << 40, (size, 4), generator=draw), torch.randn(size, 3, generator=draw)), {}


def test_gpu_calls_form_a_second_stage_after_the_cpu_stage():
    model = OnGpu().train()
    divided = splitting(model, [call(64), call(64, 1), call(64, 2)])
    assert isinstance(divided, Split), divided.explanation.text()
    assert [stage.device for stage in divided.stages] == ["cpu", "cuda"]
    stages = pickle.loads(cloudpickle.dumps(divided.stages))
    found, _ = pytree.flatten(call(33, 3))
    between = stages[0].run(found)
    crossing = stages[1].run(between)
    assert all(one.device.type == "cpu" for one in (*between, *crossing) if isinstance(one, torch.Tensor))
    own = copy.deepcopy(model)
    torch.manual_seed(1)
    wanted = own(*call(33, 3)[0])
    torch.manual_seed(1)
    given, answers = answered(divided, model.forward, call(33, 3), crossing=crossing)
    assert same(wanted, given) and answers.complete
    wanted.sum().backward(), given.sum().backward()
    assert same(own.top.weight.grad, model.top.weight.grad)
