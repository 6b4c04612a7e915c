"""Pretrained rows that stay as they are, beside rows that are trained: load_state_dict and requires_grad, as always."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import springtide as st


class Model(nn.Module):
    """Texts have rows of another model; users have rows of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Embedding(100, 8)
        self.user = nn.Embedding(50, 8)
        self.top = nn.Linear(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """A logit for each pair of user and text."""
        return self.top(torch.cat([self.user(ids[:, 0]), self.text(ids[:, 1])], dim=1)).squeeze(1)


torch.manual_seed(0)
pretrained = torch.randn(100, 8)
model = Model()
model.text.load_state_dict({"weight": pretrained})  # before prepare, which gives the rows to the servers
model.text.weight.requires_grad_(False)
before = model.user.weight.detach().clone()
optimizer = torch.optim.Adagrad([p for p in model.parameters() if p.requires_grad], lr=0.1)

ids = torch.stack([torch.randint(0, 50, (4_000,)), torch.randint(0, 100, (4_000,))], dim=1)
labels = (pretrained[ids[:, 1], 0] > 0).float()

job = st.join()
model, optimizer, batches = job.prepare(model, optimizer, TensorDataset(ids, labels), batch_size=100)
losses = []
for _ in job.epochs(3):
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

print("texts are as they were:", torch.equal(model.text.weight.detach(), pretrained))
print("users have moved:", not torch.equal(model.user.weight.detach(), before))
print("the loss fell:", losses[-1] < losses[0])

# Expected output:
# texts are as they were: True
# users have moved: True
# the loss fell: True
