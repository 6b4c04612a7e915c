"""Logs the times of training steps in the demo, to measure the longest pause.

In: a folder, and a call after each step. Out: a file per worker; the longest time without a step of any worker.
"""

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path


class StepLog:
    """Log of one worker's step times; without a folder it does nothing."""

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
    """Return the step times of all workers."""
    lines = [line for path in Path(folder).glob("steps-*") for line in path.read_text().splitlines()]
    return sorted(float(line) for line in lines)


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """Return the longest time without a step that ended within this span."""
    gaps = (later - earlier for earlier, later in itertools.pairwise(times) if begin <= later and earlier <= end)
    return max(gaps, default=0.0)
