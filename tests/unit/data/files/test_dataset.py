"""Data sets from Parquet, CSV and frames: columns, missing values, order of reading, errors."""

import pickle
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

from springtide import errors
from springtide.data import shards, source
from springtide.data.files import row_groups
from springtide.data.files.dataset import from_frame, read_csv, read_parquet, warn_of_scattered_reads
from springtide.data.files.id_hash import hash_ids
from springtide.domain.data.samples import DatasetCard
from springtide.zoo.layers import ClickBatch

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
csv = pytest.importorskip("pyarrow.csv")

ROWS = {
    "click": [1, 0, 1, 0, 0, 1, 1],
    "price": [0.5, None, 2.0, 3.0, 4.0, 5.0, 6.0],
    "user": [-5, 2**62, 0, 3, 4, 5, 6],
    "site": ["a", "", None, "a long site name", "b", "c", "d"],
    "tags": [["x"], ["y", "x", "z"], [], None, ["x", None], ["z"], []],
}


def write(path, columns=ROWS, rows=3):
    parquet.write_table(pyarrow.table(columns), path, row_group_size=rows)
    return path


@pytest.fixture(autouse=True, scope="module")
def _signals_have_their_pipe():
    """Arrow opens one pipe in a process, at the first read while Python handles SIGINT or SIGTERM.

    That need not be so yet when this module is imported: a shell's background jobs ignore SIGINT.
    """
    csv.read_csv(pyarrow.BufferReader(b"a\n1\n"))


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "log.parquet")


def test_columns_are_read_by_their_types_across_row_groups(path):
    data = read_parquet(path, label="click", shuffle_groups=1)
    x, y = data.batch(np.array([6, 0, 3, 1, 2]))
    assert list(x) == ["price", "user", "site", "tags"]
    assert y.tolist() == [1, 1, 0, 0, 1]
    assert x["price"].isnan().tolist() == [False, False, False, True, False]
    assert x["price"].nan_to_num(-1).tolist() == [6, 0.5, 3, -1, 2]
    assert x["user"].tolist() == [6, -5, 3, 2**62, 0]
    assert x["site"].tolist() == hash_ids(["d", "a", "a long site name", "", None]).tolist()
    padded = [["", "", ""], ["x", "", ""], ["", "", ""], ["y", "x", "z"], ["", "", ""]]
    assert x["tags"].tolist() == hash_ids(padded).tolist()
    assert {name: column.dtype for name, column in x.items() if name != "price"} == dict.fromkeys(
        ("user", "site", "tags"), torch.int64
    )


def test_columns_can_be_stacked_into_a_class_with_buckets(path):
    data = read_parquet(
        path,
        label=["click", "user"],
        floats={"dense": ["price", "user"]},
        ids={"sparse": ["user", "site"]},
        buckets={"sparse": 50, "site": 9},
        make=ClickBatch,
    )
    x, y = data.batch(np.arange(7))
    assert isinstance(x, ClickBatch)
    assert x.dense.shape == (7, 2) and x.dense.dtype == torch.float32
    assert x.sparse[:, 0].tolist() == hash_ids(ROWS["user"], 50).tolist()
    assert x.sparse[:, 1].tolist() == hash_ids(ROWS["site"], 9).tolist()
    assert y[:, 0].tolist() == ROWS["click"]


def test_lists_of_numbers_are_padded_with_nan_and_missing_ids_with_0(tmp_path):
    columns = {"vector": [[1.0, 2.0], [3.0]], "items": [[7, 8, None], None], "kind": ["x", None]}
    table = pyarrow.table(columns)
    table = table.set_column(2, "kind", table["kind"].dictionary_encode())
    parquet.write_table(table, tmp_path / "lists.parquet")
    x = read_parquet(tmp_path / "lists.parquet", buckets={"items": 100}).batch(np.array([1, 0]))
    assert x["vector"].nan_to_num(-1).tolist() == [[3, -1], [1, 2]]
    assert x["items"].tolist() == [[0, 0, 0], hash_ids([7, 8, None], 100).tolist()]
    assert x["kind"].tolist() == hash_ids([None, "x"]).tolist()


