"""Accept connections to data workers: a TCP port, and a Unix socket for callers on this host.

In: connections. Out: a `BatchChannel` for each authenticated caller (dataworker/transport/handshake.py). Each handshake
has its own thread, so that no caller delays another. `rpc.transport.handshake_limits` limits their number and duration.
"""

import contextlib
import os
import queue
import secrets
import selectors
import socket
import threading
import weakref

from springtide import errors
from springtide.dataworker.transport import channel, handshake
from springtide.dataworker.transport.tls_socket import SecureSocket
from springtide.rpc.transport import addresses, handshake_limits

_open: "weakref.WeakSet[FeedListener]" = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_open):
        each._abandon()


os.register_at_fork(after_in_child=_after_fork)


class FeedListener:
    """Listener that accepts callers from construction on. With `host` "0.0.0.0", also from other hosts."""

    def __init__(self, secret: bytes, *, host: str = "127.0.0.1", port: int = 0, certificates: str = "") -> None:
        self._secret, self._certificates = secret, certificates
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._tcp = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise errors.PortTaken(f"cannot listen at {host}:{port}: {error.strerror}") from error
        self._name = f"springtide-batches-{os.getpid()}-{secrets.token_hex(16)}"
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unix.bind("\0" + self._name)  # abstract: disappears with the process
        self._unix.listen(128)
        self.port = int(self._tcp.getsockname()[1])
        self.address = addresses.join(host, self.port)
        self._proved: queue.SimpleQueue[channel.BatchChannel | None] = queue.SimpleQueue()
        self._pending = handshake_limits.PendingHandshakes()
        self._waker, self._wake = socket.socketpair()
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="batch-listener", daemon=True)
        self._thread.start()
        _open.add(self)

    def accept(self) -> channel.BatchChannel:
        """Return a channel to the next authenticated caller. Raise EOFError after `close`."""
        found = self._proved.get()
        if found is None:
            self._proved.put(None)  # wakes the next thread that waits here
            raise EOFError("this listener is closed")
        return found

    def close(self) -> None:
        """Accept no more callers. Accepted channels stay open."""
        if self._closed:
            return
        self._closed = True
        self._waker.close()
        self._thread.join()
        self._tcp.close()
        self._unix.close()
        self._wake.close()
        self._proved.put(None)

    def _abandon(self) -> None:
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
        # set before the next select, because the handshake has a deadline
        limits.enter_context(self._pending.limited(lambda: _shut(sock)))
        threading.Thread(target=self._greet, args=(sock, limits), name="batch-greeting", daemon=True).start()

    def _greet(self, plain: socket.socket, limits: contextlib.ExitStack) -> None:
        sock: socket.socket | SecureSocket = plain
        with limits:
            try:
                if self._certificates and plain.family != socket.AF_UNIX:
                    sock = SecureSocket(plain, self._certificates, listens=True)
                sock.settimeout(handshake_limits.DEADLINE_S)
                name = self._name if sock.family != socket.AF_UNIX else ""
                if handshake.receive(sock, self._secret, name, proved=limits.close):
                    self._proved.put(channel.BatchChannel(sock))
                    return
            except (errors.SpringtideError, OSError, EOFError):
                pass  # an unauthenticated caller, or a caller that disconnected
        with contextlib.suppress(OSError):
            plain.close()


def _shut(sock: socket.socket) -> None:
    """Shut the socket down, to wake any thread that waits for this peer."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
