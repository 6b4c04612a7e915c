"""Workers in step: every rank trains its part of each batch, and all apply one update, as if there were one worker.

    springtide run examples/05_in_step.py --servers 2 --workers 2

The losses do not depend on how many workers or servers there are (but for rounding).
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import springtide as st

torch.manual_seed(0)
model = nn.Sequential(nn.EmbeddingBag(100, 4, mode="mean"), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
ids = torch.randint(0, 100, (3_000, 5))
labels = (ids.float().mean(dim=1, keepdim=True) > 50).float()

job = st.join()
model, optimizer, batches = job.prepare(
    model,
    optimizer,
    TensorDataset(ids, labels),
    sync="bsp",
    batch_size=120,  # of the whole group: with 2 workers each gets 60 of them
    seed=1,
)

seen = 0
for _ in job.epochs(5):
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(batch.x), batch.y).backward()
        optimizer.step()
        seen += len(batch.y)

if job.rank == 0:
    model.eval()
    with torch.no_grad():
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), labels)
    print(f"{seen * job.workers} samples, the loss is now {loss:.2f}")

# Expected output:
# 15000 samples, the loss is now 0.67
