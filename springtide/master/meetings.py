"""Where requests wait: for one another at a barrier, for a change at the turnstile.

In: `master.desk`. Out: the moment everyone is there, or the moment a condition holds.
"""

import asyncio
from collections.abc import Callable


class Arrivals:
    """Who has come to the barriers that are still closed. Which are open is part of the record."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._here: dict[tuple[str, int], set[int]] = {}

    def complete(self, name: str, turn: int, worker: int) -> bool:
        """Note that a worker has come; whether that makes everyone."""
        here = self._here.setdefault((name, turn), set())
        here.add(worker)
        if len(here) < self._workers:
            return False
        del self._here[name, turn]
        return True


class Turnstile:
    """Wakes whoever waits for something to become true."""

    def __init__(self) -> None:
        self._turned = asyncio.Event()

    def turn(self) -> None:
        """Something has changed: let everyone look again."""
        self._turned.set()
        self._turned = asyncio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        """Look now and after every change, until it is so."""
        while not true():
            await self._turned.wait()
