"""One job on one card: data workers compute a CPU stage and a GPU stage of forward(), and the rows train. Prints the
rate of the loop with and without them (`-s`)."""

import pytest
import torch

from tests.process import running

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SCRIPT = """
import os
import time

import torch
from torch import nn

import springtide as st


class Staged(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(100_000, 16, mode="sum")
        self.top = nn.Sequential(nn.Linear(16 + 512, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("edges", torch.linspace(0, 3, 4097))

    def forward(self, ids, dense):
        hashed = ids
        for _ in range(6):
            hashed = (hashed * 2654435761 + 40503) % 1_000_003
        scaled = torch.log1p(dense.cuda().abs())
        bucket = torch.bucketize(scaled, self.edges).float() / 4096
        wide = torch.sort(torch.cat([scaled, bucket], 1), dim=1).values
        return self.top(torch.cat([self.bag(hashed % 100_000).cuda(), wide], 1)).squeeze(1)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 300_000

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 1 << 30, (26,), generator=draw)
        return ids, torch.randn(256, generator=draw), torch.tensor(float(index % 2))


job = st.join()
torch.manual_seed(0)
model = Staged().cuda()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
model, optimizer, batches = job.prepare(model, optimizer, Data(), batch_size=1024)
times = []
for ids, dense, y in batches:
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(ids, dense), y.cuda())
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    times.append(time.monotonic())
half = len(times) // 2
print(f"{1024 * (len(times) - half - 1) / (times[-1] - times[half]):,.0f} samples/s in the second half")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("data_workers", ["2", "off"])
def test_job_with_a_cpu_stage_and_a_gpu_stage_trains_on_one_gpu(tmp_path, data_workers):
    script = running.script(tmp_path, SCRIPT)
    roles = ("--workers", "1", "--servers", "1", "--data-workers", data_workers)
    with running.springtide("run", script, *roles, folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 0, out
    print(f"{data_workers} data workers:", *[line for line in out if "second half" in line])
    logs = {path.name: path.read_text() for path in tmp_path.glob("**/data-worker-*.log")}
    stages = sorted(text.partition("serving stage ")[2][:6] for text in logs.values())
    assert stages == (["1 of 2", "2 of 2"] if data_workers == "2" else []), logs
