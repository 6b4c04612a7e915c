"""Row kernels equal the native store bit for bit, and Triton equals plain torch.

SPRINGTIDE_TEST_KERNELS=cuda runs Triton on a GPU; =triton runs it on the CPU, with TRITON_INTERPRET=1.
"""

import os

import numpy as np
import pytest
import torch

from springtide import _native
from springtide.domain.model.tables import OptimSpec, TableSpec
from springtide.embedding.device import torch_kernels, update_rules
from springtide.embedding.device.arena import Arena
from springtide.embedding.device.kernels import BagGradients, IdBatch
from springtide.embedding.lookup.table_client import IMAGE, native_spec

CHOSEN = os.environ.get("SPRINGTIDE_TEST_KERNELS", "torch")
DEVICE = torch.device("cuda" if CHOSEN == "cuda" else "cpu")
if CHOSEN == "torch":
    kernels = torch_kernels
else:
    from springtide.embedding.device import triton_kernels as kernels

    torch.zeros(1, device=DEVICE)  # what CUDA opens for the whole process, it opens before a test is watched

OPTIMS = {
    "sgd": OptimSpec(),
    "momentum": OptimSpec(momentum=0.9),
    "nesterov": OptimSpec(momentum=0.9, nesterov=True),
    "dampened": OptimSpec(momentum=0.9, dampening=0.3),
    "adagrad": OptimSpec(kind="adagrad", eps=1e-10, initial_accumulator=0.1),
    "rowwise": OptimSpec(kind="rowwise_adagrad", eps=1e-10),
    "adam": OptimSpec(kind="adam"),
    "adamw": OptimSpec(kind="adam", decoupled_decay=True),
    "sparse_adam": OptimSpec(kind="adam", eps_outside=False),
    "rmsprop": OptimSpec(kind="rmsprop"),
    "ftrl": OptimSpec(kind="ftrl", l1=0.01, l2=0.1, initial_accumulator=0.1),
}
ROWS = 40


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def ids_of(count, *, rows=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, generator=generator).pow(4) * rows).long().to(DEVICE)


