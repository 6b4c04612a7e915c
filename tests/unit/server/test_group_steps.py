"""bsp steps on two servers are applied on both or on neither, whenever a rank is lost."""

import contextlib

import numpy as np
import pytest

from springtide import errors
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.server.server import ServerRole

SECRET, SLOTS = b"secret", 64
KEYS = np.arange(40, dtype=np.int64)
OWNERS = [slot % 2 for slot in range(SLOTS)]


class Rank:
    """One rank's client, which can also push to one server only, as a rank lost during a push."""

    def __init__(self, addresses, rank, generation=0):
        self.clients = {
            name: TableClient.connect(
                addresses, secret=SECRET, placement=owners, rank=rank, generation=generation, shared_memory=False
            )
            for name, owners in {"all": OWNERS, 0: [0] * SLOTS, 1: [1] * SLOTS}.items()
        }
        for client in self.clients.values():
            client.declare([TableSpec(id=0, name="items", dim=1)])
        self.backend = self.clients["all"].backend
        self.parts = []

    def push(self, step, where="all"):
        client = self.clients[where]
        part = client.dense(0, KEYS if where == "all" else KEYS[self.owner == where], 1)
        part.grads()[:] = -1.0
        self.parts.append(part)
        client.push([part], step=step, bsp=True, hyper=[(0, 1.0, 0.0, 0)]).wait()

    def rows(self, after=0):
        part = self.clients["all"].dense(0, KEYS, 1)
        self.clients["all"].pull([part], after_step=after)
        part.wait()
        return part.rows().copy()


@pytest.fixture
def group():
    """Two servers, two ranks."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(ServerRole(index=index, slots=SLOTS, seed=1, workers=2, secret=SECRET))
            for index in range(2)
        ]
        for server in servers:
            server.set_owners(1, OWNERS)
        addresses = [(host, int(port)) for host, _, port in (server.address.rpartition(":") for server in servers)]
        ranks = [Rank(addresses, rank) for rank in range(2)]
        for rank in ranks:
            rank.owner = np.asarray(servers[0].store.slot_of(0, KEYS)) % 2
        yield servers, ranks, addresses
        for rank in ranks:
            rank.parts.clear()
            rank.clients.clear()
            del rank.backend
    servers.clear()
    del server


def applied(servers):
    return [server.counters()["applied_step"] for server in servers]


def test_step_is_applied_only_once_known_complete_on_all_servers(group):
    servers, (first, second), _ = group
    first.push(1)
    assert not first.backend.step_complete(1, 0.0)
    second.push(1)
    assert first.backend.step_complete(1, 10.0)
    assert applied(servers) == [0, 0] and not first.rows().any()
    first.backend.apply_step(1).wait()
    assert applied(servers) == [1, 1]
    assert (first.rows() == 2.0).all() and (second.rows(after=1) == 2.0).all()


def test_step_missing_a_part_on_one_server_is_dropped_and_redone(group):
    servers, (first, second), _ = group
    first.push(1)
    second.push(1, where=0)  # lost before it reached the other
    assert not first.backend.step_complete(1, 0.0)
    first.backend.set_generation(1)
    assert first.backend.regroup() == 0
    with pytest.raises(errors.GroupChanged, match="generation 0 is over"):
        second.push(1, where=1)  # a zombie comes too late
    first.backend.settle_group(0, 2)
    second.backend.set_generation(1)
    for rank in (second, first):
        rank.push(1)
    assert first.backend.step_complete(1, 10.0)
    first.backend.apply_step(1).wait()
    assert (first.rows() == 2.0).all() and applied(servers) == [1, 1]


def test_complete_step_applied_on_one_server_is_applied_on_all(group):
    servers, (first, second), _ = group
    for rank in (first, second):
        rank.push(1)
    second.clients[0].backend.apply_step(1).wait()  # then it was lost
    assert applied(servers) == [1, 0]
    first.backend.set_generation(1)
    assert first.backend.regroup() == 1
    first.backend.settle_group(1, 1)
    assert applied(servers) == [1, 1] and (first.rows() == 2.0).all()
    first.push(2)  # a group of one from now on
    assert first.backend.step_complete(2, 0.0)
    assert (first.rows(after=2) == 3.0).all()


def test_server_without_slots_joins_a_resting_group_after_its_step(group):
    servers, (first, _), _ = group
    first.backend.set_generation(1)
    first.backend.regroup()
    with pytest.raises(errors.SpringtideError, match="step 1 is to be applied: no part of rank 0, 1"):
        first.backend.settle_group(7, 1)  # it should have had them
    first.backend.settle_group(7, 1, at_rest=True)
    assert applied(servers) == [7, 7]
    first.push(8)
    assert first.backend.step_complete(8, 10.0)
    assert (first.rows(after=8) == 1.0).all()
