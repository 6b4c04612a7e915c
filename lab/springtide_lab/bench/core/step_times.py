"""A job that writes down when each of its steps was done: `bench rescale`, `restore` and `hot-server` look at that.

In: a folder, rows and dim of its table, as arguments of the script; perhaps ids a sample, and seconds a step that a
model would compute.
Out: a file `steps-RANK` a worker, and its reader.
"""

import pathlib

SCRIPT = """
import os, pathlib, sys, time
import torch
import springtide as st

folder, rows, dim = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ids, pause_s = (int(sys.argv[4]), float(sys.argv[5])) if len(sys.argv) > 5 else (8, 0.0)
torch.set_num_threads(1)


class Ids(torch.utils.data.Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        return (index * 7919 + torch.arange(ids) * 104729) % rows


job = st.join()
model = torch.nn.EmbeddingBag(rows, dim, mode="sum")
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
model, optimizer, batches = job.prepare(model, optimizer, Ids(), batch_size=64, shuffle=False)
steps = os.open(folder / f"steps-{job.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for x in batches:
    time.sleep(pause_s)
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    os.write(steps, f"{time.time()}\\n".encode())
"""


def steps(folder: pathlib.Path) -> list[list[float]]:
    """When each worker's steps were done; the last line may be half written."""
    files = sorted(folder.glob("steps-*"))
    return [[float(line) for line in path.read_text().splitlines()[:-1]] for path in files]


def merged(folder: pathlib.Path) -> list[float]:
    return sorted(at for worker in steps(folder) for at in worker)