def batch_of(ids, *, per_bag=1, padding=-1, first=0):
    """Ids of one table, beginning at `first` places in the arena."""
    feature = [0, len(ids), per_bag, per_bag, 1, first, ROWS, padding, 0, 6]
    return IdBatch(ids, torch.tensor([feature], device=DEVICE), (len(ids),), len(ids) // per_bag, per_bag)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dim", [3, 16, 40, 64])
@pytest.mark.parametrize("name", OPTIMS)
def test_kernel_updates_equal_the_store_bit_for_bit(name, dim, dtype):
    spec = TableSpec(id=0, name="rows", dim=dim, dtype=dtype, optim=OPTIMS[name])
    store = _native.Store(slots=64, seed=0)
    store.declare(native_spec(spec))
    arena = Arena(dim, getattr(torch, dtype), OPTIMS[name], DEVICE, tracks=True)
    arena.grow(ROWS)
    every = np.arange(ROWS)
    table = np.zeros(ROWS, dtype=np.uint16)
    rows = draw(ROWS, dim)
    store.assign(table, every, rows.cpu().numpy().ravel())
    arena.assign(torch.arange(ROWS), rows)
    good = torch.zeros(1, device=DEVICE)
    arena.changed.zero_()
    trained = set()
    for step in range(1, 6):
        ids = torch.unique(ids_of(20, seed=step))
        grads = draw(len(ids), dim, seed=step)
        fixed = step if name == "sparse_adam" else 0
        hyper = _native.Hyper(lr=0.1 / step, weight_decay=0.01, step=fixed)
        store.push(table[: len(ids)], ids.cpu().numpy(), grads.cpu().numpy().ravel(), [(0, hyper)], unique=True)
        keys = torch.stack([ids * 2, ids * 2], 1).reshape(-1).int()  # every key twice: the second has no gradient
        padded = torch.stack([grads, torch.zeros_like(grads)], 1).reshape(-1, dim)
        update = update_rules.prepare(OPTIMS[name], 0.1 / step, 0.01, fixed)
        kernels.update(keys, padded, arena.weights, arena.vectors, arena.number, update, good, arena.changed)
        trained |= set(ids.tolist())
    assert set(arena.changed.nonzero().squeeze(1).tolist()) == trained
    images = np.empty(store.row_floats(table | IMAGE), dtype=np.float32)
    store.pull(table | IMAGE, every, images)
    images = images.reshape(ROWS, arena.image_floats)
    assert arena.images(torch.arange(ROWS, device=DEVICE)).numpy().tobytes() == images.tobytes()
    other = Arena(dim, getattr(torch, dtype), OPTIMS[name], DEVICE)
    other.load(other.grow(ROWS), torch.from_numpy(images))
    assert other.images(torch.arange(ROWS, device=DEVICE)).numpy().tobytes() == images.tobytes()


def test_bad_gradient_changes_no_row():
    arena = Arena(8, torch.float32, OPTIMS["adagrad"], DEVICE)
    arena.grow(ROWS)
    arena.assign(torch.arange(ROWS), draw(ROWS, 8))
    before = arena.weights.clone()
    bad = torch.ones(1, device=DEVICE)
    update = update_rules.prepare(OPTIMS["adagrad"], 0.1, 0.0, 0)
    kernels.update(
        torch.tensor([2, 4], dtype=torch.int32, device=DEVICE),
        draw(2, 8),
        arena.weights,
        arena.vectors,
        arena.number,
        update,
        bad,
    )
    assert torch.equal(before, arena.weights)


def test_keys_mark_padding_and_ids_outside_the_table():
    ids = torch.tensor([0, 39, 7, 40, -1, 7], device=DEVICE)
    status = torch.zeros(1, device=DEVICE)
    keys = kernels.keys(batch_of(ids[:3], padding=7, first=100), status)
    assert keys.tolist() == [200, 278, 215] and not status.any()
    keys = kernels.keys(batch_of(ids, padding=7, first=100), status)
    assert keys.tolist() == [200, 278, 215, 201, 201, 215] and status.item() == 7


def test_keys_of_strided_columns_follow_each_feature():
    ids = ids_of(30 * 4, rows=ROWS).view(30, 4).int()
    features = [[i, 30, 1, 4, 1, 1000 * i, ROWS, -1, 30 * n, n] for n, i in enumerate((3, 1))]
    batch = IdBatch(ids.view(-1), torch.tensor(features, device=DEVICE), (30, 30), 60, 1)
    keys = kernels.keys(batch, torch.zeros(1, device=DEVICE))
    assert torch.equal(keys.long(), torch.cat([2 * (ids[:, 3] + 3000), 2 * (ids[:, 1] + 1000)]).long())


def jagged(ids, ends):
    """Bags of uneven length; the ids after the last end belong to none."""
    begin = torch.tensor([0, *ends], device=DEVICE)
    batch = batch_of(ids)
    batch.bags, batch.begin = len(ends), begin
    at = torch.arange(len(ids), device=DEVICE)
    bag = torch.searchsorted(begin[:-1].contiguous(), at, right=True) - 1
    batch.bag_of = torch.where(at < ends[-1], bag, -1)
    return batch


BATCHES = {
    "one id": lambda: batch_of(ids_of(600)),
    "bags": lambda: batch_of(ids_of(600), per_bag=6, padding=1),
    "jagged": lambda: jagged(ids_of(600), [0, 5, 5, 90, 300, 590]),
}


@pytest.mark.parametrize("read_skipped", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dim", [3, 64])
@pytest.mark.parametrize("kind", BATCHES)
def test_pooling_equals_a_plain_loop(kind, dim, scaled, mean, read_skipped):
    batch = BATCHES[kind]()
    if batch.bag_of is not None and read_skipped:
        pytest.skip("only single rows read skipped ids")
    weights, scale = draw(ROWS, dim), draw(600, seed=1) if scaled else None
    keys = kernels.keys(batch, torch.zeros(1, device=DEVICE))
    out = kernels.pool(keys, batch, weights, scale, mean=mean, read_skipped=read_skipped)
    bags = torch_kernels.bags_of(batch).tolist()
    rows = weights.cpu().numpy()[(keys.long() >> 1).cpu().numpy()]
    rows = rows if scale is None else rows * scale.cpu().numpy()[:, None]
    expected, count = np.zeros((batch.bags, dim), np.float32), np.zeros(batch.bags, np.float32)
    for bag, row, key in zip(bags, rows, keys.tolist(), strict=True):
        if bag >= 0 and (read_skipped or key % 2 == 0):
            expected[bag] += row
            count[bag] += 1
    if mean:
        expected /= np.maximum(count, 1)[:, None]
    assert np.array_equal(out.cpu().numpy(), expected)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dim", [3, 64])
@pytest.mark.parametrize("kind", BATCHES)
def test_gradients_are_summed_by_row_in_batch_order(kind, dim, scaled, spread):
    batch = BATCHES[kind]()
    scale = draw(600, seed=1) if scaled else None
    values = draw(batch.bags, dim, seed=2)
    grads = BagGradients(values, batch.bags, 0, dim)
    if spread:  # two features side by side in rows of one tensor
        half = batch.bags // 2
        wide = draw(half, 2 * dim + 5, seed=2)
        values = torch.cat([wide[:, 1 : 1 + dim], wide[:, 3 + dim : 3 + 2 * dim]])
        grads = BagGradients(wide[:, 1 : 1 + dim], half, dim + 2, 2 * dim + 5)
    keys, order = torch.sort(kernels.keys(batch, torch.zeros(1, device=DEVICE)), stable=True)
    bad = torch.zeros(1, device=DEVICE)
    out = kernels.reduce(keys, order, batch, grads, scale, bad, dim)
    bags, rows = torch_kernels.bags_of(batch), values.cpu().numpy()
    expected, head = np.zeros((600, dim), np.float32), 0
    for at, (key, position) in enumerate(zip(keys.tolist(), order.tolist(), strict=True)):
        head = head if at and keys[at - 1] == key else at
        if key % 2 == 0:
            added = rows[bags[position]]
            expected[head] += added if scale is None else added * scale[position].cpu().numpy()
    assert np.array_equal(out.cpu().numpy(), expected) and not bad.any()
    placed = torch.full((1 + int(keys.max()) // 2, dim), 7.0, device=DEVICE)
    kernels.reduce(keys, order, batch, grads, scale, bad, dim, placed)
    wanted = np.full(placed.shape, 7.0, np.float32)
    for at, key in enumerate(keys.tolist()):
        if key % 2 == 0 and (at == 0 or keys[at - 1] != key):
            wanted[key // 2] = expected[at]
    assert np.array_equal(placed.cpu().numpy(), wanted)


def test_non_finite_gradient_is_marked():
    batch = batch_of(ids_of(600))
    keys, order = torch.sort(kernels.keys(batch, torch.zeros(1, device=DEVICE)), stable=True)
    for value in (torch.inf, torch.nan):
        values, bad = draw(600, 8), torch.zeros(1, device=DEVICE)
        values[77, 3] = value
        kernels.reduce(keys, order, batch, BagGradients(values, 600, 0, 8), None, bad, 8)
        assert bad.item() == 1
