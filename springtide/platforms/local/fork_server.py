"""Starts workers and servers quickly by forking an interpreter that has imported torch (`fork_server.py`).

A cold start spends half a second (servers) or two core-seconds (workers) on imports. The fork server imports while the
master starts. The client returns None if the fork server is not ready, or has other environment variables. If the fork
server is killed, its forks die too. After an upgrade of the package a new fork server starts, and the old one stays for
its forks.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence

import springtide
from springtide import config, fork_server
from springtide.fork_server import READY, ForkedProcess, ForkRequest

IMPORTS = (
    "torch",
    "torch.utils.data",
    "springtide.worker.job",
    "springtide.dataworker.feed.worker",
    "springtide.server.mirror",
    "springtide.server.migration",
    "springtide.server.recovery",
    "springtide.server.checkpoints",
    "springtide.checkpoint.transfer.file_transfer",
    "springtide.telemetry.host.usage",
)
"""Modules that workers, data workers and servers import, except those that run as `__main__`."""
# seconds to wait for a fork, which usually takes 10 ms; after this time, the fork server counts as stopped or dead
ANSWER_S = 5.0
# seconds that a job waits for the imports of its fork server; after this time, the job starts roles without it
IMPORT_S = 30.0
LOOK_S = 0.02


class ForkServerClient:
    """Client of one fork server. When the client is closed, its forks end."""

    def __init__(self, *, besides: Collection[str] = ()) -> None:
        """`besides` has the variables that may differ between forks."""
        self._besides = besides
        self._environment: dict[str, str] | None = None
        self._asking: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = self._silent = False
        self._build = installed_build()
        self._retired: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
        """Fork servers of earlier builds, whose forks may still run."""

    def begin(self, environment: Mapping[str, str]) -> None:
        """Start the fork server. The fork server can fork only processes that have these environment variables."""
        self._environment = self._common(environment)
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # set the socket itself to non-blocking, because a socket timeout would make calls wait even with MSG_DONTWAIT
        self._asking.setblocking(False)
        with theirs:
            self._process = start_server(theirs, self._environment)

    async def imported(self) -> None:
        """Wait until the fork server can fork, or will not be able to, or has taken too long."""
        until = time.monotonic() + IMPORT_S
        while not self._is_ready() and self._process is not None and self._process.poll() is None:
            if time.monotonic() > until:
                return
            await asyncio.sleep(LOOK_S)

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return True if a process with these variables can be forked now."""
        if (build := installed_build()) != self._build and self._environment is not None:
            self._build = build
            self._retire()
            self.begin(environment)
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
    ) -> ForkedProcess | None:
        """Fork `python -m module arguments`. Return None if the fork server cannot fork or does not answer."""
        birth = ForkRequest(
            module=module,
            arguments=arguments,
            environment=environment,
            process_group=process_group,
            folders=folders,
        )
        assert self._asking is not None, "limits were not checked yet"
        try:
            return fork_server.ask(self._asking, birth, log)
        except OSError:
            self._ready, self._silent = False, True
            return None

    def close(self) -> None:
        self._retire()
        for asking, process in self._retired:
            asking.close()
            process.kill()
            process.wait()

    def _retire(self) -> None:
        """Fork no more processes from the present server, which goes on for its forks."""
        if self._asking is not None and self._process is not None:
            self._retired.append((self._asking, self._process))
        self._environment = self._asking = self._process = None
        self._ready = self._silent = False

    def _is_ready(self) -> bool:
        if not self._ready and not self._silent and self._asking is not None and self._asking.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._ready = self._asking.recv(len(READY)) == READY
                self._asking.settimeout(ANSWER_S)
        return self._ready

    def _common(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a fork inherits from the fork server. These variables must match, because imported
        modules may have read them.
        """
        ours, others = config.PREFIX, self._besides
        return {name: value for name, value in environment.items() if not name.startswith(ours) and name not in others}


def start_server(asked: socket.socket, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a fork server that ends with this process. `asked` receives its requests."""
    return subprocess.Popen(
        [sys.executable, "-m", fork_server.__name__, str(os.getpid()), *IMPORTS],
        stdin=asked.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        process_group=0,  # start a separate process group, so that Ctrl-C reaches only the agent
    )


def installed_build() -> tuple[int, ...]:
    """Return a value that changes if another build of the package is installed in the same place, or linked to it."""
    try:
        found = os.stat(springtide.__file__)
    except OSError:  # a new fork server is replacing it
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns
