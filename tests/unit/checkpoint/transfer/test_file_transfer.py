"""Copies of other servers' files: complete under their names or absent, and no other names."""

import os
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.checkpoint.transfer import file_transfer

NAME = "server-1.0-000004.run1.seg"


def file(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(content)
    return folder / NAME


def test_file_sent_in_parts_arrives_unchanged(tmp_path, monkeypatch):
    monkeypatch.setattr(file_transfer, "PART_BYTES", 1000)

    @given(st.binary(max_size=300).map(lambda piece: piece * 13))
    def arrives(content):
        kept = file_transfer.SegmentCopies(tmp_path / "buddy")
        source = file(tmp_path / "own", content)
        for part in file_transfer.parts(source):
            kept.take(part)
        assert (tmp_path / "buddy" / NAME).read_bytes() == content
        assert kept.lacks([(NAME, len(content))]) == ()
        assert [path.name for path in (tmp_path / "buddy").iterdir()] == [NAME]

    arrives()


def test_missing_or_shorter_file_is_lacking(tmp_path):
    kept = file_transfer.SegmentCopies(tmp_path)
    file(tmp_path, b"12345")
    assert kept.lacks([(NAME, 5), ("server-1.0-000005.run1.seg", 5)]) == ("server-1.0-000005.run1.seg",)
    assert kept.lacks([(NAME, 6)]) == (NAME,)


def test_interrupted_copy_restarts_from_the_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(file_transfer, "PART_BYTES", 4)
    source, kept = file(tmp_path / "own", b"0123456789"), file_transfer.SegmentCopies(tmp_path / "buddy")
    first, second, third = file_transfer.parts(source)
    kept.take(first)
    with pytest.raises(errors.BadInput, match="at byte 8, expected byte 4"):
        kept.take(third)
    with pytest.raises(errors.BadInput, match="at byte 4, expected byte 0"):
        kept.take(second)
    assert kept.lacks([(NAME, 10)]) == (NAME,)
    for part in (first, second, third):
        kept.take(part)
    assert (tmp_path / "buddy" / NAME).read_bytes() == b"0123456789"


def test_bytes_changed_in_transfer_leave_no_file(tmp_path):
    (part,) = file_transfer.parts(file(tmp_path / "own", b"right"))
    kept = file_transfer.SegmentCopies(tmp_path / "buddy")
    with pytest.raises(errors.BadInput, match="its checksum differs"):
        kept.take(msgspec.structs.replace(part, content=b"wrong"))
    assert list((tmp_path / "buddy").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../server-1.0-000004.run1.seg", "/etc/passwd", "manifest-000004.ckpt", "server-1.0-4.seg"]
)
def test_other_file_names_are_refused(tmp_path, name):
    (part,) = file_transfer.parts(file(tmp_path / "own", b"bytes"))
    with pytest.raises(errors.BadInput, match="not the name of a segment file"):
        file_transfer.SegmentCopies(tmp_path / "buddy").take(msgspec.structs.replace(part, name=name))
    assert not (tmp_path / "buddy").exists()


def test_unwritable_folder_is_reported(tmp_path):
    (part,) = file_transfer.parts(file(tmp_path / "own", b"bytes"))
    (tmp_path / "buddy").write_text("not a folder")
    with pytest.raises(errors.DiskFull, match="cannot write to"):
        file_transfer.SegmentCopies(tmp_path / "buddy").take(part)


def test_sweep_removes_unneeded_files_but_nothing_newer_or_foreign(tmp_path):
    names = [
        "server-0.0-000001.run1.seg",
        "server-0.0-000002.run1.seg",
        "server-1.0-000002.run1.part",
        "server-0.0-000003.run1.seg",
    ]
    for name in [*names, "notes.txt"]:
        (tmp_path / name).write_bytes(b"x")
    gone = file_transfer.SegmentCopies(tmp_path).sweep({"server-0.0-000002.run1.seg"}, upto=2)
    assert sorted(gone) == ["server-0.0-000001.run1.seg", "server-1.0-000002.run1.part"]
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "server-0.0-000002.run1.seg", "server-0.0-000003.run1.seg"]
    assert file_transfer.SegmentCopies(tmp_path / "nowhere").sweep((), upto=9) == []


def test_sweep_keeps_files_the_next_checkpoint_relies_on(tmp_path):
    kept = file_transfer.SegmentCopies(tmp_path)
    path = file(tmp_path, b"12345")
    coming = "server-1.0-000005.run1.seg"
    assert kept.lacks([(NAME, 5), (coming, 2)]) == (coming,)
    kept.take(file_transfer.FilePart(coming, 0, b"1", False, 0))
    assert kept.sweep((), upto=6) == [] and path.exists()
    kept.take(file_transfer.FilePart(coming, 1, b"2", True, zlib.crc32(b"12")))
    assert kept.sweep({coming}, upto=6) == [NAME], "nobody has asked again: it was given up"
    assert [each.name for each in tmp_path.iterdir()] == [coming]
