"""The native store through its Python bindings: refusals, growth, and torch's optimizers."""

import os

import numpy as np
import pytest
import torch

from springtide import _native, errors
from springtide.domain.model import tables
from tests.oracles import row_math

RESERVE = 1 << 30


def spec(**fields):
    return _native.TableSpec(**{"id": 0, "name": "users", "dim": 4, **fields})


def store(*specs, slots=64, seed=5, threads=1):
    made = _native.Store(slots, seed, threads=threads, reserve_bytes=RESERVE)
    for one in specs:
        made.declare(one)
    return made


def pulled(tables_, keys, dim, table=0):
    out = np.full((len(keys), dim), np.nan, np.float32)
    tables_.pull(np.full(len(keys), table, np.uint16), np.asarray(keys, np.int64), out.reshape(-1))
    return out


def push_table(made, keys, grads, hyper, **options):
    made.push(np.zeros(len(keys), np.uint16), keys, grads.reshape(-1), [(0, hyper)], **options)


KEYS = np.arange(6, dtype=np.int64)


@pytest.mark.parametrize(
    "keys, out",
    [
        (KEYS.astype(np.int32), np.zeros(24, np.float32)),
        (KEYS.astype(np.float64), np.zeros(24, np.float32)),
        (np.arange(12, dtype=np.int64)[::2], np.zeros(24, np.float32)),
        (KEYS.reshape(2, 3), np.zeros(24, np.float32)),
        (KEYS, np.zeros(24, np.float64)),
        (KEYS, np.zeros(24, np.float16)),
        (KEYS, np.zeros(48, np.float32)[::2]),
        (KEYS, np.zeros((6, 4), np.float32)),
        (KEYS, [0.0] * 24),
    ],
)
def test_array_of_another_dtype_or_stride_is_refused_instead_of_copied(keys, out):
    with pytest.raises(TypeError, match="incompatible function arguments"):
        store(spec()).pull(np.zeros(6, np.uint16), keys, out)


def test_read_only_array_is_refused_for_rows():
    out = np.zeros(24, np.float32)
    out.flags.writeable = False
    with pytest.raises(TypeError):
        store(spec()).pull(np.zeros(6, np.uint16), KEYS, out)


@pytest.mark.parametrize("tables_dtype", [np.int64, np.int32, np.uint8])
def test_table_number_over_two_bytes_is_refused(tables_dtype):
    with pytest.raises(TypeError):
        store(spec()).pull(np.zeros(6, tables_dtype), KEYS, np.zeros(24, np.float32))


def test_mismatched_shapes_are_named():
    made = store(spec())
    with pytest.raises(errors.BadInput, match="24 floats together, got an array of 23"):
        made.pull(np.zeros(6, np.uint16), KEYS, np.zeros(23, np.float32))
    with pytest.raises(errors.BadInput, match="got 5 tables and 6 keys"):
        made.pull(np.zeros(5, np.uint16), KEYS, np.zeros(24, np.float32))
    with pytest.raises(errors.BadInput, match="table 9 was never declared"):
        made.pull(np.full(6, 9, np.uint16), KEYS, np.zeros(24, np.float32))


def test_push_needs_a_rate_for_every_table_in_it():
    made = store(spec(), spec(id=1, name="items"))
    with pytest.raises(errors.BadInput, match="'items' without a learning rate"):
        made.push(np.ones(6, np.uint16), KEYS, np.zeros(24, np.float32), [(0, _native.Hyper(0.1))])


@pytest.mark.parametrize(
    "fields, hint",
    [
        ({"optimizer": "adagard"}, "Did you mean 'adagrad'"),
        ({"dtype": "float31"}, "Did you mean 'float32'"),
        ({"init": ("unifrom", 0, 1)}, "Did you mean 'uniform'"),
        ({"init": "uniform"}, "needs two numbers"),
    ],
)
def test_unknown_names_get_a_hint(fields, hint):
    with pytest.raises(errors.BadInput, match=hint):
        spec(**fields)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"dim": 8}, "dim was 4, now 8"),
        ({"name": "items"}, "name was 'users', now 'items'"),
        ({"optimizer": "adam"}, "optimizer was sgd, now adam"),
        ({"eps": 1e-3}, "optimizer settings differ"),
        ({"ttl": 3}, "ttl was 0, now 3"),
        ({"capacity_rows": 7}, "capacity_rows was 0, now 7"),
    ],
)
def test_redeclared_table_must_be_identical(fields, says):
    made = store(spec())
    made.declare(spec())
    with pytest.raises(errors.BadInput, match=says):
        made.declare(spec(**fields))


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"dim": 0}, "dim must be"),
        ({"id": 16384}, "0 to 16383"),
        ({"optimizer": "adam", "beta1": 1.0}, "betas"),
        ({"optimizer": "sgd", "nesterov": True}, "nesterov needs"),
        ({"eps": -1.0}, "negative"),
        ({"init": ("uniform", 0, float("nan"))}, "finite"),
        ({"min_count": 2**24}, "min_count"),
    ],
)
def test_impossible_table_spec_is_refused(fields, says):
    with pytest.raises(errors.BadInput, match=says):
        store().declare(spec(**fields))


