"""A process group that is gone, with its control groups, when this process is gone, however it ends.

In: `platforms.local` starts roles in it, `testing.kubernetes.containers` containers. Out: the number to start processes
with, a control group for each that wants one. Next: `platforms.watchdog`, the process that sees to it.
"""

import subprocess
import sys
import time
from collections.abc import Callable

from springtide.domain.resources import Limits
from springtide.platforms import cgroups, watchdog
from springtide.telemetry.group_files import Group

DYING_S = 2.0  # the kernel keeps a group as long as one of its processes is on its way out: some milliseconds


class Watched:
    """`number` is that of the process group. `say` gets what the user should know of limits. Close it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.groups = cgroups.Groups(say)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._watchdog.stdout is not None
        self._watchdog.stdout.readline()  # it leads its group from before this, and ignores signals from here on
        self.number = self._watchdog.pid

    def make_group(self, name: str, limits: Limits) -> Group | None:
        """A control group that the watchdog removes if nobody else does; None: no limits here."""
        known = set(self.groups.folders())
        group = self.groups.make(name, limits)
        assert self._watchdog.stdin is not None
        for folder in self.groups.folders():
            if folder not in known:
                self._watchdog.stdin.write(f"{folder}\n".encode())
        self._watchdog.stdin.flush()
        return group

    def kill(self) -> None:
        """Whatever is left of the process group gets SIGKILL, children of its processes included."""
        watch = self._watchdog
        assert watch.stdin is not None and watch.stdout is not None
        watch.stdin.close()
        watch.wait()  # by its own SIGKILL, which the whole group got too
        watch.stdout.close()

    def remove_groups(self) -> None:
        """Once all processes have been waited for: their control groups go."""
        deadline = time.monotonic() + DYING_S
        while self.groups.folders() and time.monotonic() < deadline:
            self.groups.close()
            time.sleep(0.01)
