"""Fork server: an interpreter with finished imports that forks roles on request (`python -m ...fork_server torch`).

In: modules to import. Standard input is a socket: `platforms.local.fork_server` sends one `ForkRequest` at a
time. Three files come with a request: the role's log, a pipe for its exit status, and a gate that lets the role start.
Out: the reply holds the process id and pidfd of the fork. The server writes the wait status to the pipe when the fork
ends.

A fork continues as `python -m MODULE ...` would after seconds of imports. It ends when this process ends. The server
starts no threads, because forks would not inherit them.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import random
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence

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


IMPORTS = (
    "torch",
    "torch.utils.data",
    "springtide.worker.job",
    "springtide.dataworker.feed.worker",
    "springtide.server.upload",
    "springtide.server.migration",
    "springtide.server.recovery",
    "springtide.server.checkpoints",
    "springtide.checkpoint.transfer.file_transfer",
    "springtide.telemetry.host.usage",
)
"""Modules that workers, data workers and servers import, without those that run as `__main__`."""
ANSWER_S = 5.0  # a fork takes 10 ms; a server without a reply for this long is stopped or dead


class ForkedProcess:
    """A forked process with the parts of `subprocess.Popen` that its owner needs."""

    def __init__(self, pid: int, pidfd: int, ending: int) -> None:
        self.pid = pid
        self.pidfd, self._ending = pidfd, ending
        self._returned: int | None = None

    def send_signal(self, number: int) -> None:
        if self._returned is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def wait(self) -> int:
        """Return the exit code or the negated signal, as `Popen.wait` does."""
        if self._returned is None:
            said = os.read(self._ending, STATUS.size)
            # without a status, the fork server died and killed the fork
            status = STATUS.unpack(said)[0] if said else int(signal.SIGKILL)
            self._returned = os.waitstatus_to_exitcode(status)
            os.close(self._ending)
            os.close(self.pidfd)
        return self._returned


class ForkServerClient:
    """Client of one fork server. Close it; its forks end with it."""

    def __init__(self, *, after_s: float = 0.0, besides: Collection[str] = ()) -> None:
        """`after_s`: delay before the server starts; short jobs never need it.

        `besides`: variables in which forks may differ.
        """
        self._after_s, self._besides = after_s, besides
        self._environment: dict[str, str] | None = None
        self._asking: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = self._silent = False
        self._begins: asyncio.TimerHandle | None = None

    def begin(self, environment: Mapping[str, str]) -> None:
        self._environment = self._common(environment)
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking.setblocking(False)  # with a timeout, calls would wait regardless of their flags
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *IMPORTS],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                process_group=0,  # Ctrl-C is for the agent only
            )

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return True if a process with these variables can be forked now; start the server if there is none."""
        if self._environment is None:
            self._environment = self._common(environment)
            self._begins = asyncio.get_running_loop().call_later(self._after_s, self.begin, dict(environment))
        return self._is_ready() and self._common(environment) == self._environment

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: int,
        *,
        process_group: int,
        folders: Sequence[str] = (),
        priority: int = 0,
    ) -> ForkedProcess | None:
        """Fork `python -m module arguments`; None if the server cannot or does not answer."""
        birth = ForkRequest(
            module=module,
            arguments=arguments,
            environment=environment,
            process_group=process_group,
            folders=folders,
            priority=priority,
        )
        assert self._asking is not None, "nobody has asked whether it suits"
        (ending, told), (waits, gate) = os.pipe(), os.pipe()
        try:
            socket.send_fds(self._asking, [msgspec.msgpack.encode(birth)], [log, told, waits])
            answer, files, _, _ = socket.recv_fds(self._asking, LARGEST, 1)
            born = msgspec.msgpack.decode(answer, type=ForkReply)
            if not born.error:
                os.write(gate, b"1")
        except (OSError, msgspec.DecodeError):  # a late fork finds its gate closed and exits
            self._ready, self._silent = False, True
            os.close(ending)
            return None
        finally:
            for file in (told, waits, gate):
                os.close(file)
        if not files:
            os.close(ending)
            return None
        fork = ForkedProcess(born.pid, files[0], ending)
        if born.error:
            fork.wait()
            return None
        return fork

    def close(self) -> None:
        self._ready = False
        if self._begins is not None:
            self._begins.cancel()
        if self._asking is not None and self._process is not None:
            self._asking.close()
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        if not self._ready and not self._silent and self._asking is not None and self._asking.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._ready = self._asking.recv(len(READY)) == READY
                self._asking.settimeout(ANSWER_S)
        return self._ready

    def _common(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables that a fork inherits: imports may have read them."""
        ours, others = config.PREFIX, self._besides
        return {name: value for name, value in environment.items() if not name.startswith(ours) and name not in others}
