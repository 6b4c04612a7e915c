"""Every system of `bench cache` trains the same model: each read sees all earlier trainings of its row."""

import concurrent.futures
import contextlib
import gc
import queue
import threading

import numpy as np
import pytest

from springtide.domain.model.tables import Init, OptimSpec, TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.server.server import ServerRole
from springtide_lab.bench.cache import cache, cache_systems
from springtide_lab.bench.core import jobs

RANKS, DIM, LR, STEPS = 2, 3, 0.5, 12
ROWS = (30, 12)


class Threads:
    """What gloo does, between threads."""

    def __init__(self):
        self.barrier = threading.Barrier(RANKS)
        self.parts, self.mail = {}, {(a, b): queue.Queue() for a in range(RANKS) for b in range(RANKS)}

    def member(self, rank):
        return Member(self, rank)


class Member:
    def __init__(self, all_of_them, rank):
        self.all, self.rank = all_of_them, rank

    def allreduce(self, tensors):
        self.all.parts[self.rank] = tensors[0].clone()
        self.all.barrier.wait()
        total = sum(self.all.parts[rank] for rank in range(RANKS))
        self.all.barrier.wait()
        tensors[0].copy_(total)
        return Done()

    def send(self, tensors, peer, tag):
        self.all.mail[self.rank, peer].put(tensors[0].clone())
        return Done()

    def recv(self, tensors, peer, tag):
        return Done(lambda: tensors[0].copy_(self.all.mail[peer, self.rank].get(timeout=10)))


class Done:
    def __init__(self, do=lambda: None):
        self.wait = do


def batches():
    random = np.random.default_rng(3)
    starts = np.array([0, ROWS[0]])
    return [np.minimum(*random.integers(0, ROWS, (2, 8, 2))) + starts for _ in range(STEPS + 1)], starts


def work(name, address, group, rank):
    """One rank: reads must be -LR times the count of all samples of the steps before."""
    made, starts = batches()
    client = TableClient.connect([address], secret=jobs.SECRET, placement=[0] * jobs.SLOTS, epoch=1, rank=rank)
    client.declare(
        TableSpec(id=at, name=f"t{at}", dim=DIM, init=Init(kind="zeros"), optim=OptimSpec(kind="sgd")) for at in (0, 1)
    )
    mine = cache_systems.Rank(
        rank=rank,
        workers=RANKS,
        client=client,
        group=group,
        batches=made,
        starts=starts,
        first_table=0,
        dim=DIM,
        lr=LR,
        capacity=12,
    )
    system = cache.SYSTEMS[name](mine)
    trained = np.zeros(sum(ROWS))
    for step in range(STEPS):
        number = step + 1
        own = made[step][system.samples(step)]
        rows, times = np.unique(own, return_counts=True)
        seen = system.read(step, number, rows).copy()
        assert (seen == -LR * trained[rows, None]).all(), f"{name}, step {step}: another version is read"
        grads = np.repeat(times[:, None], DIM, axis=1).astype(np.float32)
        system.write(step, number, rows, grads).wait()
        assert client.backend.step_complete(number, 10.0), "the other rank is gone"
        client.backend.apply_step(number).wait()
        trained += np.bincount(made[step].reshape(-1), minlength=sum(ROWS))
    del system, mine, client
    gc.collect()
    return trained.sum()


@pytest.mark.parametrize("name", cache.SYSTEMS)
def test_every_compared_system_reads_the_latest_version_of_every_row(name):
    with contextlib.ExitStack() as stack:
        role = stack.enter_context(ServerRole(index=0, slots=jobs.SLOTS, seed=0, workers=RANKS, secret=jobs.SECRET))
        role.place(jobs.placement(1))
        host, _, port = role.address.rpartition(":")
        group = Threads()
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(RANKS))
        futures = [pool.submit(work, name, (host, int(port)), group.member(rank), rank) for rank in range(RANKS)]
        assert [one.result(timeout=240) for one in futures] == [STEPS * 16, STEPS * 16]


def test_reason_why_a_network_cannot_be_created_is_given(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    assert cache.refusal() == "network namespaces need root"
    monkeypatch.setattr("shutil.which", lambda tool: None)
    assert "ip and tc" in cache.refusal()


def test_benchmark_without_permission_is_skipped_with_its_reason(monkeypatch):
    monkeypatch.setattr(cache, "refusal", lambda: "no root here")
    result = cache.bench(cache.Options(quick=True))
    assert [goal.why for goal in result.goals] == ["no root here"] * 3 and not any(goal.met for goal in result.goals)
