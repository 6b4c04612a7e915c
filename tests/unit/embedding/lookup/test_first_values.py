"""First values of tables are applied once; a late sender changes nothing."""

import numpy as np
import pytest

from springtide.domain.core.roles import Placement
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.server.server import ServerRole

SECRET, SLOTS = b"secret", 64
OWNERS = Placement(epoch=1, servers=1, server_of_slot=(0,) * SLOTS)
ITEMS = TableSpec(id=3, name="items", dim=1, capacity_rows=SLOTS)
FIRST, LATER = np.arange(1000, dtype=np.int64), np.arange(1000, 3000, dtype=np.int64)


@pytest.fixture
def two_servers():
    """Two servers; the first one has all slots."""
    roles = [ServerRole(index=index, slots=SLOTS, seed=1, workers=1, secret=SECRET) for index in (0, 1)]
    for role in roles:
        role.start()
        role.set_owners(1, OWNERS.server_of_slot)
    yield roles
    while roles:
        roles.pop().stop(0)


def connect(role, **options):
    host, _, port = role.address.rpartition(":")
    client = TableClient.connect(
        [(host, int(port))], secret=SECRET, placement=OWNERS.server_of_slot, epoch=1, **options
    )
    client.declare([ITEMS])
    return client


def send_first_values(client, keys=FIRST):
    client.assign("items", keys, np.full((len(keys), 1), 5.0, np.float32), keep=True)


def train(client):
    """Train ids without first values: the table is full, so first-value rows are evicted."""
    part = client.dense(ITEMS.id, LATER, 1)
    part.grads()[:] = -1.0
    client.push([part], step=1, clock=1, hyper=[(ITEMS.id, 1.0, 0.0, 0)], batches=[(0, 0, 0, 8)]).wait()


def rows_of(client):
    return [array.tolist() for array in client.scan("items")]


def complete_and_train(client):
    """Send all first values in place of a suspended sender, then train; return the rows."""
    send_first_values(client)
    client.finish_first_values([ITEMS.id])
    train(client)
    rows = rows_of(client)
    assert rows[0] and min(rows[0]) >= LATER[0]
    return rows


def test_late_first_values_evict_no_trained_row_of_a_full_table(two_servers):
    client, zombie = connect(two_servers[0]), connect(two_servers[0], rank=1)
    send_first_values(zombie, FIRST[:100])
    rows = complete_and_train(client)
    send_first_values(zombie)
    zombie.finish_first_values([ITEMS.id])
    assert rows_of(client) == rows
    del zombie, client


def test_moved_slots_remember_that_first_values_are_complete(two_servers):
    client, zombie = connect(two_servers[0]), connect(two_servers[0], rank=1)
    rows = complete_and_train(client)
    two_servers[0].hand_over(range(SLOTS), 1, two_servers[1].address)
    send_first_values(zombie)
    assert rows_of(client) == rows
    del zombie, client


def test_restored_slots_remember_that_first_values_are_complete(two_servers):
    client = connect(two_servers[0])
    rows = complete_and_train(client)
    with ServerRole(index=0, slots=SLOTS, seed=1, workers=1, secret=SECRET) as next_life:
        next_life.set_owners(1, OWNERS.server_of_slot)
        zombie = connect(next_life, rank=1)
        for slot in range(SLOTS):
            next_life.store.import_slot(two_servers[0].store.export_slot(slot, 0))
        send_first_values(zombie)
        assert rows_of(zombie) == rows
        del zombie
    del client, next_life


def test_completed_first_values_of_one_table_do_not_affect_another(two_servers):
    client = connect(two_servers[0])
    client.finish_first_values([ITEMS.id - 1, ITEMS.id + 1])
    send_first_values(client, FIRST[:10])
    assert rows_of(client)[0]
    del client


def test_successor_sends_the_first_values_its_predecessor_did_not(two_servers):
    client, lost = connect(two_servers[0]), connect(two_servers[0], rank=1)
    table = TableSpec(id=4, name="large", dim=1)
    for one in (client, lost):
        one.declare([table])
    lost.assign("large", FIRST[:300], np.full((300, 1), 7.0, np.float32), keep=True)
    client.assign("large", FIRST, np.full((len(FIRST), 1), 5.0, np.float32), keep=True)
    client.finish_first_values([table.id])
    assert client.read("large", FIRST).ravel().tolist() == [7.0] * 300 + [5.0] * 700
    del lost, client
