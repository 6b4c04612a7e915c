"""Copies a package between hosts: trainers send its files to the master, and data workers fetch them from there.

In: a folder written by job_package.py, and its digest. Out: the same files on another host. If both hosts see the same
disk, the package is not sent. The master (`master.data.shared_values`) keeps the files, so that data workers can start
without the trainer. This module unpickles nothing and does not import torch.
"""

import contextlib
import hashlib
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator

from springtide import errors
from springtide.checkpoint.transfer.file_transfer import SegmentCopies, parts
from springtide.rpc.messages.checkpoints import MissingFiles
from springtide.rpc.messages.data_workers import PackageAsk, PackageWritten
from springtide.rpc.messages.types import FilePart, Reply, Request

CONTENTS, CODE, ARRAYS = "contents", "code", "arrays"
IN_ORDER = (ARRAYS, CODE, CONTENTS)
"""Files of a package in the order of their transfer. The list of contents comes last, so its presence means that all
files are present."""
NAME = re.compile("|".join(IN_ORDER))
SEAL_BYTES = 32
MOST_BYTES = 8 << 30
"""Largest package to send, in bytes. A larger data set belongs in files that each host reads for itself."""
TRIES = 3

Ask = Callable[[Request], Reply]


def sealed_in(folder: pathlib.Path) -> str:
    """Return the digest of the package in a folder; empty if there is none."""
    try:
        return hashlib.sha256((folder / CONTENTS).read_bytes()[SEAL_BYTES:]).hexdigest()
    except OSError:
        return ""


def check_size(files: tuple[tuple[str, int], ...]) -> None:
    total = sum(size for _, size in files)
    if total > MOST_BYTES:
        raise errors.BadInput(
            f"the data set takes {total / 2**30:.1f} GB in memory; data workers on other hosts can receive at most "
            f"{MOST_BYTES >> 30} GB: keep samples in files (numpy.memmap, Parquet) that all hosts can read"
        )


def send(ask: Ask, folder: pathlib.Path, sealed: str) -> None:
    """Send the package to the master, unless the master has it.

    A new master does not know of the transfer, and refuses the rest of the files. `send` then starts from the first
    file.
    """
    files = tuple((name, (folder / name).stat().st_size) for name in IN_ORDER)
    for left in reversed(range(TRIES)):
        try:
            return _send(ask, folder, sealed, files)
        except errors.BadInput:
            if not left:
                raise


def _send(ask: Ask, folder: pathlib.Path, sealed: str, files: tuple[tuple[str, int], ...]) -> None:
    lacks = ask(PackageWritten(sealed, files))
    assert isinstance(lacks, MissingFiles)
    for name in lacks.names:
        for part in parts(folder / name):
            ask(part)


@contextlib.contextmanager
def writable(folder: str) -> Iterator[pathlib.Path]:
    """Yield the run's package folder if this process can write to it, and otherwise a temporary folder."""
    there = pathlib.Path(folder)
    try:
        there.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=there).close()
    except OSError:
        own = _own_folder()
        try:
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)
    else:
        yield there


def _own_folder() -> pathlib.Path:
    try:
        return pathlib.Path(tempfile.mkdtemp(prefix="springtide-package-"))
    except OSError as error:
        raise errors.DiskFull(
            f"the package for data workers cannot be written to {tempfile.gettempdir()}: {error}"
        ) from error


@contextlib.contextmanager
def at_hand(ask: Ask, folder: str, sealed: str) -> Iterator[pathlib.Path]:
    """Yield a folder with this package: the run's folder if this process can see that folder, and otherwise a temporary
    copy.

    Memory that is mapped from the copy stays valid after the copy is deleted.
    """
    there = pathlib.Path(folder)
    if sealed_in(there) == sealed:
        yield there
        return
    own = _own_folder()
    try:
        fetch(ask, own, sealed)
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def fetch(ask: Ask, folder: pathlib.Path, sealed: str) -> None:
    copies = SegmentCopies(folder, NAME)
    for name in IN_ORDER:
        offset, last = 0, False
        while not last:
            part = ask(PackageAsk(sealed, name, offset))
            assert isinstance(part, FilePart)
            copies.take(part)
            offset, last = offset + len(part.content), part.last
    if sealed_in(folder) != sealed:
        raise errors.BadInput("the master sent a different package than it announced")
