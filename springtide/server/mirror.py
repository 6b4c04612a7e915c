"""Copies a server's checkpoint files: to another server (mirror), and from a local disk to storage (upload).

A thread receives the copies of other servers' files. At the same port, the listener serves files to a relaunched
server that does not find them on its own disk (`checkpoint.transfer.file_transfer`).
"""

import asyncio
import contextlib
import logging
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

import msgspec

from springtide import config, errors
from springtide.checkpoint.format.manifest import number_in
from springtide.checkpoint.transfer.file_transfer import SegmentCopies, parts
from springtide.checkpoint.transfer.upload import Uploaded
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.model.checkpoints import Buddy, Written
from springtide.rpc.messages import checkpoints, messages
from springtide.rpc.messages.types import FilePart, Reply, Request
from springtide.rpc.transport import channel
from springtide.rpc.transport.listener import Peer, RpcListener

log = logging.getLogger(__name__)
CONNECT_S = 5.0
ENDS_S = 10.0  # seconds to wait until a process ends that has reported its result


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
        self.asked = asked
        """Whether the user asked for mirrors, so that a missing buddy is reported."""
        self._own, self._secret, self._certificates = folder / home, secret, certificates
        self._files = f"{life}[-+]*.{run}.seg"

    def copy(
        self, written: Written, buddy: Buddy | None, base: int, pace: AbstractContextManager[None]
    ) -> tuple[Written, str]:
        """Ensure that the buddy has this file and the earlier files that this file needs. On failure, return the
        reason."""
        if buddy is None:
            return written, "no other server can store a copy"
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
        """Send all files that the buddy lacks, except files of abandoned checkpoints. Return the names of the files
        that the buddy then has."""
        base, newest = needed
        own = sorted((path.name, path.stat().st_size) for path in self._own.glob(self._files))
        own = [(name, size) for name, size in own if (number := number_in(name) or 0) <= base or number == newest]
        link = channel.MasterChannel(
            channel.ReconnectingConnection(buddy.address, self._secret, certificates=self._certificates, role="server"),
            connect_timeout_s=CONNECT_S,
        )
        try:
            answer = link.ask(checkpoints.MirrorFiles(tuple(own)))
            assert isinstance(answer, checkpoints.MissingFiles)
            for name in answer.names:
                for part in parts(self._own / name):
                    with pace:
                        link.ask(part)
        finally:
            link.close()
        return tuple(name for name, _ in own)


class MirrorServer:
    """Listener that stores other servers' files and serves the files of this server's folder, until it is closed."""

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

    async def _handle(self, _: Peer, request: Request) -> Reply:
        async with self._turn:
            match request:
                case checkpoints.MirrorFiles():
                    return checkpoints.MissingFiles(await asyncio.to_thread(self._copies.lacks, request.files))
                case FilePart():
                    await asyncio.to_thread(self._copies.take, request)
                    return messages.Ok()
                case checkpoints.ReadFile(name, offset, length):
                    return checkpoints.FileRun(*await asyncio.to_thread(self._copies.run, name, offset, length))
        raise errors.BadInput(f"a server only receives and serves files; send {type(request).__name__} to the master")


def upload_part(folder: pathlib.Path, order: checkpoints.CopyOrder) -> checkpoints.CopyReport:
    files = msgspec.json.encode(order.files).decode()
    command = [sys.executable, "-m", "springtide.checkpoint.transfer.upload"]
    environment = config.with_arguments(["part", str(folder), order.url, files])
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None and process.stdin is not None
        report = next((line for line in process.stdout if line.startswith(b"{")), b"")
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in a mount cannot be killed
            code = process.wait(ENDS_S)
        process.stdin.close()
        process.stdout.close()
        done = (
            msgspec.json.decode(report, type=Uploaded)
            if report
            else Uploaded(error=f"its process ended with status {code}")
        )
    except (OSError, *UNDECODABLE) as error:
        done = Uploaded(error=f"its process failed: {error}")
    if done.error:
        log.warning("copies to %s: %s", order.url, done.error)
    return checkpoints.CopyReport(order.id, done.files, done.bytes, done.lacks, done.error)


def start_uploads(folder: pathlib.Path, ask: Callable[[Request], Reply], over: threading.Event) -> threading.Thread:

    def attend() -> None:
        done = 0
        try:
            while not over.is_set():
                order = ask(checkpoints.CopyRequest(done))
                if isinstance(order, messages.HeartbeatReply):  # the job is over
                    return
                if isinstance(order, checkpoints.CopyOrder):
                    done = order.id
                    ask(upload_part(folder, order))
        except errors.SpringtideError as error:
            if not over.is_set():
                log.warning("this server copies no more files to storage: %s", error)

    thread = threading.Thread(target=attend, name="springtide-copies", daemon=True)
    thread.start()
    return thread
