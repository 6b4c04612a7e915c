"""Process group and control groups of one agent.

The processes die with this process, even if it is killed, because `GuardedProcessGroup` starts
`platforms.local.watchdog`, which kills the processes' group. Folders of control groups are named
`springtide-PID-START-NUMBER/ROLE`, so that the next agent can remove the folders of a killed agent.
"""

import asyncio
import errno
import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from springtide.domain.core.resources import ProcessLimits
from springtide.platforms.local import watchdog
from springtide.telemetry.host import control_groups
from springtide.telemetry.host.control_groups import ControlGroup, GroupV1, GroupV2, kill_members, read_members, write
from springtide.telemetry.logs import start_of

# seconds to wait until the kernel can remove a group; its last process must exit first, which takes milliseconds
DYING_S = 2.0
RETRY_S = 1.0  # seconds to wait after a watchdog could not start because the machine lacked processes or memory

_OURS = re.compile(r"(springtide-(\d+)-\d+)-\d+")
PROBE = ProcessLimits(cpu=1.0)
_numbers = itertools.count(1)  # number of the agent within this process, because a process may run several jobs
HINT = "run as root, or in a scope of your own: systemd-run --user --scope -p Delegate=yes springtide run ..."


class GuardedProcessGroup:
    """A guarded process group with the id `number`. `say` receives messages for the user. The owner must end the group
    with `kill`.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.groups = Groups(say)
        self._say = say
        self._watchdog = self._launch(0)
        self.number = self._watchdog.pid
        self._stop_looking: Callable[[], object] = lambda: None

    def replace_dead_watchdogs(self) -> None:
        loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(self._watchdog.pid)

        def stop() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)

        self._stop_looking = stop
        loop.add_reader(pidfd, self._replace)

    def kill(self) -> None:
        self._stop_looking()
        # the number cannot be reused, because the watchdog, which nobody has reaped yet, belongs to the group
        os.killpg(self.number, signal.SIGKILL)
        self._watchdog.communicate()

    def remove_groups(self) -> None:
        deadline = time.monotonic() + DYING_S
        while self.groups.folders() and time.monotonic() < deadline:
            self.groups.close()
            time.sleep(0.01)

    def _launch(self, group: int) -> "subprocess.Popen[bytes]":
        """Start a watchdog in process group `group`. With 0, the watchdog leads a new group."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=group,
        )
        assert process.stdout is not None
        # wait for the watchdog's line: it then has joined its group, and ignores signals from now on
        process.stdout.readline()
        return process

    def _replace(self) -> None:
        """Start another watchdog. The dead watchdog is not reaped yet, so the number of its group cannot be reused."""
        self._stop_looking()
        dead = self._watchdog
        try:
            self._watchdog = self._launch(self.number)
        except OSError as error:
            self._say(
                f"the watchdog of this job has died, and no other watchdog could be started ({error.strerror}); "
                f"trying again"
            )
            self._stop_looking = asyncio.get_running_loop().call_later(RETRY_S, self._replace).cancel
            return
        dead.communicate()
        self._say(f"the watchdog of this job (pid {dead.pid}) has died; another one replaces it")
        self.replace_dead_watchdogs()


