"""A table of fifty million rows in a process of a few hundred megabytes: st.serving() builds it without its weight.

Rows start as nn.init says, but a row takes memory only once it is trained.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import springtide as st

with st.serving():  # nn.Embedding alone would take 3 GB here, and Adagrad as much again
    table = nn.Embedding(50_000_000, 16)
    nn.init.normal_(table.weight, std=0.01)
model = nn.Sequential(table, nn.Flatten(), nn.Linear(32, 1), nn.Flatten(0))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

draw = torch.Generator().manual_seed(0)
ids = torch.randint(0, 50_000_000, (500,), generator=draw)[torch.randint(0, 500, (5_000, 2), generator=draw)]
labels = (ids.sum(dim=1) % 2).float()

job = st.join()
model, optimizer, batches = job.prepare(model, optimizer, TensorDataset(ids, labels), batch_size=100)
for x, y in batches:
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
    optimizer.step()

print("shape:", tuple(table.weight.shape))
with torch.no_grad():
    trained, never = table(ids[:1, :1]), table(torch.tensor([[7]]))
print("a trained row has moved:", bool(trained.abs().max() > 0.05))
print("row 7 is as it began:", bool(never.abs().max() < 0.05))

# Expected output:
# shape: (50000000, 16)
# a trained row has moved: True
# row 7 is as it began: True
