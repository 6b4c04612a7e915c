"""Starts workers and servers quickly by forking an interpreter that has imported torch.

In: `platforms.local.platform` starts processes. Their imports would take half a second (servers) or two core-seconds
(workers), which running trainers would lose, and much longer under a small CPU quota. Out: processes with the usual
environment, log, process group, control groups and priority.

The client returns None if the interpreter is not ready or has other variables; the caller then starts a cold process.
The other end is `platforms.local.fork_server`. If the fork server is killed, its forks die too and are reported as
killed.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence

import msgspec

from springtide import config
from springtide.platforms.local import fork_server
from springtide.platforms.local.fork_server import READY, ForkReply, ForkRequest

IMPORTS = (
    "torch",
    "torch.utils.data",
    "springtide.worker.job",
    "springtide.dataworker.feed.worker",
    "springtide.server.upload",
    "springtide.server.migration",
    "springtide.server.recovery",
    "springtide.server.checkpoints",
    "springtide.checkpoint.transfer.remote_reader",
    "springtide.telemetry.host.own_usage",
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
            said = os.read(self._ending, fork_server.STATUS.size)
            # without a status, the fork server died and killed the fork
            status = fork_server.STATUS.unpack(said)[0] if said else int(signal.SIGKILL)
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
                [sys.executable, "-m", fork_server.__name__, *IMPORTS],
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
            answer, files, _, _ = socket.recv_fds(self._asking, fork_server.LARGEST, 1)
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
