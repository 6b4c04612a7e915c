"""Lets requests wait: for a barrier, for a change of state, or for admission under bounded staleness."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from springtide.domain.data.leases import LeaseHolder


class BarrierArrivals:
    """Workers that have reached a closed barrier. The record knows which barriers are open."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._here: dict[tuple[str, int], set[int]] = {}

    def complete(self, name: str, turn: int, worker: int) -> bool:
        """Record a worker's arrival at a closed barrier. Return True if all workers have arrived."""
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
        """Wait until `true()` returns True. It is called now and after every change."""
        while not true():
            await self._turned.wait()


class StalenessQueue:
    """Admits workers of a job with bounded staleness in turn, by the rule of `master.core.waiters`."""

    def __init__(self, changed: ChangeSignal) -> None:
        self._gate, self._changed = StalenessGate(), changed

    async def enter(self, holder: LeaseHolder, bound: int) -> None:
        self.leave(holder)  # the holder asks again, because the reply was lost
        try:
            await self._changed.until(lambda: self._gate.admit(holder, bound))
        except asyncio.CancelledError:
            self.leave(holder)
            raise
        self._changed.turn()  # the next waiting worker may be admitted too

    def leave(self, holder: LeaseHolder) -> None:
        if self._gate.leave(holder):
            self._changed.turn()


@dataclass(slots=True)
class StalenessGate:
    """Workers that have read values and not yet pushed ("inside"), each with the number of pushes applied since its
    read.

    Each worker inside pushes once before it reads again. For each worker, the pushes applied since its read plus the
    number of other workers inside must stay within the bound. `admit` ensures this, and `leave` cannot break it.
    """

    inside: dict[LeaseHolder, int] = field(default_factory=dict)
    queue: list[LeaseHolder] = field(default_factory=list)

    def admit(self, holder: LeaseHolder, bound: int) -> bool:
        """Admit the holder if it is first in the queue and the bound allows it. Return True if it may read now."""
        if holder not in self.queue:
            self.queue.append(holder)
        if self.queue[0] != holder or len(self.inside) + max(self.inside.values(), default=0) > bound:
            return False
        self.queue.remove(holder)
        self.inside[holder] = 0
        return True

    def leave(self, holder: LeaseHolder) -> bool:
        """Remove a holder whose push is applied or that is gone. Return True if that changes anything."""
        waited = holder in self.queue
        if waited:
            self.queue.remove(holder)
        if self.inside.pop(holder, None) is None:
            return waited
        for other in self.inside:
            self.inside[other] += 1
        return True
