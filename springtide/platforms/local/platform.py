"""Runs roles as processes of this machine. Each process has a log file and a process group, and all processes end with
the agent.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

import msgspec

from springtide import config
from springtide.domain.core.resources import ProcessLimits, Usage
from springtide.domain.core.roles import Life, RoleExit, RoleKind
from springtide.fork_server import ForkedProcess
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.local.fork_server import ForkServerClient
from springtide.platforms.local.gpu_assignment import GpuAssignments
from springtide.platforms.local.process_group import GuardedProcessGroup
from springtide.telemetry import events, logs
from springtide.telemetry.host import usage
from springtide.telemetry.host.control_groups import ControlGroup
from springtide.telemetry.host.gpus import VARIABLE

log = logging.getLogger(__name__)

# A shell enters the control groups and then executes the interpreter, so that the groups count and limit all memory of
# the process.
ENTER = 'n=$1; shift; while [ $n -gt 0 ]; do echo $$ > "$1/cgroup.procs"; shift; n=$((n-1)); done; exec "$@"'


class RunningRole(msgspec.Struct):
    """A started process."""

    process: "subprocess.Popen[bytes] | ForkedProcess"
    pidfd: int
    limits: ProcessLimits
    group: ControlGroup | None
    on_exit: Callable[[RoleExit], None]
    log_began: int


class LocalPlatform:
    """Starts roles on this machine, within a running event loop. `say` receives messages for the user."""

    def __init__(
        self,
        files: logs.RunFiles,
        say: Callable[[str], None] = lambda _: None,
        *,
        warm: ForkServerClient | None = None,
        gpus: GpuAssignments | None = None,
    ) -> None:
        """Create the platform. `gpus`: GPUs to assign; None leaves CUDA's variables unchanged."""
        self._files, self._gpus = files, gpus
        self._warm = warm
        self._running: dict[Life, RunningRole] = {}
        self._watched = GuardedProcessGroup(say)
        self._watched.replace_dead_watchdogs()

    def start(self, launch: RoleLaunch, on_exit: Callable[[RoleExit], None]) -> int:
        path = self._files.log_of(launch.life.role)
        if self._gpus is not None:
            device = self._gpus.assign(launch.life, launch.limits.gpu)
            launch = replace(launch, given={**launch.given, VARIABLE: device})
        group = self._watched.groups.make(str(launch.life), launch.limits)
        with events.disk_errors(path), logs.open_log(path) as log:
            began = log.tell()
            process = self._fork(launch, group, log) or self._spawn(launch, group, log)
        if group is not None:
            self._watched.groups.admit(group, process.pid, launch.limits)
        pidfd = os.dup(process.pidfd) if isinstance(process, ForkedProcess) else os.pidfd_open(process.pid)
        self._running[launch.life] = RunningRole(process, pidfd, launch.limits, group, on_exit, began)
        asyncio.get_running_loop().add_reader(pidfd, self._ended, launch.life)
        return process.pid

    def adopt(self, on_exit: Callable[[RoleExit], None]) -> list[Life]:
        return []

    def stop(self, life: Life, *, kill: bool) -> None:
        if life in self._running:
            self._running[life].process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    def hold(self, life: Life, limits: ProcessLimits) -> bool:
        running = self._running.get(life)
        if running is None or running.group is None or not running.group.can_hold(limits):
            return False
        try:
            running.group.hold_to(limits)
        except OSError as error:  # the new memory limit is lower than the current usage
            log.warning("%s keeps its limits: %s", life, error.strerror)
            return False
        running.limits = limits
        return True

    def running(self) -> list[Life]:
        return list(self._running)

    def usage(self) -> dict[Life, tuple[Usage, ProcessLimits]]:
        return {life: (usage_of(running), running.limits) for life, running in self._running.items()}

    def close(self) -> None:
        self._watched.groups.close()  # this removes most groups; the others are removed when their processes are dead
        self._watched.kill()
        for life in list(self._running):
            self._running[life].process.wait()
            self._ended(life)
        self._watched.remove_groups()

    def leave(self) -> None:
        self.close()

    def _spawn(self, launch: RoleLaunch, group: ControlGroup | None, log: BinaryIO) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*within(group), sys.executable, "-m", launch.module, *launch.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment_of(launch, parent=os.getpid()),
            process_group=self._watched.number,
        )

    def _fork(self, launch: RoleLaunch, group: ControlGroup | None, log: BinaryIO) -> ForkedProcess | None:
        """Fork a process from the fork server. Under a memory limit, do not fork, because the limit would not count
        pages that forks share."""
        environment = environment_of(launch)
        if self._warm is None or launch.limits.memory is not None or not self._warm.suits(environment):
            return None
        return self._warm.start(
            launch.module,
            launch.arguments,
            environment,
            log.fileno(),
            process_group=self._watched.number,
            folders=[str(folder) for folder in group.folders()] if group is not None else [],
        )

    def _ended(self, life: Life) -> None:
        running = self._running.pop(life)
        if self._gpus is not None:
            self._gpus.release(life)
        asyncio.get_running_loop().remove_reader(running.pidfd)
        os.close(running.pidfd)
        returned = running.process.wait()
        oom = False
        if running.group is not None:
            oom = returned != 0 and running.group.oom_kills() > 0
            self._watched.groups.remove(running.group)
        ended, error = exit_of(life, running.process.pid, returned, oom=oom), ""
        if ended.code and life.role.kind is not RoleKind.WORKER:
            error = logs.last_error(self._files.log_of(life.role), running.log_began)
        running.on_exit(replace(ended, error=error))


def environment_of(launch: RoleLaunch, *, parent: int = 0) -> dict[str, str]:
    """Return the variables of a process that must not outlive the process `parent`."""
    settings = {**launch.settings, "parent": str(parent)} if parent else launch.settings
    return config.child_environment(settings, launch.environment, launch.given)


def within(group: ControlGroup | None) -> list[str]:
    if group is None:
        return []
    folders = [str(folder) for folder in group.folders()]
    return ["/bin/sh", "-c", ENTER, "sh", str(len(folders)), *folders]


def usage_of(running: RunningRole) -> Usage:
    if running.group is None:
        return usage.of_process(running.process.pid)
    counted = running.group.usage()
    if isinstance(running.process, ForkedProcess):
        own = usage.of_process(running.process.pid)
        counted = replace(counted, memory=max(counted.memory, own.memory), peak=max(counted.peak, own.peak))
    return counted


def exit_of(life: Life, pid: int, returned: int, *, oom: bool = False) -> RoleExit:
    how = {"code": returned} if returned >= 0 else {"signal": signal.Signals(-returned).name}
    return RoleExit(role=life.role, incarnation=life.incarnation, pid=pid, oom=oom, **how)
