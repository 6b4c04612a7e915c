"""What changed between two tables, laid over the older one, is the newer one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from springtide.domain.model.tables import TableOutline
from springtide.export import delta
from springtide.export.delta import TableDelta
from springtide.export.model import ExportedTable, in_order
from springtide.export.row_index import sums_of

OUTLINE = TableOutline(name="items", paths=("items",), rows=0)
rows = some.floats(width=32, allow_nan=True)
tables = some.dictionaries(some.integers(-(2**63), 2**63 - 1), rows, max_size=12)


def table(content: dict[int, float]) -> ExportedTable:
    keys = np.array(list(content), dtype=np.int64)
    values = np.array([[value, 1.0] for value in content.values()], dtype=np.float32).reshape(-1, 2)
    return in_order(OUTLINE, "float32", keys, values)


def between(old: ExportedTable, new: ExportedTable) -> TableDelta:
    differs, removed = delta.between(old.keys, sums_of(old.rows), new.keys, sums_of(new.rows))
    return TableDelta(ExportedTable(OUTLINE, "float32", new.keys[differs], new.rows[differs]), removed)


@given(tables, tables)
def test_a_delta_leads_from_one_table_to_the_other(old: dict[int, float], new: dict[int, float]) -> None:
    step = between(table(old), table(new))
    after = delta.apply(table(old), step)

    np.testing.assert_array_equal(after.keys, table(new).keys)
    np.testing.assert_array_equal(after.rows.view(np.uint32), table(new).rows.view(np.uint32))
    assert set(step.removed.tolist()) == set(old) - set(new)


@given(tables)
def test_nothing_changed_is_nothing(content: dict[int, float]) -> None:
    step = between(table(content), table(content))

    assert len(step.changed.keys) == 0 and len(step.removed) == 0


def test_a_row_is_another_when_any_bit_is_or_two_floats_change_places() -> None:
    row = np.array([[0.0, 1.0, np.nan, 3.0]], dtype=np.float32)
    others = [np.array([[-0.0, 1.0, np.nan, 3.0]], dtype=np.float32), row[:, [1, 0, 2, 3]]]
    for bit in range(128):
        bits = row.copy().view(np.uint32)
        bits[0, bit // 32] ^= np.uint32(1 << bit % 32)
        others.append(bits.view(np.float32))
    assert all(sums_of(other) != sums_of(row) for other in others)
    assert sums_of(row.copy()) == sums_of(row)
