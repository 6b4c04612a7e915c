"""A TLS socket between a trainer and a data worker, with the calls of a plain one.

In: dataworker/transport/listener.py and dataworker/transport/channel.py, in a job with certificates
(`rpc.transport.tls`). Out: the same messages and batches, encrypted. The native core does it: there one thread may send
while another receives.
"""

import os
import socket
from typing import Any

from springtide import _native, errors
from springtide.rpc.transport import auth, handshake_limits


class SecureSocket:
    """Owns the socket after the TLS handshake; `Rejected` says why the peer is not accepted."""

    def __init__(self, sock: socket.socket, certificates: str, *, listens: bool) -> None:
        self.family = sock.family
        self._sock = sock
        role = "" if listens else "data-worker"
        try:
            self._tls = _native.SecureSocket(sock.fileno(), certificates, listens, role, handshake_limits.DEADLINE_S)
        except errors.ServerUnreachable as error:
            raise auth.Rejected(str(error)) from error

    def send_pieces(self, prefix: bytes, pieces: list[tuple[int, int, int]] | _native.Pieces, payload: int) -> int:
        """As `_native.send_pieces`: 0, or an errno."""
        return self._tls.send_pieces(prefix, pieces, payload)

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        if error := self._tls.send_pieces(data, [], 0):
            raise OSError(error, os.strerror(error))

    def recv(self, size: int) -> bytes:
        """So many bytes, and not fewer; none when the other side has closed."""
        data = bytearray(size)
        return bytes(data) if self.recv_into(data) else b""

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """Fill the buffer; 0 when the other side has closed."""
        del size, flags  # it is always waited for all of it
        error = self._tls.receive(buffer)
        if error > 0:
            raise OSError(error, os.strerror(error))
        return 0 if error else len(buffer)

    def settimeout(self, seconds: float | None) -> None:
        """None: wait for ever."""
        self._tls.set_timeout(seconds or 0.0)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        """Of the socket below."""
        self._sock.setsockopt(level, name, value)

    def fileno(self) -> int:
        """For poll: readable when a message begins, none of which is ever read ahead."""
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        """Of the socket below."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Of the socket below."""
        self._sock.close()
