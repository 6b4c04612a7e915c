"""Limits connections that have not authenticated yet.

In: connections that a listener has just accepted. Out: at most `MOST` of them at a time. A further connection evicts
the oldest. Each connection has one deadline for the whole handshake, however slowly its bytes arrive. Authenticated
peers do not count, so strangers never take their places. Used by `rpc.transport.listener`,
`worker.online.peers` and `dataworker.transport.handshake`. The data plane has its own limits in
cpp/net/handshake.h.
"""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

MOST = 64
"""Most pending handshakes. A handshake takes milliseconds, so a member gets its turn even among this many strangers."""
DEADLINE_S = 10.0
"""Seconds for a whole handshake, including TLS."""


class PendingHandshakes:
    """Pending handshakes of one listener. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets = itertools.count()
        self._pending: dict[int, tuple[float, Callable[[], object]]] = {}
        """Deadline and drop function of each pending handshake, by ticket, oldest first."""

    @contextlib.contextmanager
    def limited(self, drop: Callable[[], object]) -> Iterator[None]:
        """Count a handshake while the block runs. Another thread may call `drop` to end it early, so `drop` must not
        block.

        The caller must ensure that `drop_overdue` is called in time.
        """
        with self._lock:
            while len(self._pending) >= MOST:
                self._drop_oldest()
            ticket = next(self._tickets)
            self._pending[ticket] = (time.monotonic() + DEADLINE_S, drop)
        try:
            yield
        finally:
            with self._lock:
                self._pending.pop(ticket, None)

    def drop_overdue(self) -> float | None:
        """Drop overdue handshakes. Return the seconds until the next deadline; None if none is pending."""
        with self._lock:
            while self._pending:
                left = next(iter(self._pending.values()))[0] - time.monotonic()
                if left > 0:
                    return left
                self._drop_oldest()
        return None

    @contextlib.asynccontextmanager
    async def handshake(self) -> AsyncIterator[None]:
        """Limit a handshake in its own task: TimeoutError at its deadline, cancellation if it is evicted."""
        task = asyncio.current_task()
        assert task is not None
        with self.limited(task.cancel):
            async with asyncio.timeout(DEADLINE_S):
                yield

    def _drop_oldest(self) -> None:
        ticket = next(iter(self._pending))
        _, drop = self._pending.pop(ticket)
        drop()
