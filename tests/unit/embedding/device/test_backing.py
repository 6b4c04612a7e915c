"""Rows of an arena that is larger than device memory: every row is in one place, and no update is lost.

SPRINGTIDE_TEST_KERNELS=cuda runs Triton on a GPU, as in test_kernels.py.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.embedding.device import backing as backings
from springtide.embedding.device import kernel_registry, update_rules
from springtide.embedding.device.arena import Arena
from springtide.embedding.device.kernels import IdBatch
from tests.unit.embedding.device.test_kernels import DEVICE, OPTIMS, draw, kernels

ROWS, DIM = 60, 5


@pytest.fixture(autouse=True)
def same_kernels(monkeypatch):
    monkeypatch.setattr(kernel_registry, "of_device", lambda kind: kernels)


@pytest.fixture
def quick(monkeypatch):
    """Exchange rows after every step, in small windows."""
    monkeypatch.setattr(backings, "STEPS_AN_EXCHANGE", 1)
    monkeypatch.setattr(backings, "STEPS_A_HALVING", 5)
    monkeypatch.setattr(backings, "WINDOW", 7)
    monkeypatch.setattr(backings, "SHARE_EXCHANGED", 2)


def arenas(name, *, cells, dim=DIM, dtype="float32", rows=ROWS):
    """Return an arena with all rows in device memory, and an arena with so many cells, with the same rows."""
    made = [Arena(dim, getattr(torch, dtype), OPTIMS[name], DEVICE, tracks=True) for _ in range(2)]
    made[0].grow(rows)
    made[1].grow_backed(rows, cells)
    for arena in made:
        arena.assign(torch.arange(rows), draw(rows, dim).cpu())
        arena.changed.zero_()
    return made


def train(arena, ids, grads, *, step=1, bad=0.0, keep=False):
    """Look up these ids, train them, and return the rows that were looked up."""
    keys = (torch.as_tensor(ids, device=DEVICE) * 2).int()
    batch = IdBatch(keys, keys, (len(keys),), len(keys), 1)
    ordered = torch.sort(keys, stable=True)
    read, fetched = arena.fetch(keys, ordered.values)
    rows = kernels.pool(read, batch, arena.weights, None, mean=False, read_skipped=True, fetched=fetched)
    update = update_rules.prepare(arena.optim, 0.1 / step, 0.01, 0)
    marked, stored = torch.full((1,), bad, device=DEVICE), (arena.weights, arena.vectors, arena.number)
    sums = torch.zeros(len(keys), grads.shape[1], device=DEVICE)
    head = torch.cat([ordered.values.new_ones(1), ordered.values.diff()]) != 0
    sums[head] = grads[: int(head.sum())]
    kept = fetched if keep else None
    kernels.update(ordered.values, sums, *stored, update, marked, arena.changed, arena.backing, kept)
    arena.after_step()
    return rows


def assert_consistent(backing):
    """Every cell has one row, and that row knows its cell."""
    rows = backing.row_in[: backing.capacity].long()
    assert len(torch.unique(rows)) == backing.capacity
    assert torch.equal(backing.cells[rows], torch.arange(backing.capacity, dtype=torch.int32, device=DEVICE))
    assert int((backing.cells[:-1] < backing.capacity).sum()) == backing.capacity


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [3, 40, 64])
@pytest.mark.parametrize("name", OPTIMS)
def test_rows_train_to_the_same_bits_with_few_cells(quick, name, dim, dtype):
    whole, part = arenas(name, cells=9, dim=dim, dtype=dtype)
    for step in range(1, 12):
        generator = torch.Generator().manual_seed(step)
        ids, grads = (torch.rand(30, generator=generator).pow(3) * ROWS).long(), draw(30, dim, seed=step)
        assert torch.equal(train(whole, ids, grads, step=step), train(part, ids, grads, step=step, keep=step % 2))
        assert_consistent(part.backing)
    every = torch.arange(ROWS)
    assert whole.images(every).numpy().tobytes() == part.images(every).numpy().tobytes()
    assert torch.equal(whole.read(every), part.read(every)) and torch.equal(whole.changed, part.changed)


Steps = st.lists(
    st.tuples(
        st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=40), st.sampled_from(["train", "read", "assign"])
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(Steps, st.integers(1, ROWS - 1))
def test_any_history_of_steps_reads_and_writes_loses_no_row(history, cells):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backings, "STEPS_AN_EXCHANGE", 2)
        patch.setattr(backings, "STEPS_A_HALVING", 3)
        patch.setattr(backings, "WINDOW", 16)
        patch.setattr(backings, "SHARE_EXCHANGED", 1)
        whole, part = arenas("adagrad", cells=cells)
        for number, (ids, action) in enumerate(history):
            if action == "train":
                grads = draw(len(ids), DIM, seed=number)
                assert torch.equal(train(whole, ids, grads), train(part, ids, grads))
            elif action == "assign":
                places = torch.as_tensor(sorted(set(ids)))
                for arena in (whole, part):
                    arena.assign(places, draw(len(places), DIM, seed=number).cpu())
            else:
                assert torch.equal(whole.images(torch.as_tensor(ids)), part.images(torch.as_tensor(ids)))
            assert_consistent(part.backing)
        every = torch.arange(ROWS)
        assert torch.equal(whole.images(every), part.images(every)) and torch.equal(whole.changed, part.changed)


def test_frequent_rows_get_the_cells(quick):
    _, part = arenas("adagrad", cells=10)
    frequent = torch.arange(35, 45)
    for step in range(60):
        train(part, torch.cat([frequent, torch.tensor([step % 30])]), draw(11, DIM, seed=step))
    assert bool((part.backing.cells[frequent.to(DEVICE)] < 10).all())
    before = int(part.backing.missed)
    train(part, frequent, draw(10, DIM))
    assert int(part.backing.missed) == before
    train(part, [50, 50, 51], draw(3, DIM))
    assert int(part.backing.missed) == before + 3


def test_bad_gradient_changes_no_row(quick):
    _, part = arenas("adagrad", cells=10)
    before = part.images(torch.arange(ROWS))
    for _ in range(5):
        train(part, torch.arange(30), draw(30, DIM), bad=1.0)
    assert torch.equal(part.images(torch.arange(ROWS)), before) and not part.changed.any()


def test_images_load_into_both_memories():
    whole, part = arenas("adam", cells=10)
    train(whole, torch.arange(ROWS), draw(ROWS, DIM))
    images = whole.images(torch.arange(ROWS))
    part.load(0, images)
    assert torch.equal(part.images(torch.arange(ROWS)), images)
    keys = torch.tensor([2, 90, 3, 119], dtype=torch.int32, device=DEVICE)
    assert np.array_equal(part.rows_of(keys).cpu(), images[[1, 45, 1, 59], :DIM])
