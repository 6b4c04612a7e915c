"""One connection between a data worker and a trainer: small messages both ways, and batches with them.

In: prep/greeting.py has made sure of the peer. Out: `send` and `recv`. A batch goes as one message: through memory that
both processes map where they are on one host (prep/shared_pages.py), through the socket otherwise. Who reaches the
listener's Unix socket is on its host: there is no other test. Next: prep/feed.py and prep/serving.py.

    head: magic, version, kind, flags, bytes of fields, header and payload, segment │ fields │ header │ payload
"""

import array
import contextlib
import os
import socket
import struct
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from springtide import _native, errors
from springtide.prep import codec, greeting, shared_pages
from springtide.prep.secure import SecureSocket
from springtide.rpc import addresses, auth
from springtide.rpc.frames import BadFrame

HEAD = struct.Struct("<4sBBHIIQI")
MAGIC, VERSION = b"STDB", 1
SHARED, NEW_SEGMENT = 1, 2  # flags: the payload lies in a segment; its file descriptor comes with this head

MAX_FIELDS = 16 * 2**20
MAX_HEADER = 64 * 2**20
MAX_PAYLOAD = 8 * 2**30
SHARE_FROM = 1 << 14  # a payload smaller than that is through the socket before the peer has looked into a segment
SHARED_BYTES = 1 << 30  # address space of segments a connection; pages cost memory once they are written
ASK_AFTER_S = 10  # a silent peer's host is asked whether it is still there
DEAD_AFTER_MS = 30_000

EARLY_FROM = 1 << 16  # a payload of so many bytes is long enough under way to make its views meanwhile
_NOT_MADE = object()
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode

_open: "weakref.WeakSet[Channel]" = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_open):
        each._abandon()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class Payload:
    """What came with a message: a tree, mostly not yet put together."""

    header: bytes
    buffer: Any
    """Memory that is at least as long as the payload."""
    size: int
    """Bytes of the payload."""
    made: Any = _NOT_MADE
    """The tree, where it was put together while its payload was still under way."""

    def tree(self, types: Mapping[str, type] | None = None) -> Any:
        """The batch. Its tensors are views; the memory is used again when the last of them is dropped."""
        return codec.unpack(self.header, self.buffer, types) if self.made is _NOT_MADE else self.made


class Received(NamedTuple):
    """One message. `fields` are what msgpack makes of what was sent: lists, dicts, numbers, strings."""

    kind: int
    fields: Any
    payload: Payload | None


