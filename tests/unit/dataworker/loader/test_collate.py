"""Batches equal a DataLoader's; an unreadable sample is located by index."""

import numpy as np
import pytest
import torch
from torch.utils import data

from springtide.dataworker.loader.collate import BatchMaker, CollatedBatch


class Squares(data.Dataset):
    def __init__(self, poison=(), short=()):
        self.poison, self.short = poison, short

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index in self.poison:
            raise ValueError(f"no square of {index}")
        return torch.full((1 if index in self.short else 2,), float(index)), index**2


class InOneGo(Squares):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Whole:
    def __len__(self):
        return 20

    def batch(self, indices):
        if 7 in indices:
            raise KeyError("seven")
        return {"x": torch.from_numpy(indices) * 2}


def make_batch(dataset, *indices, **given):
    return CollatedBatch(*BatchMaker(dataset, **given)(np.array(indices, dtype=np.int64)))


def same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert [*ours] == [*theirs]
        same([*ours.values()], [*theirs.values()])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    "dataset",
    [
        Squares(),
        InOneGo(),
        data.Subset(Squares(), range(5, 15)),
        data.TensorDataset(torch.arange(20), torch.rand(20, 3), torch.arange(20) > 4),
        [{"a": index, "b": "text"} for index in range(20)],
    ],
)
def test_batch_equals_that_of_a_dataloader(dataset):
    theirs = list(data.DataLoader(dataset, batch_size=4))[1]
    same(make_batch(dataset, 4, 5, 6, 7).batch, theirs)


def test_batch_size_none_gives_single_samples_like_a_dataloader():
    theirs = list(data.DataLoader(Squares(), batch_size=None))[3]
    same(make_batch(Squares(), 3, batched=False).batch, theirs)
    assert make_batch(Squares(), 3, batched=False, collate_fn=lambda sample: sample[1]).batch == 9


def test_dataset_with_batched_reads_is_asked_for_whole_batches():
    assert make_batch(Whole(), 1, 2).batch["x"].tolist() == [2, 4]


def test_unrelated_method_of_the_same_name_is_not_called():
    class Table(Squares):
        def batch(self, batch_size):
            raise AssertionError("that is another kind of batch")

    assert make_batch(Table(), 1, 2).batch[1].tolist() == [1, 4]


@pytest.mark.parametrize("kind", [Squares, InOneGo])
def test_only_the_poison_sample_is_left_out_and_named(kind):
    found = make_batch(kind(poison=(2, 5)), 1, 2, 3, 5, on_error="skip")
    assert found.batch[1].tolist() == [1, 9]
    assert found.poison == [2, 5]
    assert found.why[0].startswith("ValueError: no square of 2 (test_collate.py:")
    assert "raise ValueError" in found.trace


def test_poison_in_batched_reads_is_located():
    found = make_batch(Whole(), 6, 7, 8, on_error="skip")
    assert (found.batch["x"].tolist(), found.poison) == ([12, 16], [7])


def test_on_error_fail_stops_at_the_first_poison_sample():
    found = make_batch(Squares(poison=(2, 5)), 1, 2, 3, 5)
    assert (found.batch, found.poison) == (None, [2])


def test_batch_of_only_poison_samples_is_none():
    found = make_batch(Squares(poison=(2, 5)), 2, 5, on_error="skip")
    assert (found.batch, found.poison) == (None, [2, 5])


def test_samples_that_cannot_be_collated_together_are_all_named():
    found = make_batch(Squares(short=(3,)), 1, 2, 3, on_error="skip")
    assert (found.batch, found.poison) == (None, [1, 2, 3])
    assert found.why[0].startswith(
        "cannot collate it with other samples: RuntimeError: stack expects each tensor to be equal size"
    )


def test_transient_collate_error_loses_no_sample():
    calls = []

    def collate(samples):
        calls.append(len(samples))
        if len(calls) == 1:
            raise OSError("the disk hiccuped")
        return len(samples)

    assert make_batch(Squares(), 1, 2, 3, collate_fn=collate) == CollatedBatch(3, [], [], "")


def test_process_is_initialized_once_before_its_first_batch():
    begun = []
    making = BatchMaker(Squares(), begin=lambda: begun.append(1))
    assert not begun
    making(np.array([1])), making(np.array([2]))
    assert begun == [1]
