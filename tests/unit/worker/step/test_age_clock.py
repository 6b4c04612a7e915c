"""Rows keep aging when a worker starts on servers that have trained before."""

import pytest
import torch

from springtide.embedding.lookup.table_client import TableClient
from tests.unit.worker import clicks


@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_async_worker_counts_on_from_the_age_clock_of_its_servers(served_job, monkeypatch, sync):
    job = served_job(servers=2, sync=sync)
    job.stores[1].evict(50)  # sets the clock
    model, dataset = clicks.make(samples=40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = job.prepare(model, optimizer, dataset, batch_size=20, sync=sync)
    clocks, push = [], TableClient.push

    def push_noted(client, *parts, **named):
        clocks.append(named["clock"])
        return push(client, *parts, **named)

    monkeypatch.setattr(TableClient, "push", push_noted)
    clicks.train(model, optimizer, batches)
    assert clocks == ([51, 52] if sync == "async" else [1, 2]), "a bsp group restores its step count with the model"
