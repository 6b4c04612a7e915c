"""Unreadable samples in a bsp group: the others are trained once, ranks stay in step, all are reported."""

import numpy as np
import pytest
import torch
from torch import nn

from springtide import errors
from springtide.domain.data.data_workers import FeedRules
from springtide.worker.input import reader
from tests.unit.worker import ranks

BATCH, SAMPLES = 20, 200
NONE = range(60, 80)
"""A batch of which nothing can be made."""
PART = range(100, 110)
"""All that rank 0 has of another one."""


class Numbers(torch.utils.data.Dataset):
    """Sample i is i."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if index in NONE or index in PART:
            raise ValueError(f"no {index}")
        return torch.tensor([index])


def train(job, **options):
    """How often each sample was trained, the learning rate of each step, and the reports."""
    model = nn.EmbeddingBag(SAMPLES, 1, mode="sum", sparse=True)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, batches = job.prepare(model, optimizer, Numbers(), batch_size=BATCH, shuffle=False, **options)
    loops = 0
    for x in batches:
        optimizer.zero_grad()
        (-model(x).mean()).backward()
        optimizer.step()
        loops += 1
    job.finish()
    return BATCH * model.state_dict()["weight"][:, 0], loops, job._link._master.left_out


@pytest.mark.parametrize(
    "options",
    [
        {"cache": "off"},
        {"cache": "off", "allocation": "laia"},
        {"cache": "50%", "allocation": "laia"},
        {},
    ],
    ids=["runs", "scheduled", "cached", "as it comes"],
)
def test_readable_samples_are_trained_once_and_ranks_stay_in_step(options):
    rules = FeedRules(workers=0, poison="skip")
    with ranks.Group(workers=2, feeding=rules) as group:
        found = group.run(lambda job: train(job, **options))
    (counts, loops, _), (others, other_loops, _) = found
    assert torch.equal(counts, others)
    assert loops == other_loops == SAMPLES // BATCH - 1, "the batch of which nothing is left is not seen by any loop"
    expected = torch.ones(SAMPLES)
    expected[[*NONE, *PART]] = 0
    # where the whole batch is read and shared out, its mean is that of what is left of it
    some = counts[110:120]
    assert torch.allclose(some, some[:1]) and 0.9 < some[0] < 2.1
    expected[110:120] = some
    assert torch.allclose(counts, expected), counts
    told = {each.batch: each.indices for _, _, left_out in found for each in left_out}
    assert sorted(index for indices in told.values() for index in indices) == [*NONE, *PART]


def test_batch_order_reduction_needs_a_sample_on_every_rank():
    with (
        ranks.Group(workers=2, feeding=FeedRules(workers=0, poison="skip")) as group,
        pytest.raises(errors.UnreadableSample, match="summed in batch order"),
    ):
        group.run(lambda job: train(job, reduction="batch-order"))


def test_borrowed_sample_is_the_first_readable_one():
    dataset = Numbers()
    fetch = lambda indices: [dataset[index] for index in indices.tolist()]  # noqa: E731
    rest = reader.borrow(fetch, np.arange(70, 90))
    assert rest.batch == [torch.tensor([80])] and rest.borrowed and not len(rest.kept)
    assert reader.borrow(fetch, np.arange(60, 80)) is None
