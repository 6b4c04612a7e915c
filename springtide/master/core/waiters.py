"""Lets requests wait: for a barrier, for a change of state, or for admission under bounded staleness.

In: `master.dispatcher`. Out: each request resumes when all workers have arrived or its condition holds.
"""

import asyncio
from collections.abc import Callable

from springtide.domain.data.leases import LeaseHolder
from springtide.job.group.staleness_gate import StalenessGate


class BarrierArrivals:
    """Workers that have reached a closed barrier. The record knows which barriers are open."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._here: dict[tuple[str, int], set[int]] = {}

    def complete(self, name: str, turn: int, worker: int) -> bool:
        """Record a worker's arrival. Return True if all workers have arrived."""
        here = self._here.setdefault((name, turn), set())
        here.add(worker)
        if len(here) < self._workers:
            return False
        del self._here[name, turn]
        return True


class ChangeSignal:
    """Wakes tasks that wait for a condition."""

    def __init__(self) -> None:
        self._turned = asyncio.Event()

    def turn(self) -> None:
        """Wake all waiting tasks, so that they check their conditions again."""
        self._turned.set()
        self._turned = asyncio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until `true()` holds. It is checked now and after every change."""
        while not true():
            await self._turned.wait()


class StalenessQueue:
    """Admits workers of a job with bounded staleness in turn, by the rule of `job.group.staleness_gate`."""

    def __init__(self, changed: ChangeSignal) -> None:
        self._gate, self._changed = StalenessGate(), changed

    async def enter(self, holder: LeaseHolder, bound: int) -> None:
        """Wait until the holder is admitted."""
        self.leave(holder)  # the holder asks again, because the reply was lost
        try:
            await self._changed.until(lambda: self._gate.admit(holder, bound))
        except asyncio.CancelledError:
            self.leave(holder)
            raise
        self._changed.turn()  # the next waiting worker may be admitted too

    def leave(self, holder: LeaseHolder) -> None:
        """Release the holder: its push is applied, or it is gone."""
        if self._gate.leave(holder):
            self._changed.turn()
