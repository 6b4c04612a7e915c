"""Arrays of a data set in memory-mapped files that processes share, with clear errors for these files.

In: blocks of named columns, a folder, and a text that identifies the content. Out: arrays by name. A folder gets its
final name when it is complete, so a reader never sees a partial file. Existing files with the same content are used
again.
"""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_LIST = "columns.json"

Columns = dict[str, NDArray[Any]]


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


def cached_arrays(home: Path, name: str, content: str, blocks: Iterable[Columns]) -> Columns:
    """Return all blocks as arrays in files of `home` / `name`, memory-mapped and read-only. Files with the same
    `content` are used again."""
    if (found := _read(home / name, content)) is not None:
        return found
    try:
        home.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=home))
    except OSError as error:
        raise errors.DiskFull(f"cannot write to {home} ({error.strerror}); choose a folder that is writable") from error
    try:
        _write(scratch, content, blocks)
        _publish(scratch, home / name, content)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        free = shutil.disk_usage(home).free
        raise errors.DiskFull(
            f"no room to write to {home} ({free / 2**20:.0f} MiB are free); free some space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    found = _read(home / name, content)
    assert found is not None, "the folder was complete before it got its name"
    return found


def _write(scratch: Path, content: str, blocks: Iterable[Columns]) -> None:
    shapes: dict[str, tuple[str, list[int]]] = {}
    for block in blocks:
        for name, column in block.items():
            rows = shapes[name][1][0] if name in shapes else 0
            shapes[name] = (column.dtype.str, [rows + len(column), *column.shape[1:]])
            with (scratch / f"{name}.bin").open("ab") as file:
                file.write(np.ascontiguousarray(column).data)
    (scratch / _LIST).write_text(json.dumps({"content": content, "columns": shapes}))


def _publish(scratch: Path, there: Path, content: str) -> None:
    try:
        os.rename(scratch, there)
    except OSError:
        if not there.exists():
            raise
        # replace the folder, unless another process has just written the same content
        if _read(there, content) is None:
            shutil.rmtree(there)
            os.rename(scratch, there)


def _read(there: Path, content: str) -> Columns | None:
    """Return the arrays in a folder. Return None if the folder does not exist, or if its content is different, missing
    or damaged.
    """
    try:
        listed = json.loads((there / _LIST).read_text())
        if listed["content"] != content:
            return None
        return {
            name: np.memmap(there / f"{name}.bin", dtype=dtype, mode="r", shape=tuple(shape))
            if 0 not in shape
            else np.empty(shape, dtype)
            for name, (dtype, shape) in listed["columns"].items()
        }
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError, KeyError, TypeError):
        return None
