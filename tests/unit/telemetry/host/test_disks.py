"""File system type of a path, and the SQLite journal mode for it."""

import os
import pathlib

import pytest

from springtide.telemetry.host import disks

MOUNTS = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
31 22 0:26 / /home rw,relatime shared:5 master:2 - nfs4 server:/home rw,vers=4.2
40 31 0:31 / /home/me/scratch\\040disk rw - xfs /dev/sdb1 rw
41 22 0:40 / /mnt/keys rw - fuse.gcsfuse keys rw
42 22 0:41 / /var/lib/root rw - fuse.fuse-overlayfs fuse-overlayfs rw
43 22 0:42 / /run/job rw - tmpfs tmpfs rw
44 43 0:43 / /run/job rw - cifs //server/job rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "mode"),
    [
        ("/var/journal.db", "ext4", "wal"),
        ("/home/me/runs/journal.db", "nfs4", "truncate"),
        ("/homes/journal.db", "ext4", "wal"),
        ("/home/me/scratch disk/journal.db", "xfs", "wal"),
        ("/mnt/keys/journal.db", "fuse.gcsfuse", "truncate"),
        ("/var/lib/root/journal.db", "fuse.fuse-overlayfs", "wal"),
        ("/run/job/journal.db", "cifs", "truncate"),
    ],
)
def test_nearest_mount_decides_the_sqlite_journal_mode(path, kind, mode, monkeypatch):
    assert disks.kind_in(MOUNTS, path) == kind
    monkeypatch.setattr(disks, "kind_of", lambda _: kind)
    assert disks.sqlite_journal_mode(pathlib.Path(path)) == mode


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="needs /proc")
def test_file_system_of_this_machine_is_known(tmp_path):
    assert disks.kind_of(pathlib.Path("/proc/self")) == "proc"
    assert disks.kind_of(tmp_path / "not there yet") not in ("", "proc")


def test_unknown_file_system_counts_as_local(monkeypatch, tmp_path):
    monkeypatch.setattr(disks, "MOUNTS", tmp_path / "nothing")
    assert disks.kind_of(tmp_path) == "" and disks.sqlite_journal_mode(tmp_path) == "wal"
