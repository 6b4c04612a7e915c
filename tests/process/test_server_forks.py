"""Data loaders that fork after the client connected: children do not use its connection."""

import multiprocessing

import numpy as np
import pytest
import torch.utils.data

from springtide import errors
from tests.process.serving import ITEMS, serving

pytestmark = pytest.mark.process

KEYS = np.arange(100, dtype=np.int64)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([index])


def read(client):
    return client.read("items", KEYS)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("shared_memory", [False, True])
def test_forking_dataloader_works_beside_a_connected_client(shared_memory):
    with serving() as served:
        client = served.client(shared_memory=shared_memory)
        before = read(client)
        part = client.dense(ITEMS.id, KEYS, ITEMS.dim)
        client.pull([part])  # under way while the loader forks
        loader = torch.utils.data.DataLoader(
            Numbers(), batch_size=8, num_workers=2, multiprocessing_context=multiprocessing.get_context("fork")
        )
        assert sorted(int(n) for batch in loader for n in batch) == list(range(64))
        assert np.array_equal(part.rows().reshape(before.shape), before)
        assert np.array_equal(read(client), before)
        assert client.stats()["pulls"] == 3
        del part, client


def in_child(client, answers):
    try:
        read(client)
    except errors.BadInput as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_may_not_use_the_parents_connection():
    with serving() as served:
        client = served.client()
        forked = multiprocessing.get_context("fork")
        answers = forked.SimpleQueue()
        child = forked.Process(target=in_child, args=(client, answers))
        child.start()
        assert "belong to process" in answers.get()
        child.join()
        assert child.exitcode == 0
        child.close()
        answers.close()
        assert len(read(client)) == len(KEYS)
        del client
