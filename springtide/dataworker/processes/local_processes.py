"""Start data workers without a job, as descendants of the loader's process that end with it.

In: a package (job_package.py) that a loader has written. Out: `WorkerForker.start` returns a `LocalWorker` with its
address. Next: supervisor.py starts and watches them; fork_server.py is the other side.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

import springtide
from springtide import config, errors
from springtide.dataworker.processes import fork_server

_RUN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from springtide.dataworker.processes import fork_server;"
    " fork_server.main(int(sys.argv[2]))"
)
NO_STATUS = -9  # exit status of a worker that was killed together with the fork server


class LocalWorker:
    """A data worker's process."""

    def __init__(self, number: int, server: "_ForkServerClient") -> None:
        self.number = number
        self.pid: int | None = None
        self._server = server
        # entered directly: an interrupt inside Condition.__enter__ would leave the lock held
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._address = ""
        self._error = ""
        self._status: int | None = None

    def ready(self, timeout_s: float) -> str:
        """Wait until the data worker serves; return its address."""
        with self._lock:
            self._changed.wait_for(lambda: self._address or self._error or self._status is not None, timeout_s)
            if self._address:
                return self._address
            if self._status is not None and not self._error:
                raise errors.JobFailed("it ended before it could say why")
            raise errors.JobFailed(self._error or f"it has not begun within {timeout_s:g} s")

    def wait(self) -> tuple[int, str]:
        """Wait for the end of the process; return its exit status (a signal, if negative) and the reason."""
        with self._lock:
            self._changed.wait_for(lambda: self._status is not None)
            return (NO_STATUS if self._status is None else self._status), self._error

    def drain(self) -> None:
        self._server.send(fork_server.DrainFork(self.number))

    def kill(self) -> None:
        self._server.send(fork_server.KillFork(self.number))

    def heard(self, news: fork_server.ForkNews) -> None:
        with self._lock:
            match news:
                case fork_server.ForkReady():
                    self._address, self.pid = news.address, news.pid
                case fork_server.ForkFailed():
                    self._error = news.error
                case fork_server.ForkEnded():
                    self._status = news.status
            self._changed.notify_all()


class WorkerForker:
    """Starts data workers from a package. The fork server starts with the first data worker."""

    def __init__(self, folder: Path, secret: bytes, *, seed: int = 0) -> None:
        self._owner = os.getpid()
        self._begin = fork_server.ForkSetup(str(folder), secret, seed, self._owner)
        self._home: _ForkServerClient | None = None

    @property
    def pid(self) -> int | None:
        return self._home.pid if self._home is not None else None

    def start(self, number: int) -> LocalWorker:
        """Start a data worker; returns immediately."""
        if self._home is None or self._home.lost:
            self._close_home()
            self._home = _ForkServerClient(self._begin)
        return self._home.start(number)

    def close(self) -> None:
        """End the fork server and all data workers. Does nothing in a forked process."""
        if os.getpid() == self._owner:
            self._close_home()

    def _close_home(self) -> None:
        home, self._home = self._home, None
        if home is not None:
            home.close()


class _ForkServerClient:
    """Client of a fork server, from its first data worker to its end."""

    def __init__(self, begin: fork_server.ForkSetup) -> None:
        self.lost = False
        self._workers: dict[int, LocalWorker] = {}
        self._lock = threading.Lock()
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _RUN, str(Path(springtide.__file__).parents[1]), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=config.child_environment({}, {"OMP_NUM_THREADS": "1"}),
                start_new_session=True,  # keeps Ctrl-C for the trainer
            )
        self.pid = self._process.pid
        self.send(begin)
        self._receiver = threading.Thread(target=self._listen, name="springtide-fork-news", daemon=True)
        self._receiver.start()

    def start(self, number: int) -> LocalWorker:
        worker = LocalWorker(number, self)
        with self._lock:
            self._workers[number] = worker
        self.send(fork_server.ForkWorker(number))
        if self.lost:
            worker.heard(fork_server.ForkEnded(number, NO_STATUS))
        return worker

    def send(self, order: fork_server.ForkOrder) -> None:
        """Send an order; do nothing if the fork server is gone."""
        with contextlib.suppress(OSError):
            fork_server.send(self._sock, order)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self._process.wait()
        if threading.current_thread() is not self._receiver:  # the garbage collector may call this from any thread
            self._receiver.join()
        self._sock.close()

    def _listen(self) -> None:
        while raw := self._next():
            news = msgspec.msgpack.decode(raw, type=fork_server.ForkNews)
            with self._lock:
                worker = self._workers.get(news.number)
                if isinstance(news, fork_server.ForkEnded):
                    self._workers.pop(news.number, None)
            if worker is not None:
                worker.heard(news)
        self.lost = True
        with self._lock:
            left = list(self._workers.values())
            self._workers.clear()
        for worker in left:
            worker.heard(fork_server.ForkEnded(worker.number, NO_STATUS))

    def _next(self) -> bytes:
        try:
            return self._sock.recv(fork_server.MOST)
        except OSError:
            return b""
