"""Synchronous connection to the master, with a thread that runs the event loop and the heartbeat.

The channel reconnects to a master with a higher term, joins again and repeats unanswered requests, which are
idempotent. The channel finds the next master through the run's master file, or by a stable host name.
"""

import asyncio
import logging
import os
import pathlib
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from springtide import child_guard, config, errors
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import Reply, Request
from springtide.rpc.transport import addresses, connection
from springtide.rpc.transport.addresses import MasterLocation

log = logging.getLogger(__name__)
# seconds for one attempt to connect; a master on this host answers in milliseconds, and the port of a dead master
# refuses immediately
ATTEMPT_S = 2.0
PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5)  # seconds between attempts; the last value repeats

Look = Callable[[], MasterLocation | None]


class ReconnectingConnection:
    """A connection that continues with the next master when a master is lost. `patience_s` limits the search for the
    next master."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        *,
        patience_s: float = 0.0,
        look: Look | None = None,
        certificates: str = "",
        role: str = "master",
    ) -> None:
        """`certificates` is a folder (`rpc.transport.tls`), in a job with TLS. `role` is the role of the peer."""
        self._address, self._secret, self._patience_s, self._look = address, secret, patience_s, look
        self._certificates, self._role = certificates, role
        self._lock = asyncio.Lock()
        self._hello: Request | None = None
        self._term = 0
        self.connection: connection.RpcConnection | None = None

    async def open(self, within_s: float) -> None:
        """Open the first connection. The master may have been replaced before this process started."""
        if self._look is None:
            self.connection = await self._connect(self._address, within_s)
        else:
            self.connection = await self._find_again(within_s)

    def introduce(self, hello: Request) -> None:
        self._hello = hello

    async def ask(self, request: Request | Callable[[], Request]) -> Reply:
        """Return the reply of the current master, or of its successor if the current master is lost. If `request` is a
        function, it builds the request again for each attempt.
        """
        while True:
            link = await self._linked()
            try:
                return await link.ask(request() if callable(request) else request)
            except errors.MasterUnreachable:
                if self._look is None or not link.lost:
                    raise

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()

    async def _linked(self) -> connection.RpcConnection:
        async with self._lock:
            if self.connection is None or (self.connection.lost and self._look is not None):
                if self.connection is not None:
                    await self.connection.close()
                self.connection = await self._find_again(self._patience_s)
            return self.connection

    async def _connect(self, address: str, within_s: float) -> connection.RpcConnection:
        return await connection.connect(
            address, self._secret, within_s=within_s, certificates=self._certificates, role=self._role
        )

    async def _find_again(self, within_s: float) -> connection.RpcConnection:
        deadline, attempts, last = time.monotonic() + within_s, 0, "no answer"
        while True:
            try:
                return await self._meet()
            except (errors.MasterUnreachable, errors.TemporaryError) as error:
                last = str(error)
            if time.monotonic() > deadline:
                raise errors.MasterUnreachable(
                    f"no master of the job could be reached within {within_s:g} s ({last}). See the master's log."
                )
            await asyncio.sleep(PAUSES_S[min(attempts, len(PAUSES_S) - 1)])
            attempts += 1

    async def _meet(self) -> connection.RpcConnection:
        """Connect to the master that the file or the host name gives, reject an outdated master, and join again."""
        assert self._look is not None
        where = self._look()
        if where is not None and where.term < self._term:
            raise errors.TemporaryError(
                f"the master file names master number {where.term}, but number {self._term} is already known"
            )
        address = where.address if where is not None and where.address else self._address
        link = await self._connect(address, ATTEMPT_S)
        try:
            if link.term < self._term:
                raise errors.TemporaryError(
                    f"master number {link.term} is outdated, because number {self._term} is already known"
                )
            if self._hello is not None:
                await link.ask(self._hello)
        except BaseException:
            await link.close()
            raise
        if link.term > self._term:
            log.info("connected to master number %d at %s", link.term, address)
        self._term, self._address = link.term, address
        return link


BIRTH = secrets.randbits(62)
"""Random number of this process. The number tells a restarted container from the previous one, which had the same name
and process id."""
T = TypeVar("T")


class MasterChannel:
    """A synchronous, thread-safe channel to the master, which calls `beat` and `pulse` in its own thread."""

    def __init__(self, link: ReconnectingConnection, *, connect_timeout_s: float) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="springtide-link", daemon=True)
        self._thread.start()
        self._beating: asyncio.Task[None] | None = None
        self._open = True
        self._link = link
        try:
            self._run(link.open(connect_timeout_s))
        except BaseException:
            self._stop_loop()
            raise
        child_guard.abandon_in_forks(self)

    def ask(self, request: Request | Callable[[], Request]) -> Reply:
        """Send a request and wait for the reply. If `request` is a function, it is called in the channel's thread,
        again for every master."""
        return self._run(self._link.ask(request))

    @property
    def own_host(self) -> str:
        """Return the local address of the route to the master. Other members can connect to this address."""
        link = self._link.connection
        assert link is not None
        return link.own_host

    def introduce(self, hello: Request) -> None:
        self._link.introduce(hello)

    def start_heartbeat(
        self,
        every_s: float,
        beat: Callable[[], messages.Heartbeat],
        pulse: Callable[[messages.HeartbeatReply], bool | None],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Send `beat()` at regular intervals and pass the reply to `pulse`. Call `lost` when the master is lost.

        If `pulse` returns True, the next heartbeat follows immediately. A fenced member always gets a reply that
        reports the fencing.
        """
        self._run(self._start_beating(self._beat(every_s, beat, pulse, lost)))

    def close(self) -> None:
        """Close the connection. Calling it twice, or in a forked child, does no harm."""
        if os.getpid() != self._pid or not self._open:
            return
        self._open = False
        try:
            self._run_closed(self._goodbye())
        finally:
            self._stop_loop()

    def abandon(self) -> None:
        """Close the child's copy of the socket after a fork, so that the parent's death still closes the connection."""
        if self._open and self._link.connection is not None:
            self._link.connection.sock.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if os.getpid() != self._pid or not self._open:
            work.close()
            raise errors.JobFailed(
                "this process has no link to the master: it was forked from a worker, or the link is closed. "
                "Only the process that called st.join() may use the job."
            )
        return self._run_closed(work)

    def _run_closed(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _start_beating(self, beating: Coroutine[Any, Any, None]) -> None:
        self._beating = asyncio.create_task(beating)

    async def _beat(
        self,
        every_s: float,
        beat: Callable[[], messages.Heartbeat],
        pulse: Callable[[messages.HeartbeatReply], bool | None],
        lost: Callable[[], None],
    ) -> None:
        try:
            clock = asyncio.get_running_loop().time
            news, began = None, clock()
            while True:
                # send the next heartbeat on time, even if the reply took long
                await asyncio.sleep(0 if news else began + every_s - clock())
                began = clock()
                answer = await self._link.ask(beat)
                news = pulse(answer) if isinstance(answer, messages.HeartbeatReply) else None
        except errors.Fenced as error:
            log.warning("heartbeat stopped: %s", error)
            pulse(messages.HeartbeatReply(fenced=True))
        except errors.SpringtideError as error:
            log.warning("heartbeat stopped: %s", error)
            lost()

    async def _goodbye(self) -> None:
        if self._beating:
            self._beating.cancel()
        await self._link.close()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def for_member(settings: config.Settings, secret: bytes) -> MasterChannel:
    """Return the channel of a role. The channel finds the next master through a file or by a stable name."""
    file, first_s = pathlib.Path(settings.master_file), settings.connect_timeout_s
    link = ReconnectingConnection(
        settings.master,
        secret,
        patience_s=settings.master_patience_s,
        look=(lambda: addresses.read_master(file)) if settings.master_file else (lambda: None),
        certificates=settings.tls,
    )
    timeout_s = first_s if settings.master_file else max(first_s, settings.master_patience_s)
    return MasterChannel(link, connect_timeout_s=timeout_s)


def own_host(settings: config.Settings, link: MasterChannel) -> str:
    """Return the host on which this process listens: the configured host, or else the local address of the route to the
    master.
    """
    return settings.host or link.own_host
