"""Run containers as processes of this machine: start them by `container_entry`, limit them, and end them with the
test.

In: a `Wish`. Out: a `Container` with the exit status in `ended`. All containers are in the process group of a watchdog,
which kills them whenever the test's process ends (`platforms.local.process_group`).
"""

import asyncio
import dataclasses
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import springtide
from springtide.domain.core.resources import ProcessLimits
from springtide.platforms.local.process_group import GuardedProcessGroup
from springtide.telemetry.host.control_groups import ControlGroup, kill_members
from springtide_lab.kubernetes.kubelet import container_entry

log = logging.getLogger(__name__)

PACKAGE = pathlib.Path(springtide.__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume in a container."""

    source: pathlib.Path
    target: str
    read_only: bool = False
    in_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A container to start."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    hostname: str
    hosts: pathlib.Path
    log: pathlib.Path
    mounts: Sequence[Mount] = ()
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    uid: int = 0
    gid: int = 0
    groups: Sequence[int] = ()
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """End of a container: exit code, whether memory ran out, and the time."""

    code: int
    oom: bool
    at: float


@dataclass(slots=True)
class Container:
    """A started container."""

    process: "subprocess.Popen[bytes]"
    group: ControlGroup | None
    log: pathlib.Path
    started_at: float
    begun: asyncio.Event
    """Set when the command has started, or when it will never start."""
    ended: "asyncio.Future[ContainerEnd]"
    wish: Wish
    limits: ProcessLimits

    def first(self) -> int | None:
        """Return the machine's id of the container's process 1, or None if it does not run."""
        path = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            children = path.read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the container's process 1; do nothing if the container has ended."""
        if not self.ended.done():
            if number == signal.SIGKILL and self.group is not None:
                kill_members(self.group)
            self.process.send_signal(number)

    def hold(self, limits: ProcessLimits) -> bool:
        """Change the limits; return True if they are in force now."""
        if self.group is None or not self.group.can_hold(limits):
            return False
        try:
            self.group.hold_to(limits)
        except OSError as error:
            log.warning("a container keeps its limits: %s", error.strerror)
            return False
        self.limits = limits
        return True


class Machine:
    """Start containers and run commands in them. Use within a running event loop, and call `close` at the end."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._roots = folder / "roots"
        self._roots.mkdir(parents=True, exist_ok=True)
        self._watched = GuardedProcessGroup(log.warning)
        self._containers: dict[int, Container] = {}
        self._number = 0
        self._pipes: set[int] = set()

    def start(self, wish: Wish) -> Container:
        self._number += 1
        root = self._roots / str(self._number)
        root.mkdir()
        group = self._watched.groups.make(f"{wish.name}-{self._number}", wish.limits)
        process, begun = self._spawn(words_of(wish, root, group), wish.log)
        loop = asyncio.get_running_loop()
        container = Container(process, group, wish.log, time.time(), begun, loop.create_future(), wish, wish.limits)
        self._containers[process.pid] = container
        pidfd = os.pidfd_open(process.pid)
        loop.add_reader(pidfd, self._ended, container, pidfd, root)
        return container

    async def execute(self, container: Container, argv: Sequence[str], within_s: float) -> int | None:
        """Run a command in a running container; return its exit code, or None if it took too long."""
        first = container.first()
        if first is None:
            return None
        wish = dataclasses.replace(container.wish, argv=argv)
        process, _ = self._spawn(words_of(wish, None, container.group) | {"join": first}, container.log)
        pidfd = os.pidfd_open(process.pid)
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(within_s):
                await ended.wait()
        except TimeoutError:
            return None
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            process.kill()
            process.wait()
        return process.returncode

    def _spawn(self, words: Mapping[str, Any], path: pathlib.Path) -> "tuple[subprocess.Popen[bytes], asyncio.Event]":
        """Start `container_entry`. Return its process with an event that is set when the command has started or can no
        longer start.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = os.pipe()
        try:
            with open(path, "ab") as output:
                process = subprocess.Popen(
                    entry_command({**words, "started": theirs}),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    process_group=self._watched.number,
                    pass_fds=[theirs],
                )
        finally:
            os.close(theirs)
        begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def see() -> None:
            loop.remove_reader(ours)
            os.close(ours)
            self._pipes.discard(ours)
            begun.set()

        self._pipes.add(ours)
        loop.add_reader(ours, see)
        return process, begun

    def close(self) -> None:
        for container in list(self._containers.values()):
            container.signal(signal.SIGKILL)
        self._watched.kill()
        loop = asyncio.get_running_loop()
        for pipe in self._pipes:
            loop.remove_reader(pipe)
            os.close(pipe)
        for container in list(self._containers.values()):
            container.process.wait()
        self._watched.remove_groups()

    def _ended(self, container: Container, pidfd: int, root: pathlib.Path) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        code = container.process.wait()
        code = 128 - code if code < 0 else code
        del self._containers[container.process.pid]
        oom = False
        if container.group is not None:
            oom = code != 0 and container.group.oom_kills() > 0
            self._watched.groups.remove(container.group)
        root.rmdir()
        if not container.ended.done():
            container.ended.set_result(ContainerEnd(code, oom, time.time()))


def words_of(wish: Wish, root: pathlib.Path | None, group: ControlGroup | None) -> dict[str, Any]:
    """Return the arguments of `container_entry`."""
    return {
        **dataclasses.asdict(wish),
        "root": os.getuid() == 0,
        "at": root,
        "needed": needed(),
        "cgroups": [] if group is None else list(group.folders()),
    }


def entry_command(words: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-I", "-S", container_entry.__file__, json.dumps(words, default=str)]


def needed() -> list[str]:
    interpreter = pathlib.Path(sys.executable).resolve().parent.parent
    return [
        str(path)
        for path in dict.fromkeys((pathlib.Path(sys.base_prefix), interpreter, pathlib.Path(sys.prefix), PACKAGE))
    ]


def why_not() -> str:
    """Return why containers cannot run on this machine; empty if they can."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "hosts").write_text("127.0.0.1 localhost\n")
        (folder / "root").mkdir()
        wish = Wish(
            name="probe",
            argv=["true"],
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            hostname="probe",
            hosts=folder / "hosts",
            log=folder / "log",
            uid=os.getuid(),
            gid=os.getgid(),
            read_only=True,
        )
        with open("/dev/null") as nothing:
            command = entry_command({**words_of(wish, folder / "root", None), "started": nothing.fileno()})
            done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=[nothing.fileno()])
        return "" if done.returncode == 0 else done.stderr.strip() or f"a container ended with {done.returncode}"
