"""Orders servers with their own disks to copy a checkpoint to storage.

In: a complete checkpoint that is due at the URL (`master.checkpoint.uploads`), servers' requests for orders, and their
reports. Out: totals, once every file is at the URL. The master can then publish the manifest. If a server has lost a
file, its buddy copies the mirror. Next: `server.mirror`.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Collection
from typing import NamedTuple

from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.transfer.upload import shares
from springtide.master.core.waiters import ChangeSignal
from springtide.rpc.messages import messages

HOLD_S = 10.0  # longest time to hold a server's request for orders


class CopyFailed(Exception):
    """Servers could not copy all files to the URL. The message says why."""


class CopyTotals(NamedTuple):
    """Number of files and bytes that servers have sent."""

    files: int = 0
    bytes: int = 0


class ServerCopies:
    """Copy orders of one job, one checkpoint at a time."""

    def __init__(self, url: str, changed: ChangeSignal, *, term: int = 1) -> None:
        self._url, self._changed = url, changed
        self._ids = itertools.count((term << 32) + 1)  # unique across masters
        self._orders: dict[str, messages.CopyOrder] = {}
        """Open copy orders, by server."""
        self._lacking: set[str] = set()
        self._sent = CopyTotals()
        self._trouble = ""

    async def through(self, manifest: Manifest) -> CopyTotals:
        """Wait until servers have copied all their files to the URL. Raise CopyFailed if they cannot."""
        self._lacking, self._sent, self._trouble = set(), CopyTotals(), ""
        before: frozenset[str] | None = None
        while before is None or self._lacking != before:
            before = frozenset(self._lacking)
            found = shares(manifest, self._lacking)
            if found.missing:
                raise CopyFailed(f"{', '.join(found.missing)}: no server has it any more")
            self._orders = {
                server: messages.CopyOrder(next(self._ids), self._url, files) for server, files in found.of.items()
            }
            self._changed.turn()
            await self._changed.until(lambda: not self._orders or bool(self._trouble))
            if self._trouble:
                self._orders = {}
                raise CopyFailed(self._trouble)
        return self._sent

    def look(self, there: Collection[str]) -> None:
        """Cancel orders of servers that are gone, so that their buddies copy the files."""
        gone = [server for server in self._orders if server not in there]
        for server in gone:
            self._lacking |= {name for name, _ in self._orders.pop(server).files}
        if gone:
            self._changed.turn()

    async def order_for(self, server: str, request: messages.CopyRequest) -> messages.CopyOrder | messages.WaitReply:
        """Return the next copy order for a server, which has handled the order that it names."""

        def new() -> bool:
            return server in self._orders and self._orders[server].id != request.after

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await self._changed.until(new)
        return self._orders[server] if new() else messages.WaitReply()

    def heard(self, server: str, said: messages.CopyReport) -> None:
        """Process a server's report of a copy order."""
        if server not in self._orders or self._orders[server].id != said.id:
            return
        del self._orders[server]
        self._lacking |= set(said.lacks)
        self._sent = CopyTotals(self._sent.files + said.files, self._sent.bytes + said.bytes)
        if said.error:
            self._trouble = f"{server}: {said.error}"
        self._changed.turn()
