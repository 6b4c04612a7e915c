"""A server knows by the claim of its run whether it sees the job's folder, or writes to a disk of its own."""

import os

import pytest

from springtide import errors
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer import claims, shared_disk
from springtide.checkpoint.transfer.claims import RunClaim


def claimed(folder, run):
    """The name of a claim of that run."""
    return claims.take(FolderStore(folder), RunClaim(run=run, job="job"))


def test_whoever_finds_the_claim_of_its_run_shares_the_folder(tmp_path):
    claim = claimed(tmp_path / "job", "run1")
    assert shared_disk.find_disk(str(tmp_path / "job"), "run1", claim) == shared_disk.CheckpointDisk(tmp_path / "job")
    assert shared_disk.find_disk(str(tmp_path / "nowhere"), "run1", "") == shared_disk.CheckpointDisk(
        tmp_path / "nowhere"
    ), "none was written"


@pytest.mark.parametrize("other", ["gone", "of another"])
def test_whoever_does_not_has_a_folder_of_its_own_on_a_machine_with_a_name(tmp_path, other):
    claim, elsewhere = claimed(tmp_path / "job", "run1"), tmp_path / "elsewhere"
    if other == "of another":
        assert claimed(elsewhere, "run2") == claim, "another run's claim has the same name"
    disk = shared_disk.find_disk(str(elsewhere), "run1", claim, scratch=str(tmp_path / "scratch"))
    assert disk.folder == tmp_path / "scratch" / "run1" and disk.folder.is_dir()
    assert disk.node == claims.machine() != ""
    assert (
        shared_disk.find_disk(str(elsewhere), "run1", claim, scratch=str(tmp_path / "scratch"), node="n1").node == "n1"
    )


def test_a_machine_that_lets_it_write_nowhere_is_told_what_to_set(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.BadInput, match="SPRINGTIDE_SCRATCH"):
        shared_disk.find_disk(str(tmp_path / "nowhere"), "run1", "claim", scratch=str(tmp_path / "file"))


def test_a_folder_that_another_user_has_made_under_our_name_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_disk.tempfile, "gettempdir", lambda: str(tmp_path))
    assert shared_disk.find_disk(str(tmp_path / "nowhere"), "run1", "claim").folder.is_dir()
    mine = os.getuid()
    (tmp_path / f"springtide-{mine}").rename(tmp_path / f"springtide-{mine + 1}")
    monkeypatch.setattr(shared_disk.os, "getuid", lambda: mine + 1)
    with pytest.raises(errors.BadInput, match="another user's"):
        shared_disk.find_disk(str(tmp_path / "nowhere"), "run1", "claim")
