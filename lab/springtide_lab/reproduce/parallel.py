"""Runs simulations in parallel processes, by default one per core.

In: a function and its arguments, all pickled. Out: the results in order of the arguments.
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
    """Call `do` for each item; 0 processes means one per core. Child processes never outlive this process."""
    processes = min(processes or os.cpu_count() or 1, len(things))
    if processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [do(thing) for thing in things]
    with concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("fork"), initializer=child_guard.die_with, initargs=(os.getpid(),)
    ) as pool:
        return list(pool.map(do, things))
