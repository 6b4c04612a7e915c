"""TLS socket between a trainer and a data worker, with the interface of a plain socket.

In: dataworker/transport/listener.py and dataworker/transport/channel.py, in a job with certificates
(`rpc.transport.tls`). Out: the same messages and batches, encrypted. The native core implements it, so that one thread
may send while another receives.
"""

import os
import socket
from typing import Any

from springtide import _native, errors
from springtide.rpc.transport import auth, handshake_limits


class SecureSocket:
    """Owner of the socket after the TLS handshake; raises `Rejected` with the reason if the peer is not accepted."""

    def __init__(self, sock: socket.socket, certificates: str, *, listens: bool) -> None:
        self.family = sock.family
        self._sock = sock
        role = "" if listens else "data-worker"
        try:
            self._tls = _native.SecureSocket(sock.fileno(), certificates, listens, role, handshake_limits.DEADLINE_S)
        except errors.ServerUnreachable as error:
            raise auth.Rejected(str(error)) from error

    def send_pieces(self, prefix: bytes, pieces: list[tuple[int, int, int]] | _native.Pieces, payload: int) -> int:
        """Send like `_native.send_pieces`; return 0 or an errno."""
        return self._tls.send_pieces(prefix, pieces, payload)

    def sendall(self, data: bytes) -> None:
        if error := self._tls.send_pieces(data, [], 0):
            raise OSError(error, os.strerror(error))

    def recv(self, size: int) -> bytes:
        """Return exactly this many bytes; empty if the peer has closed."""
        data = bytearray(size)
        return bytes(data) if self.recv_into(data) else b""

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """Fill the buffer; return 0 if the peer has closed."""
        del size, flags  # the call always waits for the whole buffer
        error = self._tls.receive(buffer)
        if error > 0:
            raise OSError(error, os.strerror(error))
        return 0 if error else len(buffer)

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout; None waits forever."""
        self._tls.set_timeout(seconds or 0.0)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._sock.setsockopt(level, name, value)

    def fileno(self) -> int:
        """Return the descriptor for poll, readable when a message begins, because nothing is read ahead."""
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()
