"""A server knows by the master's mark whether it sees the job's folder; what it keeps on its own disk is swept."""

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


def test_what_no_checkpoint_needs_is_removed_but_nothing_newer_or_strange(tmp_path):
    names = ["server-0.0-000001.seg", "server-0.0-000002.seg", "server-1.0-000002.part", "server-0.0-000003.seg"]
    for name in [*names, "notes.txt"]:
        (tmp_path / name).write_bytes(b"x")
    gone = disks.sweep(tmp_path, {"server-0.0-000002.seg"}, upto=2)
    assert sorted(gone) == ["server-0.0-000001.seg", "server-1.0-000002.part"]
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "server-0.0-000002.seg", "server-0.0-000003.seg"]
    assert disks.sweep(tmp_path / "nowhere", (), upto=9) == []
