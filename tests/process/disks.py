"""Small real disks that a test can fill. Needs root and mountable file systems."""

import contextlib
import os
import shutil
import subprocess

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a disk needs root")


@contextlib.contextmanager
def disk(path, size):
    """A file system of that size."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def fill(path):
    """Take all that is left."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