def test_slot_count_must_be_a_power_of_two():
    with pytest.raises(errors.BadInput, match="power of two from 64 to 65536, got 100"):
        _native.Store(100)


def test_growing_store_loses_no_key(rng):
    made = store(spec(dim=2, init=("uniform", -1, 1)), slots=64, threads=2)
    keys = np.unique(rng.integers(-(2**63), 2**63 - 1, 300_000))
    rng.shuffle(keys)
    before = pulled(made, keys, 2)
    for part in np.array_split(keys, 7):
        push_table(made, part, np.full((len(part), 2), -1, np.float32), _native.Hyper(1.0), unique=True)
    np.testing.assert_array_equal(pulled(made, keys, 2), before + np.float32(1))
    assert made.rows() == len(keys) == sum(made.load(slot).rows for slot in range(64))
    other = store(spec(dim=2, init=("uniform", -1, 1)), slots=64)
    for slot in range(64):
        other.import_slot(made.export_slot(slot))
        made.clear_slot(slot)
    np.testing.assert_array_equal(pulled(other, keys, 2), before + np.float32(1))
    assert made.rows() == 0
    np.testing.assert_array_equal(pulled(made, keys, 2), before)


def test_cleared_memory_is_reused():
    made = store(spec(dim=64))
    keys = np.arange(20_000, dtype=np.int64)
    grads = np.ones((len(keys), 64), np.float32)
    sizes = []
    for _ in range(4):
        push_table(made, keys, grads, _native.Hyper(0.1), unique=True)
        sizes.append(made.resident_bytes())
        for slot in range(64):
            made.clear_slot(slot)
    assert sizes[1:] == sizes[:-1]