class Channel:
    """Both ways at once: any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket | SecureSocket, *, shared_bytes: int = SHARED_BYTES) -> None:
        self.local = sock.family == socket.AF_UNIX
        """Whether the peer is on this host, so that payloads go through shared memory."""
        sock.settimeout(None)
        if not self.local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ASK_AFTER_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_AFTER_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)
        self._sock = sock
        self._sending = threading.Lock()
        self._outgoing = shared_pages.Outgoing(shared_bytes)
        self._incoming = shared_pages.Incoming()
        self._blocks = shared_pages.Blocks()
        self._descriptors: list[int] = []
        self._closed = False
        _open.add(self)

    def send(self, kind: int, fields: Any = None, message: codec.Message | None = None) -> None:
        """Send one message; blocks while the peer's socket is full. OSError when the peer is gone.

        With a batch the caller may change its tensors as soon as this returns.
        """
        written = _encode(fields)
        header = message.header if message is not None else b""
        if len(written) > MAX_FIELDS or len(header) > MAX_HEADER or (message and message.size > MAX_PAYLOAD):
            raise errors.BadInput(
                f"a message of {len(written)} + {len(header)} + {message.size if message else 0} bytes; "
                f"at most {MAX_FIELDS} + {MAX_HEADER} + {MAX_PAYLOAD} are taken"
            )
        with self._sending:
            if self._closed:
                raise BrokenPipeError("this connection is closed")
            segment = None
            if message is not None and self.local and message.size >= SHARE_FROM:
                segment = self._outgoing.take(message.size)
            size = message.size if message is not None else 0
            flags = 0 if segment is None else SHARED | (0 if segment.told else NEW_SEGMENT)
            number = 0 if segment is None else segment.number
            head = HEAD.pack(MAGIC, VERSION, kind, flags, len(written), len(header), size, number)
            if segment is not None and message is not None:
                segment.fill(message.pieces)
                passed, pieces = (-1 if segment.told else segment.fd), []
                segment.told = True
            else:
                passed, pieces = -1, message.pieces if message is not None else []
            prefix = head + written + header
            if isinstance(self._sock, SecureSocket):
                error = self._sock.send_pieces(prefix, pieces, size)
            else:
                error = _native.send_pieces(self._sock.fileno(), prefix, pieces, size, passed)
            if error:
                raise OSError(error, os.strerror(error))

    def recv(self, types: Mapping[str, type] | None = None) -> Received:
        """The next message. EOFError when the peer has closed or is gone; BadFrame when it talks nonsense.

        Where `types` are given, a batch that comes through the socket may be put together while it is under way.
        """
        magic, version, kind, flags, fields, header, size, number = HEAD.unpack(
            self._read_head() if self.local else self._take(HEAD.size)
        )
        if magic != MAGIC or version != VERSION:
            raise BadFrame(f"not a message of ours, or of another version: {magic!r}, {version}")
        if fields > MAX_FIELDS or header > MAX_HEADER or size > MAX_PAYLOAD or (header == 0 and size):
            raise BadFrame(f"a message of {fields} + {header} + {size} bytes announced")
        if flags & NEW_SEGMENT:
            if not self._descriptors:
                raise BadFrame("a segment was announced, but did not come")
            self._incoming.map(number, self._descriptors.pop())
        text = self._take(fields + header)
        try:
            told = _decode(text[:fields])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"not the fields of a message: {error}") from error
        if not header:
            return Received(kind, told, None)
        says, made = text[fields:], _NOT_MADE
        if flags & SHARED:
            return Received(kind, told, Payload(says, self._incoming.view(number, size), size))
        buffer = self._blocks.take(size) if size else bytearray()
        if types is not None and size >= EARLY_FROM:
            try:
                made = codec.unpack(says, buffer, types, arrived=False)
            except (codec.NotYet, errors.SpringtideError):
                made = _NOT_MADE  # an error is raised again by tree()
        self._fill(buffer, size)
        return Received(kind, told, Payload(says, buffer, size, made))

    def fileno(self) -> int:
        """For select and poll: readable when a message begins, none of which is ever read ahead."""
        return self._sock.fileno()

    def close(self) -> None:
        """Hang up. A thread in `recv` gets EOFError; batches that came stay valid as long as they are held."""
        with contextlib.suppress(OSError):  # the peer was first
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._sending:
            self._closed = True
            self._sock.close()
            self._outgoing.close()

    def _abandon(self) -> None:
        """In a forked child: this connection is the parent's; keep nothing of it open."""
        self._closed = True
        self._sending = threading.Lock()  # another thread may have held it in the parent
        self._sock.close()
        self._outgoing.close()

    def _read_head(self) -> bytes:
        """The next head on one host, and any file descriptors that come with it."""
        head, rights, _, _ = self._receive(HEAD.size)
        for level, kind, found in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors += array.array("i", found[: len(found) // 4 * 4])
        if not head:
            raise EOFError("closed by the other side")
        return head if len(head) == HEAD.size else head + self._take(HEAD.size - len(head))

    def _receive(self, size: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        assert isinstance(self._sock, socket.socket)  # a Unix socket
        try:
            return self._sock.recvmsg(size, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise EOFError(f"the connection is gone: {error}") from error

    def _take(self, size: int) -> bytes:
        """So many bytes from the socket."""
        if isinstance(self._sock, socket.socket):
            try:
                came = self._sock.recv(size, socket.MSG_WAITALL) if size else b""
            except OSError as error:
                raise EOFError(f"the connection is gone: {error}") from error
            if len(came) == size:
                return came
            if not came:
                raise EOFError("closed by the other side")
        else:
            came = b""
        rest = bytearray(size - len(came))
        self._fill(rest, len(rest))
        return came + rest

    def _fill(self, into: Any, size: int) -> None:
        """The first so many bytes of a buffer from the socket."""
        view, done = memoryview(into).cast("B")[:size], 0
        while done < size:
            try:
                came = self._sock.recv_into(view[done:], 0, socket.MSG_WAITALL)
            except OSError as error:
                raise EOFError(f"the connection is gone: {error}") from error
            if not came:
                raise EOFError("closed by the other side")
            done += came


def connect(
    address: str, secret: bytes, *, shared: bool = True, shared_bytes: int = SHARED_BYTES, certificates: str = ""
) -> Channel:
    """A channel to the listener at "host:port", both sides proved; through shared memory where it is on this host.

    With `certificates` (a folder, `rpc.tls`) by TLS, except within this host.
    OSError when nobody listens there, `Rejected` when it is not a process of this job.
    """
    plain = socket.create_connection(addresses.parse(address), timeout=auth.DEADLINE_S)
    sock: socket.socket | SecureSocket = plain
    try:
        if certificates:
            sock = SecureSocket(plain, certificates, listens=False)
            sock.settimeout(auth.DEADLINE_S)
        name = greeting.call(sock, secret)
        if shared and name and (near := _reach(name, secret)) is not None:
            sock.close()
            return Channel(near, shared_bytes=shared_bytes)
        greeting.stay(sock)
        return Channel(sock)
    except BaseException:
        sock.close()
        raise


def _reach(name: str, secret: bytes) -> socket.socket | None:
    """The listener's Unix socket, if it is on this host."""
    near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    near.settimeout(auth.DEADLINE_S)
    try:
        near.connect("\0" + name)
    except OSError:
        near.close()
        return None
    try:
        greeting.call(near, secret)
        greeting.stay(near)
        return near
    except BaseException:
        near.close()
        raise
