"""asyncio event loop in virtual time: sleeping jumps the clock to the next due event.

In: a coroutine. Out: its result; `loop.time()` is the virtual time. The loop runs the code of real processes, with
asyncio's own tasks, timeouts, sleeps and events. Work for a thread runs inline. The loop does only what simulations
need: no files, no signals, no contexts of callbacks. So it costs a third of asyncio's own loop.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Stuck(Exception):
    """Deadlock: all tasks wait and no event is due."""


class Timer:
    """A callback that is due at a virtual time."""

    __slots__ = ("_when", "arguments", "callback")

    def __init__(self, when: float, callback: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
        self._when, self.callback, self.arguments = when, callback, arguments

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None


class VirtualLoop(asyncio.AbstractEventLoop):
    """A deterministic event loop whose time is a number."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[Timer] = deque()
        self._due: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._broken: BaseException | None = None

    # ---- what tasks, futures and timeouts of asyncio ask for ----

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        timer = Timer(self._now, callback, args)
        self._ready.append(timer)
        return timer

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        timer = Timer(when, callback, args)
        heapq.heappush(self._due, (when, next(self._numbers), timer))
        return timer

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return self.call_at(self._now + delay, callback, *args)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[[Unpack[Arguments]], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nobody awaited a task that failed. A killed process leaves such tasks; `machines` looks at the others."""

    # ---- running ----

    def run_until_complete(self, future: Any) -> Any:
        task = future if isinstance(future, asyncio.Future) else self.create_task(future)
        asyncio.events._set_running_loop(self)
        try:
            ready, due = self._ready, self._due
            while not task.done():
                if not ready:
                    while due and due[0][2].callback is None:
                        heapq.heappop(due)
                    if not due:
                        raise Stuck("nothing is due any more, but the simulation is not over")
                    self._now, _, timer = heapq.heappop(due)
                    ready.append(timer)
                timer = ready.popleft()
                if timer.callback is not None:
                    timer.callback(*timer.arguments)
        finally:
            asyncio.events._set_running_loop(None)
        return task.result()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time, then cancel the remaining tasks."""
    loop = VirtualLoop()
    try:
        result: T = loop.run_until_complete(work)
        return result
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(_end(left))


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
