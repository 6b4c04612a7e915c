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
    """A callback that is due at a virtual time, unless it is cancelled."""

    __slots__ = ("arguments", "callback")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None


class VirtualLoop(asyncio.AbstractEventLoop):
    """A deterministic event loop whose time is a number."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._due: list[tuple[float, int, Timer | asyncio.Future[None]]] = []
        """Timers, and futures of tasks that sleep."""
        self._numbers = itertools.count()
        self._broken: BaseException | None = None

    # ---- what tasks, futures and timeouts of asyncio ask for ----

    def time(self) -> float:
        return self._now

    get_debug = bool  # returns False; every future asks

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        self._ready.append((callback, args))

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        timer = Timer(callback, args)
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

    def sleep(self, seconds: float) -> asyncio.Future[None]:
        """Return a future that is done after some seconds. It costs a third of `asyncio.sleep`."""
        over: asyncio.Future[None] = asyncio.Future(loop=self)
        heapq.heappush(self._due, (self._now + seconds, next(self._numbers), over))
        return over

    # ---- running ----

    def run_until_complete(self, future: Any) -> Any:
        task = future if isinstance(future, asyncio.Future) else self.create_task(future)
        asyncio.events._set_running_loop(self)
        try:
            ready, due = self._ready, self._due
            while not task.done():
                if not ready:
                    if not due:
                        raise Stuck("nothing is due any more, but the simulation is not over")
                    self._now, _, event = heapq.heappop(due)
                    if not isinstance(event, Timer):
                        if not event.done():
                            event.set_result(None)
                    elif event.callback is not None:
                        event.callback(*event.arguments)
                while ready:
                    callback, arguments = ready.popleft()
                    callback(*arguments)
        finally:
            asyncio.events._set_running_loop(None)
        return task.result()


def sleep(seconds: float) -> asyncio.Future[None]:
    """Sleep in the running virtual loop."""
    loop: Any = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.sleep(seconds)
    return over


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
