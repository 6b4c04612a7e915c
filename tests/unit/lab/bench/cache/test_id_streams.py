"""Id streams: seeded, within their tables, with the stated correlation, or read from files."""

import numpy as np
import pytest

from springtide import errors
from springtide_lab.bench.cache import id_streams


@pytest.mark.parametrize("name", id_streams.STREAMS)
def test_stream_repeats_for_its_seed_and_stays_within_its_tables(name):
    one, two, other = (id_streams.make(name, samples=600, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.ids, two.ids) and not np.array_equal(one.ids, other.ids)
    assert one.ids.dtype == np.int64 and one.ids.shape == (600, len(one.rows))
    assert (one.ids >= 0).all() and (one.ids < np.array(one.rows)).all()


def test_batches_have_ids_of_every_table_and_repeat_for_a_seed():
    first = id_streams.zipf_batches(3, batches=4, tables=2, rows=100, batch=8)
    assert first.shape == (4, 2, 8) and first.dtype == np.int64
    assert first.min() >= 0 and first.max() < 100
    assert (first == id_streams.zipf_batches(3, batches=4, tables=2, rows=100, batch=8)).all()
    assert (first != id_streams.zipf_batches(4, batches=4, tables=2, rows=100, batch=8)).any()


def repeats(name):
    """Share of id pairs in the two largest tables that occurred before."""
    ids = id_streams.make(name, samples=20_000).ids[:, :2]
    return 1 - len(np.unique(ids, axis=0)) / len(ids)


def test_ids_co_occur_in_correlated_streams_only():
    assert repeats("w1") > repeats("correlated") > 1.5 * repeats("zipf-1.05")


def test_click_log_has_the_documented_size():
    stream = id_streams.make("zipf-1.05", samples=1024)
    assert stream.total_rows == pytest.approx(1.06e6, rel=0.01) and len(stream.rows) == 26
    keys = stream.ids + (np.arange(26) << 32)
    each = [np.unique(keys[at : at + 128]) for at in range(0, 1024, 128)]
    assert np.mean([len(one) for one in each]) == pytest.approx(1650, rel=0.05)
    distinct, workers = np.unique(np.concatenate(each), return_counts=True)
    assert np.mean([np.isin(one, distinct[workers > 1]).sum() for one in each]) == pytest.approx(830, rel=0.05)


def test_batches_are_whole_and_in_order():
    stream = id_streams.make("w2", samples=105)
    assert np.array_equal(np.concatenate(stream.batches(10)), stream.ids[:100])


def test_ids_of_a_file_are_read_and_made_dense(tmp_path):
    given = np.array([[2**40, 7], [5, 7], [2**40, -9]])
    np.save(tmp_path / "ids.npy", given)
    stream = id_streams.read(tmp_path / "ids.npy")
    assert stream.rows == (2, 2) and stream.ids.tolist() == [[1, 1], [0, 1], [1, 0]]


def test_integer_columns_of_parquet_are_tables(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"label": [0.5, 0.0], "a": [3, 3], "b": [2**50, 1]})
    parquet.write_table(table, tmp_path / "ids.parquet")
    assert id_streams.read(tmp_path / "ids.parquet").ids.tolist() == [[0, 1], [0, 0]]


def test_unreadable_id_file_is_a_one_sentence_error(tmp_path):
    with pytest.raises(errors.MissingFile, match="no such file"):
        id_streams.read(tmp_path / "none.npy")
    np.save(tmp_path / "floats.npy", np.zeros((3, 2)))
    with pytest.raises(errors.BadInput, match="whole numbers"):
        id_streams.read(tmp_path / "floats.npy")
    (tmp_path / "ids.csv").write_text("1,2")
    with pytest.raises(errors.BadInput, match=r"\.npy or \.parquet"):
        id_streams.read(tmp_path / "ids.csv")
    (tmp_path / "broken.npy").write_text("no array")
    with pytest.raises(errors.BadInput, match="cannot be read"):
        id_streams.read(tmp_path / "broken.npy")
    with pytest.raises(errors.UnknownName):
        id_streams.make("zipf", samples=1)
