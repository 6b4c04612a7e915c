"""Rows wait on disk, in the order in which they came, and memory holds a bounded part of them."""

import io
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from springtide.export import row_spool, table_file
from springtide.export.row_spool import Spool, TableSpool


def test_no_more_than_the_limit_is_held_in_memory(tmp_path):
    held = Spool(tmp_path, held_bytes=1000)
    for first in range(0, 5000, 50):
        held.add("keys", np.arange(first, first + 50, dtype=np.int64))
        assert held._bytes <= 1000
    assert held.count("keys") == 5000
    assert np.concatenate(list(held.blocks("keys", np.int64))).tolist() == list(range(5000))
    held.drop("keys")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", table_file.FORMATS)
@given(some.lists(some.tuples(some.integers(0, 9), some.integers(0, 3)), max_size=6), some.integers(1, 5))
def test_what_is_packed_in_blocks_is_read_as_a_whole(format, parts, dim):
    rng = np.random.default_rng(0)
    keys, rows, removed = [np.empty(0, np.int64)], [np.empty((0, dim), np.float32)], [np.empty(0, np.int64)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_spool, "BLOCK_ROWS", 4)
        table = TableSpool(Spool(pathlib.Path(folder), held_bytes=64), "0", dim)
        for count, gone in parts:
            keys.append(rng.integers(-9, 9, count))
            rows.append(rng.standard_normal((count, dim)).astype(np.float32))
            removed.append(rng.integers(-9, 9, gone))
            table.add(keys[-1], rows[-1], removed[-1])
        out = io.BytesIO()
        table_file.pack(format, table, out)
    found = table_file.unpack(format, out.getvalue(), dim)
    for got, wanted in zip(found, (keys, rows, removed), strict=True):
        np.testing.assert_array_equal(got, np.concatenate(wanted))
