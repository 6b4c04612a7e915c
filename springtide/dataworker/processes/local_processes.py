"""Start a loader's data workers as forks of a process that has loaded torch and the package once.

In: a package (job_package.py) that a loader has written. Out: `WorkerForker.start` returns a `LocalWorker`. `main` is
the fork server's side (`springtide.fork_server`). The server ends with the loader's process, even while it loads the
package, and then removes the package. Next: supervisor.py starts and watches data workers.
"""

import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import springtide
from springtide import config, errors, fork_server, large_imports
from springtide.fork_server import Fork, ForkedProcess, ForkRequest, ForkServer

_RUN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from springtide.dataworker.processes import local_processes;"
    " local_processes.main(int(sys.argv[2]))"
)
NO_STATUS = -9  # exit status to report for a worker that was killed together with the fork server
LONGEST_ERROR = 400  # longest error text to report, in characters
NUMBER: int | None = None
"""Number of this data worker within its loader; None in a process that is not a data worker."""


class PackageSetup(msgspec.Struct, frozen=True):
    """First message to the fork server: the package, its secret and the random seed."""

    folder: str
    secret: bytes
    seed: int
    owner: int
    """Process id of the loader, which is the parent of the fork server."""


class LocalWorker:
    """A data worker's process. One thread calls `ready` and then `wait`; any thread may call `drain` and `kill`."""

    def __init__(self, number: int, server: "_ForkServerProcess") -> None:
        self._number, self._server = number, server
        self._lock = threading.Lock()
        self._fork: ForkedProcess | None = None
        self._killed = False

    @property
    def pid(self) -> int | None:
        return self._fork.pid if self._fork is not None else None

    def ready(self, timeout_s: float) -> str:
        """Wait until the data worker serves; return its address."""
        try:
            fork = self._server.fork(self._number, timeout_s)
            with self._lock:
                self._fork = fork
                if self._killed:
                    fork.send_signal(signal.SIGKILL)
            report = fork.report(timeout_s)
        except TimeoutError:
            self.kill()
            raise errors.JobFailed(f"the process did not start within {timeout_s:g} s") from None
        if report is None:
            raise errors.JobFailed("the process ended before it was ready, and gave no reason")
        kind, _, text = report.partition(" ")
        if kind != "serves":
            raise errors.JobFailed(text)
        return text

    def wait(self) -> int:
        """Wait for the end of the process; return its exit status (a signal, if negative)."""
        return self._fork.wait() if self._fork is not None else NO_STATUS

    def drain(self) -> None:
        """Let the data worker finish its batches, and end."""
        if self._fork is not None:
            self._fork.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process now, or as soon as it is forked."""
        with self._lock:
            self._killed = True
            if self._fork is not None:
                self._fork.send_signal(signal.SIGKILL)


class WorkerForker:
    """Starts data workers from a package. The fork server starts when the first data worker starts."""

    def __init__(self, folder: Path, secret: bytes, *, seed: int = 0) -> None:
        self._setup = PackageSetup(str(folder), secret, seed, os.getpid())
        self._server: _ForkServerProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._server.process.pid if self._server is not None else None

    def start(self, number: int) -> LocalWorker:
        if self._server is None or self._server.process.poll() is not None:
            self.close()
            self._server = _ForkServerProcess(self._setup)
        return LocalWorker(number, self._server)

    def close(self) -> None:
        """End the fork server and all data workers. Does nothing in a forked process."""
        server = self._server
        if server is not None and os.getpid() == self._setup.owner:
            self._server = None
            server.close()


class _ForkServerProcess:
    """The loader's handle of its fork server."""

    def __init__(self, setup: PackageSetup) -> None:
        self._lock = threading.Lock()
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _RUN, str(Path(springtide.__file__).parents[1]), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=config.child_environment({}, {"OMP_NUM_THREADS": "1"}),
                start_new_session=True,  # start a new session, so that Ctrl-C reaches only the trainer
            )
        with contextlib.suppress(OSError):  # ignore the error, because the next request reports that the server is gone
            self._sock.sendall(msgspec.msgpack.encode(setup))

    def fork(self, number: int, timeout_s: float) -> ForkedProcess:
        """Fork a data worker, once the server has loaded the package."""
        with self._lock:
            try:
                self._sock.settimeout(timeout_s)
                fork = fork_server.ask(self._sock, ForkRequest(arguments=(str(number),)))
            except TimeoutError:
                # kill the server: otherwise its late reply would be taken for the reply to the next request
                self.process.kill()
                raise
            except OSError as error:
                # wait for the fork server's end, because `start` replaces only a fork server that has ended
                if isinstance(error, ConnectionError):
                    self.process.kill()
                    self.process.wait()
                raise errors.JobFailed(f"the fork server has ended: {error}") from error
        if fork is None:
            raise errors.JobFailed("the fork server could not start another process")
        return fork

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):  # the fork server has already closed its end
            self._sock.shutdown(socket.SHUT_RDWR)  # this ends the wait of a thread in `fork`
        with self._lock:  # wait for a thread that still uses the descriptor, because the kernel may reuse its number
            self._sock.close()


def main(descriptor: int) -> None:
    """Run the fork server, and in its forks the data workers."""
    with socket.socket(fileno=descriptor) as sock:
        setup = msgspec.msgpack.decode(sock.recv(fork_server.LARGEST), type=PackageSetup)
        owner = fork_server.pidfd_of_parent(setup.owner)
        if owner is not None:
            with _ends_with(owner, setup.folder):
                pipeline, error = _load(setup)
            if (fork := ForkServer(sock, owner).serve()) is not None:
                _serve(fork, setup, pipeline, error)
            os.close(owner)
        _end(setup.folder)


def _load(setup: PackageSetup) -> tuple[Any, str]:
    with large_imports.without_collection():
        from springtide.dataworker.feed import worker  # noqa: F401  loaded before the forks
        from springtide.dataworker.processes import job_package

    try:
        pipeline = job_package.load(Path(setup.folder), secret=setup.secret)
    except errors.SpringtideError as error:
        return None, str(error)[:LONGEST_ERROR]
    gc.freeze()  # keeps the garbage collector of data workers from walking the data set and copying its pages
    return pipeline, ""


def _end(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # exit without unloading torch, which takes time


@contextlib.contextmanager
def _ends_with(owner: int, folder: str) -> Iterator[None]:
    """While the block runs, a thread ends this process if its owner ends, because loading a large data set may take
    long. The thread stops before the first fork.
    """
    loaded = os.eventfd(0)

    def watch() -> None:
        if loaded not in select.select([owner, loaded], [], [])[0]:
            _end(folder)

    thread = threading.Thread(target=watch, name="springtide-fork-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(loaded, 1)
        thread.join()
        os.close(loaded)


def _serve(fork: Fork, setup: PackageSetup, pipeline: Any, error: str) -> None:
    """Run a data worker until it is stopped or killed. Does not return."""
    global NUMBER
    NUMBER = int(fork.request.arguments[0])
    status = 1
    try:
        if error:
            fork.report(f"failed {error}")
        else:
            _run(fork, setup, pipeline)
            status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(fork: Fork, setup: PackageSetup, pipeline: Any) -> None:
    from springtide.dataworker.feed.worker import DataWorker

    drained = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: drained.set())
    served = DataWorker(pipeline, 0, setup.secret, seed=setup.seed)
    fork.report(f"serves {served.address}")
    drained.wait()
    served.drain()
    served.done.wait()
    served.close()
