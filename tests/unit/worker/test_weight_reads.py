"""`table.weight` in a job: within a pass and after it, alone, on servers, async, bsp and with a cache."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import springtide as st
from springtide import errors
from springtide.domain.model import cache_rules
from tests.unit.worker.ranks import Group

ROWS, BATCH = 300, 8
IDS = torch.from_numpy(np.random.default_rng(5).zipf(1.2, (96, 2)) % ROWS)
KEPT, AUTO = (
    cache_rules.rules(size, allocation=None, staleness=None, base=cache_rules.OFF) for size in ("100%", "auto")
)
DATA = torch.utils.data.TensorDataset(IDS)


class Counter(nn.Module):
    """Each row holds how often its id was trained: SGD at rate 1, a gradient of -1 an occurrence."""

    def __init__(self):
        super().__init__()
        self.seen, self.twice = nn.EmbeddingBag(ROWS, 2, mode="sum"), nn.Embedding(ROWS, 1)
        nn.init.zeros_(self.seen.weight)
        nn.init.zeros_(self.twice.weight)

    def forward(self, ids):
        return -(self.seen(ids).sum() + 2 * self.twice(ids).sum()) * BATCH / len(ids)


def count_ids(ids):
    return torch.bincount(ids.reshape(-1), minlength=ROWS).float()


def count(job, *, flush=False, read=True, **how):
    """Train and check after every step that the weights equal the counts so far, in all 300 rows."""
    model = Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, batches = job.prepare(model, optimizer, DATA, batch_size=BATCH, shuffle=False, **how)
    done = 0
    for (ids,) in batches:
        optimizer.zero_grad()
        model(ids).backward()
        optimizer.step()
        done += BATCH
        if flush:
            job.flush()
        if read:
            assert_counted(model, IDS[:done])
    assert_counted(model, IDS)
    return model


def assert_counted(model, ids):
    with torch.no_grad():
        torch.testing.assert_close(torch.ones(1, 2) @ model.seen.weight.T, 2 * count_ids(ids)[None])
    torch.testing.assert_close(model.twice.weight.data[:, 0], 2 * count_ids(ids))


def test_single_worker_reads_the_whole_weight_after_every_step():
    count(st.join())


@pytest.mark.parametrize("servers", [1, 3])
def test_async_worker_reads_a_weight_with_its_own_last_step(served_job, servers):
    count(served_job(servers))


def test_async_worker_with_a_row_cache_reads_weights_from_servers(served_job):
    count(served_job(2), cache="100%")


def test_async_worker_with_bounded_staleness_reads_the_whole_weight(served_job):
    count(served_job(2), max_staleness=0)


def test_ranks_read_the_whole_weight_after_every_step():
    with Group(2, servers=2) as group:
        for model in group.run(count):
            assert sum(one.numel() for one in model.parameters()) == 3 * ROWS


def test_ranks_with_a_cache_read_the_whole_weight_after_a_flush_and_the_pass():
    for flush in (True, False):
        with Group(2, servers=2, rules=KEPT) as group:
            group.run(lambda job, flush=flush: count(job, flush=flush, read=flush))


def test_rank_with_unflushed_rows_refuses_to_read_a_weight():
    with (
        Group(2, servers=2, rules=KEPT) as group,
        pytest.raises(errors.BadInput, match=r"Call job\.flush\(\) on every"),
    ):
        group.run(count)


class Tied(nn.Module):
    """Next-item prediction, the output layer being the table itself, as in SASRec."""

    def __init__(self):
        super().__init__()
        self.item, self.dense = nn.Embedding(ROWS, 4), nn.Linear(4, 4)

    def forward(self, ids):
        return self.dense(self.item(ids)) @ self.item.weight.T


def train_tied(model, optimizer, batches):
    for (ids,) in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(ids[:, 0]), ids[:, 1]).backward()
        optimizer.step()
    return model.state_dict()


FIRST = Tied()


def tied():
    model = copy.deepcopy(FIRST)
    return model, torch.optim.Adagrad(model.parameters(), lr=0.1)


def train_in_job(job, **how):
    return train_tied(*job.prepare(*tied(), DATA, batch_size=BATCH, shuffle=False, **how))


@pytest.fixture(scope="module")
def plain():
    return train_tied(*tied(), torch.utils.data.DataLoader(DATA, batch_size=BATCH))


def assert_same(state, plain):
    for name, value in plain.items():
        torch.testing.assert_close(state[name], value, atol=1e-5, rtol=1e-4)


def test_tied_output_layer_of_a_single_worker_equals_plain_pytorch(plain):
    assert_same(train_in_job(st.join()), plain)


def test_tied_output_layer_on_servers_equals_plain_pytorch(served_job, plain):
    assert_same(train_in_job(served_job(2), max_staleness=0), plain)


@pytest.mark.parametrize("rules", [cache_rules.OFF, AUTO, KEPT], ids=["off", "auto", "kept"])
def test_tied_output_layer_in_a_group_equals_plain_pytorch(plain, rules):
    with Group(2, servers=2, rules=rules) as group:
        for state in group.run(train_in_job):
            assert_same(state, plain)


def test_size_limit_for_whole_table_reads_is_a_setting(served_job):
    for job in (st.join(whole_table_bytes=100), served_job(1, whole_table_bytes=100)):
        model, _, _ = job.prepare(*tied(), DATA)
        with torch.no_grad(), pytest.raises(errors.BadInput, match=r"4800 bytes, more than whole_table_bytes=100"):
            copy.copy(model).item.weight.T.sum()


def test_meta_device_table_trains_in_a_group_without_optimizer_state():
    def work(job):
        model = nn.Sequential(nn.EmbeddingBag(ROWS, 4, device="meta"), nn.Linear(4, 1))
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        model, optimizer, batches = job.prepare(model, optimizer, DATA, batch_size=BATCH)
        for (ids,) in batches:
            optimizer.zero_grad()
            model(ids).mean().backward()
            optimizer.step()
        return model, optimizer

    with Group(2, servers=2) as group:
        for model, optimizer in group.run(work):
            assert model[0].weight not in optimizer.state and model[1].weight in optimizer.state
            assert torch.isfinite(model[0].weight.detach()).all()


def test_group_prepare_does_not_read_whole_tables():
    def work(job):
        model = nn.Sequential(nn.EmbeddingBag(ROWS, 4), nn.Linear(4, 1))
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), DATA, batch_size=BATCH)

    with Group(1, servers=2) as group:
        group.run(work)
        assert not any(server.stats()["pulled_keys"] for server in group._servers)
