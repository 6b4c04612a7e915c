"""Counting oracle over real processes: each sample's gradient reaches each row it touches exactly once.

A table of zeros trained by SGD at rate 1 with a gradient of -1 an occurrence ends up holding how often each key was
trained. Sums of small whole numbers are exact in float32, so the counts must equal the data set's own.
"""

import json

import numpy as np
import pytest

from tests.process import running

pytestmark = pytest.mark.process

COUNTING = """
import json
import pathlib
import sys

import numpy as np
import torch
from torch import nn

import springtide as st

BATCH = 64


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.EmbeddingBag(50, 1, mode="sum")
        nn.init.zeros_(self.small.weight)
        self.open = st.EmbeddingBag(2, init="zeros")
        with st.serving():
            self.unheld = nn.Embedding(500_000_000, 1)
        nn.init.zeros_(self.unheld.weight)

    def forward(self, small, large):
        return self.small(small).sum() + self.open(large)[:, 0].sum() + self.unheld(small * 9_999_999).sum()


def memory(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


ids = torch.from_numpy(np.load("ids.npy"))
job = st.join()
before = memory("VmRSS")
model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer, batches = job.prepare(
    model, optimizer, torch.utils.data.TensorDataset(ids), batch_size=BATCH, epochs=int(sys.argv[1])
)
in_step = sys.argv[2] == "bsp"  # a group's gradient is a mean: there each occurrence counts 1 / BATCH
for (x,) in batches:
    optimizer.zero_grad()
    total = -model(x[:, :1] % 50, x)
    (total / len(x) if in_step else total).backward()
    optimizer.step()
if job.rank == 0:
    unheld = model.unheld(torch.arange(50) * 9_999_999).detach()
    peak = memory("VmHWM") - before
    state = model.open.state_dict()
    np.savez(
        "counts.npz",
        small=model.small.weight.detach(),
        unheld=unheld,
        keys=state["keys"],
        rows=state["rows"],
        peak=peak,
    )
"""


def train(tmp_path, ids, *, servers, workers, epochs, sync="async"):
    """Run the counting script; the run's result and the counts that rank 0 read from the servers."""
    np.save(tmp_path / "ids.npy", ids)
    running.script(tmp_path, COUNTING)
    options = ["--servers", str(servers), "--workers", str(workers), "--sync", sync, "--json"]
    with running.springtide("run", "train.py", *options, "--", str(epochs), sync, folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 0, (out, job.said)
    return json.loads(out[-1]), np.load(tmp_path / "counts.npz")


def check(counts, ids, *, epochs, unit=1.0):
    """The tables hold how often each id came."""
    expected = np.bincount(ids[:, 0] % 50, minlength=50) * epochs
    assert (counts["small"][:, 0] / unit).tolist() == expected.tolist()
    assert (counts["unheld"][:, 0] / unit).tolist() == expected.tolist()
    assert counts["peak"] < 250_000_000, "half a byte for each row of a table that no process holds"
    keys, times = np.unique(ids, return_counts=True)
    order = np.argsort(counts["keys"])
    assert counts["keys"][order].tolist() == keys.tolist()
    assert (counts["rows"][order, 0] / unit).tolist() == (times * epochs).tolist()


def draw(rng, samples):
    """Ids of which some come often, over the whole range of 64 bits."""
    ids = rng.zipf(1.3, size=(samples, 3)).astype(np.int64) % 1000
    ids[:, 2] = ids[:, 2] * (2**63 // 1000) - 2**62
    ids[:, 0] = abs(ids[:, 0])
    return ids


def test_three_async_workers_on_two_servers_count_every_occurrence_once(tmp_path, rng):
    ids = draw(rng, 5000)  # the last batch is not full
    result, counts = train(tmp_path, ids, servers=2, workers=3, epochs=2)
    check(counts, ids, epochs=2)
    assert result["samples"] == 10_000
    assert result["data"]["shards_done"] == result["data"]["shards_total"]


def test_two_bsp_workers_count_every_occurrence_once(tmp_path, rng):
    ids = draw(rng, 64 * 40)
    result, counts = train(tmp_path, ids, servers=2, workers=2, epochs=1, sync="bsp")
    check(counts, ids, epochs=1, unit=1 / 64)
    assert result["samples"] == 64 * 40
