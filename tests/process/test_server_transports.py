"""TCP and shared memory give bit-identical rows; bsp sums equal NumPy's bit for bit."""

import numpy as np
import pytest

from springtide import errors
from tests.process.serving import HYPER, ITEMS, USERS, serving

pytestmark = pytest.mark.process


def parts_of(client, rng, count):
    keys = rng.choice(2**40, size=count, replace=False).astype(np.int64) - 2**39
    return [client.dense(spec.id, keys, spec.dim) for spec in (ITEMS, USERS)]


@pytest.mark.parametrize("servers", [1, 3])
def test_tcp_and_shared_memory_give_the_same_rows(servers, seed):
    with serving(servers=servers) as served:
        clients = [served.client(shared_memory=shared) for shared in (False, True)]
        assert [client.stats()["transports"] for client in clients] == [["tcp"] * servers, ["shm"] * servers]
        for turn in range(3):
            both = [parts_of(client, np.random.default_rng(seed + turn), 3000) for client in clients]
            for client, parts in zip(clients, both, strict=True):
                client.pull(parts)
            tcp, shm = ([part.rows().copy() for part in parts] for parts in both)
            assert all(np.array_equal(a, b) for a, b in zip(tcp, shm, strict=True))
            grads = [np.random.default_rng(turn).normal(size=part.grads().shape).astype(np.float32) for part in both[0]]
            pusher = turn % 2
            for part, grad in zip(both[pusher], grads, strict=True):
                part.grads()[:] = grad
            clients[pusher].push(both[pusher], step=turn, hyper=HYPER, batches=[(0, 0, turn, 1)]).wait()
            for client, parts in zip(clients, both, strict=True):
                client.pull(parts)
            for part, before, grad in zip([*both[0], *both[1]], [*tcp, *shm], [*grads, *grads], strict=True):
                assert np.array_equal(part.rows(), before - grad)
        del clients, both, part, parts, client


def test_bsp_servers_sum_in_rank_order_bit_for_bit(rng):
    ranks = 4
    with serving(servers=2, workers=ranks) as served:
        clients = [served.client(rank=rank, shared_memory=rank % 2 == 0) for rank in range(ranks)]
        keys = np.arange(500, dtype=np.int64)
        parts = [client.dense(ITEMS.id, keys, ITEMS.dim) for client in clients]
        clients[0].pull(parts[:1])
        expected = parts[0].rows().copy()
        for step in range(1, 4):
            grads = (rng.normal(size=(ranks, expected.size)) * 10.0 ** rng.integers(-6, 6, (ranks, 1))).astype(
                np.float32
            )
            pending = []
            for rank in rng.permutation(ranks):
                parts[rank].grads()[:] = grads[rank]
                pending.append(clients[rank].push([parts[rank]], step=step, bsp=True, hyper=HYPER))
            total = grads[0]
            for rank in range(1, ranks):
                total = total + grads[rank]
            expected = expected - total
            for push in pending:
                push.wait()
            for client, part in zip(clients, parts, strict=True):
                client.pull([part], after_step=step)
                assert np.array_equal(part.rows(), expected)
        del clients, parts, part, client, push, pending


def test_scan_returns_all_rows_of_all_servers():
    with serving(servers=3) as served:
        client = served.client()
        keys = np.arange(-500, 500, dtype=np.int64)
        rows = np.arange(4000, dtype=np.float32).reshape(1000, 4)
        client.assign("items", keys, rows)
        found, read = client.scan("items")
        assert np.array_equal(found, keys)
        assert np.array_equal(read, rows)
        assert len(client.scan("users")[0]) == 0
        del client


def test_invalid_request_is_reported_and_the_connection_survives():
    with serving() as served:
        client = served.client()
        part = client.dense(7, np.arange(3, dtype=np.int64), 4)
        client.pull([part])
        with pytest.raises(errors.BadInput, match="table 7 was never declared"):
            part.wait()
        good = client.dense(ITEMS.id, np.arange(3, dtype=np.int64), ITEMS.dim)
        client.pull([good])
        good.wait()
        del part, good, client
