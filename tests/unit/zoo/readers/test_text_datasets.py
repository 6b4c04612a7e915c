"""Criteo, Avazu and MovieLens readers on small files."""

import errno
import gzip
import os
import pickle
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from springtide import errors
from springtide.data.files.id_hash import hash_ids
from springtide.zoo.readers import text_datasets, text_records
from springtide.zoo.readers.text_datasets import AvazuCsv, CriteoTsv, MovieLens

GOOD = "1\t" + "\t".join(str(n) for n in range(13)) + "\t" + "\t".join(f"{n:08x}" for n in range(26))
MISSING = "0" + "\t" * 39


def write(path, lines, end="\n"):
    path.write_text(end.join(lines) + end)
    return path


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def test_criteo_line_becomes_counters_and_ids(tmp_path):
    x, y = CriteoTsv(write(tmp_path / "day.txt", [GOOD, MISSING])).batch(np.array([0, 1]))
    assert y.tolist() == [1, 0]
    torch.testing.assert_close(x.dense[0], torch.log1p(torch.arange(13.0)))
    assert x.sparse[0].tolist() == [hash_ids(f"{n:08x}") for n in range(26)]
    assert (x.dense[1] == 0).all()
    assert (x.sparse[1] == 0).all()


cell = st.one_of(st.none(), st.integers(-(10**9), 10**12))
category = st.one_of(st.none(), st.text("0123456789abcdef", min_size=1, max_size=20))
record = st.tuples(
    st.integers(0, 1), st.lists(cell, min_size=13, max_size=13), st.lists(category, min_size=26, max_size=26)
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(record, min_size=1, max_size=6),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_written_records_are_read_in_any_order(tmp_path, records, end, last, seed):
    def line(record):
        label, numbers, categories = record
        return "\t".join("" if c is None else str(c) for c in [label, *numbers, *categories])

    path = tmp_path / f"{os.urandom(6).hex()}.txt"
    path.write_bytes((end.join(map(line, records)) + (end if last else "")).encode())
    data = CriteoTsv(path)
    assert len(data) == len(records)
    order = np.random.default_rng(seed).integers(0, len(records), 10)
    x, y = data.batch(order)
    for row, which in enumerate(order):
        label, numbers, categories = records[which]
        assert y[row] == label
        assert x.sparse[row].tolist() == [0 if c is None else hash_ids(c) for c in categories]
        expected = [0.0 if n is None else float(np.sign(n) * np.log1p(abs(n))) for n in numbers]
        assert x.dense[row].tolist() == pytest.approx(expected, rel=1e-6)


MALFORMED = {
    "has 2 cells, expected 40": "1\t5",
    "has 1 cells, expected 40": "",
    "label is '7', expected 0 or 1": "7" + GOOD[1:],
    "label is '', expected 0 or 1": GOOD[1:],
    "number 3 is 'two', expected a whole number or nothing": GOOD.replace("\t2\t", "\ttwo\t", 1),
    "number 3 is '1.5'": GOOD.replace("\t2\t", "\t1.5\t", 1),
    "number 3 is '-'": GOOD.replace("\t2\t", "\t-\t", 1),
    "number 3 is '9999999999999999999999'": GOOD.replace("\t2\t", "\t" + "9" * 22 + "\t", 1),
    r"category 26 is '\x00', expected hexadecimal digits": GOOD[:-8] + "\0",
    "category 1 is 'xyz', expected hexadecimal digits": GOOD.replace("00000000", "xyz"),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_malformed_line_fails_with_file_line_and_reason(tmp_path, message):
    path = write(tmp_path / "day.txt", [GOOD, GOOD, MALFORMED[message], GOOD])
    data = CriteoTsv(path)
    assert len(data) == 4
    data.batch(np.array([0, 1, 3]))
    with pytest.raises(errors.MalformedRecord) as caught:
        data.batch(np.array([3, 2, 0]))
    assert f"day.txt, line 3: {message}" in str(caught.value)
    assert "on_malformed='skip'" in str(caught.value)


def test_malformed_lines_can_be_skipped_and_are_counted(tmp_path):
    lines = [GOOD, *MALFORMED.values(), MISSING]
    path = write(tmp_path / "day.txt", lines)
    for _ in range(2):  # the second time from the kept index
        data = CriteoTsv(path, on_malformed="skip")
        assert (len(data), data.skipped) == (2, len(MALFORMED))
        assert "line 2: has 2 cells" in data.problems[0]
        assert len(data.problems) == 5
        _, y = data.batch(np.arange(2))
        assert y.tolist() == [1, 0]


def test_ids_are_folded_into_tables(tmp_path):
    data = CriteoTsv(write(tmp_path / "day.txt", [GOOD, MISSING]), tables=7)
    x, _ = data.batch(np.arange(2))
    assert (x.sparse[0] > 0).all()
    assert (x.sparse[0] < 7).all()
    assert (x.sparse[1] == 0).all()
    for path in (None, [tmp_path / "day.txt"]):
        with pytest.raises(errors.BadInput, match="expected the path of one file"):
            CriteoTsv(path)
    for rows in (3.5, "10", 1, [2] * 25 + [1]):
        with pytest.raises(errors.BadInput, match="tables"):
            CriteoTsv(tmp_path / "day.txt", tables=rows)
    with pytest.raises(errors.BadInput, match="26 row counts"):
        CriteoTsv(tmp_path / "day.txt", tables=[5, 5])


def test_file_is_read_across_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(text_records, "_BLOCK", 100)
    lines = [GOOD, MISSING] * 20 + ["oops"]
    data = CriteoTsv(write(tmp_path / "day.txt", lines), on_malformed="skip")
    _, y = data.batch(np.arange(len(data)))
    assert y.tolist() == [1, 0] * 20
    assert "line 41" in data.problems[0]


def test_gzip_file_is_read_like_the_plain_one(tmp_path):
    path = tmp_path / "day.txt.gz"
    path.write_bytes(gzip.compress(f"{GOOD}\n{MISSING}\n".encode()))
    for _ in range(2):
        _, y = CriteoTsv(path).batch(np.arange(2))
        assert y.tolist() == [1, 0]
    path.write_bytes(gzip.compress(GOOD.encode() * 50)[:-20])
    with pytest.raises(errors.BadInput, match="not a whole gzip file"):
        CriteoTsv(path)


def test_changed_file_is_indexed_again(tmp_path):
    path = write(tmp_path / "day.txt", [GOOD])
    assert len(CriteoTsv(path)) == 1
    write(path, [GOOD, GOOD])
    assert len(CriteoTsv(path)) == 2


def test_damaged_index_is_rebuilt(tmp_path):
    path = write(tmp_path / "day.txt", [GOOD, GOOD])
    assert len(CriteoTsv(path)) == 2
    (index,) = tmp_path.glob(".day.txt.*.lines")
    for name, damage in (("columns.json", b""), ("columns.json", b"not json"), ("places.bin", b"8 bytes.")):
        (index / name).write_bytes(damage)
        assert len(CriteoTsv(path)) == 2
        assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == [index.name]


def test_missing_file_names_the_nearest(tmp_path):
    write(tmp_path / "train.txt", [GOOD])
    with pytest.raises(errors.MissingFile, match=r"Did you mean '.*/train\.txt'"):
        CriteoTsv(tmp_path / "trian.txt")
    with pytest.raises(errors.MissingFile, match=r"folder .* does not exist"):
        CriteoTsv(tmp_path / "nowhere" / "train.txt")
    with pytest.raises(errors.MissingFile, match="is a folder"):
        CriteoTsv(tmp_path)


def test_empty_files_are_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(errors.BadInput, match="is empty"):
        CriteoTsv(tmp_path / "empty.txt")
    with pytest.raises(errors.BadInput, match=r"no records; 1 were skipped, the first: .*line 1: has 1 cells"):
        CriteoTsv(write(tmp_path / "bad.txt", ["nonsense"]), on_malformed="skip")
    with pytest.raises(errors.BadInput, match="no records"):
        AvazuCsv(write(tmp_path / "header.csv", ["id,click"]))


def test_index_of_a_read_only_folder_is_written_to_the_temporary_folder(tmp_path, monkeypatch):
    path = write(tmp_path / "day.txt", [GOOD])
    make = tempfile.mkdtemp

    def refused_here(prefix, dir):
        if dir == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", refused_here)
    assert len(CriteoTsv(path)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["day.txt"]
    monkeypatch.setattr(text_records, "_good_lines", lambda *given: None)  # found again, not made again
    assert len(CriteoTsv(path)) == 1


def test_full_disk_is_reported_and_leaves_no_file(tmp_path, monkeypatch):
    path = write(tmp_path / "day.txt", [GOOD])

    def no_room(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", no_room)
    with pytest.raises(errors.DiskFull, match=r"no room to write to .* MiB are free"):
        CriteoTsv(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["day.txt"]


def test_unknown_policy_gets_a_hint(tmp_path):
    with pytest.raises(errors.UnknownName, match="Did you mean 'skip'"):
        CriteoTsv(write(tmp_path / "day.txt", [GOOD]), on_malformed="skp")


AVAZU_HEADER = ",".join(["id", "click", "hour", *text_datasets.CATEGORIES])


def avazu_line(click="1", hour="14102106"):
    return ",".join(["10000169349117863715", click, hour, *(f"v{n}" for n in range(21))])


def test_avazu_line_becomes_ids_and_the_hour_of_the_day(tmp_path):
    data = AvazuCsv(write(tmp_path / "train.csv", [AVAZU_HEADER, avazu_line(), avazu_line("0", "14102100")]))
    x, y = data.batch(np.arange(2))
    assert y.tolist() == [1, 0]
    torch.testing.assert_close(x.dense, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert x.sparse[0].tolist() == [7, *(hash_ids(f"v{n}") for n in range(21))]


def test_malformed_avazu_line_number_counts_the_header(tmp_path):
    data = AvazuCsv(write(tmp_path / "train.csv", [AVAZU_HEADER, avazu_line(), avazu_line(hour="14102199")]))
    with pytest.raises(errors.MalformedRecord, match="line 3: hour is '14102199', expected YYMMDDHH"):
        data.batch(np.array([1]))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("ratings.csv", ["userId,movieId,rating,timestamp", "1,31,2.5,1260759144", "7,1029,4.0,1260759179"]),
        ("ratings.dat", ["1::31::2.5::978300760", "7::1029::4::978302109"]),
        ("u.data", ["1\t31\t2.5\t881250949", "7\t1029\t4\t891717742"]),
    ],
)
def test_movielens_is_read_in_all_layouts(tmp_path, name, lines):
    path = write(tmp_path / name, lines)
    x, y = MovieLens(path).batch(np.arange(2))
    assert x.user.tolist() == [1, 7]
    assert x.item.tolist() == [31, 1029]
    assert y.tolist() == [0, 1]
    _, stars = MovieLens(path, liked=None).batch(np.arange(2))
    assert stars.tolist() == [2.5, 4.0]


def test_first_record_is_not_taken_for_a_header(tmp_path):
    with pytest.raises(
        errors.MalformedRecord, match="line 1 is a record, expected a header with the names of 24 columns"
    ):
        AvazuCsv(write(tmp_path / "train.csv", [avazu_line(), avazu_line()], end="\r\n"))
    with pytest.raises(errors.MalformedRecord, match="line 1 is a record"):
        MovieLens(write(tmp_path / "ratings.csv", ["1,31,2.5,9", "x", "1,31,2.5,9"]), on_malformed="skip")
    with pytest.raises(errors.BadInput, match="no records after its header"):
        MovieLens(write(tmp_path / "one.csv", ["1,31,2.5,9"]))


def test_columns_in_another_order_are_refused(tmp_path):
    swapped = ["movieId,userId,rating,timestamp", "31,1,2.5,9"]
    with pytest.raises(errors.MalformedRecord, match=r"line 1: column 1 is 'movieId', expected 'userId': .* userId"):
        MovieLens(write(tmp_path / "ratings.csv", swapped))
    others = ["member,film,stars,when", "1,31,2.5,9"]
    assert len(MovieLens(write(tmp_path / "others.csv", others))) == 1, "names of one's own say nothing of the order"


@pytest.mark.parametrize("tables", [5, (3,), ("a", "b"), (0, 4)])
def test_invalid_row_counts_are_refused(tmp_path, tables):
    with pytest.raises(errors.BadInput, match="tables"):
        MovieLens(write(tmp_path / "ratings.dat", ["1::31::2.5::9"]), tables=tables)


def test_non_numeric_ratings_are_refused(tmp_path):
    with pytest.raises(errors.BadInput, match="liked='x': expected the stars from which"):
        MovieLens(write(tmp_path / "ratings.dat", ["1::31::2.5::9"]), liked="x")


def test_movielens_ids_that_do_not_fit_the_tables_are_malformed(tmp_path):
    path = write(tmp_path / "ratings.dat", ["1::31::3::9", "1::5::3::9", "1:x:5::3::9", "1::5::six::9", "1::5::6::9"])
    data = MovieLens(path, tables=(10, 20))
    for line, message in {
        1: "movie is '31', expected a whole number below 20",
        3: "between two colons is 'x'",
        4: "rating is 'six', expected 0 to 5 stars",
        5: "rating is '6'",
    }.items():
        with pytest.raises(errors.MalformedRecord, match=f"line {line}: .*{message}"):
            data.batch(np.array([line - 1]))
    assert len(MovieLens(path, tables=(10, 20), on_malformed="skip")) == 1
    assert len(MovieLens(path, on_malformed="skip")) == 2


def test_dataloader_reads_records(tmp_path):
    data = CriteoTsv(write(tmp_path / "day.txt", [GOOD, MISSING] * 3))
    (x, y), *_ = DataLoader(data, batch_size=4)
    assert x.sparse.shape == (4, 26)
    assert y.tolist() == [1, 0, 1, 0]
    assert data[-1][1] == 0
    assert pickle.loads(pickle.dumps(data))[-2][1] == 1
    with pytest.raises(IndexError, match="index 6"):
        data[6]
    with pytest.raises(errors.BadInput, match="indices from 6 to 6; expected 0 to 5"):
        data.batch(np.array([6]))