def test_csv_has_the_same_samples_as_parquet(path, tmp_path, monkeypatch):
    text = "click\tprice\tuser\tsite\ttags\n"
    for click, price, user, site, tags in zip(*ROWS.values(), strict=True):
        listed = "|".join(tag or "" for tag in tags or [])
        text += f'{click}\t{"NULL" if price is None else price}\t{user}\t"{site or ""}"\t{listed}\n'
    (tmp_path / "log.tsv").write_text(text + "\n")
    monkeypatch.setattr(row_groups, "BLOCK", 40)  # about two lines
    data = read_csv(
        tmp_path, separator="\t", label="click", missing=["", "NULL"], lists={"tags": "|"}, shuffle_groups=2
    )
    assert len(data.row_groups.ends) > 2
    same, labels = read_parquet(path, label="click").batch(np.arange(7))
    x, y = data.batch(np.arange(7))
    assert y.tolist() == labels.tolist()
    assert {name: column.nan_to_num(-1).tolist() for name, column in x.items()} == {
        name: column.nan_to_num(-1).tolist() for name, column in same.items()
    }
    (tmp_path / "bare.txt").write_text("1,a\n0,b")
    bare = read_csv(tmp_path / "bare.txt", names=["click", "site"], label="click")
    assert bare[1][0]["site"] == int(hash_ids("b")) and len(bare) == 2


class FrameWithArrow:
    def to_arrow(self):
        return pyarrow.table(ROWS)


@pytest.mark.parametrize("kind", ["pyarrow", "to_arrow", "pandas", "polars"])
def test_frame_has_the_same_samples_as_its_file(path, kind):
    if kind == "pandas":
        frame = pytest.importorskip("pandas").DataFrame(ROWS)
    elif kind == "polars":
        frame = pytest.importorskip("polars").DataFrame(ROWS)
    else:
        frame = pyarrow.table(ROWS) if kind == "pyarrow" else FrameWithArrow()
    x, y = from_frame(frame, label="click").batch(np.arange(7))
    same, labels = read_parquet(path, label="click").batch(np.arange(7))
    assert y.tolist() == labels.tolist()
    for name, column in same.items():
        assert torch.equal(x[name].nan_to_num(-1), column.nan_to_num(-1)), name


@pytest.fixture
def reads(monkeypatch):
    """Numbers of the row groups that are decoded, in order."""
    seen, read = [], row_groups.ParquetGroup.read

    def noted(group, columns):
        seen.append((group.path, group.number))
        return read(group, columns)

    monkeypatch.setattr(row_groups.ParquetGroup, "read", noted)
    return seen


def test_shuffled_epoch_decodes_each_row_group_once(tmp_path, reads):
    for day, rows in (("a", 1000), ("b", 450)):
        write(tmp_path / f"{day}.parquet", {"n": [float(n) for n in range(rows)]}, rows=100)
    data = read_parquet(tmp_path, shuffle_groups=4)
    opened = source.open_source(data, batch_size=32)
    card = DatasetCard(samples=opened.samples, batch_size=32, shard_batches=5)
    found = []
    for index in range(card.shards):
        for samples in np.array_split(shards.indices(card, epoch=0, index=index, groups=opened.groups), 5):
            found += opened.fetch(samples)["n"].tolist()
            assert len(data._held) <= 4
    assert sorted(found) == sorted([*range(1000), *range(450)])
    assert len(reads) == len(set(reads)) == 15


