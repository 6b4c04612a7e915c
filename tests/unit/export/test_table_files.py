"""A delta between two tables, applied to the older one, gives the newer one."""

import io
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from springtide import errors
from springtide.checkpoint.format.storage import FolderStore
from springtide.domain.model.tables import TableOutline
from springtide.export import table_files
from springtide.export.table_files import ExportedTable, Spool, TableDelta, TableSpool, in_order, sums_of

OUTLINE = TableOutline(name="items", paths=("items",), rows=0)
rows = some.floats(width=32, allow_nan=True)
tables = some.dictionaries(some.integers(-(2**63), 2**63 - 1), rows, max_size=12)


def table(content: dict[int, float]) -> ExportedTable:
    keys = np.array(list(content), dtype=np.int64)
    values = np.array([[value, 1.0] for value in content.values()], dtype=np.float32).reshape(-1, 2)
    return in_order(OUTLINE, "float32", keys, values)


def between(old: ExportedTable, new: ExportedTable) -> TableDelta:
    differs, removed = table_files.between(old.keys, sums_of(old.rows), new.keys, sums_of(new.rows))
    return TableDelta(ExportedTable(OUTLINE, "float32", new.keys[differs], new.rows[differs]), removed)


@given(tables, tables)
def test_delta_leads_from_one_table_to_the_other(old: dict[int, float], new: dict[int, float]) -> None:
    step = between(table(old), table(new))
    after = table_files.apply(table(old), step)

    np.testing.assert_array_equal(after.keys, table(new).keys)
    np.testing.assert_array_equal(after.rows.view(np.uint32), table(new).rows.view(np.uint32))
    assert set(step.removed.tolist()) == set(old) - set(new)


@given(tables)
def test_delta_of_equal_tables_is_empty(content: dict[int, float]) -> None:
    step = between(table(content), table(content))

    assert len(step.changed.keys) == 0 and len(step.removed) == 0


def test_row_with_any_changed_bit_is_in_the_delta() -> None:
    row = np.array([[0.0, 1.0, np.nan, 3.0]], dtype=np.float32)
    others = [np.array([[-0.0, 1.0, np.nan, 3.0]], dtype=np.float32), row[:, [1, 0, 2, 3]]]
    for bit in range(128):
        bits = row.copy().view(np.uint32)
        bits[0, bit // 32] ^= np.uint32(1 << bit % 32)
        others.append(bits.view(np.float32))
    assert all(sums_of(other) != sums_of(row) for other in others)
    assert sums_of(row.copy()) == sums_of(row)


def test_memory_use_stays_within_the_limit(tmp_path):
    held = Spool(tmp_path, held_bytes=1000)
    for first in range(0, 5000, 50):
        held.add("keys", np.arange(first, first + 50, dtype=np.int64))
        assert held._bytes <= 1000
    assert held.count("keys") == 5000
    assert np.concatenate(list(held.blocks("keys", np.int64))).tolist() == list(range(5000))
    held.drop("keys")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", table_files.FORMATS)
@given(some.lists(some.tuples(some.integers(0, 9), some.integers(0, 3)), max_size=6), some.integers(1, 5))
def test_blocks_are_read_as_a_whole_table(format, parts, dim):
    rng = np.random.default_rng(0)
    keys, rows, removed = [np.empty(0, np.int64)], [np.empty((0, dim), np.float32)], [np.empty(0, np.int64)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "BLOCK_ROWS", 4)
        table = TableSpool(Spool(pathlib.Path(folder), held_bytes=64), "0", dim)
        for count, gone in parts:
            keys.append(rng.integers(-9, 9, count))
            rows.append(rng.standard_normal((count, dim)).astype(np.float32))
            removed.append(rng.integers(-9, 9, gone))
            table.add(keys[-1], rows[-1], removed[-1])
        out = io.BytesIO()
        table_files.pack(format, table, out)
    found = table_files.unpack(format, out.getvalue(), dim)
    for got, wanted in zip(found, (keys, rows, removed), strict=True):
        np.testing.assert_array_equal(got, np.concatenate(wanted))


def test_spool_lies_in_the_export_and_replaces_leftovers_of_a_killed_export(tmp_path):
    there = tmp_path / "exports" / "export-000001"
    (there / "spool").mkdir(parents=True)
    (there / "spool" / "left").touch()
    with table_files.spool_folder(FolderStore(there)) as made:
        assert made.parent == there and list(made.iterdir()) == []
        (made / "0.rows").write_bytes(b"rows")
    assert list(there.iterdir()) == []


def test_uncreatable_folder_is_a_one_sentence_error(tmp_path):
    (tmp_path / "file").touch()
    there = table_files.spool_folder(FolderStore(tmp_path / "file" / "export-000001"))
    with pytest.raises(errors.BadInput, match="cannot export to"), there:
        raise AssertionError("there can be none")
