"""Runs of a simulated world beside each other, in as many processes as there are cores.

In: a function of one thing, and the things; both are pickled. Out: what it gives for each, in their order. Called by
lab/springtide_lab/reproduce/goldminer/rows.py, one seed each, and lab/springtide_lab/reproduce/kale/reproduction.py,
one kind of traffic each.
"""

import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from springtide import child_guard

Thing = TypeVar("Thing")
Found = TypeVar("Found")


def each(do: Callable[[Thing], Found], things: Sequence[Thing], *, processes: int = 0) -> list[Found]:
    """`do` of each thing. 0 processes: one a core. None of them outlives this one, however it ends."""
    processes = min(processes or os.cpu_count() or 1, len(things))
    if processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [do(thing) for thing in things]
    with concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("fork"), initializer=child_guard.die_with, initargs=(os.getpid(),)
    ) as pool:
        return list(pool.map(do, things))
