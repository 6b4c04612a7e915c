"""Work queue of the operator: schedules visits to jobs, one visit per job at a time, with backoff after failures.

In: `operator.process` notes changed jobs. Out: calls of `attend`, which returns the time of the next visit. A note
during a visit causes another visit, and many notes at once cause one visit.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from springtide import errors

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a job."""

WORKERS = 8
RESYNC_S = 300.0
"""Longest time between two visits of a job, in seconds."""
CONFLICT_S = 0.1
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Delays after consecutive failures, in seconds."""


class WorkQueue:
    """Queue of jobs. `attend` returns the seconds until the next visit, or None for a deleted job."""

    def __init__(self, attend: Callable[[Key], Awaitable[float | None]]) -> None:
        self._attend = attend
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    @property
    def jobs(self) -> set[Key]:
        return set(self._due) | self._busy

    def note(self, key: Key, *, after_s: float = 0.0) -> None:
        """Schedule a job; an earlier due time stays."""
        when = asyncio.get_running_loop().time() + after_s
        self._due[key] = min(when, self._due.get(key, when))
        self._changed.set()

    def note_all(self) -> None:
        for key in self.jobs:
            self.note(key)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._next()
            self._busy.add(key)
            try:
                again_s = await self._tried(key)
            finally:
                self._busy.discard(key)
                self._changed.set()
            if again_s is not None:
                self.note(key, after_s=min(again_s, RESYNC_S))

    async def _tried(self, key: Key) -> float | None:
        try:
            again_s = await self._attend(key)
        except errors.Conflict as error:  # another writer was faster: read the object again
            log.debug("%s/%s: %s", *key, error)
            return CONFLICT_S
        except Exception as error:  # a broken job must not stop the others
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            pause_s = PAUSES_S[min(failures, len(PAUSES_S)) - 1]
            trace = None if isinstance(error, errors.SpringtideError) else error
            log.warning("%s/%s: %s; again in %g s", *key, error, pause_s, exc_info=trace)
            return pause_s
        self._failures.pop(key, None)
        return again_s

    async def _next(self) -> Key:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            ready = [(when, key) for key, when in self._due.items() if key not in self._busy]
            if ready:
                when, key = min(ready)
                if when <= loop.time():
                    del self._due[key]
                    return key
            wait_s = min(ready)[0] - loop.time() if ready else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
