"""Fork server: an interpreter that has done its imports and forks processes on request. This module also has the
client's side of a fork.

With each `ForkRequest` come a socket for reports, a gate that lets the fork start, and optionally a log file. Forks end
with the server, and the server ends with its owner. The server starts no threads, because forks would not inherit them.
"""

import contextlib
import importlib
import os
import random
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from springtide import child_guard, config, large_imports

READY = b"ready"
LARGEST = 1 << 20  # largest request in bytes; an environment and a command line take less
STATUS = struct.Struct("=ci")  # the server's last report about a fork: a tag and the wait status
ENDED, SAID = b"=", b"+"  # tags of reports: by the server, and by the fork itself
REAPED_S = 5.0  # seconds to wait for the report of a fork's end; a living server reaps a fork within milliseconds


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A process to fork."""

    module: str = ""
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = {}
    process_group: int | None = None
    """None: the group of the server."""
    folders: Sequence[str] = ()
    """Control groups that the process joins."""


class ForkReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a request; the pidfd of the fork comes with the reply."""

    pid: int = 0
    error: str = ""
    """Reason why the process must not start, or why it does not exist."""


class Fork(NamedTuple):
    """Data that the server gives to a fork."""

    request: ForkRequest
    reports: int
    """Socket to the client, for `report`. The fork must close this socket, so that the fork's children do not inherit
    it.
    """

    def report(self, text: str) -> None:
        """Send the client a text, once, and close the socket."""
        os.write(self.reports, SAID + text.encode())
        os.close(self.reports)


class ForkServer:
    """Forks and reaps processes until its client or its owner is gone."""

    def __init__(self, asked: socket.socket, owner: int) -> None:
        """`owner` is the pidfd of the process with which the server ends. A fork of the owner may keep the socket open,
        so the socket alone does not show the owner's end."""
        self._asked, self._owner = asked, owner
        self._children: dict[int, tuple[int, int]] = {}
        """Process id and report socket of each fork, by pidfd."""

    def serve(self) -> Fork | None:
        """Serve requests. Return None at the end. In a fork, return what the fork must run."""
        with contextlib.suppress(ConnectionError):  # the client died before it read all replies
            while True:
                ready, _, _ = select.select([self._asked.fileno(), self._owner, *self._children], [], [])
                if self._owner in ready:
                    return None
                for pidfd in self._children.keys() & set(ready):
                    self._reap(pidfd)
                if self._asked.fileno() in ready:
                    request, files, _, _ = socket.recv_fds(self._asked, LARGEST, 3)
                    if not request:
                        return None
                    reports, gate, *log = files
                    birth = msgspec.msgpack.decode(request, type=ForkRequest)
                    if not self._fork(birth, reports, gate, log):
                        return Fork(birth, reports)
        return None

    def _fork(self, birth: ForkRequest, reports: int, gate: int, log: list[int]) -> bool:
        """Fork a process. In the child, return False once the child may start."""
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                # only BLAS has other threads at this time, and BLAS supports forks
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as problem:  # the process limit is reached; the server and its forks continue
            for file in (reports, gate, *log):
                os.close(file)
            self._asked.send(msgspec.msgpack.encode(ForkReply(error=str(problem))))
            return True
        if not pid:
            self._leave(log, parent)
            if not os.read(gate, 1):
                os._exit(1)
            os.close(gate)
            return False
        pidfd, error = os.pidfd_open(pid), ""
        try:
            settle(birth, pid)
        except OSError as problem:
            error = str(problem)
        for file in (gate, *log):
            os.close(file)
        self._children[pidfd] = (pid, reports)
        socket.send_fds(self._asked, [msgspec.msgpack.encode(ForkReply(pid=pid, error=error))], [pidfd])
        return True

    def _leave(self, log: list[int], parent: int) -> None:
        """Close the server's descriptors in a child."""
        child_guard.die_with(parent)
        for pidfd, (_, reports) in self._children.items():
            os.close(pidfd)
            os.close(reports)
        self._asked.close()
        os.close(self._owner)
        for file in log:
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)

    def _reap(self, pidfd: int) -> None:
        pid, reports = self._children.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ConnectionError):  # the client no longer reads
            os.write(reports, STATUS.pack(ENDED, status))
        os.close(reports)
        os.close(pidfd)


