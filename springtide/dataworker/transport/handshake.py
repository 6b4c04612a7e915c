"""Connects trainers and data workers. The trainer and the data worker each prove that they know the job's secret.

In: an address, or a port to listen at. Out: a `BatchChannel` to an authenticated peer. The proof is the same as in the
control plane (rpc/transport/auth.py), with other names for the sides. A caller on the same host connects a second time,
to the Unix socket that the listener names, so that batches go through shared memory.
"""

import contextlib
import hmac
import os
import queue
import secrets
import selectors
import socket
import threading
from collections.abc import Callable

import msgspec

from springtide import child_guard, errors
from springtide.dataworker.transport.channel import SHARED_BYTES, BatchChannel, SecureSocket
from springtide.rpc.messages.messages import VERSION, HandshakeAnswer, HandshakeChallenge, RequestRefused
from springtide.rpc.messages.types import RpcMessage
from springtide.rpc.transport import addresses, auth, frames

LISTENER, CALLER = "batches-listener", "batches-caller"


class FeedWelcome(RpcMessage, frozen=True):
    """The listener's proof, and the name of its Unix socket, which only callers on the same host can reach."""

    proof: bytes
    local: str


class FeedAccepted(RpcMessage, frozen=True):
    """Message of the caller: it uses this connection."""


Message = HandshakeChallenge | HandshakeAnswer | FeedWelcome | FeedAccepted | RequestRefused
_decoder: "msgspec.msgpack.Decoder[Message]" = msgspec.msgpack.Decoder(Message)


def connect(
    address: str, secret: bytes, *, shared: bool = True, shared_bytes: int = SHARED_BYTES, certificates: str = ""
) -> BatchChannel:
    """Connect to the listener at "host:port"; both sides authenticate. Use shared memory within a host.

    With `certificates` (a folder, `rpc.transport.tls`) the connection uses TLS, except within this host. Raise OSError
    if nothing listens there, and `Rejected` if the peer is not a process of this job.
    """
    plain = socket.create_connection(addresses.parse(address), timeout=auth.DEADLINE_S)
    sock: socket.socket | SecureSocket = plain
    try:
        if certificates:
            sock = SecureSocket(plain, certificates, listens=False)
            sock.settimeout(auth.DEADLINE_S)
        name = _call(sock, secret)
        if shared and name and (near := _reach(name, secret)) is not None:
            sock.close()
            return BatchChannel(near, shared_bytes=shared_bytes)
        _send(sock, FeedAccepted())
        return BatchChannel(sock)
    except BaseException:
        sock.close()
        raise


def _reach(name: str, secret: bytes) -> socket.socket | None:
    """Connect to the listener's Unix socket. Return None if the socket is not on this host."""
    near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    near.settimeout(auth.DEADLINE_S)
    try:
        near.connect("\0" + name)
    except OSError:
        near.close()
        return None
    try:
        _call(near, secret)
        _send(near, FeedAccepted())
        return near
    except BaseException:
        near.close()
        raise


def _call(sock: socket.socket | SecureSocket, secret: bytes) -> str:
    """Run the caller's side of the handshake; return the name of the listener's Unix socket."""
    asked = _receive(sock)
    if not isinstance(asked, HandshakeChallenge):
        raise auth.Rejected(f"expected a challenge, got {type(asked).__name__}")
    if problem := auth.version_problem(VERSION, asked.version):
        raise auth.Rejected(problem)
    nonce = secrets.token_bytes(auth.NONCE_BYTES)
    _send(sock, HandshakeAnswer(VERSION, nonce, auth.proof(secret, CALLER, asked.nonce, nonce)))
    verdict = _receive(sock)
    if isinstance(verdict, RequestRefused):
        raise auth.Rejected(verdict.error)
    if not isinstance(verdict, FeedWelcome):
        raise auth.Rejected(f"expected a verdict, got {type(verdict).__name__}")
    if not hmac.compare_digest(verdict.proof, auth.proof(secret, LISTENER, nonce, asked.nonce)):
        raise auth.Rejected("the other side does not know the job's secret")
    return verdict.local


def _answer(sock: socket.socket | SecureSocket, secret: bytes, local: str, proved: Callable[[], object]) -> bool:
    """Run the listener's side of the handshake, and call `proved` during it. Return True if the caller uses this
    connection."""
    nonce = secrets.token_bytes(auth.NONCE_BYTES)
    _send(sock, HandshakeChallenge(VERSION, nonce))
    answer = _receive(sock)
    if not isinstance(answer, HandshakeAnswer):
        raise auth.Rejected(f"expected an answer to the challenge, got {type(answer).__name__}")
    why = auth.version_problem(answer.version)
    if not why and not hmac.compare_digest(answer.proof, auth.proof(secret, CALLER, nonce, answer.nonce)):
        why = "wrong secret: this address belongs to another job, or the secret file is stale"
    if why:
        _send(sock, RequestRefused("JobFailed", why))
        raise auth.Rejected(why)
    proved()
    _send(sock, FeedWelcome(auth.proof(secret, LISTENER, answer.nonce, nonce), local))
    return isinstance(_receive(sock), FeedAccepted)


