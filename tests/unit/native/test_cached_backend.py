"""Groups with caches, run by real schedules, equal groups without caches bit for bit."""

import contextlib
import gc

import numpy as np
import pytest

from springtide import _native, errors
from springtide.domain.model.tables import Init, OptimSpec, TableSpec
from springtide.embedding.lookup.table_client import TableClient, native_spec
from springtide.server.server import ServerRole

SECRET, SLOTS, IMAGE = b"secret", 64, 0x8000
OPTIMIZERS = {
    "sgd": OptimSpec(kind="sgd"),
    "momentum": OptimSpec(kind="sgd", momentum=0.9),
    "adagrad": OptimSpec(kind="adagrad", initial_accumulator=0.1),
    "rowwise_adagrad": OptimSpec(kind="rowwise_adagrad"),
    "adam": OptimSpec(kind="adam"),
}


class World:
    """Servers and ranks of one bsp group, with caches or without."""

    def __init__(self, stack, optim, *, servers, ranks, cached):
        self.cached = cached
        self.specs = [
            TableSpec(id=table, name=f"t{table}", dim=dim, init=Init(kind="uniform", a=-1.0, b=1.0), optim=optim)
            for table, dim in enumerate([4, 7, 4])
        ]
        owners = [slot % servers for slot in range(SLOTS)]
        self.servers = [
            stack.enter_context(ServerRole(index=index, slots=SLOTS, seed=3, workers=ranks, secret=SECRET))
            for index in range(servers)
        ]
        for server in self.servers:
            server.set_owners(1, owners)
        addresses = [(host, int(port)) for host, _, port in (server.address.rpartition(":") for server in self.servers)]
        self.clients, self.inner, self.parts = [], [], []
        for rank in range(ranks):
            client = TableClient.connect(addresses, secret=SECRET, placement=owners, rank=rank)
            self.inner.append(client.backend)
            if cached:
                client = TableClient(_native.CachedBackend(client.backend))
            client.declare(self.specs)
            if cached:
                client.backend.cache_tables([spec.id for spec in self.specs])
            self.clients.append(client)
        stack.callback(self.close)

    def close(self):
        self.parts.clear()
        self.clients.clear()
        self.inner.clear()
        gc.collect()

    def pull(self, keys, step):
        """Rows that each rank reads for its keys: (table, key) in one array."""
        self.parts = []
        for client, own in zip(self.clients, keys, strict=True):
            part = client.dense(own[:, 0], own[:, 1], np.array([self.specs[table].dim for table in own[:, 0]]))
            client.pull([part], after_step=step - 1)
            self.parts.append(part)
        return [part.rows().copy() for part in self.parts]

    def push(self, gradients, step):
        hyper = [(spec.id, 0.1, 0.01, 0) for spec in self.specs]
        for rank, (part, gradient) in enumerate(zip(self.parts, gradients, strict=True)):
            part.grads()[:] = gradient
            if self.cached:
                for peer, floats in self.clients[rank].backend.gradient_sends(step, [part]):
                    self.clients[peer].backend.gradients_received(step, rank, floats)
        for client, part in zip(self.clients, self.parts, strict=True):
            client.push([part], step=step, bsp=True, hyper=hyper, clock=step).wait()
        for backend in self.inner:
            assert backend.step_complete(step, 10.0)
            backend.apply_step(step).wait()

    def state(self, keys):
        """All that the servers keep of these (table, key) pairs, and how many rows they have."""
        tables, out = (keys[:, 0] | IMAGE).astype(np.uint16), []
        owner = [self.servers[0].store.slot_of(int(table), np.array([key]))[0] for table, key in keys]
        for index, server in enumerate(self.servers):
            mine = np.array([slot % len(self.servers) == index for slot in owner])
            rows = np.empty(server.store.row_floats(tables[mine]), dtype=np.float32)
            server.store.pull(tables[mine], keys[mine, 1].copy(), rows)
            out += [rows, np.array([server.store.rows()], dtype=np.float32)]
        return np.concatenate(out).view(np.uint32)


def batch_of(random, samples, key_space):
    """Features of a batch: two that share a table, one with bags."""
    ids = [np.minimum(*random.integers(key_space, size=(2, samples))).astype(np.int64) for _ in range(2)]
    lengths = random.integers(0, 4, size=samples)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    bags = random.integers(key_space, size=offsets[-1]).astype(np.int64)
    more = random.integers(key_space, size=samples).astype(np.int64)
    return [(0, ids[0], None), (1, ids[1], None), (2, bags, offsets), (0, more, None)]


def keys_of(features, rank_of_sample, rank):
    """The unique (table, key) pairs of a rank's samples."""
    mine, pairs = rank_of_sample == rank, []
    for table, ids, offsets in features:
        sample = np.arange(len(ids)) if offsets is None else np.repeat(np.arange(len(mine)), np.diff(offsets))
        own = ids[mine[sample]]
        pairs.append(np.stack([np.full_like(own, table), own], axis=1))
    return np.unique(np.concatenate(pairs), axis=0)


