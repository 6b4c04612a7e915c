"""Memory that a worker needs for served tables: none for a declared table, and no copy of a table that the script has
built."""

import copy
import pathlib

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import springtide as st
from springtide.worker.link.clients import SharedValues
from tests.unit.worker.ranks import Group

MB = 1_000_000


def status_bytes(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def model_of(rows, **options):
    return nn.Sequential(nn.EmbeddingBag(rows, 16, mode="sum", **options), nn.Linear(16, 1))


def train(job, model, rows):
    ids = torch.randint(0, rows, (200, 2))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    model, optimizer, batches = job.prepare(model, optimizer, torch.utils.data.TensorDataset(ids), batch_size=50)
    before, averaged = model(ids[:1]).item(), AveragedModel(model)
    for (x,) in batches:
        optimizer.zero_grad()
        (model(x).mean() - 5.0).square().backward()
        optimizer.step()
        averaged.update_parameters(model)
    assert copy.deepcopy(model)(ids[:1]).item() != before
    assert 0 not in optimizer.state_dict()["state"], "state of the table"


def growth_of_peak(work):
    """Return by how many bytes the memory of this process exceeds its present use while it does this work."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the earlier peak
    before = status_bytes("VmRSS")
    work()
    return status_bytes("VmHWM") - before


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "on a server"])
def test_peak_memory_of_a_worker_does_not_depend_on_declared_rows(served_job, alone):
    def work(rows):
        with st.serving():
            model = model_of(rows)
        train(st.join() if alone else served_job(), model, rows)

    work(1_000_000)
    assert growth_of_peak(lambda: work(500_000_000)) < 50 * MB, "a tenth of a byte for each row"


def test_worker_neither_copies_nor_keeps_a_table_that_another_worker_assigns(served_job, monkeypatch):
    monkeypatch.setattr(SharedValues, "once", lambda *_: None)
    model = model_of(1_000_000)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    before = status_bytes("VmRSS")
    data = torch.utils.data.TensorDataset(torch.zeros(4, 2, dtype=torch.int64))
    assert growth_of_peak(lambda: served_job().prepare(model, optimizer, data)) < 30 * MB
    assert before - status_bytes("VmRSS") > 100 * MB, "64 MB of weights, 64 MB of Adagrad's sums"


def test_rank_that_does_not_assign_tables_releases_them_when_the_group_has_formed():
    def work(job):
        model = model_of(100)
        data = torch.utils.data.TensorDataset(torch.zeros(4, 2, dtype=torch.int64))
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
        return model[0].springtide_binding.tables[0].initial

    with Group(2) as group:
        assert group.run(work) == [None, None]
