"""The folder that an export is made in does not outlive it, however it ends."""

import os

import pytest

from springtide import errors
from springtide.checkpoint.format.storage import FolderStore
from springtide.export import scratch_folder

LONG_AGO = 1.0


def test_it_goes_with_the_export(tmp_path):
    with scratch_folder.folder_for(FolderStore(tmp_path / "exports" / "export-000001")) as made:
        (made / "0-rows").write_bytes(b"rows")
        assert made.parent == tmp_path / "exports"
    assert list((tmp_path / "exports").iterdir()) == []


def test_the_next_export_takes_away_what_a_killed_one_left_and_nothing_that_is_in_use(tmp_path):
    left = tmp_path / ".export-left"
    left.mkdir()
    (left / "0-rows").write_bytes(b"rows")
    with scratch_folder.folder_for(FolderStore(tmp_path / "export-000002")) as other:
        os.utime(other, (LONG_AGO, LONG_AGO))
        assert left.exists(), "it is young: whoever made it may be about to lock it"
        os.utime(left, (LONG_AGO, LONG_AGO))
        with scratch_folder.folder_for(FolderStore(tmp_path / "export-000003")) as third:
            assert sorted(tmp_path.iterdir()) == sorted([other, third])


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    there = scratch_folder.folder_for(FolderStore(tmp_path / "file" / "export-000001"))
    with pytest.raises(errors.BadInput, match="cannot export to"), there:
        raise AssertionError("there can be none")