def test_forked_child_may_not_use_the_parents_tables():
    made = store(spec())
    pid = os.fork()
    if pid == 0:
        try:
            pulled(made, KEYS, 4)
        except errors.BadInput as error:
            os._exit(0 if "forked child" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert np.array_equal(pulled(made, KEYS, 4), np.zeros((6, 4)))


def test_image_of_another_job_is_refused():
    made = store(spec(), seed=5)
    push_table(made, KEYS, np.ones((6, 4), np.float32), _native.Hyper(0.1))
    image = made.export_slot(int(made.slot_of(0, KEYS)[0]))
    for other, says in [
        (store(spec(), seed=6), "made with seed 5, this store has 6"),
        (store(spec(), slots=128), "made with 64 slots, this store has 128"),
        (store(), "never declared"),
        (store(spec(dim=5)), "has dim 4 there and 5 here"),
        (store(spec(dtype="float16")), "another dtype"),
        (store(spec(optimizer="adam")), "was trained by sgd"),
    ]:
        with pytest.raises(errors.BadInput, match=says):
            other.import_slot(image)
        assert other.rows() == 0


TORCH = [
    (dict(optimizer="sgd"), lambda p: torch.optim.SGD(p, lr=0.1)),
    (dict(optimizer="sgd", momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (
        dict(optimizer="sgd", momentum=0.9, dampening=0.5),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01),
    ),
    (
        dict(optimizer="sgd", momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    (
        dict(optimizer="adagrad", eps=1e-10, initial_accumulator=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    ),
    (dict(optimizer="adam"), lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01)),
    (dict(optimizer="adam", decoupled_decay=True), lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01)),
    (dict(optimizer="rmsprop"), lambda p: torch.optim.RMSprop(p, lr=0.1)),
]


@pytest.mark.parametrize("fields, make", TORCH, ids=lambda value: value["optimizer"] if isinstance(value, dict) else "")
@pytest.mark.parametrize("dim", [5, 16, 64])
def test_native_optimizers_match_torch(fields, make, dim, rng):
    made = store(spec(dim=dim, init=("uniform", -1, 1), **fields))
    weight = torch.nn.Parameter(torch.from_numpy(pulled(made, KEYS, dim)))
    optimizer = make([weight])
    hyper = _native.Hyper(0.1, optimizer.param_groups[0].get("weight_decay", 0.0))
    for _ in range(60):
        grads = rng.standard_normal((6, dim)).astype(np.float32)
        weight.grad = torch.from_numpy(grads)
        optimizer.step()
        push_table(made, KEYS, grads, hyper)
    np.testing.assert_allclose(pulled(made, KEYS, dim), weight.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_sparse_adam_counts_the_optimizers_steps(rng):
    made = store(spec(dim=16, optimizer="adam", eps_outside=False))
    bag = torch.nn.EmbeddingBag(6, 16, sparse=True, mode="sum")
    with torch.no_grad():
        bag.weight.zero_()
    optimizer = torch.optim.SparseAdam(bag.parameters(), lr=0.01)
    for step in range(1, 80):
        keys = np.unique(rng.integers(0, 6, 3))
        grads = rng.standard_normal((len(keys), 16)).astype(np.float32)
        optimizer.zero_grad()
        (bag(torch.from_numpy(keys)[:, None]) * torch.from_numpy(grads)).sum().backward()
        optimizer.step()
        push_table(made, keys, grads, _native.Hyper(0.01, 0.0, step))
    np.testing.assert_allclose(pulled(made, KEYS, 16), bag.weight.detach().numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind, a, b", [("uniform", -0.5, 0.25), ("normal", 0.1, 2.0), ("xavier", 1.0, 1000.0)])
@pytest.mark.parametrize("dim", [1, 7, 16])
def test_rows_start_with_the_reference_values(kind, a, b, dim, rng):
    made = store(spec(dim=dim, init=(kind, a, b)), seed=2**64 - 3)
    keys = rng.integers(-(2**63), 2**63 - 1, 200)
    init = tables.Init(kind=kind, a=a, b=b)
    wanted = [row_math.init_row(init, dim, 2**64 - 3, row_math.hash_key(0, int(key))) for key in keys]
    if kind == "normal":
        np.testing.assert_allclose(pulled(made, keys, dim), wanted, atol=1e-6)
    else:
        np.testing.assert_array_equal(pulled(made, keys, dim), wanted)


def test_normal_rows_have_the_requested_moments():
    made = store(spec(dim=16, init=("normal", 0.5, 2.0)))
    rows = pulled(made, np.arange(20_000), 16).astype(np.float64)
    assert abs(rows.mean() - 0.5) < 0.02 and abs(rows.std() - 2.0) < 0.02
    assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.03


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 8, 11])
def test_half_precision_rounds_to_nearest_even_for_every_value(dtype, dim, rng):
    made = store(spec(dim=dim, dtype=dtype))
    bits = np.concatenate(
        [rng.integers(0, 2**32, 40_000), np.arange(0, 2**32, 2**17) | 0x1000, np.arange(0, 2**32, 2**17)]
    )
    values = bits.astype(np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    values = values[: len(values) // dim * dim].reshape(-1, dim)
    keys = np.arange(len(values), dtype=np.int64)
    made.assign(np.zeros(len(keys), np.uint16), keys, np.ascontiguousarray(values).reshape(-1))
    as_torch = torch.from_numpy(values.copy()).to(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(pulled(made, keys, dim), as_torch)


def test_long_rows_are_supported(rng):
    made = store(spec(dim=70_000, optimizer="adam"))
    grads = rng.standard_normal((3, 70_000)).astype(np.float32)
    grads += np.copysign(np.float32(0.1), grads)  # adam's first step is the sign where a gradient is far above eps
    push_table(made, np.array([1, 2, 3]), grads, _native.Hyper(0.5))
    rows = pulled(made, [3, 1, 4], 70_000)
    np.testing.assert_allclose(rows[:2], -0.5 * np.sign(grads[[2, 0]]), rtol=1e-2, atol=1e-3)
    assert not rows[2].any()


def test_pull_counts_as_a_request_and_stores_nothing():
    made = store(spec())
    empty = made.resident_bytes()
    pulled(made, np.arange(10_000), 4)
    assert made.rows() == 0 and made.resident_bytes() == empty
    assert sum(made.load(slot).requests for slot in range(64)) == 10_000


def test_expired_keys_leave_small_tables_soon():
    made = store(spec(dim=2, ttl=10), slots=1024)
    most = 0
    for tick in range(400):  # 100 keys a tick, 1,000 of them alive
        keys = np.arange(100 * tick, 100 * tick + 100, dtype=np.int64)
        push_table(made, keys, np.ones((100, 2), np.float32), _native.Hyper(0.1), clock=tick)
        most = max(most, made.rows(0))
    assert most < 16_000  # 1,000, and those that come while every slot is looked at once: 16 keys a slot
