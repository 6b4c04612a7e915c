"""The training script of all chaos jobs: it counts, and in batch-order mode also trains a model for comparison by bits.

Runs under `springtide run`; its only argument is a JSON object, which `modes.options_of` writes. Every trained batch
adds a byte to the file `batches`, and the loop waits while the file `gate` allows no more. So faults hit the job at a
batch and not at a time, and no job is over before its last fault.

Counts: tables of zeros and SGD at rate 1 with a gradient of -1 an occurrence hold how often each key was trained
(`tests/process/counting.py`). In bsp, gradients are means, so each count is a multiple of 1 / batch size.
"""

import json
import os
import pathlib
import sys
import time

import numpy as np
import torch
from torch import nn

import springtide as st

options = json.loads(sys.argv[1])
os.environ["SPRINGTIDE_SHARED_MEMORY"] = "1" if options["shared_memory"] else "0"
folder, source, size = pathlib.Path(options["folder"]), options["source"], options["batch"]
units = options["unit"] > 0
torch.manual_seed(5)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.EmbeddingBag(50, 1, mode="sum")
        nn.init.zeros_(self.small.weight)
        self.large = st.EmbeddingBag(2, init="zeros")
        self.steps = nn.Parameter(torch.zeros(3))
        if units:
            self.bag = nn.EmbeddingBag(50, 4, mode="sum")
            self.top = nn.Linear(4, 1)

    def forward(self, x):
        counts = self.small(x[:, :1] % 50).sum() + self.large(x)[:, 0].sum()
        return counts, self.steps.sum(), self.top(self.bag(x[:, 1:2] % 50)).squeeze(1) if units else None


class Ids(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.from_numpy(np.load(folder / "ids.npy"))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(Ids().ids)


def decode(bodies):
    return torch.from_numpy(np.frombuffer(b"".join(bodies), dtype=np.int64).reshape(-1, 3).copy())


def allowed():
    try:
        return int((folder / "gate").read_text() or 0)
    except FileNotFoundError:
        return 1 << 60


def trained():
    return (folder / "batches").stat().st_size


def loss_of(model, x):
    counts, steps, out = model(x)
    loss = -(counts + steps * len(x))
    if options["sync"] == "bsp":
        loss = loss / len(x)
    return loss + nn.functional.mse_loss(out, (x[:, 1] % 7).float()) if units else loss


def eat():
    """Use all memory that the process may have, once: a next life finds no file."""
    (folder / f"eat-{job.rank}").unlink()
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20) * 64))


job = st.join(plain_groups=True)
model = Counter()
counting = [model.small.weight, model.steps, *model.large.parameters()]
named = {id(parameter) for parameter in counting}
rest = [parameter for parameter in model.parameters() if id(parameter) not in named]
groups = [{"params": counting, "lr": 1.0}, {"params": rest, "lr": 0.05}]
optimizer = torch.optim.SGD([group for group in groups if group["params"]], lr=1.0)
data = {"map": Ids, "iterable": Stream}.get(
    source, lambda: st.stream(options["url"], decode=decode, **options["stream"])
)()
given = {"batch_size": size, "accumulate": options["accumulate"]}
if source in ("map", "iterable"):
    given |= {"epochs": 1, "seed": 7}
if units:
    given |= {"reduction": f"batch-order:{options['unit']}", "shuffle": True}
model, optimizer, batches = job.prepare(model, optimizer, data, **given)
parts = options["accumulate"] > 1
done = os.open(folder / "batches", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for x in batches:
    while trained() >= allowed() and not job.leaving:
        time.sleep(0.005)
    if (folder / f"eat-{job.rank}").exists():
        eat()
    if not parts:
        optimizer.zero_grad()
    loss_of(model, x).backward()
    if not parts or batches.completes_step:
        optimizer.step()
        if parts:
            optimizer.zero_grad()
    os.write(done, b".")
if not job.leaving:
    part = folder / f"result-{job.rank}-{os.getpid()}.npz"
    np.savez(part, **{name: value.numpy() for name, value in model.state_dict().items()})
    part.rename(folder / "result.npz")
