"""A training script that counts how often each id was trained, and a check of the counts.

A table starts at zero and is trained by SGD at rate 1, with a gradient of -1 per occurrence. So it counts how often
each key was trained. Sums of small whole numbers are exact in float32, so the counts must equal the data set's own. A
dense parameter counts batches in the same way.

A batch takes `pause_s` until the test calls `hurry`. So the job does not end before all faults are injected, even on a
busy machine, and ends soon after them.
"""

import numpy as np

SCRIPT = """
import os
import pathlib
import signal
import sys
import time

import numpy as np
import torch
from torch import nn

import springtide as st

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a stopped worker that is given up must wake as a zombie, not die
folder, epochs, batch, pause_s = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
hurry = folder / "hurry"


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.EmbeddingBag(50, 1, mode="sum")
        nn.init.zeros_(self.small.weight)
        self.open = st.EmbeddingBag(2, init="zeros")
        self.steps = nn.Parameter(torch.zeros(3))

    def forward(self, small, large):
        return self.small(small).sum() + self.open(large)[:, 0].sum() + self.steps.sum()


class Ids(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.from_numpy(np.load(folder / "ids.npy"))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        trap = folder / f"unreadable-{index}"
        if trap.exists():
            trap.unlink()
            raise OSError(f"sample {index} cannot be read just now")
        return self.ids[index]


job = st.join()
model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer, batches = job.prepare(model, optimizer, Ids(), batch_size=batch, epochs=epochs, seed=7)
for x in batches:
    time.sleep(0.0 if hurry.exists() else pause_s)  # what a real model would compute
    optimizer.zero_grad()
    (-model(x[:, :1] % 50, x)).backward()
    optimizer.step()
    way_out = folder / f"leave-{job.rank}"
    if way_out.exists():
        how = way_out.read_text()
        way_out.unlink()
        os._exit(0) if how == "without a word" else sys.exit(0)
if not job.leaving:
    state = model.state_dict()
    part = folder / f"counts-{job.rank}-{os.getpid()}.npz"
    np.savez(
        part, small=state["small.weight"], keys=state["open.keys"], rows=state["open.rows"], steps=state["steps"]
    )
    part.rename(folder / "counts.npz")
"""


def summing(text, parts):
    """Return the script with the gradients of this many batches in one step."""
    told = text.replace("batch_size=batch", f"batch_size=batch, accumulate={parts}")
    told = told.replace("    optimizer.zero_grad()\n", "")
    summed = told.replace(
        "    optimizer.step()\n",
        "    if batches.completes_step:\n        optimizer.step()\n        optimizer.zero_grad()\n",
    )
    assert told != text and summed != told
    return summed


def from_parquet(text, ids, folder):
    """Write the ids to a Parquet file in this folder, in row groups of 1000. Return the script that reads it."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({name: ids[:, place] for place, name in enumerate("abc")})
    parquet.write_table(table, folder / "ids.parquet", row_group_size=1000)
    reading = 'st.read_parquet(folder, ids={"ids": list("abc")}, make=lambda ids: ids, shuffle_groups=2)'
    assert " Ids()," in text
    return text.replace(" Ids(),", f" {reading},")


def write(folder, ids, text=SCRIPT):
    """Write script and data into a folder; return the script's path."""
    np.save(folder / "ids.npy", ids)
    (folder / "count.py").write_text(text)
    return folder / "count.py"


def hurry(folder):
    """Let the rest of the data be trained as fast as possible, once all faults are injected."""
    (folder / "hurry").touch()


def draw(rng, samples):
    """Draw ids over the whole range of 64 bits; some are frequent."""
    ids = rng.zipf(1.3, size=(samples, 3)).astype(np.int64) % 1000
    ids[:, 2] = ids[:, 2] * (2**63 // 1000) - 2**62
    ids[:, 0] = abs(ids[:, 0])
    return ids


def told_samples(job):
    """Return the number of trained samples from the event of the job's end."""
    return [event["samples"] for event in job.story if event["event"] == "phase"][-1]


def differences(folder, ids, *, epochs, batch):
    """Differences between trained counts and the dataset's; empty if they are equal."""
    counts = np.load(folder / "counts.npz")
    expected = np.bincount(ids[:, 0] % 50, minlength=50) * epochs
    wrong = {f"small {key}": extra for key, extra in enumerate(counts["small"][:, 0] - expected) if extra}
    keys, times = np.unique(ids, return_counts=True)
    held = dict(zip(counts["keys"].tolist(), counts["rows"][:, 0].tolist(), strict=True))
    for key, count in zip(keys.tolist(), times.tolist(), strict=True):
        extra = held.pop(key, 0.0) - count * epochs
        if extra:
            wrong[f"open {key}"] = extra
    wrong |= {f"open {key}, which the data set has not": count for key, count in held.items()}
    batches = epochs * -(-len(ids) // batch)
    wrong |= {f"dense {place}": value - batches for place, value in enumerate(counts["steps"]) if value != batches}
    return wrong
