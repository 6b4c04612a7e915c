"""Connection between a data worker and a trainer. Both sides send small messages, and the data worker also sends
batches.

In: a peer that handshake.py has authenticated. A batch goes through shared memory within a host (shared_memory.py), and
otherwise through the socket. A peer counts as local if it connected through the listener's Unix socket. A message:
    head: magic, version, kind, flags, bytes of fields, header and payload, segment │ fields │ header │ payload
"""

import array
import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from springtide import _native, child_guard, errors
from springtide.dataworker.transport import codec, shared_memory
from springtide.domain.core.validation import UNDECODABLE
from springtide.rpc.transport import auth
from springtide.rpc.transport.frames import BadFrame

HEAD = struct.Struct("<4sBBHIIQI")
MAGIC, VERSION = b"STDB", 1
_BEGINS = MAGIC + bytes([VERSION])
# flags of a head: the payload is in a shared segment; the segment's file descriptor comes with this head
SHARED, NEW_SEGMENT = 1, 2

MAX_FIELDS = 16 * 2**20
MAX_HEADER = 64 * 2**20
MAX_PAYLOAD = 8 * 2**30
# payloads of at least this many bytes go through shared memory, because smaller payloads arrive faster through the
# socket
SHARE_FROM = 1 << 14
# bytes of address space for the segments of a connection; a page uses memory only after the first write to it
SHARED_BYTES = 1 << 30
ASK_AFTER_S = 10  # keepalive: probe a peer's host after this long without traffic
DEAD_AFTER_MS = 30_000

# a payload of at least this many bytes arrives so slowly that the receiver can create its views meanwhile
AWAIT_FROM = 1 << 16
AWAIT_TO = 1 << 26  # for a payload larger than this, the receiver allocates no memory before the payload arrives
_NOT_MADE = object()
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


class SecureSocket:
    """TLS socket with the interface of a plain socket. Raises `Rejected` if this side does not accept the peer.

    The socket is native code, so that one thread can send while another thread receives.
    """

    def __init__(self, sock: socket.socket, certificates: str, *, listens: bool) -> None:
        self.family = sock.family
        self._sock = sock
        role = "" if listens else "data-worker"
        try:
            self._tls = _native.SecureSocket(sock.fileno(), certificates, listens, role, auth.DEADLINE_S)
        except errors.ServerUnreachable as error:
            raise auth.Rejected(str(error)) from error

    def send_pieces(self, prefix: bytes, pieces: list[tuple[int, int, int]] | _native.Pieces, payload: int) -> int:
        """Send like `_native.send_pieces`; return 0 or an errno."""
        return self._tls.send_pieces(prefix, pieces, payload)

    def sendall(self, data: bytes) -> None:
        if error := self._tls.send_pieces(data, [], 0):
            raise OSError(error, os.strerror(error))

    def recv(self, size: int) -> bytes:
        """Return exactly this many bytes; return no bytes if the peer has closed the connection."""
        data = bytearray(size)
        return bytes(data) if self.recv_into(data) else b""

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """Fill the buffer and return the number of bytes; return 0 if the peer has closed."""
        del size, flags  # the arguments are ignored: the call always waits until the buffer is full
        error = self._tls.receive(buffer)
        if error > 0:
            raise OSError(error, os.strerror(error))
        return 0 if error else len(buffer)

    def settimeout(self, seconds: float | None) -> None:
        self._tls.set_timeout(seconds or 0.0)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._sock.setsockopt(level, name, value)

    def fileno(self) -> int:
        """Return the descriptor for poll. The descriptor is readable when a message begins, because the socket reads
        nothing ahead."""
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()


@dataclass(frozen=True, slots=True)
class Payload:
    """The batch of a message, usually not unpacked yet."""

    header: bytes
    buffer: Any
    """Memory that is at least as long as the payload."""
    size: int
    made: Any = _NOT_MADE
    """The unpacked tree, if it was unpacked while its payload was still arriving."""

    def tree(self, types: Mapping[str, type] | None = None) -> Any:
        """Return the batch. Its tensors are views of the buffer. The memory of the buffer is reused after the last view
        is dropped."""
        return codec.unpack(self.header, self.buffer, types) if self.made is _NOT_MADE else self.made


