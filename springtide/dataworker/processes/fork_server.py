"""Fork a loader's data workers from a process that has loaded torch and the package once.

In: orders of the loader's process (local_processes.py), through a socket. Out: data workers, each a fork that serves
(dataworker/feed/worker.py), and news of them. Next: supervisor.py watches them.

The fork server has a single thread and makes no batches, so it can fork at any time. While it loads the package, a
second thread watches the loader's process.

Data workers end with the fork server, and the fork server ends with the loader's process. It watches that process
through a pidfd, because a fork of the trainer may hold the socket open. At its end it removes the package, so a kill -9
of the trainer leaves nothing behind.

platforms/local/fork_server.py is the fork server for roles: it forks modules into control groups and loads no package.
"""

import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from springtide import child_guard, errors

NUMBER: int | None = None
"""Environment variable in a data worker: its number within its loader."""
MOST = 1 << 16  # bytes of the longest message
KEPT = 400  # characters of an error that are reported


class ForkSetup(msgspec.Struct, frozen=True, tag=True):
    """First order: the package, its secret and the random seed."""

    folder: str
    secret: bytes
    seed: int
    owner: int
    """Process id of the loader, which is the parent of the fork server."""


class ForkWorker(msgspec.Struct, frozen=True, tag=True):
    """Order: fork a data worker."""

    number: int


class DrainFork(msgspec.Struct, frozen=True, tag=True):
    """Order: let the data worker finish its batches, and end."""

    number: int


class KillFork(msgspec.Struct, frozen=True, tag=True):
    """Order: kill the data worker."""

    number: int


class ForkReady(msgspec.Struct, frozen=True, tag=True):
    """News: the data worker serves at this address."""

    number: int
    address: str
    pid: int


class ForkFailed(msgspec.Struct, frozen=True, tag=True):
    """News: the data worker cannot start."""

    number: int
    error: str


class ForkEnded(msgspec.Struct, frozen=True, tag=True):
    """News: the data worker ended with this exit status (a signal, if negative)."""

    number: int
    status: int


ForkOrder = ForkSetup | ForkWorker | DrainFork | KillFork
ForkNews = ForkReady | ForkFailed | ForkEnded


def send(sock: socket.socket, message: ForkOrder | ForkNews) -> None:
    sock.sendall(msgspec.msgpack.encode(message))


def main(descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as sock:
        begin = msgspec.msgpack.decode(sock.recv(MOST), type=ForkSetup)
        if os.getppid() == begin.owner:
            owner = os.pidfd_open(begin.owner)
            with contextlib.suppress(ConnectionError):  # the loader's process died before it read all news
                with _OwnerWatch(owner, begin.folder):
                    server = _ForkServer(sock, owner, begin)
                server.run()
            os.close(owner)
        _end(begin.folder)


def _end(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # skips unloading torch, which takes time


class _OwnerWatch:
    """Ends the fork server with the loader's process, while the main thread loads the package.

    Loading a large data set may take long. The watching thread ends before the first fork.
    """

    def __init__(self, owner: int, folder: str) -> None:
        self._owner, self._folder, self._loaded = owner, folder, os.eventfd(0)
        self._thread = threading.Thread(target=self._wait, name="springtide-fork-watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._loaded, 1)
        self._thread.join()
        os.close(self._loaded)

    def _wait(self) -> None:
        if self._loaded not in select.select([self._owner, self._loaded], [], [])[0]:
            _end(self._folder)


class _ForkServer:
    pid = 0

    def __init__(self, sock: socket.socket, owner: int, begin: ForkSetup) -> None:
        _ForkServer.pid = os.getpid()
        self._sock, self._owner = sock, owner
        self._begin = begin
        self._children: dict[int, tuple[int, int]] = {}
        """Process id and pidfd of each data worker, by number."""
        self._error = ""
        self._pipeline: Any = None
        try:
            from springtide.dataworker.feed import worker  # noqa: F401  loaded before the forks
            from springtide.dataworker.processes import job_package

            self._pipeline = job_package.load(Path(begin.folder), secret=begin.secret)
            gc.freeze()  # keeps the garbage collector of data workers from walking the data set and copying its pages
        except errors.SpringtideError as error:
            self._error = str(error)[:KEPT]

    def run(self) -> None:
        """Serve until the loader's process is gone or has closed its socket."""
        while True:
            ends = {descriptor: number for number, (_, descriptor) in self._children.items()}
            for ready in select.select([self._sock.fileno(), self._owner, *ends], [], [])[0]:
                if ready == self._owner:
                    return
                if ready in ends:
                    self._reap(ends[ready])
                    continue
                raw = self._sock.recv(MOST)
                if not raw:
                    return
                self._apply(msgspec.msgpack.decode(raw, type=ForkOrder))

    def _apply(self, order: ForkOrder) -> None:
        if isinstance(order, ForkWorker):
            pid = os.fork()
            if pid == 0:
                _serve(self._sock, self._begin, self._pipeline, self._error, order.number)
            self._children[order.number] = (pid, os.pidfd_open(pid))
        elif isinstance(order, DrainFork | KillFork) and order.number in self._children:
            os.kill(self._children[order.number][0], signal.SIGTERM if isinstance(order, DrainFork) else signal.SIGKILL)

    def _reap(self, number: int) -> None:
        pid, descriptor = self._children.pop(number)
        os.close(descriptor)
        send(self._sock, ForkEnded(number, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def _serve(sock: socket.socket, begin: ForkSetup, pipeline: Any, error: str, number: int) -> None:
    """Run a data worker until it is stopped or killed. Does not return."""
    global NUMBER
    NUMBER = number
    status = 1
    try:
        child_guard.die_with(_ForkServer.pid)
        if error:
            send(sock, ForkFailed(number, error))
        else:
            _run(sock, begin, pipeline, number)
            status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(sock: socket.socket, begin: ForkSetup, pipeline: Any, number: int) -> None:
    from springtide.dataworker.feed.worker import DataWorker

    drained = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: drained.set())
    served = DataWorker(pipeline, 0, begin.secret, seed=begin.seed)
    send(sock, ForkReady(number, served.address, os.getpid()))
    sock.close()
    drained.wait()
    served.drain()
    served.done.wait()
    served.close()
