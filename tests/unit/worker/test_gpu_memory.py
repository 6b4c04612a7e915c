"""GPU out-of-memory errors say what used the memory and what to do."""

import gc

import pytest
import torch
from torch import nn

from springtide.worker import error_summary, gpu_memory

GIB = 1 << 30


class Rows:
    nbytes = 3 * GIB


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(gpu_memory, "_prepared", [])


def prepare_meta_model():
    """A model in non-CPU memory: 2 GiB each of parameters, gradients and momentum."""
    model, rows = nn.Linear(1 << 15, 1 << 14, bias=False, device="meta"), Rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.weight.grad = torch.empty_like(model.weight)
    optimizer.state[model.weight]["momentum_buffer"] = torch.empty_like(model.weight)
    gpu_memory.watch(model, [optimizer], rows)
    return model, optimizer, rows


def test_gpu_memory_report_separates_rows_dense_batch_and_other_processes():
    kept = prepare_meta_model()
    parts = gpu_memory.parts_of(allocated=20 * GIB, reserved=22 * GIB, free=8 * GIB, total=80 * GIB)
    assert (parts.rows, parts.dense, parts.batch) == (3 * GIB, 6 * GIB, 11 * GIB)
    assert (parts.cached, parts.others) == (2 * GIB, 50 * GIB)
    assert str(parts).startswith("of 80G on the GPU: 3G rows of tables and their optimizer state; 6G dense parameters,")
    assert "To need less, give this worker a GPU of its own" in str(parts)
    del kept


def test_gpu_memory_report_ignores_a_deleted_model():
    prepare_meta_model()
    gc.collect()
    parts = gpu_memory.parts_of(allocated=5 * GIB, reserved=5 * GIB, free=0, total=5 * GIB)
    assert (parts.rows, parts.dense, parts.batch) == (0, 0, 5 * GIB)
    assert "lower batch_size" in str(parts)


def test_gpu_out_of_memory_error_line_includes_the_memory_report(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 8 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 7 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 8 * GIB)
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. ...")
    said = error_summary.first_line(error, "/somewhere/train.py")
    assert said.startswith("OutOfMemoryError: no room for 2.00 GiB; of 8G on the GPU: 7G the batch (activations, and")
    assert "tensors of the script); 1G free" in said
    assert said.endswith("(train.py)")
    error_summary._show(type(error), error, None)
    assert "lower batch_size (accumulate=2 keeps the step)" in capsys.readouterr().err


def test_cpu_memory_error_line_is_unchanged():
    assert error_summary.first_line(MemoryError("x"), "/somewhere/train.py") == "MemoryError: x (train.py)"
