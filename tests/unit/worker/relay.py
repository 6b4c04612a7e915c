"""A TCP relay in front of a server: while it is held, requests wait in it and the server hears nothing.

In: the server's address. Out: an address for clients; replies always pass. `close` it.
"""

import contextlib
import socket
import threading

from springtide.rpc.transport import addresses


class Relay:
    """Passes bytes on, both ways."""

    def __init__(self, to):
        self._to = addresses.parse(to)
        self._open = threading.Event()
        self._open.set()
        self._sockets, self._threads = [socket.create_server(("127.0.0.1", 0))], []
        self.address = addresses.join(*self._sockets[0].getsockname()[:2])
        self._start(self._accept)

    def hold(self):
        """Requests that a client sends from now on wait."""
        self._open.clear()

    def release(self):
        """They go on."""
        self._open.set()

    def close(self):
        self.release()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()

    def _start(self, call, *given):
        self._threads.append(threading.Thread(target=call, args=given))
        self._threads[-1].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._sockets[0].accept()
                server = socket.create_connection(self._to)
                self._sockets += [client, server]
                self._start(self._pump, client, server, self._open.wait)
                self._start(self._pump, server, client, lambda: None)

    def _pump(self, source, sink, wait):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
