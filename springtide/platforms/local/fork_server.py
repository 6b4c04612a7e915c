"""Fork server: an interpreter with finished imports that forks roles on request (`python -m ...fork_server torch`).

In: modules to import. Standard input is a socket: `platforms.local.fork_server_client` sends one `ForkRequest` at a
time. Three files come with a request: the role's log, a pipe for its exit status, and a gate that lets the role start.
Out: the reply holds the process id and pidfd of the fork. The server writes the wait status to the pipe when the fork
ends.

A fork continues as `python -m MODULE ...` would after seconds of imports. It ends when this process ends. The server
starts no threads, because forks would not inherit them.
"""

import contextlib
import gc
import importlib
import os
import random
import runpy
import select
import socket
import struct
import sys
import warnings
from collections.abc import Mapping, Sequence

import msgspec

from springtide import child_guard, config

STATUS = struct.Struct("=i")
READY = b"ready"
LARGEST = 1 << 20  # in bytes: an environment and a command line take less


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A process to fork."""

    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    process_group: int
    folders: Sequence[str] = ()
    """Control groups for the process."""
    priority: int = 0


class ForkReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a request; the pidfd comes with it."""

    pid: int = 0
    error: str = ""
    """Reason why the process must not start or does not exist."""


class ForkServer:
    """Forks and reaps processes."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self._children: dict[int, tuple[int, int]] = {}
        """Process id and exit pipe of each fork, by pidfd."""

    def serve(self) -> ForkRequest | None:
        """Serve requests. Returns None when the client is gone, and in a fork what it must run."""
        while True:
            ready, _, _ = select.select([self._asked.fileno(), *self._children], [], [])
            for pidfd in self._children.keys() & set(ready):
                self._reap(pidfd)
            if self._asked.fileno() not in ready:
                continue
            request, files, _, _ = socket.recv_fds(self._asked, LARGEST, 3)
            if not request:
                return None
            birth = msgspec.msgpack.decode(request, type=ForkRequest)
            if not self._fork(birth, *files):
                return birth

    def _fork(self, birth: ForkRequest, log: int, ending: int, gate: int) -> bool:
        """Return False in the child, once it may start."""
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                # the only threads are those of BLAS, which supports forks
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as problem:  # the process limit is reached; running processes continue
            for file in (log, ending, gate):
                os.close(file)
            self._asked.send(msgspec.msgpack.encode(ForkReply(error=str(problem))))
            return True
        if not pid:
            self._leave_nest(log, ending, parent)
            if not os.read(gate, 1):
                os._exit(1)
            os.close(gate)
            return False
        pidfd, error = os.pidfd_open(pid), ""
        try:
            settle(birth, pid)
        except OSError as problem:
            error = str(problem)
        os.close(log)
        os.close(gate)
        self._children[pidfd] = (pid, ending)
        socket.send_fds(self._asked, [msgspec.msgpack.encode(ForkReply(pid=pid, error=error))], [pidfd])
        return True

    def _leave_nest(self, log: int, ending: int, parent: int) -> None:
        child_guard.die_with(parent)
        for pidfd, (_, pipe) in self._children.items():
            os.close(pidfd)
            os.close(pipe)
        self._asked.close()
        os.close(ending)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)

    def _reap(self, pidfd: int) -> None:
        pid, ending = self._children.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):  # the agent no longer reads
            os.write(ending, STATUS.pack(status))
        os.close(ending)
        os.close(pidfd)


def settle(birth: ForkRequest, pid: int) -> None:
    """Set process group, control groups and priority before the child runs any code."""
    os.setpgid(pid, birth.process_group)
    for folder in birth.folders:
        with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(pid))
    if birth.priority:
        os.setpriority(os.PRIO_PROCESS, pid, birth.priority)


def become(birth: ForkRequest) -> None:
    """Run the module as `python -m` does, with fresh random seeds."""
    config.become(birth.environment)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.argv = [birth.module, *birth.arguments]
    runpy.run_module(birth.module, run_name="__main__", alter_sys=True)


def main(modules: list[str]) -> None:
    asked = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise the first collection in a fork would copy every page
    asked.send(READY)
    birth = ForkServer(asked).serve()
    if birth is not None:
        become(birth)


if __name__ == "__main__":
    main(sys.argv[1:])
