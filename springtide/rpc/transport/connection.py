"""Client side of one persistent connection. Requests are numbered, and replies may arrive in any order. `channel` wraps
the connection for threads."""

import asyncio
import contextlib
import itertools
import socket
from typing import Any

import msgspec

from springtide import errors
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import Reply, Request
from springtide.rpc.transport import addresses, auth, frames, tls

RETRY_S = 0.05
GOODBYE_S = 1.0
KEEP_ALIVE = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
"""TCP keep-alive options, in seconds except the last, which is in milliseconds. A connection is lost after ten seconds
without an answer."""


class Callee(msgspec.Struct, frozen=True):
    """The kind of process to call: a master, or a brain, which has its own messages."""

    who: str
    returns: "msgspec.msgpack.Decoder[Any]"
    tls: str = "SPRINGTIDE_TLS"
    """Name of the setting that has the caller's certificates."""


MASTER = Callee("master", msgspec.msgpack.Decoder(messages.ReplyFrame))


class RpcConnection:
    """An authenticated connection to the master, made by `connect` and bound to one event loop."""

    def __init__(
        self,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sock: socket.socket,
        term: int,
        other: "Callee",
    ) -> None:
        self.address, self._other = address, other
        self.term = term
        self.sock = sock
        self.own_host = str(sock.getsockname()[0])
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._lost: errors.MasterUnreachable | None = None
        self._receiver = asyncio.create_task(self._receive())

    async def ask(self, request: Request) -> Reply:
        """Send a request and wait for its reply. If the reply is a refusal, raise the error that it names."""
        if self._lost:
            raise self._lost
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(frames.pack(messages.RequestFrame(number, request)))
            reply: Reply = await future
        finally:
            self._waiting.pop(number, None)
        if isinstance(reply, messages.RequestRefused):
            raise as_error(reply)
        return reply

    @property
    def lost(self) -> bool:
        return self._lost is not None

    async def close(self) -> None:
        self._receiver.cancel()
        self._lose("this side closed the connection")
        await hang_up(self._writer)

    async def _receive(self) -> None:
        try:
            while True:
                answer = await frames.read(self._reader, self._other.returns)
                future = self._waiting.get(answer.id)
                if future and not future.done():
                    future.set_result(answer.body)
        except (OSError, EOFError, frames.BadFrame) as error:
            self._lose(str(error) or type(error).__name__)

    def _lose(self, why: str) -> None:
        self._lost = self._lost or errors.MasterUnreachable(
            f"lost the connection to the {self._other.who} at {self.address}: {why}. See the {self._other.who}'s log."
        )
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._lost)


async def connect(
    address: str,
    secret: bytes,
    *,
    within_s: float,
    other: Callee = MASTER,
    certificates: str = "",
    role: str = "master",
) -> RpcConnection:
    """Connect and authenticate. If no process listens there, retry for `within_s` seconds.

    With `certificates` (a folder, `rpc.transport.tls`), use TLS and accept only a `role` of this job.
    """
    host, port = addresses.parse(address)
    last = "no answer" if certificates else f"no answer; a peer with TLS needs {other.tls} on this side too"
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    return await _open((address, host, port), secret, other, certificates, role)
                except (OSError, EOFError, frames.BadFrame) as error:
                    last = str(error) or type(error).__name__
                await asyncio.sleep(RETRY_S)
    except auth.Rejected as error:
        raise errors.MasterUnreachable(f"the {other.who} at {address} rejected this process: {error}") from error
    except TimeoutError:
        raise errors.MasterUnreachable(
            f"no {other.who} at {address} after {within_s:g} s ({last}). Check that it is running and the port is open."
        ) from None


async def _open(
    where: tuple[str, str, int], secret: bytes, other: Callee, certificates: str, role: str
) -> RpcConnection:
    address, host, port = where
    sock = await _called(host, port)
    try:
        tune(sock)
        options = tls.connecting(certificates)
    except BaseException as error:
        sock.close()
        raise tls.as_refusal(error) from error
    try:
        reader, writer = await asyncio.open_connection(sock=sock, **options)
    except BaseException as error:
        # asyncio's transport notices the shutdown and closes the socket. If this function closed the socket, a new
        # socket could get the same number while asyncio still has the old transport, and asyncio would refuse the new
        # socket.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        raise tls.as_refusal(error) from error
    try:
        tls.check_stream(writer, certificates, role)
        term = await auth.answer(reader, writer, secret)
    except BaseException as error:
        await hang_up(writer)
        if isinstance(error, (EOFError, OSError)) and not certificates:
            raise OSError(
                f"{error or 'no answer'}; a {other.who} with TLS needs {other.tls} on this side too"
            ) from error
        raise tls.as_refusal(error) from error
    return RpcConnection(address, reader, writer, sock, term, other)


async def _called(host: str, port: int) -> socket.socket:
    """Connect to the first address that responds. This function creates the socket itself, because a forked child must
    close its copy of the socket.
    """
    loop = asyncio.get_running_loop()
    refused: OSError = OSError("no address")
    for family, kind, protocol, _, where in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, where)
            return sock
        except OSError as error:
            sock.close()
            refused = error
        except BaseException:
            sock.close()
            raise
    raise refused


def tune(sock: socket.socket) -> None:
    """Disable Nagle's algorithm, and enable keep-alive to detect a peer host that vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a stream and wait until it is closed. With TLS, wait only briefly, because the peer may be stopped."""
    again = writer.is_closing()  # a TLS stream that is closed twice loses its state
    secure = not again and writer.get_extra_info("ssl_object") is not None
    if not again:
        writer.close()
    with contextlib.suppress(OSError, asyncio.CancelledError):
        async with asyncio.timeout(GOODBYE_S if secure or again else None):
            await writer.wait_closed()
    if secure:
        writer.transport.abort()


def as_error(refused: messages.RequestRefused) -> errors.SpringtideError:
    """Return the exception that a refusal names. Unknown names become `JobFailed`."""
    kind: type[errors.SpringtideError] | None = getattr(errors, refused.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.SpringtideError)):
        return errors.JobFailed(refused.error)
    while "__init__" in vars(kind) and issubclass(kind, errors.UserError):
        # the class of this error composes its own message, so raise its parent class with the received message
        kind = kind.__bases__[0]
    return kind(refused.error)
