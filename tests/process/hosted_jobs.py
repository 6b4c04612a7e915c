"""Runs a job for a test with each role on its own simulated host (`hosts`), without a shared disk.

In: `Hosts`, a script, a `JobSpec`. Out: as `testing.cluster`. The agent and its master are on the first host: a thread
of this process enters the host's network. Other roles find the master by name, and have their own copy of the secret.

All hosts see the code and the data, as with an image and a data store. Files under `Hosts.disk` are private. Roles
survive their agent: `replace_agent` cancels it, and the next agent adopts them.
"""

import asyncio
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from springtide import config, errors
from springtide.domain.core.resources import ProcessLimits, Usage
from springtide.domain.core.roles import Life, RoleExit
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent import master_keeper, run_plan
from springtide.platforms.agent.agent import Agent
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.local.platform import LocalPlatform, exit_of
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import logs
from springtide.testing.cluster import LocalCluster
from tests.process.hosts import Hosts, first_child

CLONE_NEWNET = 0x40000000
SECRET = "secret"
MASTER = "the-master"
"""Name of the first host during a job."""


@dataclass(slots=True)
class HostedRole:
    """A role's process on a host, and the local process that waits for it."""

    waits: "subprocess.Popen[bytes]"
    pid: int
    pidfd: int
    host: str


@dataclass(slots=True)
class HostPlatform:
    """A platform that assigns roles to hosts in turn, or as `place` says. Roles survive their agent."""

    hosts: Hosts
    files: logs.RunFiles
    secret: pathlib.Path
    place: Callable[[Life], str]
    lives: dict[Life, HostedRole] = field(default_factory=dict)
    _told: Callable[[RoleExit], None] | None = None
    _untold: list[RoleExit] = field(default_factory=list)

    def start(self, launch: RoleLaunch, on_exit: Callable[[RoleExit], None]) -> int:
        """Copy the secret to the role's host, then start the role there."""
        host, life = self.place(launch.life), launch.life
        self._told = on_exit
        if not self.hosts.up(host):
            raise errors.JobFailed(f"{host} is off")
        there = self.hosts.disk / SECRET
        self.hosts.put(host, there, self.secret.read_bytes())
        near = {"master_file": "", "secret_file": str(there), "master": f"{MASTER}:{run_plan.MASTER_PORT}"}
        settings = {**launch.settings, **near, "scratch": str(self.hosts.disk / "scratch"), "node": host}
        settings = {name: value for name, value in settings.items() if value and name in KNOWN}
        environment = config.child_environment(settings, launch.environment, launch.given)
        with open(self.files.log_of(life.role), "ab") as log:
            waits = subprocess.Popen(
                [*self.hosts.inside(host), sys.executable, "-m", launch.module, *launch.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "TMPDIR": str(self.hosts.disk)},
            )
        pid = first_child(waits.pid)
        pidfd = os.pidfd_open(waits.pid)
        self.lives[life] = HostedRole(waits, pid, pidfd, host)
        asyncio.get_running_loop().add_reader(pidfd, self._ended, life)
        return pid

    def adopt(self, on_exit: Callable[[RoleExit], None]) -> list[Life]:
        """Return all running roles, and report exits that no agent has received."""
        self._told = on_exit
        loop = asyncio.get_running_loop()
        for life, running in self.lives.items():
            loop.add_reader(running.pidfd, self._ended, life)
        untold, self._untold = self._untold, []
        for ended in untold:
            on_exit(ended)
        return list(self.lives)

    def stop(self, life: Life, *, kill: bool) -> None:
        self.signal(life, signal.SIGKILL if kill else signal.SIGTERM)

    def signal(self, life: Life, number: signal.Signals) -> bool:
        """Send a signal; return False without a process. The unreaped child keeps the process id valid."""
        running = self.lives.get(life)
        if running is None or running.waits.poll() is not None:
            return False
        try:
            os.kill(running.pid, number)
        except ProcessLookupError:
            return False
        return True

    def hold(self, life: Life, limits: ProcessLimits) -> bool:
        return False

    def running(self) -> list[Life]:
        return list(self.lives)

    def usage(self) -> dict[Life, tuple[Usage, ProcessLimits]]:
        """Return nothing: the agent cannot see into other hosts, so roles report their own usage."""
        return {}

    def close(self) -> None:
        for life in list(self.lives):
            self.stop(life, kill=True)
        for life in list(self.lives):
            self.lives[life].waits.wait()
            self._ended(life)

    def leave(self) -> None:
        for running in self.lives.values():
            asyncio.get_running_loop().remove_reader(running.pidfd)
        self._told = None

    def _ended(self, life: Life) -> None:
        running = self.lives.pop(life)
        asyncio.get_running_loop().remove_reader(running.pidfd)
        os.close(running.pidfd)
        ended = exit_of(life, running.pid, running.waits.wait())
        if self._told is not None:
            self._told(ended)
        else:
            self._untold.append(ended)


KNOWN = frozenset(config.Settings.__dataclass_fields__)


class HostedJob(LocalCluster):
    """One job on hosts. The agent and the master are on the first host, roles on the others in turn."""

    def __init__(
        self,
        script: str | os.PathLike[str],
        arguments: Sequence[str] = (),
        *,
        hosts: Hosts,
        spec: JobSpec,
        folder: pathlib.Path,
        place: Callable[[Life], str] | None = None,
        **more: Any,
    ) -> None:
        plan = {
            "host": "0.0.0.0",
            "advertise": MASTER,
            "port": run_plan.MASTER_PORT,
            "adopt": True,
            "report_usage": True,
        }
        super().__init__(script, arguments, spec=spec, folder=folder, **{**plan, **more})
        hosts.call(MASTER, hosts.names[0])
        self._replacing = False
        self.hosts = hosts
        others = hosts.names[1:] or hosts.names
        self.far = HostPlatform(
            hosts, self.files, self.files.secret, place or (lambda life: others[life.role.rank % len(others)])
        )

    def pids(self) -> dict[str, int]:
        """Return process ids of this machine; roles report ids of their own process namespaces."""
        found = {str(life.role): running.pid for life, running in list(self.far.lives.items())}
        master = super().pids().get("master")
        return found | ({"master": master} if master else {})

    def _run(self) -> None:
        enter(self.hosts.network(self.hosts.names[0]))  # applies to this thread and to all that it starts
        super()._run()

    def replace_agent(self) -> None:
        """Cancel the agent, which ends only its master, and start another agent."""

        def leave() -> None:
            self._replacing = True
            self._attending.cancel()

        self._loop.call_soon_threadsafe(leave)

    async def _work(self) -> JobStatus:
        terms = master_keeper.counting()  # a real cluster counts the terms
        while True:
            self._platform = self.far
            self._agent = Agent(self._plan, self.files, self.far, masters=LocalPlatform(self.files), next_term=terms)
            self._attending = asyncio.create_task(self._agent.run(self._on_status))
            try:
                return await self._attending
            except asyncio.CancelledError:
                if not self._replacing:
                    raise
                self._replacing = False


def enter(network: int) -> None:
    """Move the sockets of this thread, and of all threads and processes that it starts, to another network."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.setns(network, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(network)