class _Awaited(NamedTuple):
    """Memory for a batch with the same layout as the last batch, and its tree as views of that memory."""

    header: bytes
    buffer: Any
    address: int
    size: int
    made: Any
    types: Mapping[str, type]


class ReceivedMessage(NamedTuple):
    """A received message. `fields` is decoded msgpack: lists, dicts, numbers, strings."""

    kind: int
    fields: Any
    payload: Payload | None


class BatchChannel:
    """Full-duplex channel. Any thread may send, and one thread receives."""

    def __init__(self, sock: socket.socket | SecureSocket, *, shared_bytes: int = SHARED_BYTES) -> None:
        self.local = sock.family == socket.AF_UNIX
        """True if the peer is on this host, so that payloads go through shared memory."""
        sock.settimeout(None)
        if not self.local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ASK_AFTER_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_AFTER_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)
        self._sock = sock
        self._plain = not self.local and isinstance(sock, socket.socket)
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        """Held while native code reads, so that the descriptor is not closed and reused during the read."""
        self._outgoing = shared_memory.OutgoingSegments(shared_bytes)
        self._incoming = shared_memory.IncomingSegments()
        self._blocks = shared_memory.BlockPool()
        self._descriptors: list[int] = []
        self._last: tuple[bytes, int] | None = None
        """Header and size of the last batch from the socket."""
        self._awaited: _Awaited | None = None
        self._closed = False
        child_guard.abandon_in_forks(self)

    def send(self, kind: int, fields: Any = None, message: codec.BatchMessage | None = None) -> None:
        """Send a message; blocks while the peer's socket is full. Raise OSError if the peer is gone.

        The caller may change the batch's tensors as soon as `send` returns.
        """
        written = _encode(fields)
        header = message.header if message is not None else b""
        if len(written) > MAX_FIELDS or len(header) > MAX_HEADER or (message and message.size > MAX_PAYLOAD):
            raise errors.BadInput(
                f"a message of {len(written)} + {len(header)} + {message.size if message else 0} bytes; "
                f"expected at most {MAX_FIELDS} + {MAX_HEADER} + {MAX_PAYLOAD}"
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
            passed, pieces = -1, message.pieces if message is not None and segment is None else codec.NO_PIECES
            if segment is not None and message is not None:
                segment.fill(message.pieces)
                passed, segment.told = (-1 if segment.told else segment.fd), True
            prefix = head + written + header
            if isinstance(self._sock, SecureSocket):
                error = self._sock.send_pieces(prefix, pieces, size)
            else:
                error = _native.send_pieces(self._sock.fileno(), prefix, pieces, size, passed)
            if error:
                raise OSError(error, os.strerror(error))

    def recv(self, types: Mapping[str, type] | None = None) -> ReceivedMessage:
        """Return the next message. Raise EOFError if the peer has closed or is gone, and BadFrame for an invalid
        message.

        If `types` is given and the batch has the same layout as the last batch from the socket, the batch is unpacked
        before its payload arrives (`await_like`).
        """
        if not self._plain:
            return self._rest(self._read_head() if self.local else self._take(HEAD.size))
        self.await_like(types)
        awaited, self._awaited = self._awaited, None
        header, into, room = (awaited.header, awaited.address, awaited.size) if awaited is not None else (b"", 0, 0)
        with self._receiving:
            if self._closed:
                raise EOFError("this connection is closed")
            error, head, fields, says, whole = _native.receive_message(
                self._sock.fileno(), _BEGINS, MAX_FIELDS, MAX_HEADER, header, into, room
            )
        if error:
            raise EOFError("closed by the other side" if error < 0 else f"the connection broke: {os.strerror(error)}")
        if not whole or awaited is None:
            self._awaited = awaited
            return self._rest(head, (fields, says))
        kind, size = HEAD.unpack(head)[2], HEAD.unpack(head)[6]
        return ReceivedMessage(kind, _read(fields), Payload(says, awaited.buffer, size, awaited.made))

    def await_like(self, types: Mapping[str, type] | None) -> None:
        """Allocate memory and views for a batch with the layout of the last batch, so that one read receives the whole
        batch.

        Call this method before a wait for a batch. `recv` then reads the bytes that are still missing.
        """
        if types is None or self._last is None or not self._plain:
            return
        header, size = self._last
        had = self._awaited
        if had is not None and had.header == header and had.types is types:
            return
        self._awaited = None
        buffer = self._blocks.take(size)
        try:
            made = codec.unpack(header, buffer, types, arrived=False)
        except (codec.PayloadMissing, errors.SpringtideError):
            self._last = None
            return
        self._awaited = _Awaited(header, buffer, ctypes.addressof(buffer), size, made, types)

    def _rest(self, head: bytes, text: tuple[bytes, bytes] | None = None) -> ReceivedMessage:
        """Receive the rest of a message after its head. `text` has the message's text, if the text was read together
        with the head.
        """
        magic, version, kind, flags, fields, header, size, number = HEAD.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise BadFrame(f"not a message of this protocol version: {magic!r}, {version}")
        if fields > MAX_FIELDS or header > MAX_HEADER or size > MAX_PAYLOAD or (header == 0 and size):
            raise BadFrame(f"a message of {fields} + {header} + {size} bytes announced")
        if flags & NEW_SEGMENT:
            if not self._descriptors:
                raise BadFrame("a segment was announced, but its descriptor did not arrive")
            self._incoming.map(number, self._descriptors.pop())
        if text is None:
            whole = self._take(fields + header)
            text = whole[:fields], whole[fields:]
        message_fields, says = _read(text[0]), text[1]
        if not header:
            return ReceivedMessage(kind, message_fields, None)
        if flags & SHARED:
            return ReceivedMessage(kind, message_fields, Payload(says, self._incoming.view(number, size), size))
        buffer = self._blocks.take(size) if size else bytearray()
        self._last = (says, size) if AWAIT_FROM <= size <= AWAIT_TO else None
        self._fill(buffer, size)
        return ReceivedMessage(kind, message_fields, Payload(says, buffer, size))

    def fileno(self) -> int:
        """Return the descriptor for select and poll. The descriptor is readable when a message begins, because the
        channel reads nothing ahead."""
        return self._sock.fileno()

    def close(self) -> None:
        """Disconnect. A thread in `recv` gets EOFError. Received batches stay valid while code refers to them."""
        with contextlib.suppress(OSError):  # the peer closed first
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._sending, self._receiving:
            self._closed = True
            self._sock.close()
            self._outgoing.close()

    def abandon(self) -> None:
        """Release the connection in a forked child, because it belongs to the parent."""
        self._closed = True
        # create new locks, because other threads of the parent may have held the old ones
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._sock.close()
        self._outgoing.close()

    def _read_head(self) -> bytes:
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
            raise EOFError(f"the connection broke: {error}") from error

    def _take(self, size: int) -> bytes:
        if isinstance(self._sock, socket.socket):
            try:
                came = self._sock.recv(size, socket.MSG_WAITALL) if size else b""
            except OSError as error:
                raise EOFError(f"the connection broke: {error}") from error
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
        """Read exactly this many bytes from the socket into a buffer."""
        view, done = memoryview(into).cast("B")[:size], 0
        while done < size:
            try:
                came = self._sock.recv_into(view[done:], 0, socket.MSG_WAITALL)
            except OSError as error:
                raise EOFError(f"the connection broke: {error}") from error
            if not came:
                raise EOFError("closed by the other side")
            done += came


def _read(fields: bytes) -> Any:
    try:
        return _decode(fields)
    except UNDECODABLE as error:
        raise BadFrame(f"cannot decode the fields of a message: {error}") from error
