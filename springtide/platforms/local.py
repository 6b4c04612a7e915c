"""Roles as processes of this machine: a log file each, one process group, all gone when the agent is gone.

In: `Launch`es from `platforms.agent`. Out: exits, told in the agent's event loop as they happen (pidfd).
"""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from springtide import config
from springtide.domain.cluster import Role, RoleExit
from springtide.platforms import watchdog
from springtide.platforms.base import Launch
from springtide.telemetry import events, logs


@dataclass(slots=True)
class Running:
    """A started process."""

    process: "subprocess.Popen[bytes]"
    pidfd: int
    on_exit: Callable[[RoleExit], None]


class LocalPlatform:
    """Starts roles here. Use within a running event loop, and close it."""

    def __init__(self, files: logs.RunFiles) -> None:
        self._files = files
        self._running: dict[Role, Running] = {}
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._watchdog.stdout is not None
        self._watchdog.stdout.readline()  # it leads its group from before this, and ignores signals from here on

    def start(self, launch: Launch, on_exit: Callable[[RoleExit], None]) -> int:
        """Start a role in the watchdog's process group, its output going to its log."""
        path = self._files.log_of(launch.role)
        try:
            with open(path, "ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", launch.module, *launch.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=config.child_environment(launch.settings, launch.environment),
                    process_group=self._watchdog.pid,
                )
        except OSError as error:
            raise events.as_disk_error(error, path) from error
        pidfd = os.pidfd_open(process.pid)
        self._running[launch.role] = Running(process, pidfd, on_exit)
        asyncio.get_running_loop().add_reader(pidfd, self._ended, launch.role)
        return process.pid

    def stop(self, role: Role, *, kill: bool) -> None:
        """SIGTERM or SIGKILL."""
        if role in self._running:
            self._running[role].process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    def running(self) -> list[Role]:
        """Roles that have not ended."""
        return list(self._running)

    def close(self) -> None:
        """End whatever is left of the group, children of roles included, and wait for the roles."""
        watch = self._watchdog
        assert watch.stdin is not None and watch.stdout is not None
        watch.stdin.close()
        watch.wait()  # by its own SIGKILL, which the whole group got too
        watch.stdout.close()
        for role in list(self._running):
            self._running[role].process.wait()
            self._ended(role)

    def _ended(self, role: Role) -> None:
        running = self._running.pop(role)
        asyncio.get_running_loop().remove_reader(running.pidfd)
        os.close(running.pidfd)
        running.on_exit(exit_of(role, running.process.pid, running.process.wait()))


def exit_of(role: Role, pid: int, returned: int) -> RoleExit:
    """How a process ended, from what `wait` returned."""
    if returned >= 0:
        return RoleExit(role=role, pid=pid, code=returned)
    return RoleExit(role=role, pid=pid, signal=signal.Signals(-returned).name)


def tail(path: pathlib.Path, lines: int = 20) -> list[str]:
    """The last lines of a log, for an error report."""
    try:
        return path.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
