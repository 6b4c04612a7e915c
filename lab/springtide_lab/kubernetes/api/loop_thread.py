"""A thread with an event loop of its own, entered by `with`: the API server, the kubelet and an operator run so."""

import abc
import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

log = logging.getLogger(__name__)

START_S = 60.0
Result = TypeVar("Result")


class LoopThread(abc.ABC):
    """Subclasses have `main`, which calls `ready` once it is up, and ends when `over` is set."""

    def __init__(self, name: str) -> None:
        self.over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._up: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._up.result(START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # it may have ended by itself
            self._loop.call_soon_threadsafe(self.over.set)
        self._thread.join()

    @abc.abstractmethod
    async def main(self) -> None:
        """Run until `over` is set."""

    def ready(self) -> None:
        self._up.set_result(None)

    def call(self, work: Coroutine[Any, Any, Result], within_s: float = START_S) -> Result:
        """Run a coroutine in the loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self.main())
        except BaseException as error:
            if self._up.done():
                log.exception("%s has ended", self._thread.name)
            else:
                self._up.set_exception(error)
        finally:
            self._loop.close()