def test_torch_loader_with_the_sampler_decodes_each_row_group_once(tmp_path, reads):
    data = read_parquet(write(tmp_path / "n.parquet", {"n": [float(n) for n in range(600)]}, rows=50), shuffle_groups=3)
    batches = BatchSampler(data.sampler(seed=1), batch_size=32, drop_last=False)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    first, second = ([n for x in loader for n in x["n"].tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(600))
    assert first != second
    assert len(reads) == 24 - len(set(reads[9:12]) & set(reads[12:15]))  # groups held from one epoch to the next
    assert [len(x["n"]) for x in DataLoader(data, batch_size=200)] == [200, 200, 200]


def test_order_that_decodes_row_groups_again_is_warned_of_once(tmp_path, caplog):
    warn_of_scattered_reads.cache_clear()
    data = read_parquet(write(tmp_path / "n.parquet", {"n": [float(n) for n in range(600)]}, rows=50), shuffle_groups=2)
    for order in (range(600), data.sampler()):
        for x in DataLoader(data, sampler=BatchSampler(order, batch_size=32, drop_last=False), batch_size=None):
            assert len(x["n"])
    assert not caplog.messages
    for step in (50, 100):
        data.batch(np.arange(0, 600, step))
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "batches have samples of more row groups than the 2 that are held"
    ]


def test_data_set_works_in_another_process(path):
    data = read_parquet(path, label="click")
    before = data.batch(np.arange(7))[0]["site"]
    assert pickle.loads(pickle.dumps(data)).batch(np.arange(7))[0]["site"].tolist() == before.tolist()


def test_paths_without_files_are_refused(path, tmp_path):
    with pytest.raises(errors.MissingFile, match=r"Did you mean .*log\.parquet"):
        read_parquet(tmp_path / "log.parqet")
    with pytest.raises(errors.MissingFile, match=r"no file matches .*day-\*"):
        read_parquet(tmp_path / "day-*")
    with pytest.raises(errors.MissingFile, match=r"no file in .* ends in \.csv or \.tsv or \.txt"):
        read_csv(tmp_path)
    with pytest.raises(errors.BadInput, match="list of paths is empty"):
        read_parquet([])


def test_empty_and_damaged_files_are_refused(path, tmp_path):
    (tmp_path / "nothing.parquet").touch()
    with pytest.raises(errors.BadInput, match=r"nothing.parquet is empty \(0 bytes\)"):
        read_parquet(tmp_path)
    write(tmp_path / "nothing.parquet", {name: pyarrow.array(column)[:0] for name, column in ROWS.items()})
    assert len(read_parquet(tmp_path)) == 7
    with pytest.raises(errors.BadInput, match=r"nothing\.parquet has no rows"):
        read_parquet(tmp_path / "nothing.parquet")
    (tmp_path / "header.csv").write_text("click,site\n")
    with pytest.raises(errors.BadInput, match=r"header\.csv has no rows"):
        read_csv(tmp_path / "header.csv")
    (tmp_path / "log.txt").write_text("hello, this is not parquet at all")
    with pytest.raises(errors.MalformedRecord, match=r"not a whole Parquet file.*fetch it again"):
        read_parquet(tmp_path / "log.txt")
    damaged = bytearray(path.read_bytes())
    damaged[4:60] = bytes(56)
    path.write_bytes(damaged)
    with pytest.raises(errors.MalformedRecord, match=r"log.parquet: row group 0 cannot be read .*fetch the file again"):
        read_parquet(path).batch(np.arange(7))


def test_files_of_different_schemas_are_refused(path, tmp_path):
    write(tmp_path / "z.parquet", {**ROWS, "user": ["u"] * 7})
    assert len(read_parquet(tmp_path, floats=["price"])) == 14
    with pytest.raises(errors.BadInput, match=r"column 'user' has texts in .*z.parquet, but whole numbers in .*log"):
        read_parquet(tmp_path)
    write(tmp_path / "z.parquet", {"click": [1]})
    with pytest.raises(errors.BadInput, match=r"z.parquet has no column 'site', but .*log.parquet has"):
        read_parquet(tmp_path, ids=["site"])


