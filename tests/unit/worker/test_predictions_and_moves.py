"""Predictions are bit-identical wherever a model's slots are placed."""

import pytest
import torch
from torch import nn

from springtide.server.server import ServerRole
from springtide_lab.bench.core import jobs

ROWS = 600


class Clicks(nn.Module):
    """Two tables, pooled in two ways, under a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(ROWS, 8, mode="sum")
        self.items = nn.EmbeddingBag(ROWS, 4, mode="mean")
        self.top = nn.Linear(12, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([self.users(ids[:, :3]), self.items(ids[:, 3:])], dim=1)).squeeze(1)


@pytest.fixture
def servers():
    owners = jobs.placement(2)
    roles = [ServerRole(index=i, slots=jobs.SLOTS, seed=3, workers=1, secret=jobs.SECRET) for i in range(3)]
    for role in roles:
        role.place(owners)
        role.start()
    yield roles
    while roles:  # a server goes with its last reference
        roles.pop().stop(0)


def test_predictions_are_bit_identical_after_an_idle_migration(servers):
    torch.manual_seed(11)
    ids, labels = torch.randint(0, ROWS, (512, 6)), torch.rand(512).round()
    job = jobs.job([role.address for role in servers[:2]])
    model = Clicks()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    model, optimizer, batches = job.prepare(
        model, optimizer, torch.utils.data.TensorDataset(ids, labels), batch_size=32, epochs=2
    )
    feed = iter(batches)

    def train(steps: int) -> None:
        model.train()
        for x, y in (next(feed) for _ in range(steps)):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
            optimizer.step()

    def predict() -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            return model(ids[:100]).clone()

    train(8)
    before = predict()
    for source, target in ((0, 2), (1, 2), (2, 1), (1, 0)):
        handed = servers[source].hand_over(servers[source].owned(), target, servers[target].address)
        assert handed.moved and not handed.why and not servers[source].owned()
        assert torch.equal(predict(), before), f"after all slots of server-{source} went to server-{target}"
    train(8)
    assert not torch.equal(predict(), before), "predictions are read from the servers, not remembered"
    job.finish()
