"""Strings in forward(), marked for data workers: a job computes their ids ahead, in other processes.

    springtide explain-split examples/10_strings_in_forward.py

The mark has no other effect: alone, as here, the model computes the ids itself.
"""

import torch
from torch import nn
from torch.utils.data import Dataset

import springtide as st

COLORS = ["red", "green", "blue", "amber"]


class Words(Dataset):
    """Two words for each sample; the label says whether they are equal."""

    def __len__(self) -> int:
        return 4_000

    def __getitem__(self, index: int) -> tuple[list[str], float]:
        """One sample."""
        first, second = COLORS[index % 4], COLORS[index // 4 % 4]
        return [first, second], float(first == second)


def collate(samples: list[tuple[list[str], float]]) -> tuple[list[list[str]], torch.Tensor]:
    """Words stay words; labels become a tensor."""
    words, labels = zip(*samples, strict=True)
    return list(words), torch.tensor(labels)


class Model(nn.Module):
    """A row for each pair of words."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.EmbeddingBag(1_000, 4, mode="sum")
        self.top = nn.Linear(4, 1)

    @st.stateless
    def ids(self, words: list[list[str]]) -> torch.Tensor:
        """Ids of the pairs: reads no parameter, writes nothing, draws no random number."""
        return torch.from_numpy(st.hash_ids([["-".join(pair)] for pair in words], 1_000))

    def forward(self, words: list[list[str]]) -> torch.Tensor:
        """A logit for each pair."""
        return self.top(self.pairs(self.ids(words))).squeeze(1)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.5)
job = st.join()
model, optimizer, batches = job.prepare(model, optimizer, Words(), batch_size=50, collate_fn=collate)
for words, y in batches:
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(words), y)
    loss.backward()
    optimizer.step()
print(f"the loss is now {loss.item():.1f}")

# Expected output:
# the loss is now 0.0
