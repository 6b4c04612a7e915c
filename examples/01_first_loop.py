"""The whole of it: a plain PyTorch loop, and the three lines that make its tables served and its epochs counted.

python examples/01_first_loop.py                            # one process, tables in it
springtide run examples/01_first_loop.py --workers 2        # the same script on servers and workers
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import springtide as st


class Clicks(nn.Module):
    """Would this user click on this item?"""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.EmbeddingBag(100, 8, mode="sum")
        self.item = nn.EmbeddingBag(60, 8, mode="sum")
        self.top = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the click."""
        rows = torch.cat([self.user(ids[:, :1]), self.item(ids[:, 1:])], dim=1)
        return self.top(rows).squeeze(1)


def clicks(samples: int) -> TensorDataset:
    """Users like items that are congruent with them: something to learn."""
    draw = torch.Generator().manual_seed(0)
    user = torch.randint(0, 100, (samples, 1), generator=draw)
    item = torch.randint(0, 60, (samples, 1), generator=draw)
    return TensorDataset(torch.cat([user, item], dim=1), (user % 3 == item % 3).float().squeeze(1))


torch.manual_seed(0)
model = Clicks()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

job = st.join()
model, optimizer, batches = job.prepare(model, optimizer, clicks(20_000), batch_size=256)

for epoch in job.epochs(3):  # range(3), but a worker that is started again goes on with the epoch that it was in
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch.x), batch.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        job.report(loss=losses[-1])
    if job.rank == 0:
        print(f"epoch {epoch}: the loss is {sum(losses) / len(losses):.1f}")

# Expected output:
# epoch 0: the loss is 0.6
# epoch 1: the loss is 0.1
# epoch 2: the loss is 0.0
