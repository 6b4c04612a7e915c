"""The server's Python shell: start, placement, counters, stop, and errors."""

import numpy as np
import pytest

from springtide import _native, errors
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.placement import placement
from springtide.server import server
from springtide.server.server import ServerRole

SECRET = b"secret"
SLOTS = 64
store = _native.Store


def role(**options):
    return ServerRole(**{"index": 0, "slots": SLOTS, "seed": 1, "workers": 1, "secret": SECRET, **options})


def connect(address, **options):
    host, _, port = address.rpartition(":")
    return TableClient.connect([(host, int(port))], secret=SECRET, placement=[0] * SLOTS, **options)


def test_port_in_use_is_named():
    with role() as first:
        port = int(first.address.rpartition(":")[2])
        with pytest.raises(errors.PortTaken, match=rf"127\.0\.0\.1:{port}"):
            role(port=port).start()


def test_invalid_host_is_named():
    with pytest.raises(errors.BadInput, match=r"no\.such\.host\.invalid"):
        role(host="no.such.host.invalid").start()


def test_server_without_a_secret_is_refused():
    with pytest.raises(errors.BadInput, match="secret"):
        role(secret=b"")


def test_unknown_limit_is_refused():
    with pytest.raises(AttributeError, match="stal_s"):
        role(stal_s=3)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (16, server.LOOKUP_THREADS)])
def test_request_threads_are_bounded_by_available_cores(monkeypatch, cores, threads):
    monkeypatch.setattr(server.usage.os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(server.usage.os, "cpu_count", lambda: 64)
    made = []
    monkeypatch.setattr(server._native, "Store", lambda **options: made.append(options) or store(**options))
    role()
    assert [options["threads"] for options in made] == [threads]


def test_server_counts_its_requests():
    with role() as server:
        client = connect(server.address)
        client.declare([TableSpec(id=0, name="items", dim=3)])
        client.read("items", np.arange(10))
        counted = server.counters()
        assert (counted["pulls"], counted["pulled_keys"], counted["accepted"]) == (1, 10, 2)
        assert counted["bytes_out"] >= 10 * 3 * 4
        assert client.stats()["lookup_ns"] == counted["lookup_ns"] > 0


def test_stopping_twice_is_harmless():
    server = role()
    server.start()
    server.stop()
    server.stop()


def test_keys_of_foreign_slots_are_refused_and_the_rest_applied():
    with role() as server:
        server.place(placement.even(SLOTS, 2))  # server 0 has the first half
        client = connect(server.address, reconnect_s=0.05)
        client.declare([TableSpec(id=0, name="items", dim=1)])
        keys = np.arange(100, dtype=np.int64)
        owned = np.asarray(server.store.slot_of(0, keys)) < SLOTS // 2
        assert 0 < owned.sum() < len(keys)
        with pytest.raises(errors.WrongOwner, match=r"does not own .* of the slots asked for"):
            client.read("items", keys)
        part = client.dense(0, keys, 1)
        part.grads()[:] = -1.0
        with pytest.raises(errors.WrongOwner, match="epoch 1, ours of 0"):
            client.push([part], step=1, hyper=[(0, 1.0, 0.0, 0)]).wait()
        assert server.counters()["wrong_owner_keys"] >= 2 * (~owned).sum()  # tried for a while
        assert np.array_equal(client.read("items", keys[owned]), np.ones((owned.sum(), 1), dtype=np.float32))
        del part


@pytest.mark.parametrize("owners", [[0] * 32, [0] * 128])
def test_placement_of_another_size_is_refused(owners):
    with role() as server, pytest.raises(errors.BadInput, match="for tables of 64"):
        server.set_owners(1, owners)


def test_placement_of_an_older_epoch_is_refused():
    with role() as server:
        server.set_owners(4, [0] * SLOTS)
        with pytest.raises(errors.BadInput, match="epoch 3 is older than 4"):
            server.set_owners(3, [0] * SLOTS)


def test_requests_of_an_older_generation_are_refused():
    with role(workers=2) as server:
        client = connect(server.address)
        client.declare([TableSpec(id=0, name="items", dim=1)])
        server.restart_group(generation=2, workers=2)
        with pytest.raises(errors.GroupChanged, match="generation 0 is over"):
            client.read("items", np.arange(3))
        again = connect(server.address, generation=2)
        again.declare([TableSpec(id=0, name="items", dim=1)])
        part = again.dense(0, np.arange(3), 1)
        again.pull([part])
        assert not part.rows().any()
        del part


def test_client_with_another_number_of_slots_is_refused():
    with role() as server:
        host, _, port = server.address.rpartition(":")
        with pytest.raises(errors.BadInput, match="64 slots, this client into 128"):
            TableClient.connect([(host, int(port))], secret=SECRET, placement=[0] * 128)


def test_nan_is_refused_by_the_server():
    with role() as server:
        client = connect(server.address)
        client.declare([TableSpec(id=0, name="items", dim=2)])
        part = client.dense(0, np.arange(3), 2)
        part.grads()[3] = np.nan
        with pytest.raises(errors.NonFiniteGradient, match=r"items|key 1"):
            client.push([part], step=1, hyper=[(0, 1.0, 0.0, 0)]).wait()
        assert server.counters()["rows"] == 0
        del part


@pytest.mark.parametrize("shared_memory", [True, False])
def test_staleness_counts_pushes_applied_since_the_rows_were_read(shared_memory):
    with role() as server:
        slow, quick = (connect(server.address, shared_memory=shared_memory) for _ in range(2))
        for client in (slow, quick):
            client.declare([TableSpec(id=0, name="items", dim=1)])

        def push(client, part, batch=None):
            part.grads()[:] = 1.0
            named = () if batch is None else [(0, 0, batch, 1)]
            client.push([part], step=1, hyper=[(0, 1.0, 0.0, 0)], batches=named).wait()

        lagging = slow.dense(0, np.arange(10), 1)
        slow.pull([lagging])
        lagging.wait()
        for batch in range(3):
            part = quick.dense(0, np.arange(4, 8), 1)
            quick.pull([part])
            push(quick, part, batch)
            push(quick, part, batch)  # a copy is skipped, and makes nobody's rows older
        assert server.counters()["staleness_max"] == 0
        push(slow, lagging)
        assert (server.counters()["staleness_max"], server.counters()["staleness_p50"]) == (3, 0)
        lagging.hold_basis()
        slow.pull([lagging])
        lagging.wait()  # new rows are here, but those of before are the ones in use
        push(slow, lagging)
        assert server.counters()["staleness_max"] == 4
        lagging.hold_basis()
        push(slow, lagging)
        assert server.counters()["staleness_max"] == 4