def train(optim, *, servers, ranks, capacity, p2p, seed, steps, key_space=120):
    """Both groups through the same batches, and through every kind of step: known next batch or not, flush or not."""
    random = np.random.default_rng(seed)
    all_keys = np.array([(table, key) for table in range(3) for key in range(key_space)])
    scheduler = _native.Scheduler(workers=ranks, capacity_rows=capacity, seed=seed, p2p=p2p, policy="laia")
    with contextlib.ExitStack() as stack:
        plain = World(stack, optim, servers=servers, ranks=ranks, cached=False)
        cached = World(stack, optim, servers=servers, ranks=ranks, cached=True)
        caches = [client.backend for client in cached.clients]

        def schedule(step):
            features = batch_of(random, 8 * ranks, key_space)
            scheduled = scheduler.schedule(features, 8 * ranks)
            for cache, plan in zip(caches, scheduled.plans, strict=True):
                cache.set_plan(step, plan)
            return [keys_of(features, np.asarray(scheduled.rank_of_sample), rank) for rank in range(ranks)]

        keys = schedule(1)
        for step in range(1, steps + 1):
            for a, b in zip(plain.pull(keys, step), cached.pull(keys, step), strict=True):
                assert np.array_equal(a.view(np.uint32), b.view(np.uint32)), f"step {step}: other values are read"
            known, flush = random.random() < 0.9 and step < steps, random.random() < 0.1
            following = schedule(step + 1) if known else None
            gradients = [random.normal(size=part.grads().shape).astype(np.float32) for part in plain.parts]
            if flush:
                for cache in caches:
                    cache.flush_next()
            plain.push(gradients, step)
            cached.push(gradients, step)
            if flush or not known:
                scheduler.flushed(step)
                assert np.array_equal(plain.state(all_keys), cached.state(all_keys)), f"step {step}: other rows"
                assert all(cache.stats()["dirty_rows"] == 0 for cache in caches)
            keys = following if following is not None else schedule(step + 1)
            for rank, cache in enumerate(caches):
                for peer, floats in cache.sends(step + 1):
                    caches[peer].received(step + 1, rank, floats)
        stats = [cache.stats() for cache in caches]
        caches.clear()
        return {name: sum(one[name] for one in stats) for name in stats[0]}


@pytest.mark.parametrize(
    "optimizer, servers, ranks, capacity, p2p",
    [("adam", 2, 3, 40, "rows"), ("adagrad", 1, 2, 1, "off"), ("momentum", 3, 4, 10_000, "gradients")],
)
def test_cached_group_reads_and_leaves_the_same_bits(optimizer, servers, ranks, capacity, p2p):
    stats = train(OPTIMIZERS[optimizer], servers=servers, ranks=ranks, capacity=capacity, p2p=p2p, seed=5, steps=15)
    assert stats["trained_rows"] and stats["pushed_images"] and bool(stats["pushed_gradients"]) == (p2p != "gradients")
    assert bool(stats["sent_rows"]) == (p2p != "off") and stats["sent_rows"] == stats["received_rows"]
    assert capacity == 1 or stats["hits"]


@pytest.mark.soak
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ranks, servers", [(1, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("capacity", [1, 30, 10_000])
@pytest.mark.parametrize("p2p", ["off", "rows", "gradients"])
def test_cached_and_uncached_training_are_identical_over_500_steps(optimizer, ranks, servers, capacity, p2p):
    seed = 1000 * ranks + 100 * servers + len(p2p) + capacity
    train(
        OPTIMIZERS[optimizer],
        servers=servers,
        ranks=ranks,
        capacity=capacity,
        p2p=p2p,
        seed=seed,
        steps=500,
    )


def test_cached_backend_reports_cacheable_tables_and_row_size():
    client = TableClient.local(slots=SLOTS)
    cache = _native.CachedBackend(client.backend)
    aging = TableSpec(id=1, name="aging", dim=4, ttl=10)
    adam = TableSpec(id=2, name="adam", dim=4, optim=OPTIMIZERS["adam"])
    sgd = TableSpec(id=3, name="sgd", dim=4)
    assert [_native.CachedBackend.cacheable(native_spec(spec)) for spec in (aging, adam, sgd)] == [False, True, True]
    cache.declare([native_spec(spec) for spec in (aging, adam, sgd)])
    with pytest.raises(errors.BadInput, match="'aging' cannot be cached: its rows age"):
        cache.cache_tables([1])
    cache.cache_tables([2, 3])
    assert cache.image_bytes(2) - cache.image_bytes(3) == (2 * 4 + 1) * 4
    assert cache.inner is client.backend
    assert cache.stats()["rows"] == 0


def test_copies_are_used_within_the_staleness_bound():
    direct = TableClient.local(slots=SLOTS)
    cached = TableClient(_native.VersionedBackend(direct.backend, capacity_bytes=1 << 20, staleness=2))
    for client in (cached, direct):
        client.declare([TableSpec(id=0, name="items", dim=3)])
    cached.backend.cache_tables([0])
    part = direct.dense(0, [7], 3)

    def read():
        rows = cached.dense(0, [7], 3)
        cached.pull([rows])
        return rows.rows()[0]

    seen = [read()]
    for step in range(1, 6):
        part.grads()[:] = -1.0
        direct.push([part], step=step, hyper=[(0, 1.0, 0.0, 0)]).wait()
        seen.append(read())
    assert seen == [0.0, 0.0, 0.0, 3.0, 3.0, 3.0]
    stats = cached.backend.stats()
    assert {name: stats[name] for name in ("hits", "misses", "stale", "staleness_max", "staleness_sum")} == {
        "hits": 4,
        "misses": 1,
        "stale": 1,
        "staleness_max": 2,
        "staleness_sum": 6,
    }
