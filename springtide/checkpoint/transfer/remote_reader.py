"""Reads a checkpoint whose files are on the disks of several servers.

In: the folder of this server; the master, which has the job's folder and knows the holders; the other servers. Out: a
`FileStore` for `checkpoint.format.reader`. It reads a file from this disk if present, else from its server. Next:
`server.recovery`.
"""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable

from springtide import errors
from springtide.checkpoint.format.manifest import bare, folder_of, name_of
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer.file_server import PART_BYTES
from springtide.rpc.messages import messages
from springtide.rpc.transport import channel

CONNECT_S = 5.0
PATIENCE_S = 60.0  # wait for a server that has not yet told the master where it serves files
AGAIN_S = 0.1

Ask = Callable[[messages.Request], messages.Reply]


class ScatteredStore:
    """A read-only `FileStore`. The caller must close it. Not thread-safe."""

    def __init__(self, where: str, own: pathlib.Path, ask: Ask, secret: bytes, *, certificates: str = "") -> None:
        self._where, self._own, self._ask = where, FolderStore(own), ask
        self._secret, self._certificates = secret, certificates
        self._links: dict[str, channel.MasterChannel | None] = {}
        """Connections by server; None for a server that cannot be reached or serves no files."""
        self._silent: set[str] = set()
        """Servers that serve no files, because their folders are shared or they are gone."""

    @property
    def where(self) -> str:
        return self._where

    def names(self) -> list[str]:
        return [name_of(number) for number in self._holders().numbers]

    def size(self, name: str) -> int | None:
        if (here := self._own.size(name)) is not None:
            return here
        try:
            found = self._run(name, 0, 0).size
        except OSError:
            return None
        return found if found >= 0 else None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if self._own.size(name) is not None:
            return self._own.read(name, offset, length)
        runs: list[bytes] = []
        while length is None or length > 0:
            run = self._run(name, offset, PART_BYTES if length is None else min(PART_BYTES, length))
            if run.size < 0:
                raise FileNotFoundError(2, os.strerror(2), name)
            if not run.content:
                break
            runs.append(run.content)
            offset, length = offset + len(run.content), None if length is None else length - len(run.content)
        return b"".join(runs)

    def write(self, name: str, content: bytes) -> None:
        raise errors.BadInput(f"{name}: files on disks of servers are written by these alone")

    def remove(self, name: str) -> None:
        raise errors.BadInput(f"{name}: files on disks of servers are removed by these alone")

    def close(self) -> None:
        for link in self._links.values():
            if link is not None:
                link.close()
        self._links = {}

    def _run(self, name: str, offset: int, length: int) -> messages.FileRun:
        server = folder_of(name)
        request = messages.ReadFile(bare(name), offset, length)
        if not server:
            answer = self._ask(request)
        else:
            link = self._link(server)
            try:
                answer = link.ask(request)
            except errors.MasterUnreachable as error:  # a channel raises this for any peer
                self._links[server] = None
                link.close()
                raise OSError(f"{server} was lost while it gave {bare(name)} away") from error
        assert isinstance(answer, messages.FileRun)
        return answer

    def _link(self, server: str) -> channel.MasterChannel:
        if server not in self._links:
            self._links[server] = None
            if address := self._address(server):
                with contextlib.suppress(errors.MasterUnreachable):
                    self._links[server] = channel.MasterChannel(
                        address,
                        self._secret,
                        connect_timeout_s=CONNECT_S,
                        certificates=self._certificates,
                        role="server",
                    )
            else:
                self._silent.add(server)
        link = self._links[server]
        if link is None and server in self._silent:
            raise OSError(f"it is missing here, and {server} gives no files away")
        if link is None:
            raise OSError(f"the files of {server} are on its own disk, and it cannot be reached")
        return link

    def _address(self, server: str) -> str:
        """Return the address at which a server serves files. Waits, because a new master may not know it yet."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            holders = self._holders()
            if server not in holders.awaited or time.monotonic() > deadline:
                return holders.addresses.get(server, "")
            time.sleep(AGAIN_S)

    def _holders(self) -> messages.FileHolders:
        answer = self._ask(messages.FileHoldersRequest())
        assert isinstance(answer, messages.FileHolders)
        return answer