class Groups:
    """Creates groups below the agent's own group; see `make`."""

    def __init__(self, say: Callable[[str], None], found: control_groups.Hierarchy | None = None) -> None:
        self._say = say
        self._found = control_groups.find_hierarchy() if found is None else found
        self._name = f"{name_of(os.getpid())}-{next(_numbers)}"
        self._made: dict[pathlib.Path, None] = {}  # in the order of creation, so that children come after their parents
        self._complained = False
        for folder in set(self._found.folders.values()):
            remove_stale(folder)

    def make(self, name: str, limits: ProcessLimits) -> ControlGroup | None:
        try:
            group = self._make_v2(name, limits) if self._found.version == 2 else self._make_v1(name, limits)
            if group is not None:
                group.hold_to(limits)
        except OSError as error:
            self._complain(limits, f"{error.filename}: {error.strerror}")
            return None
        return group

    def admit(self, group: ControlGroup, pid: int, limits: ProcessLimits) -> None:
        try:
            group.admit(pid)
        except ProcessLookupError:
            return
        except OSError as error:
            self._complain(limits, f"{error.filename}: {error.strerror}")

    def folders(self) -> list[pathlib.Path]:
        return list(self._made)

    def remove(self, group: ControlGroup) -> None:
        kill_members(group)
        self._remove(group.folders())

    def close(self) -> None:
        self._remove(list(self._made)[::-1])

    def _make_v1(self, name: str, limits: ProcessLimits) -> ControlGroup | None:
        # Without a quota, the role stays in its CPU group, because a new group would change its share of the cores.
        wanted = ["cpuacct", "memory", *(["cpu"] if limits.cpu is not None else [])]
        folder_of = {}
        for controller in wanted:
            if controller in self._found.folders:
                folder_of[controller] = self._folder(self._found.folders[controller] / self._name / name)
        for controller, asked in (("cpu", limits.cpu), ("memory", limits.memory)):
            if asked is not None and controller not in folder_of:
                self._complain(limits, f"there is no control group for {controller} here")
        return GroupV1(folder_of) if folder_of else None

    def _make_v2(self, name: str, limits: ProcessLimits) -> ControlGroup | None:
        own = next(iter(self._found.folders.values()))
        wanted = ["memory", *(["cpu"] if limits.cpu is not None else [])]
        offered = [controller for controller in wanted if controller in self._found.folders]
        for controller, asked in (("cpu", limits.cpu), ("memory", limits.memory)):
            if asked is not None and controller not in offered:
                self._complain(limits, f"{own / 'cgroup.controllers'} has no {controller}")
                limits = ProcessLimits()
        base = own / self._name
        if not hand_on(own, offered, may_move=limits.any):
            return None
        self._folder(base)
        hand_on(base, offered, may_move=False)
        return GroupV2(self._folder(base / name))

    def _folder(self, path: pathlib.Path) -> pathlib.Path:
        for folder in (path.parent, path):
            if folder.parent.name == self._name or folder.name == self._name:
                folder.mkdir(exist_ok=True)
                self._made[folder] = None
        return path

    def _remove(self, folders: Iterable[pathlib.Path]) -> None:
        for folder in folders:
            if remove_folder(folder):
                self._made.pop(folder, None)

    def _complain(self, limits: ProcessLimits, why: str) -> None:
        if limits.any and not self._complained:
            self._complained = True
            self._say(f"no limits: {why}; continuing without limits. To enable them, {HINT}")


def why_not(limits: ProcessLimits = PROBE) -> str:
    """Return the reason why this machine cannot enforce these limits; empty if it can."""
    reasons: list[str] = []
    groups = Groups(reasons.append)
    group = groups.make("probe", limits)
    if group is not None:
        groups.remove(group)
    groups.close()
    if group is not None and not reasons:
        return ""
    return reasons[0].removeprefix("no limits: ").partition(";")[0] if reasons else "this machine has no control groups"


def hand_on(folder: pathlib.Path, controllers: list[str], *, may_move: bool) -> bool:
    """Enable controllers for the children of a v2 group. Return False if the agent could not be moved.

    A group may have members or such children, but not both, so the agent moves into a child.
    """
    switch = folder / "cgroup.subtree_control"
    missing = set(controllers) - set(switch.read_text().split())
    if not missing:
        return True
    order = " ".join(f"+{controller}" for controller in sorted(missing))
    try:
        write(switch, order)
    except OSError as error:
        if error.errno != errno.EBUSY or not may_move:
            if may_move:
                raise
            return False
        leaf = folder / "springtide-agent"
        leaf.mkdir(exist_ok=True)
        write(leaf / "cgroup.procs", os.getpid())
        write(switch, order)
    return True


def remove_stale(parent: pathlib.Path) -> list[pathlib.Path]:
    removed = []
    try:
        bases = sorted(parent.glob("springtide-*-*-*"))
    except OSError:  # a process in a pod may be unable to see its own control group
        return []
    for base in bases:
        found = _OURS.fullmatch(base.name)
        if found and name_of(int(found[2])) != found[1]:
            children = [child for child in base.glob("*") if child.is_dir()]
            left = [pid for child in children for pid in read_members(child)]
            # the watchdog will kill the remaining processes, and the next run will remove the empty group
            if not left:
                removed += [folder for folder in (*children, base) if remove_folder(folder)]
    return removed


def remove_folder(folder: pathlib.Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def name_of(pid: int) -> str:
    """Return the name of an agent's groups. The name contains the start time, because process ids are reused."""
    start = start_of(pid)
    return "" if start is None else f"springtide-{pid}-{start}"
