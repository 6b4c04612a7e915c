"""Mirror checkpoints: each server sends its segment files to another server, and stores copies for other servers.

In: files that `server.checkpoints` has written, and the buddy server that the master names in its order. Out: a
`Written` that names the copies. A server listens for copies in a separate thread, and reports its port to the master
with every request for orders. Files travel over the network, so buddies may be on different hosts.

Next: `checkpoint.transfer.file_transfer` stores the copies. It also serves files at the same port, for the next
incarnation of a server that does not find them on its disk.
"""

import asyncio
import logging
import pathlib
import threading
from collections.abc import Collection
from contextlib import AbstractContextManager

from springtide import errors
from springtide.checkpoint.format.manifest import number_in
from springtide.checkpoint.transfer.file_transfer import FilePart, SegmentCopies, parts
from springtide.domain.model.checkpoints import Buddy, Written
from springtide.rpc.messages import messages
from springtide.rpc.transport import channel
from springtide.rpc.transport.listener import Peer, RpcListener

log = logging.getLogger(__name__)

CONNECT_S = 5.0


class Mirror:
    """Sender of a server's own files to its buddy."""

    def __init__(
        self,
        folder: pathlib.Path,
        home: str,
        life: str,
        secret: bytes,
        *,
        run: str,
        certificates: str = "",
        asked: bool = True,
    ) -> None:
        self.home = home
        """Name of this server's folder in the job's folder."""
        self.asked = asked
        """Whether a missing buddy is worth a report."""
        self._own, self._secret, self._certificates = folder / home, secret, certificates
        self._files = f"{life}[-+]*.{run}.seg"

    def copy(
        self, written: Written, buddy: Buddy | None, base: int, pace: AbstractContextManager[None]
    ) -> tuple[Written, str]:
        """Ensure that the buddy has this file and the earlier files it depends on; return the reason if it does not."""
        if buddy is None:
            return written, "there is no other server to keep a copy"
        try:
            names = self._send(buddy, needed=(base, number_in(written.file)), pace=pace)
        except errors.MasterUnreachable:
            why = f"{buddy.server} cannot be reached at {buddy.address}"
        except (errors.SpringtideError, OSError) as error:
            why = f"{buddy.server} has no copy: {error}"
        else:
            return written._replace(buddy=buddy.server, mirrored=names, buddy_node=buddy.node), ""
        log.warning("no mirror: %s", why)
        return written, why

    def _send(
        self, buddy: Buddy, *, needed: tuple[int, int | None], pace: AbstractContextManager[None]
    ) -> tuple[str, ...]:
        """Send all files that the buddy lacks; return the names of the files it has. Files of abandoned checkpoints are
        left out.
        """
        base, newest = needed
        own = sorted((path.name, path.stat().st_size) for path in self._own.glob(self._files))
        own = [(name, size) for name, size in own if (number := number_in(name) or 0) <= base or number == newest]
        link = channel.MasterChannel(
            buddy.address, self._secret, connect_timeout_s=CONNECT_S, certificates=self._certificates, role="server"
        )
        try:
            answer = link.ask(messages.MirrorFiles(tuple(own)))
            assert isinstance(answer, messages.MissingFiles)
            for name in answer.names:
                for part in parts(self._own / name):
                    with pace:
                        link.ask(messages.MirrorPart(name, part.offset, part.content, part.last, part.checksum))
        finally:
            link.close()
        return tuple(name for name, _ in own)


class MirrorServer:
    """Listener that stores other servers' files and serves its own folder, until it is closed."""

    def __init__(self, folder: pathlib.Path, secret: bytes, host: str, *, certificates: str = "") -> None:
        self._copies, self._turn = SegmentCopies(folder), asyncio.Lock()
        self._listener = RpcListener(secret, self._handle, lambda _: None, certificates=certificates)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="springtide-mirror", daemon=True)
        self._thread.start()
        self.address: str = asyncio.run_coroutine_threadsafe(self._listener.start(host, 0), self._loop).result()

    def sweep(self, needed: Collection[str], upto: int) -> list[str]:
        return self._copies.sweep(needed, upto)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._listener.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "MirrorServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _handle(self, _: Peer, request: messages.Request) -> messages.Reply:
        async with self._turn:
            match request:
                case messages.MirrorFiles():
                    return messages.MissingFiles(await asyncio.to_thread(self._copies.lacks, request.files))
                case messages.MirrorPart():
                    part = FilePart(request.offset, request.content, request.last, request.checksum)
                    await asyncio.to_thread(self._copies.take, request.name, part)
                    return messages.Ok()
                case messages.ReadFile(name, offset, length):
                    return messages.FileRun(*await asyncio.to_thread(self._copies.run, name, offset, length))
        raise errors.BadInput(f"a server takes and gives files; {type(request).__name__} is for the master")
