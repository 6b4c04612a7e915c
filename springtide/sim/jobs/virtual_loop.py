"""Virtual time for asyncio: nobody sleeps, the clock goes to whatever is due next.

In: a coroutine. Out: its result, and how late it is then. What runs on it is the code of real processes: timeouts,
sleeps and events are asyncio's own. What would go to a thread is done at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Stuck(Exception):
    """Everyone waits for someone else: nothing is due any more."""


class _NoFiles:
    """In the place of a selector: waiting is moving the clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is due any more, but the simulation is not over")
        self.now += timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a number. The same coroutines on it do the same, always."""

    def __init__(self) -> None:
        super().__init__()
        self._files = _NoFiles()
        self._selector = self._files  # what the base class waits by

    def time(self) -> float:
        return self._files.now

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Arguments]], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end in virtual time; whatever it leaves behind is cancelled."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(work)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
