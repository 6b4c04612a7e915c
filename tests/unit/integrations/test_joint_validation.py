"""Parts of a validation DataLoader: together they are its samples, and only a plain loader is divided."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from springtide.integrations import joint_validation
from springtide.integrations.joint_validation import Seat

DATA = TensorDataset(torch.arange(10))


def samples(loader):
    return [batch[0].tolist() for batch in loader]


def test_parts_of_a_loader_are_its_samples_in_batches_of_its_size():
    loader = DataLoader(DATA, batch_size=3, shuffle=True)
    parts = [joint_validation.with_samples(loader, Seat(place, 2).part(10)) for place in range(2)]
    assert [samples(part) for part in parts] == [[[0, 1, 2], [3, 4]], [[5, 6, 7], [8, 9]]]
    assert [len(part) for part in parts] == [2, 2]
    assert sorted(index for batch in samples(loader) for index in batch) == list(range(10))


def test_worker_that_joined_later_has_no_part():
    assert Seat(None, 2).part(10) == range(0)
    assert samples(joint_validation.with_samples(DataLoader(DATA), range(0))) == []


@pytest.mark.parametrize(
    ("loader", "divisible"),
    [
        (DataLoader(DATA, batch_size=3), True),
        (DataLoader(DATA, batch_size=3, shuffle=True), True),
        (DataLoader(DATA, batch_size=3, drop_last=True), False),
        (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10)), False),
        (DataLoader(DATA, batch_size=None), False),
        ([1, 2], False),
    ],
)
def test_loader_with_an_order_of_its_own_is_not_divided(loader, divisible):
    assert joint_validation.is_divisible(loader) == divisible
