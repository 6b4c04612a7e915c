"""Arrays of a data set in memory-mapped files that processes share, and clear errors for its files.

In: blocks of named columns, a folder, and a text that identifies the content. Out: arrays by name. Files get a
temporary name and are renamed when complete, so a reader never sees a partial file. Existing content is reused.
"""

import contextlib
import difflib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def full_is_told(path: Path) -> Iterator[None]:
    """Convert a full disk within the block to `DiskFull`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        raise errors.DiskFull(
            f"no room to write under {path} ({free / 2**20:.0f} MiB free); free some or choose another folder"
        ) from error


def existing(path: str | Path) -> Path:
    """Return an existing file. If the file is missing, raise an error with the nearest name in its folder."""
    if not isinstance(path, str | os.PathLike):
        raise errors.BadInput(f"a data set's file is {path!r}: expected the path of one file")
    file = Path(path)
    if file.is_file():
        return file
    if file.is_dir():
        raise errors.MissingFile(f"{file} is a folder; give a file in it")
    if not file.parent.is_dir():
        raise errors.MissingFile(f"no file {file}: its folder {file.parent} does not exist")
    names = sorted(entry.name for entry in file.parent.iterdir())
    near = difflib.get_close_matches(file.name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {str(file.parent / near[0])!r}?" if near else f"{file.parent} holds {len(names)} others."
    raise errors.MissingFile(f"no file {file}. {hint}")


Columns = dict[str, NDArray[Any]]

_LIST = "columns.json"


def joined(samples: int, blocks: Iterable[Columns]) -> Columns:
    """Return all blocks in memory, one array per column."""
    whole: Columns = {}
    at = 0
    for block in blocks:
        for name, column in block.items():
            if name not in whole:
                whole[name] = np.empty((samples, *column.shape[1:]), dtype=column.dtype)
            whole[name][at : at + len(column)] = column
        at += len(next(iter(block.values())))
    return whole


def kept(folder: Path, content: str, samples: int, blocks: Iterable[Columns]) -> Columns:
    """Return all blocks as files under `folder`, memory-mapped read-only; existing content is reused."""
    home = folder / hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    if not (home / _LIST).exists():
        with full_is_told(folder):
            folder.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
            try:
                _write(scratch, content, blocks)
                _publish(scratch, home)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    shapes = json.loads((home / _LIST).read_text())["columns"]
    return {
        name: np.memmap(home / f"{name}.bin", dtype=dtype, mode="r", shape=(samples, *shape))
        for name, (dtype, shape) in shapes.items()
    }


def _write(scratch: Path, content: str, blocks: Iterable[Columns]) -> None:
    shapes: dict[str, tuple[str, list[int]]] = {}
    for block in blocks:
        for name, column in block.items():
            shapes[name] = (column.dtype.str, list(column.shape[1:]))
            with (scratch / f"{name}.bin").open("ab") as file:
                file.write(np.ascontiguousarray(column).data)
    (scratch / _LIST).write_text(json.dumps({"content": content, "columns": shapes}))


def _publish(scratch: Path, home: Path) -> None:
    try:
        os.rename(scratch, home)
    except OSError:
        if not (home / _LIST).exists():  # unless another process has meanwhile written the same content
            raise
