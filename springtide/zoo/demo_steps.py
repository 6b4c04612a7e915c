"""When the steps of the demo were done, so that it can tell how long nobody trained.

In: a folder, and a call after each step. Out: a file a worker; the longest time without a step of anyone.
"""

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path


class StepLog:
    """Writes down when a worker's steps were done; without a folder it does nothing."""

    def __init__(self, folder: str | None, rank: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = None if folder is None else os.open(Path(folder) / f"steps-{rank}", flags)

    def done(self) -> None:
        if self._file is not None:
            os.write(self._file, f"{time.time()}\n".encode())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def read(folder: str | Path) -> list[float]:
    """When a step was done by anyone."""
    lines = [line for path in Path(folder).glob("steps-*") for line in path.read_text().splitlines()]
    return sorted(float(line) for line in lines)


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """The longest time without a step that ended within this span."""
    gaps = (later - earlier for earlier, later in itertools.pairwise(times) if begin <= later and earlier <= end)
    return max(gaps, default=0.0)
