"""Calls of the table client: declare, read, assign, scan, and dense chunks beside rows."""

import numpy as np
import pytest

from springtide import errors
from springtide.domain.model import tables
from springtide.embedding.lookup.table_client import TableClient


def client(*specs, servers=1, seed=3):
    made = TableClient.local(slots=64, seed=seed, servers=servers)
    made.declare(specs)
    return made


ROWS = tables.TableSpec(id=0, name="rows", dim=4, init=tables.Init(kind="normal", a=0.0, b=1.0))
DENSE = tables.TableSpec(id=1, name="dense:0", dim=1024)


def test_assigned_rows_are_read_in_any_order():
    table = client(ROWS, servers=3)
    keys = np.array([9, -4, 2**60, 0])
    rows = np.arange(16, dtype=np.float32).reshape(4, 4)
    table.assign("rows", keys, rows)
    assert (table.read("rows", keys[::-1]) == rows[::-1]).all()
    found_keys, found_rows = table.scan("rows")
    order = np.argsort(keys)
    assert (found_keys == keys[order]).all() and (found_rows == rows[order]).all()


def test_first_values_apply_only_to_missing_rows():
    table = client(ROWS)
    keys = np.arange(10, dtype=np.int64)
    ours, late = np.ones((10, 4), np.float32), np.full((10, 4), 2, np.float32)
    table.assign("rows", keys[:5], ours[:5], keep=True)
    table.assign("rows", keys, late, keep=True)
    assert table.read("rows", keys)[:, 0].tolist() == [1] * 5 + [2] * 5


def test_unassigned_rows_read_as_their_init_on_any_number_of_servers():
    keys = np.arange(-50, 50)
    alone = client(ROWS).read("rows", keys)
    assert len(np.unique(alone[:, 0])) == 100
    assert (client(ROWS, servers=5).read("rows", keys) == alone).all()
    assert not (client(ROWS, seed=4).read("rows", keys) == alone).all()


def test_dense_chunks_are_pulled_and_pushed_in_the_callers_order():
    table = client(DENSE, ROWS, servers=3)
    values = np.random.default_rng(0).normal(size=(5, 1024)).astype(np.float32)
    table.assign("dense:0", np.arange(5), values)
    part = table.dense(1, np.arange(5), 1024)
    other = table.dense(0, np.array([1, 2]), 4)
    table.pull([part, other])
    part.wait()
    assert (part.rows().reshape(5, 1024) == values).all()
    part.grads()[:] = 2.0
    other.grads()[:] = 1.0
    table.push([part, other], step=1, hyper=[(1, 0.5, 0.0, 0), (0, 0.0, 0.0, 0)]).wait()
    np.testing.assert_allclose(table.read("dense:0", np.arange(5)), values - 1.0, rtol=1e-6)


def test_non_finite_dense_gradient_pushes_nothing():
    table = client(DENSE)
    part = table.dense(1, np.arange(2), 1024)
    part.grads()[1030] = np.inf
    with pytest.raises(errors.NonFiniteGradient, match="table 1, key 1, holds infinity"):
        table.push([part], step=1, hyper=[(1, 0.5, 0.0, 0)])
    assert not table.scan("dense:0")[0].size


def test_key_in_two_parts_is_summed_if_requested():
    table = client(ROWS)
    before = table.read("rows", np.array([5]))
    parts = [table.dense(0, np.array([5]), 4) for _ in range(2)]
    for part in parts:
        part.grads()[:] = 1.0
    table.push(parts, step=1, hyper=[(0, 0.5, 0.0, 0)], unique=False).wait()
    np.testing.assert_allclose(table.read("rows", np.array([5])), before - 1.0, rtol=1e-6)


def test_table_redeclared_differently_is_refused():
    table = client(ROWS)
    table.declare([ROWS])
    with pytest.raises(errors.BadInput, match="'rows' is declared twice: dim 4 and 8"):
        table.declare([tables.TableSpec(id=0, name="rows", dim=8, init=ROWS.init)])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda t: t.read("row", np.array([1])), "no table named 'row'. Did you mean 'rows'"),
        (lambda t: t.read("rows", np.array([1.5])), "keys must be a 1-D array of integers, got float64"),
        (lambda t: t.assign("rows", np.array([1]), np.zeros((1, 3), np.float32)), r"expected \(1, 4\)"),
        (lambda t: TableClient.local(slots=100), "slots must be a power of two from 64 to 65536, got 100"),
        (lambda t: TableClient.local(slots=64, servers=65), "65 servers for 64 slots"),
        (lambda t: tables.TableSpec(id=-1, name="x", dim=4), "id -1; expected 0 to 16383"),
        (lambda t: tables.TableSpec(id=16384, name="x", dim=4), "id 16384; expected 0 to 16383"),
        (lambda t: tables.TableSpec(id=1, name="x", dim=0), "dim=0: expected a whole number"),
        (lambda t: tables.TableSpec(id=1, name="x", dim=1, ttl=-1), "table 'x': ttl=-1: expected a whole number"),
    ],
)
def test_invalid_table_calls_name_the_error(call, says):
    with pytest.raises(errors.BadInput, match=says):
        call(client(ROWS))