def test_wrong_names_and_types_of_columns_are_refused(path):
    with pytest.raises(errors.UnknownName, match="Did you mean 'price'"):
        read_parquet(path, floats=["prise"])
    with pytest.raises(errors.BadInput, match=r"floats='price': expected a list of columns, as in \['price'\]"):
        read_parquet(path, floats="price")
    with pytest.raises(errors.UnknownName, match="no entry of ids for buckets= named 'users'"):
        read_parquet(path, ids=["user"], buckets={"users": 10})
    with pytest.raises(errors.BadInput, match="'price' is in floats and in ids"):
        read_parquet(path, floats=["price"], ids=["price"])
    for options, message in (
        ({"floats": ["site"]}, r"column 'site' of .*log.parquet is string, expected numbers"),
        ({"ids": ["price"]}, r"column 'price' of .* is double, expected whole numbers, texts or lists"),
        ({"ids": {"sparse": ["user", "tags"]}}, r"column 'tags' has lists, which no matrix can hold"),
        ({"floats": ["price"], "label": "tags"}, r"column 'tags' of .* expected numbers"),
    ):
        with pytest.raises(errors.BadInput, match=message):
            read_parquet(path, **options).batch(np.arange(1))


def test_missing_integer_without_buckets_and_missing_label_are_refused(tmp_path):
    write(tmp_path / "log.parquet", {"user": [1, None], "items": [[1, 0], [2]], "click": [1.0, float("nan")]})
    with pytest.raises(errors.BadInput, match=r"integer column 'user' has a missing value.*buckets=\{'user': \.\.\.\}"):
        read_parquet(tmp_path, ids=["user"]).batch(np.arange(1))
    with pytest.raises(errors.BadInput, match=r"integer column 'items' has id 0, which pads lists"):
        read_parquet(tmp_path, ids=["items"]).batch(np.arange(1))
    with pytest.raises(errors.MalformedRecord, match=r"'click', the label, is missing in 1 rows, the first is row 1"):
        read_parquet(tmp_path, label="click", buckets=10).batch(np.arange(1))


def test_malformed_csv_is_refused_with_its_place(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("click,user\n1,2\n" + "0,5\n" * 300_000 + "1,x\n")
    with pytest.raises(errors.MalformedRecord, match=r"log.csv, bytes 11 to .*invalid value 'x'.*text with buckets="):
        read_csv(path, label="click").batch(np.arange(1))
    assert read_csv(path, label="click", buckets=9)[-1][0]["user"] == int(hash_ids("x", 9))
    path.write_text('click,site\n1,"a\nb"\n')
    with pytest.raises(errors.MalformedRecord, match="1 records in 2 lines; expected one a line"):
        read_csv(path).batch(np.arange(1))
    path.write_text("a,a\n1,2\n")
    with pytest.raises(errors.BadInput, match="separator='tab': expected one character"):
        read_csv(path, separator="tab")
    with pytest.raises(errors.BadInput, match="two columns are named 'a'"):
        read_csv(path)
    path.write_bytes(b"\x1f\x8b\x08\x00 packed")
    with pytest.raises(errors.BadInput, match="packed with gzip, and cannot be read in parts: unpack it"):
        read_csv(path)


def test_indices_of_the_wrong_kind_are_refused(path):
    data = read_parquet(path)
    with pytest.raises(errors.BadInput, match=r"indices are float64 of shape .* expected whole numbers, 1-D"):
        data.batch(np.array([0.5]))
    with pytest.raises(errors.BadInput, match="indices from 0 to 7; expected 0 to 6"):
        data.batch(np.array([0, 7]))
    with pytest.raises(IndexError, match="index 7 of 7 samples"):
        data[7]


def test_without_pyarrow_the_reader_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(errors.MissingExtra, match=r"springtide\[parquet\]"):
        read_parquet(path)
