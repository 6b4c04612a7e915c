"""Ids without a row count: any 64-bit integer has a row, which exists once it was trained.

The table makes no row for an id seen fewer than three times, and keeps at most ten thousand rows. So ids that never
come back do not make it grow for ever.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import springtide as st


class Model(nn.Module):
    """One open-ended table under a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = st.EmbeddingBag(8, optimizer="rowwise_adagrad", min_count=3, capacity=10_000)
        self.out = nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """A logit a bag."""
        return self.out(self.ids(ids)).squeeze(1)


draw = torch.Generator().manual_seed(0)
often = torch.tensor([3, -7, 2**62])  # hashes of anything are fine as ids
ids = often[torch.randint(0, 3, (6_000,), generator=draw)].unsqueeze(1)
ids[::100] = torch.arange(60).unsqueeze(1) + 10**12  # 60 ids that come once each
labels = (ids.squeeze(1) == 3).float()

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = st.join()
model, optimizer, batches = job.prepare(model, optimizer, TensorDataset(ids, labels), batch_size=50)

for batch in batches:
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(batch.x), batch.y).backward()
    optimizer.step()

print("rows:", model.state_dict()["ids.keys"].tolist())

# Expected output:
# rows: [-7, 3, 4611686018427387904]
