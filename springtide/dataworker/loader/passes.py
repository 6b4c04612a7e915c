"""One loop over a loader's batches. A loader has one at a time, and says so to whoever goes on with an earlier one.

In: the batches, as loader.py makes them. Out: the iterator that a `for` has.
"""

import inspect
from collections.abc import Generator
from typing import Any

from springtide import errors

TAKEN = (
    "another loop over the same ElasticLoader has begun, which has ended this one: there is one at a time. Take a "
    "loader for each of two loops inside each other, or zip(...)ed"
)


class Pass:
    """An iterator over batches, which can be ended from outside."""

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches, self._taken = batches, False

    def __iter__(self) -> "Pass":
        return self

    def __next__(self) -> Any:
        if self._taken:
            raise errors.BadInput(TAKEN)
        return next(self._batches)

    def end(self, *, taken: bool) -> None:
        """No batches any more. `taken`: for another loop, so that whoever asks for more has lost batches."""
        self._taken = taken and inspect.getgeneratorstate(self._batches) != inspect.GEN_CLOSED
        self._batches.close()
