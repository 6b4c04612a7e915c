"""Criteo, Avazu and MovieLens readers on small files."""

import pickle

import numpy as np
import pytest
import torch

from springtide import errors, zoo
from springtide.data.files.id_hash import fold, hash_ids

pyarrow, csv = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.csv")
csv.read_csv(pyarrow.BufferReader(b"a\n1\n"))  # Arrow opens a pipe for signals once in a process

GOOD = "1\t" + "\t".join(str(n) for n in range(13)) + "\t" + "\t".join(f"{n:08x}" for n in range(26))
MISSING = "0" + "\t" * 39
AVAZU = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category," + (
    "device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_criteo_line_becomes_counters_and_ids(tmp_path):
    data = zoo.read_criteo(write(tmp_path / "day_0", GOOD, MISSING, GOOD.replace("\t12\t", "\t-12\t", 1)))
    x, y = pickle.loads(pickle.dumps(data)).batch(np.array([0, 1, 2]))
    assert y.tolist() == [1, 0, 1]
    torch.testing.assert_close(x.dense[0], torch.log1p(torch.arange(13.0)))
    assert x.dense[2, 12] == -x.dense[0, 12]
    assert x.sparse[0].tolist() == [hash_ids(f"{n:08x}") for n in range(26)]
    assert (x.dense[1] == 0).all() and (x.sparse[1] == 0).all()
    x, _ = zoo.read_criteo(tmp_path / "day_0", tables=7).batch(np.arange(2))
    assert (x.sparse[0] > 0).all() and (x.sparse[0] < 7).all() and (x.sparse[1] == 0).all()


def test_faulty_files_are_refused_with_the_file(tmp_path):
    with pytest.raises(errors.MalformedRecord, match=r"day\.txt.*xpected 40 columns, got 2"):
        zoo.read_criteo(write(tmp_path / "day.txt", GOOD, "1\t5")).batch(np.array([0]))
    with pytest.raises(errors.MalformedRecord, match=r"'label', the label, is missing in 1 rows, the first is row 1"):
        zoo.read_criteo(write(tmp_path / "day.txt", GOOD, GOOD[1:])).batch(np.array([0]))
    with pytest.raises(errors.BadInput, match="tables has 2 row counts; expected 26"):
        zoo.read_criteo(tmp_path / "day.txt", tables=[3, 4])
    with pytest.raises(errors.BadInput, match=r"avazu\.csv has no column 'hour'; its first line is '1,0,14102100"):
        zoo.read_avazu(write(tmp_path / "avazu.csv", "1,0,14102100" + ",x" * 21))
    with pytest.raises(errors.BadInput, match="liked='4'"):
        zoo.read_movielens(tmp_path / "day.txt", liked="4")


def test_avazu_line_becomes_the_hour_on_a_circle_and_ids(tmp_path):
    cells = [str(1000 + n) for n in range(21)]
    path = write(tmp_path / "train.csv", AVAZU, ",".join(["9", "1", "14102106", *cells]))
    x, y = zoo.read_avazu(path).batch(np.array([0]))
    assert y.tolist() == [1]
    torch.testing.assert_close(x.dense, torch.tensor([[1.0, 0.0]]))
    assert x.sparse[0].tolist() == [7, *hash_ids(cells)]
    x, _ = zoo.read_avazu(path, tables=[5, *[9] * 21]).batch(np.array([0]))
    assert x.sparse[0].tolist() == [fold(np.array([7]), 5)[0], *hash_ids(cells, 9)]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("ratings.csv", ["userId,movieId,rating,timestamp", "1,31,2.5,9", "7,32,4.0,9"]),
        ("ratings.dat", ["1::31::2.5::9", "7::32::4::9"]),
        ("u.data", ["1\t31\t2.5\t9", "7\t32\t4\t9"]),
    ],
)
def test_movielens_files_of_each_age_are_read(tmp_path, name, lines):
    path = write(tmp_path / name, *lines)
    x, y = zoo.read_movielens(path).batch(np.array([1, 0]))
    assert (x.user.tolist(), x.item.tolist(), y.tolist()) == ([7, 1], [32, 31], [1, 0])
    sample, stars = zoo.read_movielens(path, liked=None)[0]
    assert (int(sample.user), float(stars)) == (1, 2.5)
