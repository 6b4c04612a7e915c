"""For every kind of dataset a batch name means the same samples, and all come once."""

import random

import numpy as np
import pytest
import torch
from torch.utils import data

from springtide.data import source
from springtide.data.files.dataset import read_parquet
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import DatasetCard
from springtide.worker.input import batch_plan, feeds, lease_prefetch
from tests.oracles import ledger_invariants
from tests.unit.worker.input.test_iterable import Worker

SAMPLES, BATCH = 230, 4


class Listed(data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, index


def mapped(folder):
    return Listed(), lambda batch: batch.x.tolist()


def tensors(folder):
    return data.TensorDataset(torch.arange(SAMPLES), torch.zeros(SAMPLES)), lambda batch: batch.x.tolist()


def columns(folder):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"click": np.zeros(SAMPLES), "n": np.arange(SAMPLES, dtype=np.float32)})
    parquet.write_table(table, folder / "log.parquet", row_group_size=33)
    read = read_parquet(folder / "log.parquet", label="click", floats=["n"], shuffle_groups=2)
    return read, lambda batch: batch.x["n"].int().tolist()


@pytest.mark.parametrize("kind", [mapped, tensors, columns])
@pytest.mark.parametrize("seed", range(3))
def test_every_sample_is_trained_once_though_workers_die(tmp_path, kind, seed):
    dataset, samples_of = kind(tmp_path)
    opened = source.open_source(dataset, batch_size=BATCH)
    card = DatasetCard(samples=SAMPLES, batch_size=BATCH, shard_batches=4, seed=seed)
    book, chance, names = JobLedger(workers=3), random.Random(seed), {}
    lives, reading = dict.fromkeys(range(3), 0), {}

    def born(rank):
        worker = Worker(book, rank)
        worker.holder = LeaseHolder(rank, lives[rank])
        leases = lease_prefetch.DirectLeases(worker.lease)
        wanted = batch_plan.leased(leases, worker.tracker, card, groups=opened.groups)
        reading[rank] = worker, feeds.read(opened, wanted, worker.tracker)

    for rank in lives:
        born(rank)
    while reading:
        rank = chance.choice(list(reading))
        worker, feed = reading[rank]
        handed = next(feed, None)
        if handed is None:
            del reading[rank]
        elif handed is not batch_plan.PAUSED:
            (name,) = handed.order.ranges
            assert names.setdefault(name, samples_of(handed.batch)) == samples_of(handed.batch)
            worker.tracker.acknowledge([handed.order.claim])
        if chance.random() < 0.03:  # what it had not reported is trained again, under the same name
            book.fence(rank, lives[rank])
            lives[rank] += 1
            born(rank)
        ledger_invariants.check(book)
    assert sorted(n for samples in names.values() for n in samples) == list(range(SAMPLES)), f"seed {seed}"