def _send(sock: socket.socket | SecureSocket, message: Message) -> None:
    sock.sendall(frames.pack(message, limit=frames.MAX_HANDSHAKE_BYTES))


def _receive(sock: socket.socket | SecureSocket) -> Message:
    (size,) = frames.LENGTH.unpack(_exactly(sock, frames.LENGTH.size))
    if size > frames.MAX_HANDSHAKE_BYTES:
        raise frames.BadFrame(f"a handshake message of {size} bytes, expected at most {frames.MAX_HANDSHAKE_BYTES}")
    return frames.unpack(_exactly(sock, size), _decoder)


def _exactly(sock: socket.socket | SecureSocket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        more = sock.recv(size - len(read))
        if not more:
            raise EOFError("closed by the other side")
        read += more
    return read


class FeedListener:
    """Listener that accepts callers as soon as it is constructed. With `host` "0.0.0.0", callers on other hosts are
    accepted too.

    Each handshake runs in its own thread, so that a slow caller does not delay other callers. `rpc.transport.auth`
    limits the number and the duration of handshakes.
    """

    def __init__(self, secret: bytes, *, host: str = "127.0.0.1", certificates: str = "") -> None:
        self._secret, self._certificates = secret, certificates
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._tcp = socket.create_server((host, 0), family=family, backlog=128)
        except OSError as error:
            raise errors.PortTaken(f"cannot listen at {host}: {error.strerror}") from error
        self._name = f"springtide-batches-{os.getpid()}-{secrets.token_hex(16)}"
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unix.bind("\0" + self._name)  # an abstract Unix socket, which vanishes with the process
        self._unix.listen(128)
        self.address = addresses.join(host, int(self._tcp.getsockname()[1]))
        self._proved: queue.SimpleQueue[BatchChannel | None] = queue.SimpleQueue()
        self._pending = auth.PendingHandshakes()
        self._waker, self._wake = socket.socketpair()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="batch-listener", daemon=True)
        self._thread.start()
        child_guard.abandon_in_forks(self)

    def accept(self) -> BatchChannel:
        """Return a channel to the next authenticated caller. Raise EOFError after `close`."""
        found = self._proved.get()
        if found is None:
            self._proved.put(None)  # wake the next thread that waits in this method
            raise EOFError("this listener is closed")
        return found

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._proved.put(None)
        self._waker.close()
        self._thread.join()
        self._tcp.close()
        self._unix.close()
        self._wake.close()

    def abandon(self) -> None:
        self._closed = True
        for sock in (self._tcp, self._unix, self._waker, self._wake):
            sock.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as ready:
            for sock in (self._tcp, self._unix, self._wake):
                ready.register(sock, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in ready.select(self._pending.drop_overdue()):
                    if key.fileobj is not self._wake:
                        self._begin(key.fileobj)  # type: ignore[arg-type]

    def _begin(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except OSError:  # the caller has disconnected
            return
        limits = contextlib.ExitStack()
        # start the handshake's time limit before the next select
        limits.enter_context(self._pending.limited(lambda: _shut(sock)))
        threading.Thread(target=self._authenticate, args=(sock, limits), name="batch-greeting", daemon=True).start()

    def _authenticate(self, plain: socket.socket, limits: contextlib.ExitStack) -> None:
        sock: socket.socket | SecureSocket = plain
        # the caller did not authenticate, or disconnected
        with limits, contextlib.suppress(errors.SpringtideError, OSError, EOFError):
            if self._certificates and plain.family != socket.AF_UNIX:
                sock = SecureSocket(plain, self._certificates, listens=True)
            sock.settimeout(auth.DEADLINE_S)
            name = self._name if sock.family != socket.AF_UNIX else ""
            if _answer(sock, self._secret, name, limits.close) and self._admit(sock):
                return
        with contextlib.suppress(OSError):
            plain.close()

    def _admit(self, sock: socket.socket | SecureSocket) -> bool:
        """Hand a caller to `accept`. Return False if the listener is closed."""
        with self._lock:
            if not self._closed:
                self._proved.put(BatchChannel(sock))
            return not self._closed


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
