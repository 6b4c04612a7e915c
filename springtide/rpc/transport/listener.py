"""Server side of the control plane: accepts and authenticates members, and passes each request to one handler.

Each request runs in a separate task, so a waiting request (for a barrier, or for a lease near the end of the data)
blocks no other request. A peer that sends garbage loses its connection. A brain also uses this listener.
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from springtide import errors
from springtide.domain.core.roles import Role
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import Reply, Request
from springtide.rpc.transport import addresses, auth, connection, frames, tls
from springtide.rpc.transport.auth import PendingHandshakes

log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(messages.RequestFrame)

MAX_IN_FLIGHT = 64  # most requests of one peer to handle at the same time; more requests wait in the socket


class Peer(msgspec.Struct, eq=False):
    """One connection. The handler of the join request sets `role` and `incarnation`."""

    address: str
    role: Role | None = None
    incarnation: int = 0
    certified: str = ""
    """Kind of role that the peer's certificate names; empty without TLS."""
    tasks: set[asyncio.Task[None]] = msgspec.field(default_factory=set)


Handle = Callable[[Peer, Request], Awaitable[Reply]]


class RpcListener:
    """Server of the control plane on one port."""

    def __init__(
        self,
        secret: bytes,
        handle: Handle,
        on_lost: Callable[[Peer], None],
        *,
        term: int = 0,
        calls: "msgspec.msgpack.Decoder[Any]" = _decoder,
        who: str = "master",
        certificates: str = "",
    ) -> None:
        """With `certificates` (a folder, `rpc.transport.tls`), callers must use TLS and belong to the job."""
        self._secret, self._handle, self._on_lost, self._term = secret, handle, on_lost, term
        self._calls, self._who, self._certificates = calls, who, certificates
        self._server: asyncio.Server | None = None
        self._pending = PendingHandshakes()
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int, name: str = "") -> str:
        """Listen, and return the address with the actual port and the advertised host."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, backlog=1024)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise errors.PortTaken(
                    f"port {port} on {host} is taken by another process; give another port, or 0 for a free one"
                ) from error
            raise errors.BadInput(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        return addresses.join(name or host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        peer, admitted = Peer(address=str(writer.get_extra_info("peername"))), False
        try:
            connection.tune(writer.get_extra_info("socket"))
            async with self._pending.handshake():
                peer.certified = await tls.admit(writer, self._certificates)
                admitted = True
                await auth.challenge(reader, writer, self._secret, self._term)
            await self._answer_requests(peer, reader, writer)
        except (OSError, EOFError, TimeoutError, frames.BadFrame, auth.Rejected) as error:
            log.log(
                logging.INFO if isinstance(error, EOFError) else logging.WARNING,
                "%s %s: %s",
                peer.role or "stranger",
                peer.address,
                str(error) or type(error).__name__,
            )
        except asyncio.CancelledError:
            log.info("closed the connection to %s", peer.role or peer.address)
        finally:
            for pending in peer.tasks:
                pending.cancel()
            if peer.role:
                self._on_lost(peer)
            if admitted:
                await connection.hang_up(writer)
            self._connections.discard(task)

    async def _answer_requests(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            call = await frames.read(reader, self._calls)
            while len(peer.tasks) >= MAX_IN_FLIGHT:
                await asyncio.wait(peer.tasks, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(self._answer(peer, call, writer))
            peer.tasks.add(task)
            task.add_done_callback(peer.tasks.discard)

    async def _answer(self, peer: Peer, call: messages.RequestFrame, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await self._handle(peer, call.body)
        except errors.SpringtideError as error:
            reply = messages.RequestRefused(type(error).__name__, str(error))
        except Exception as error:
            log.exception("%s failed for %s", type(call.body).__name__, peer.role or peer.address)
            reply = messages.RequestRefused(
                "JobFailed", f"the {self._who} failed on {type(call.body).__name__}: {error!r}"
            )
        try:
            frame = frames.pack(messages.ReplyFrame(call.id, reply))
        except errors.BadInput as error:  # reply with the error, because the original reply cannot be encoded
            frame = frames.pack(messages.ReplyFrame(call.id, messages.RequestRefused("JobFailed", str(error))))
        if not writer.is_closing():
            writer.write(frame)
            try:
                await writer.drain()
            except OSError as error:
                log.info("%s disconnected before its answer: %s", peer.role or peer.address, error)
