"""Models train to the same bits if device memory has room for only a part of their rows.

The device is the CPU here, as in test_device_tables.py.
"""

import numpy as np
import pytest
import torch
from torch import nn

from springtide import errors
from springtide.embedding.device import backing, pinned
from tests.unit.embedding.device import test_device_tables
from tests.unit.embedding.device.test_device_tables import OPTIMIZERS, assert_equal, tables_of, train, train_odd
from tests.unit.worker import clicks

CACHE = "20%"


@pytest.fixture(autouse=True)
def often_exchanged(rows_in_device, monkeypatch):
    monkeypatch.setattr(backing, "STEPS_AN_EXCHANGE", 2)
    monkeypatch.setattr(backing, "WINDOW", 20)
    monkeypatch.setattr(backing, "SHARE_EXCHANGED", 2)


def twice(model, x):
    return model(x) + model(x.flip(0)).flip(0)


def evaluated(model, x):
    with torch.no_grad():
        model(x.flip(0))
    return model(x)


def penalized(model, x):
    return model(x) + 0.01 * model.rows.weight.square().sum()


def assign(model, optimizer):
    """Set all rows of a table between backward and the step."""
    rows = np.arange(clicks.ROWS * clicks.DIM, dtype=np.float32).reshape(clicks.ROWS, clicks.DIM) / 100
    model.rows.springtide_binding.client.assign("rows", np.arange(clicks.ROWS), rows)


LOOPS = {
    "plain": {},
    "copied": {"copied": True},
    "accumulate": {"accumulate": 2},
    "clip": {"after": test_device_tables.clip},
    "replace": {"after": test_device_tables.replace},
    "drop": {"after": test_device_tables.drop},
    "assign": {"after": assign},
    "twice": {"forward": twice},
    "evaluated": {"forward": evaluated},
    "penalized": {"forward": penalized},
}
# Every optimizer in the plain loop, and every loop with the optimizers of one and of two states a row.
CASES = [(name, "plain") for name in OPTIMIZERS]
CASES += [(name, loop) for loop in LOOPS if loop != "plain" for name in ("adagrad", "adam")]


@pytest.mark.parametrize(("name", "loop"), CASES)
def test_model_trains_to_the_same_bits(name, loop):
    options = LOOPS[loop]
    part = train(OPTIMIZERS[name], cache=CACHE, **options)
    held = tables_of(part[2])[0].place.arena.backing
    assert held.capacity == 30 and held.missed > 0
    assert_equal(part, train(OPTIMIZERS[name], **options), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adam", "adagrad"])
def test_all_kinds_of_bags_train_to_the_same_bits(name, dtype):
    part = train_odd(OPTIMIZERS[name], dtype, cache=CACHE)
    assert {table.place.arena.backing is None for table in tables_of(part[2]) if table.place is not None} == {False}
    assert_equal(part, train_odd(OPTIMIZERS[name], dtype), rtol=0, atol=0)


def test_state_dict_loads_into_all_rows():
    other, _ = clicks.make(5)
    *_, model = train(OPTIMIZERS["adagrad"], cache=CACHE)
    model.load_state_dict(other.state_dict())
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_id_outside_its_table_is_refused():
    *_, model = train(OPTIMIZERS["sgd"], cache=CACHE)
    bad = torch.tensor([[1, 50, 2]])
    with pytest.raises(errors.BadInput, match=r"outside its table: table 'bags.1', 50 rows"), torch.no_grad():
        model(bad)
        model(bad)


class Kinds(nn.Module):
    """A small and a large table, of different kinds."""

    def __init__(self):
        super().__init__()
        self.small = nn.Embedding(10, 2)
        self.large = nn.Embedding(100, 8)
        self.top = nn.Linear(10, 1)

    def forward(self, x):
        return self.top(torch.cat([self.small(x[:, 0] % 10), self.large(x[:, 1])], 1)).squeeze(1)


def place_kinds(**options):
    """Prepare a model with two kinds of tables, and return how many rows of each are in device memory."""
    _, data = clicks.make()
    model, optimizer, batches = test_device_tables.prepare_model(Kinds(), OPTIMIZERS["sgd"], data, **options)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()
    places = [table.place for table in tables_of(model)]
    return [None if place is None else len(place.arena.weights) for place in places]


def test_small_kinds_keep_all_their_rows():
    large = 100 * 8 * 4
    assert place_kinds(cache=large + 200) == [10, 100]
    rest = 2000 - 10 * 2 * 4
    assert place_kinds(cache=2000) == [10, (rest - backing.INDEX_BYTES * 100) // 32]


def test_rows_stay_in_the_store_if_cpu_memory_lacks_room(monkeypatch, caplog):
    monkeypatch.setattr(pinned, "free_bytes", lambda: 3000)
    assert place_kinds(cache=2000) == [10, None]
    assert "the rows of 'large' stay in CPU memory or on servers: CPU memory has only 2.9K free" in caplog.text


def test_cpu_memory_that_cannot_be_pinned_is_no_error(monkeypatch, caplog):
    def refuse(*_):
        raise MemoryError("CUDA cannot pin 3200 bytes of CPU memory")

    monkeypatch.setattr(pinned, "empty", refuse)
    assert place_kinds(cache=2000) == [10, None]
    assert "'large' stay in CPU memory or on servers: CUDA cannot pin" in caplog.text


def test_free_memory_counts_the_limit_of_the_container(monkeypatch, tmp_path):
    free = pinned.free_bytes()
    assert free > 1 << 20
    monkeypatch.setattr(pinned, "GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert pinned.free_bytes() > 1 << 20
    (tmp_path / "memory.max").write_text("5000\n")
    assert pinned.free_bytes() == 4000