def settle(birth: ForkRequest, pid: int) -> None:
    """Set process group and control groups before the child runs any code."""
    if birth.process_group is not None:
        os.setpgid(pid, birth.process_group)
    for folder in birth.folders:
        with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(pid))


def become(birth: ForkRequest) -> None:
    """Run the module as `python -m` does, with fresh random seeds."""
    config.become(birth.environment)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.argv = [birth.module, *birth.arguments]
    runpy.run_module(birth.module, run_name="__main__", alter_sys=True)


def pidfd_of_parent(pid: int) -> int | None:
    """Return a pidfd of this process's parent; None if the parent is gone already."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        if os.getppid() == pid:
            return pidfd
        os.close(pidfd)
    return None


class ForkedProcess:
    """A forked process with the parts of `subprocess.Popen` that its owner needs. Thread-safe."""

    def __init__(self, pid: int, pidfd: int, reports: socket.socket) -> None:
        self.pid, self.pidfd = pid, pidfd
        self._reports = reports
        self._returned: int | None = None
        self._lock = threading.Lock()
        """Held while the pidfd is used or closed: its number may be reused."""

    def send_signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._returned is None:
                signal.pidfd_send_signal(self.pidfd, number)

    def report(self, timeout_s: float) -> str | None:
        """Wait for the text that the fork reports; return None if the fork ends before its report. Raise
        TimeoutError.
        """
        self._reports.settimeout(timeout_s)
        report = self._reports.recv(LARGEST)
        if report[:1] == SAID:
            return report[1:].decode()
        self._end(report)
        return None

    def wait(self) -> int:
        """Return the exit code, or the negated signal number, as `Popen.wait` does."""
        while self._returned is None:
            select.select([self._reports.fileno(), self.pidfd], [], [])
            # stop waiting after a while: another process may have inherited the server's end of the socket, so that a
            # killed server gives no end of file
            ready, _, _ = select.select([self._reports], [], [], REAPED_S)
            report = self._reports.recv(LARGEST) if ready else b""
            if report[:1] != SAID:
                self._end(report)
        return self._returned

    def _end(self, report: bytes) -> None:
        # without a status, the fork server has died, and the fork has died with it
        status = STATUS.unpack(report)[1] if report else int(signal.SIGKILL)
        with self._lock:
            self._returned = os.waitstatus_to_exitcode(status)
            self._reports.close()
            os.close(self.pidfd)


def ask(server: socket.socket, birth: ForkRequest, *log: int) -> ForkedProcess | None:
    """Ask a fork server for a process. Return None if no pidfd is possible. Raise OSError if the server does not
    answer."""
    reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    waits, gate = os.pipe()
    try:
        socket.send_fds(server, [msgspec.msgpack.encode(birth)], [theirs.fileno(), waits, *log])
        answer, files, _, _ = socket.recv_fds(server, LARGEST, 1)
        if not answer:
            raise ConnectionResetError("the fork server has ended")
        born = msgspec.msgpack.decode(answer, type=ForkReply)
        if not born.error:
            os.write(gate, b"1")
    except BaseException:  # if the fork starts late, it finds its gate closed and exits
        reports.close()
        raise
    finally:
        theirs.close()
        os.close(waits)
        os.close(gate)
    if not files:
        reports.close()
        return None
    fork = ForkedProcess(born.pid, files[0], reports)
    if born.error:
        fork.wait()
        return None
    return fork


def main(parent: int, modules: Sequence[str]) -> None:
    """Serve forks for an agent. Each fork continues as `python -m MODULE ...` would continue after seconds of
    imports."""
    asked = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    owner = pidfd_of_parent(parent)
    if owner is None:
        return
    # a collection in a fork would copy every page of these modules
    with large_imports.without_collection():
        for name in modules:
            importlib.import_module(name)
    asked.send(READY)
    fork = ForkServer(asked, owner).serve()
    if fork is not None:
        os.close(fork.reports)
        become(fork.request)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
