"""Assign the ids of a batch's lookup calls to their samples."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.modules import convert
from springtide.embedding.modules.modules import EmbeddingBags
from springtide.embedding.schedule import scheduler


def ids_of(module, *inputs, samples):
    client = TableClient.local()
    lookups = Lookups(client)
    model = nn.ModuleList([module])
    convert.convert(model, lookups)
    found = scheduler.features_of([model[0].call(*inputs)], samples)
    return found and [by_sample(one, samples) for one in found]


def by_sample(one, samples):
    offsets = np.arange(samples + 1) if one.offsets is None else one.offsets
    return [one.ids[begin:end].tolist() for begin, end in itertools.pairwise(offsets)]


def test_single_ids_and_tensor_columns_are_assigned_to_samples():
    ids = torch.tensor([[1, 2], [3, 4], [5, 6]])
    assert ids_of(nn.Embedding(10, 2), ids[:, 1], samples=3) == [[[2], [4], [6]]]
    assert ids_of(EmbeddingBags([2, 2]), ids, samples=3) == [[[1], [3], [5]], [[2], [4], [6]]]


def test_equal_length_bags_and_sequences_are_assigned_to_samples():
    ids = torch.arange(6).view(3, 2)
    assert ids_of(nn.EmbeddingBag(10, 2, mode="sum"), ids, samples=3) == [[[0, 1], [2, 3], [4, 5]]]
    assert ids_of(nn.Embedding(10, 2), ids.int(), samples=3) == [[[0, 1], [2, 3], [4, 5]]]


@pytest.mark.parametrize("closed", [False, True])
def test_offset_bags_including_empty_ones_are_assigned_to_samples(closed):
    module = nn.EmbeddingBag(10, 2, mode="sum", include_last_offset=closed)
    offsets = torch.tensor([0, 2, 2, *([5] if closed else [])])
    assert ids_of(module, torch.tensor([7, 8, 1, 1, 2]), offsets, samples=3) == [[[7, 8], [], [1, 1, 2]]]


def test_bag_padding_belongs_to_no_sample_and_embedding_padding_is_read():
    ids = torch.tensor([[0, 1], [0, 0], [2, 0]])
    assert ids_of(nn.EmbeddingBag(10, 2, mode="sum", padding_idx=0), ids, samples=3) == [[[1], [], [2]]]
    assert ids_of(nn.Embedding(10, 2, padding_idx=0), ids, samples=3) == [[[0, 1], [0, 0], [2, 0]]]


def test_ids_without_a_sample_mapping_are_reported():
    assert ids_of(nn.Embedding(10, 2), torch.arange(6).view(2, 3), samples=3) is None, "step by step, not by sample"
    assert ids_of(nn.Embedding(10, 2), torch.arange(7), samples=3) is None
    module = nn.EmbeddingBag(10, 2, mode="sum")
    assert ids_of(module, torch.arange(7), torch.tensor([0, 2]), samples=3) is None
