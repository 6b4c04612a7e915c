"""The Parquet reader."""

import pickle
import sys

import numpy as np
import pytest

from springtide import errors
from springtide.zoo.readers.parquet import ParquetClicks
from tests.unit.zoo.readers.hashed_text import hash_text

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def path(tmp_path):
    table = pyarrow.table(
        {
            "click": pyarrow.array([1, 0, 1, 0, 0, 1, 1]),
            "price": pyarrow.array([0.5, None, 2.0, 3.0, 4.0, 5.0, 6.0]),
            "user": pyarrow.array([-5, 2**62, None, 3, 4, 5, 6]),
            "site": pyarrow.array(["a", "", None, "a long site name", "b", "c", "d"]),
            "kind": pyarrow.array(["x", "y", "x", "y", "x", "y", None]).dictionary_encode(),
        }
    )
    parquet.write_table(table, tmp_path / "log.parquet", row_group_size=3)
    return tmp_path / "log.parquet"


COLUMNS = {"label": "click", "dense": ["price"], "sparse": ["user", "site", "kind"]}


def test_rows_are_read_across_row_groups_in_any_order(path):
    data = ParquetClicks(path, **COLUMNS, groups_kept=1)
    assert len(data) == 7
    x, y = data.batch(np.array([6, 0, 3, 1, 2]))
    assert y.tolist() == [1, 1, 0, 0, 1]
    assert x.dense[:, 0].tolist() == [6, 0.5, 3, 0, 2]
    assert x.sparse[:, 0].tolist() == [6, -5, 3, 2**62, 0]
    assert x.sparse[:, 1].tolist() == [hash_text("d"), hash_text("a"), hash_text("a long site name"), 0, 0]
    assert x.sparse[:, 2].tolist() == [0, *(hash_text(kind) for kind in "xyyx")]
    assert data[-1][0].dense.tolist() == [6]


def test_several_files_are_one_log(path):
    data = ParquetClicks([path, path], **COLUMNS)
    assert len(data) == 14
    x, _ = data.batch(np.array([0, 7]))
    assert x.sparse[0].tolist() == x.sparse[1].tolist()


def test_ids_are_folded_into_tables(path):
    x, _ = ParquetClicks(path, **COLUMNS, tables=5).batch(np.arange(7))
    assert x.sparse.min() == 0
    assert x.sparse.max() < 5


def test_parquet_reader_works_in_another_process(path):
    data = ParquetClicks(path, **COLUMNS)
    before = data.batch(np.arange(7))[0].sparse
    assert pickle.loads(pickle.dumps(data)).batch(np.arange(7))[0].sparse.tolist() == before.tolist()


def test_misspelt_column_gets_a_hint(path):
    with pytest.raises(errors.UnknownName, match="Did you mean 'price'"):
        ParquetClicks(path, label="click", dense=["prise"])


def test_columns_of_other_types_are_refused(path):
    with pytest.raises(errors.BadInput, match=r"'site' .* is string, expected numbers"):
        ParquetClicks(path, label="click", dense=["site"]).batch(np.arange(1))
    with pytest.raises(errors.BadInput, match=r"'price' .* is double, expected whole numbers or texts"):
        ParquetClicks(path, label="click", sparse=["price"]).batch(np.arange(1))


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "log.txt").write_text("hello, this is not parquet at all")
    with pytest.raises(errors.MalformedRecord, match=r"not a whole Parquet file.*fetch it again"):
        ParquetClicks(tmp_path / "log.txt", label="click")
    with pytest.raises(errors.MissingFile, match=r"Did you mean .*log\.txt"):
        ParquetClicks(tmp_path / "log.tx", label="click")


def test_without_pyarrow_the_reader_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(errors.MissingExtra, match=r"springtide\[parquet\]"):
        ParquetClicks(path, **COLUMNS)


def test_row_without_a_label_is_refused(tmp_path):
    columns = {"click": [1.0, 0.0, 1.0, float("nan")], "user": [1, 2, 3, 4]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "nan.parquet", row_group_size=2)
    columns["click"][3] = None
    parquet.write_table(pyarrow.table(columns), tmp_path / "null.parquet", row_group_size=2)
    for name in ("nan.parquet", "null.parquet"):
        data = ParquetClicks([tmp_path / name], label="click", sparse=["user"])
        data.batch(np.arange(2))
        with pytest.raises(
            errors.MalformedRecord, match=r"'click', the label, is missing in 1 rows, the first is row 3"
        ):
            data.batch(np.arange(4))


def test_damaged_parquet_file_is_reported(path):
    whole = bytearray(path.read_bytes())
    whole[4:60] = bytes(56)
    path.write_bytes(whole)
    with pytest.raises(errors.MalformedRecord, match=r"log.parquet: row group 0 cannot be read .*fetch the file again"):
        ParquetClicks(path, **COLUMNS).batch(np.arange(7))


def test_names_and_indices_of_the_wrong_kind_are_refused(path):
    with pytest.raises(errors.BadInput, match=r"dense='price': expected a list of columns, as in \['price'\]"):
        ParquetClicks(path, label="click", dense="price")
    with pytest.raises(errors.BadInput, match=r"indices are float64 of shape .* expected whole numbers, 1-D"):
        ParquetClicks(path, **COLUMNS).batch(np.array([0.5]))
    with pytest.raises(errors.BadInput, match="indices from 0 to 7; expected 0 to 6"):
        ParquetClicks(path, **COLUMNS).batch(np.array([0, 7]))
