"""Process group that dies with this process, however it ends, together with its control groups.

In: `platforms.local.platform` starts roles in the group, `springtide_lab.kubernetes.kubelet.containers` starts
containers. Out: the group's number, and control groups. Next: `platforms.local.watchdog` is the process that kills the
group. A dead watchdog is replaced by a new one in the same group.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from springtide.domain.core.resources import ProcessLimits
from springtide.platforms.local import cgroups, watchdog
from springtide.telemetry.host.cgroup_files import ControlGroup

DYING_S = 2.0  # the kernel keeps a group until its last process has exited, which takes milliseconds
RETRY_S = 1.0  # wait after a failed start of a watchdog: the machine lacks processes or memory


class GuardedProcessGroup:
    """A guarded process group with the id `number`. `say` receives messages for the user. Close it with `kill`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.groups = cgroups.Groups(say)
        self._say = say
        self._watchdog = self._launch(0)
        self.number = self._watchdog.pid
        self._stop_looking: Callable[[], object] = lambda: None

    def replace_dead_watchdogs(self) -> None:
        """Watch the watchdog from the running event loop."""
        loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(self._watchdog.pid)

        def stop() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)

        self._stop_looking = stop
        loop.add_reader(pidfd, self._replace)

    def make_group(self, name: str, limits: ProcessLimits) -> ControlGroup | None:
        known = set(self.groups.folders())
        group = self.groups.make(name, limits)
        self._hand_over(str(folder) for folder in self.groups.folders() if folder not in known)
        return group

    def kill(self) -> None:
        self._stop_looking()
        # the number cannot be reused: the unreaped watchdog belongs to the group
        os.killpg(self.number, signal.SIGKILL)
        _wait_for(self._watchdog)

    def remove_groups(self) -> None:
        deadline = time.monotonic() + DYING_S
        while self.groups.folders() and time.monotonic() < deadline:
            self.groups.close()
            time.sleep(0.01)

    def _launch(self, group: int) -> "subprocess.Popen[bytes]":
        """Start a watchdog in process group `group`; 0: in a new one that it leads."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=group,
        )
        assert process.stdout is not None
        process.stdout.readline()  # the watchdog has joined its group and ignores signals from here on
        return process

    def _replace(self) -> None:
        """Start another watchdog; the unreaped one keeps the group's number alive."""
        self._stop_looking()
        dead = self._watchdog
        try:
            self._watchdog = self._launch(self.number)
        except OSError as error:
            self._say(
                f"the watchdog of this job has died, and no other can be started ({error.strerror}); trying again"
            )
            self._stop_looking = asyncio.get_running_loop().call_later(RETRY_S, self._replace).cancel
            return
        self._hand_over(map(str, self.groups.folders()))
        _wait_for(dead)
        self._say(f"the watchdog of this job (pid {dead.pid}) has died; another takes its place")
        self.replace_dead_watchdogs()

    def _hand_over(self, folders: Iterable[str]) -> None:
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            for folder in folders:
                self._watchdog.stdin.write(f"{folder}\n".encode())
            self._watchdog.stdin.flush()


def _wait_for(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait()
    process.stdout.close()
