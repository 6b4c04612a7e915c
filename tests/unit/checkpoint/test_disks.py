"""A server knows by the master's mark whether it sees the job's folder, or writes to a disk of its own."""

import os

import pytest

from springtide import errors
from springtide.checkpoint import disks


def test_whoever_finds_the_mark_shares_the_folder(tmp_path):
    marked = disks.mark(tmp_path / "job")
    assert marked and disks.mark(tmp_path / "job") == marked, "a master that takes over finds it"
    assert disks.found(str(tmp_path / "job"), marked) == disks.Disk(tmp_path / "job")
    assert disks.found(str(tmp_path / "nowhere"), "") == disks.Disk(tmp_path / "nowhere"), "no mark could be written"


@pytest.mark.parametrize("other", ["gone", "of another"])
def test_whoever_does_not_has_a_folder_of_its_own_on_a_machine_with_a_name(tmp_path, other):
    marked = disks.mark(tmp_path / "job")
    elsewhere = tmp_path / "elsewhere"
    if other == "of another":
        assert disks.mark(elsewhere) != marked
    disk = disks.found(str(elsewhere), marked, scratch=str(tmp_path / "scratch"))
    assert disk.folder == tmp_path / "scratch" / marked and disk.folder.is_dir()
    assert disk.node == disks.machine() != ""
    assert disks.found(str(elsewhere), marked, scratch=str(tmp_path / "scratch"), node="n1").node == "n1"


def test_a_machine_that_lets_it_write_nowhere_is_told_what_to_set(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.BadInput, match="SPRINGTIDE_SCRATCH"):
        disks.found(str(tmp_path / "nowhere"), "mark", scratch=str(tmp_path / "file"))


def test_a_folder_that_another_user_has_made_under_our_name_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(disks.tempfile, "gettempdir", lambda: str(tmp_path))
    assert disks.found(str(tmp_path / "nowhere"), "mark").folder.is_dir()
    mine = os.getuid()
    (tmp_path / f"springtide-{mine}").rename(tmp_path / f"springtide-{mine + 1}")
    monkeypatch.setattr(disks.os, "getuid", lambda: mine + 1)
    with pytest.raises(errors.BadInput, match="another user's"):
        disks.found(str(tmp_path / "nowhere"), "mark")
