"""A server knows by the claim of its run whether it sees the job's folder, or writes to a disk of its own."""

import os

import pytest

from springtide import errors
from springtide.checkpoint import claims, disks
from springtide.checkpoint.claims import Claim
from springtide.checkpoint.places import Folder


def claimed(folder, run):
    """The name of a claim of that run."""
    return claims.take(Folder(folder), Claim(run=run, job="job"))


def test_whoever_finds_the_claim_of_its_run_shares_the_folder(tmp_path):
    claim = claimed(tmp_path / "job", "run1")
    assert disks.found(str(tmp_path / "job"), "run1", claim) == disks.Disk(tmp_path / "job")
    assert disks.found(str(tmp_path / "nowhere"), "run1", "") == disks.Disk(tmp_path / "nowhere"), "none was written"


@pytest.mark.parametrize("other", ["gone", "of another"])
def test_whoever_does_not_has_a_folder_of_its_own_on_a_machine_with_a_name(tmp_path, other):
    claim, elsewhere = claimed(tmp_path / "job", "run1"), tmp_path / "elsewhere"
    if other == "of another":
        assert claimed(elsewhere, "run2") == claim, "another run's claim has the same name"
    disk = disks.found(str(elsewhere), "run1", claim, scratch=str(tmp_path / "scratch"))
    assert disk.folder == tmp_path / "scratch" / "run1" and disk.folder.is_dir()
    assert disk.node == claims.machine() != ""
    assert disks.found(str(elsewhere), "run1", claim, scratch=str(tmp_path / "scratch"), node="n1").node == "n1"


def test_a_machine_that_lets_it_write_nowhere_is_told_what_to_set(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.BadInput, match="SPRINGTIDE_SCRATCH"):
        disks.found(str(tmp_path / "nowhere"), "run1", "claim", scratch=str(tmp_path / "file"))


def test_a_folder_that_another_user_has_made_under_our_name_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(disks.tempfile, "gettempdir", lambda: str(tmp_path))
    assert disks.found(str(tmp_path / "nowhere"), "run1", "claim").folder.is_dir()
    mine = os.getuid()
    (tmp_path / f"springtide-{mine}").rename(tmp_path / f"springtide-{mine + 1}")
    monkeypatch.setattr(disks.os, "getuid", lambda: mine + 1)
    with pytest.raises(errors.BadInput, match="another user's"):
        disks.found(str(tmp_path / "nowhere"), "run1", "claim")
