"""Keeps a member connected to the job's master: reconnects, joins again, and repeats unanswered requests.

In: requests from `rpc.transport.channel`, in its event loop. Out: replies of the current master. A master that dies is
replaced by a master with a higher term. The member finds it through the run's master file
(`rpc.transport.master_file`), or through a stable host name that it resolves on every attempt. A master with a lower
term is rejected. Requests are idempotent, so a request whose reply was lost is sent again.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from springtide import errors
from springtide.rpc.messages import messages
from springtide.rpc.transport import connection
from springtide.rpc.transport.master_file import MasterLocation

log = logging.getLogger(__name__)

ATTEMPT_S = 2.0  # a master on this host answers in milliseconds; the port of a dead master refuses at once
PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5)  # delays between attempts; the last delay repeats

Look = Callable[[], MasterLocation | None]


class ReconnectingConnection:
    """A connection that survives its masters. `patience_s` limits the search for the next master."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        *,
        patience_s: float,
        look: Look | None = None,
        certificates: str = "",
        role: str = "master",
    ) -> None:
        self._address, self._secret, self._patience_s, self._look = address, secret, patience_s, look
        self._certificates, self._role = certificates, role
        self._lock = asyncio.Lock()
        self._hello: messages.Request | None = None
        self._term = 0
        self.connection: connection.RpcConnection | None = None

    async def open(self, within_s: float) -> None:
        """Open the first connection. The master may have been replaced before this process started."""
        if self._look is None:
            self.connection = await self._connect(self._address, within_s)
        else:
            self.connection = await self._find_again(within_s)

    def introduce(self, hello: messages.Request) -> None:
        """Send this message first to every new master."""
        self._hello = hello

    async def ask(self, request: messages.Request | Callable[[], messages.Request]) -> messages.Reply:
        """Return the current master's reply, retrying across masters. A function builds the request again for each
        attempt.
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
            raise errors.TemporaryError(f"the file names master number {where.term}; number {self._term} is known")
        address = where.address if where is not None and where.address else self._address
        link = await self._connect(address, ATTEMPT_S)
        try:
            if link.term < self._term:
                raise errors.TemporaryError(f"master number {link.term} is of the past: number {self._term} is known")
            if self._hello is not None:
                await link.ask(self._hello)
        except BaseException:
            await link.close()
            raise
        if link.term > self._term:
            log.info("met master number %d at %s", link.term, address)
        self._term, self._address = link.term, address
        return link
