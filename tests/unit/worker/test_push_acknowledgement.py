"""Progress is reported only for batches whose push every server has."""

import gc

import msgspec
import pytest
import torch

from springtide.embedding.lookup.table_client import TableClient
from tests.unit.worker import clicks
from tests.unit.worker.relay import Relay


class WaitedFor:
    """A push that reaches its servers only once it is waited for."""

    def __init__(self, pending, relays):
        self._pending, self._relays = pending, relays

    def wait(self):
        for relay in self._relays:
            relay.release()
        self._pending.wait()


@pytest.fixture
def relays():
    made = []
    yield made
    gc.collect()  # what the job has asked of its servers is answered before the way to them is closed
    for relay in made:
        relay.close()


@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_batch_is_acknowledged_only_when_all_servers_have_its_push(served_job, relays, monkeypatch, sync):
    job = served_job(servers=2, sync=sync, shared_memory=False)
    relays += [Relay(address) for address in job._link.join().servers]
    job._link._welcome = msgspec.structs.replace(job._link.join(), servers=tuple(relay.address for relay in relays))
    model, dataset = clicks.make(samples=20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # one batch a pass: nothing else is asked of the servers between its push and its acknowledgement
    model, optimizer, batches = job.prepare(model, optimizer, dataset, batch_size=20, sync=sync)
    push, had, before = TableClient.push, [], job.pushes()[0]

    def push_held(client, *parts, **named):
        for relay in relays:
            relay.hold()
        return WaitedFor(push(client, *parts, **named), relays)

    monkeypatch.setattr(TableClient, "push", push_held)
    acknowledge = job._link.leases.tracker.acknowledge
    monkeypatch.setattr(
        job._link.leases.tracker, "acknowledge", lambda claims: (had.append(job.pushes()), acknowledge(claims))
    )
    for _ in range(2):
        clicks.train(model, optimizer, batches)
    assert had == [[before + 1] * 2, [before + 2] * 2]
