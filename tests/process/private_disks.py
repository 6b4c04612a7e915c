"""Simulates hosts with their own disks on this machine. A server gets a folder and a host name, and its next life may
get others. The loss of a host is the death of its processes and of its folder."""

import dataclasses
import pathlib
import shutil

from springtide.domain.core.roles import Role, RoleKind
from springtide.platforms.agent.agent import Agent
from springtide.platforms.local.platform import LocalPlatform
from springtide.testing.cluster import LocalCluster


class Cluster(LocalCluster):
    """A job whose servers run on hosts with private disks."""

    def __init__(self, hosts, *arguments, **more):
        super().__init__(*arguments, **more)
        self._hosts = hosts

    async def _work(self):
        self._platform = Platform(self.files, self._hosts)
        self._agent = Agent(self._plan, self.files, self._platform)
        return await self._agent.run(self._on_status)


class Hosts:
    """Where each server is."""

    def __init__(self, folder):
        self.folder, self.of = pathlib.Path(folder), {}

    def of_server(self, name):
        """Return the host of a server: a separate host, unless the server was moved."""
        return self.of.setdefault(name, f"host-of-{name}-0")

    def lose(self, job, *roles, master=False):
        """Lose a host with its server and other roles; the server restarts on another one."""
        server, before = roles[0], self.of_server(roles[0])
        self.of[server] = f"host-of-{server}-{int(before.rpartition('-')[2]) + 1}"
        for role in [*roles, *(["master"] if master else [])]:
            job.kill(role)
        shutil.rmtree(self.folder / before, ignore_errors=True)


class Platform(LocalPlatform):
    """Starts servers with the settings of their hosts."""

    def __init__(self, files, hosts):
        super().__init__(files)
        self._hosts = hosts

    def start(self, launch, on_exit):
        if launch.life.role.kind is RoleKind.SERVER:
            host = self._hosts.of_server(str(Role(RoleKind.SERVER, launch.life.role.rank)))
            own = {"scratch": str(self._hosts.folder / host), "node": host}
            launch = dataclasses.replace(launch, settings={**launch.settings, **own})
        return super().start(launch, on_exit)
