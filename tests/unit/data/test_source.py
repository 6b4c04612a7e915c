from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import data

from springtide import errors
from springtide.data import source

X = torch.arange(20).view(10, 2)
Y = torch.arange(10, dtype=torch.float32)
SOME = np.array([3, 1, 7], dtype=np.int64)


class Plain(data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": X[index], "y": Y[index]}


class InBulk(Plain):
    def __getitems__(self, indices):
        return [{"x": X[index], "y": Y[index], "bulk": len(indices)} for index in indices]


class Ready(Plain):
    def batch(self, indices):
        return X[indices], Y[indices]


class Endless(data.IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_tensor_dataset_is_gathered_in_one_call():
    x, y = source.open_source(data.TensorDataset(X, Y)).fetch(SOME)
    assert torch.equal(x, X[[3, 1, 7]])
    assert torch.equal(y, Y[[3, 1, 7]])


@pytest.mark.parametrize("indices", [np.arange(2, 6), SOME])
def test_writing_to_a_batch_leaves_the_dataset_unchanged(indices):
    (x,) = source.open_source(data.TensorDataset(X)).fetch(indices)
    before = X.clone()
    assert torch.equal(x, X[indices])
    x.zero_()
    assert torch.equal(X, before)


@pytest.mark.parametrize("dataset", [Plain(), InBulk()])
def test_samples_are_collated_like_in_a_dataloader(dataset):
    batch = source.open_source(dataset).fetch(SOME)
    assert torch.equal(batch["x"], X[[3, 1, 7]])
    assert torch.equal(batch["y"], Y[[3, 1, 7]])


def test_dataset_with_batch_method_is_asked_for_whole_batches():
    x, _ = source.open_source(Ready()).fetch(SOME)
    assert torch.equal(x, X[SOME])


@pytest.mark.parametrize("name", ["i", "idx", "batch_indices", "sample_ids"])
def test_batch_method_is_used_for_any_name_of_its_argument(name):
    methods = {}
    exec(f"def batch(self, {name}): return X[{name}], Y[{name}]", {"X": X, "Y": Y}, methods)
    x, _ = source.open_source(type("Named", (Plain,), methods)()).fetch(SOME)
    assert torch.equal(x, X[SOME])


def test_batch_method_that_may_take_a_size_is_not_called_and_named_once(caplog):
    class Sized(Plain):
        def batch(self, batch_size):
            raise AssertionError("this makes batches of a size")

    for _ in range(2):
        batch = source.open_source(Sized()).fetch(SOME)
        assert torch.equal(batch["x"], X[[3, 1, 7]])
    (said,) = caplog.messages
    assert "Sized.batch is not used" in said and "rename the argument, or write __getitems__(indices)" in said


def test_subset_uses_the_bulk_read_of_its_dataset():
    subset = data.Subset(data.TensorDataset(X, Y), [9, 8, 7, 6, 5])
    _, y = source.open_source(subset).fetch(np.array([0, 2]))
    assert y.tolist() == [9.0, 7.0]


def test_user_collate_fn_is_used_for_every_dataset_kind():
    for dataset in (data.TensorDataset(X, Y), Plain(), InBulk(), Ready()):
        assert source.open_source(dataset, collate_fn=len).fetch(SOME) == 3


def test_only_a_pair_becomes_a_batch():
    assert source.as_batch((1, 2)).y == 2
    assert source.as_batch([1, 2, 3]) == [1, 2, 3]
    assert source.as_batch({"x": 1}) == {"x": 1}


def test_dataloader_gives_its_dataset_size_order_and_collate_fn():
    loader = data.DataLoader(Plain(), batch_size=4, shuffle=True, drop_last=True, collate_fn=len)
    opened = source.open_source(loader)
    assert (opened.samples, opened.batch_size, opened.shuffle, opened.drop_last) == (10, 4, True, True)
    assert opened.fetch(SOME) == 3
    assert source.open_source(data.DataLoader(Plain(), batch_size=4)).shuffle is False
    assert source.open_source(loader, batch_size=2).batch_size == 2


def test_samplers_are_refused_with_an_explanation():
    weighted = data.WeightedRandomSampler([1.0] * 10, 10)
    with pytest.raises(errors.BadInput, match="WeightedRandomSampler, which Springtide cannot use"):
        source.open_source(data.DataLoader(Plain(), batch_size=2, sampler=weighted))
    by_two = data.BatchSampler(data.SequentialSampler(Plain()), 2, False)
    with pytest.raises(errors.BadInput, match="own batch_sampler"):
        source.open_source(data.DataLoader(Plain(), batch_sampler=by_two))


def test_unreadable_dataset_types_are_refused():
    with pytest.raises(errors.BadInput, match="cannot train from a generator"):
        source.open_source(one for one in [1])
    for path_or_columns in ("train.csv", Path("train.csv"), {"x": X}):
        with pytest.raises(errors.BadInput, match=r"expected samples by index\. A file needs a reader"):
            source.open_source(path_or_columns)
    with pytest.raises(errors.BadInput, match=r"a tuple of 2 arrays: .* Wrap them"):
        source.open_source((X, X))
    with pytest.raises(errors.BadInput, match="is empty"):
        source.open_source(data.TensorDataset(X[:0]))
    with pytest.raises(errors.BadInput, match="batch_size=0"):
        source.open_source(Plain(), batch_size=0)
    with pytest.raises(errors.BadInput, match="has its own order"):
        source.open_source(Endless(), shuffle=True)


def test_iterable_is_streamed_in_batches():
    opened = source.open_source(Endless(), batch_size=2)
    assert opened.samples is None
    assert [(counted.samples, counted.batch.tolist()) for counted in opened.stream()] == [
        (2, [0, 1]),
        (2, [2, 3]),
        (1, [4]),
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_come_in_order_and_pauses_keep_their_position(num_workers):
    opened = source.open_source(data.TensorDataset(X, Y), num_workers=num_workers)
    asked = [np.array([1, 2]), np.array([], dtype=np.int64), np.array([5])]
    got = [None if one is None else one[1].tolist() for one in opened.read(asked)]
    assert got == [[1.0, 2.0], None, [5.0]]
