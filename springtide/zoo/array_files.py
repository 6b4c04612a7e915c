"""Arrays of a data set in memory-mapped files that processes share, with clear errors for these files.

In: blocks of named columns, folders to choose from, and a text that identifies the content. Out: arrays by name. A
folder gets its name when it is complete, so a reader never sees a partial file. If the content already exists, it is
used again.
"""

import contextlib
import difflib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def full_is_told(path: Path) -> Iterator[None]:
    """Convert a full disk inside the block to `DiskFull`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        raise errors.DiskFull(
            f"no room to write to {path} ({free / 2**20:.0f} MiB are free); free some space or choose another folder"
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
    hint = f"Did you mean {str(file.parent / near[0])!r}?" if near else f"{file.parent} holds {len(names)} other files."
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


def cached_arrays(
    homes: Sequence[Path], name: str, content: str, blocks: Iterable[Columns], notes: dict[str, Any] | None = None
) -> tuple[Columns, dict[str, Any]]:
    """Return all blocks as arrays of the folder `name`, memory-mapped and read-only, and the notes stored with them.

    The folder is in the first of `homes` that has this content, or else in the first writable one. `notes`
    may be filled while the blocks are made.
    """
    for home in homes:
        if (found := _read(home / name, content)) is not None:
            return found
    for home in homes:
        try:
            home.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=home))
        except OSError as error:
            if not isinstance(error, PermissionError) and error.errno != errno.EROFS:
                raise
            continue
        try:
            with full_is_told(home):
                _write(scratch, content, blocks, {} if notes is None else notes)
                _publish(scratch, home / name, content)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if (found := _read(home / name, content)) is not None:
            return found
    raise errors.DiskFull(f"cannot write to {' or '.join(map(str, homes))}; make one of these folders writable")


def _write(scratch: Path, content: str, blocks: Iterable[Columns], notes: dict[str, Any]) -> None:
    shapes: dict[str, tuple[str, list[int]]] = {}
    for block in blocks:
        for name, column in block.items():
            rows = shapes[name][1][0] if name in shapes else 0
            shapes[name] = (column.dtype.str, [rows + len(column), *column.shape[1:]])
            with (scratch / f"{name}.bin").open("ab") as file:
                file.write(np.ascontiguousarray(column).data)
    (scratch / _LIST).write_text(json.dumps({"content": content, "columns": shapes, "notes": notes}))


def _publish(scratch: Path, there: Path, content: str) -> None:
    try:
        os.rename(scratch, there)
    except OSError:
        if not there.exists():
            raise
        # the folder has other content; if another process wrote the same content meanwhile, it is used
        if _read(there, content) is None:
            shutil.rmtree(there)
            os.rename(scratch, there)


def _read(there: Path, content: str) -> tuple[Columns, dict[str, Any]] | None:
    """Return the arrays in a folder. Return None if there is no folder, or if its content is different, missing or
    damaged."""
    try:
        listed = json.loads((there / _LIST).read_text())
        if listed["content"] != content:
            return None
        return {
            name: np.memmap(there / f"{name}.bin", dtype=dtype, mode="r", shape=tuple(shape))
            if shape[0]
            else np.empty(shape, dtype)
            for name, (dtype, shape) in listed["columns"].items()
        }, listed["notes"]
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError, KeyError, TypeError):
        return None
