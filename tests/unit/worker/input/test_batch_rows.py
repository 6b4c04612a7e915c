import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from springtide.data import source
from springtide.domain.data.samples import Batch
from springtide.worker.input import batch_rows

PLACES = np.array([4, 0, 2])


def test_rows_are_taken_from_tensors_in_any_nesting():
    x = torch.arange(10).view(5, 2)
    found = batch_rows.rows_of(Batch({"ids": x, "names": list("abcde")}, (x[:, 0],)), 5, torch.from_numpy(PLACES))
    assert isinstance(found, Batch)
    assert found.x["ids"].tolist() == x[[4, 0, 2]].tolist()
    assert found.x["names"] == ["e", "a", "c"]
    assert found.y[0].tolist() == [8, 0, 4]


@pytest.mark.parametrize("odd", [torch.zeros(3), torch.tensor(1.0), {"a": "text"}])
def test_value_without_one_row_per_sample_is_reported(odd):
    with pytest.raises(batch_rows.NotRows):
        batch_rows.rows_of((torch.zeros(5), odd), 5, torch.from_numpy(PLACES))


class Bags(Dataset):
    """Samples with several ids; `collate` makes ids and offsets of them."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return list(range(index, index + 1 + index % 3))


def collate(samples):
    lengths = torch.tensor([0, *(len(one) for one in samples[:-1])])
    return torch.tensor([each for one in samples for each in one]), lengths.cumsum(0)


def test_batches_of_a_user_collate_fn_are_read_again():
    opened = source.open_source(Bags(), collate_fn=collate)
    samples = np.arange(10, 15)
    picked = batch_rows.SourcePicker(opened).pick(opened.fetch(samples), samples, PLACES, jagged=False)
    ids, offsets = collate([Bags()[14], Bags()[10], Bags()[12]])
    assert isinstance(picked, Batch) and picked.x.tolist() == ids.tolist() and picked.y.tolist() == offsets.tolist()


def test_plain_dataset_is_read_once():
    ids = torch.arange(40).view(20, 2)
    opened = source.open_source(TensorDataset(ids, ids[:, 0]))
    samples = np.arange(10, 15)
    picked = batch_rows.SourcePicker(opened).pick(Batch(*opened.fetch(samples)), samples, PLACES, jagged=False)
    assert picked.x.tolist() == ids[[14, 10, 12]].tolist() and picked.y.tolist() == ids[[14, 10, 12], 0].tolist()
