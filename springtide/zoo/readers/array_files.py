"""Joins blocks of named columns into whole arrays, in memory or in memory-mapped files that processes share.

In: an iterator of blocks, a folder, and a text that identifies the content. Out: arrays by name. Files get a temporary
name and are renamed when complete, so a reader never sees a partial file. Existing content is reused.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide.zoo.readers import file_errors

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
        with file_errors.full_is_told(folder):
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
        if not (home / _LIST).exists():  # otherwise another process has written the same content first
            raise
