"""Plain PyTorch around the loop: two optimizers, a learning-rate schedule, clipping, accumulation over two batches."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import springtide as st

torch.manual_seed(0)
table = nn.Embedding(200, 4, sparse=True)
top = nn.Linear(8, 1)
model = nn.ModuleDict({"table": table, "top": top})
for_rows = torch.optim.SparseAdam(list(table.parameters()), lr=0.01)
for_dense = torch.optim.Adam(top.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(for_rows, step_size=50, gamma=0.5)

ids = torch.randint(0, 200, (12_800, 2))
labels = (ids[:, 0] > ids[:, 1]).float()

job = st.join()
model, optimizers, batches = job.prepare(model, [for_rows, for_dense], TensorDataset(ids, labels), batch_size=64)

for number, (x, y) in enumerate(batches):
    logits = model["top"](model["table"](x).flatten(1)).squeeze(1)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
    (loss / 2).backward()
    if number % 2:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()

print(f"{number + 1} batches, {(number + 1) // 2} steps, the rows' rate is now {for_rows.param_groups[0]['lr']}")

# Expected output:
# 200 batches, 100 steps, the rows' rate is now 0.0025
