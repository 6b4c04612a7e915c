"""Prints what a job writes into files: its story as JSON lines and its master's log, so that a pod's log has both.

In: `launch.k8s.agent_pod`. Out: standard output. The story is printed from its beginning, with what an earlier
container of the pod has written: `springtide events` and `explain` read it from the log of the pod that is there. Lines
are whole.
"""

import asyncio
import pathlib
import sys
from typing import TextIO

from springtide.domain.core.roles import Role, RoleKind
from springtide.telemetry import logs

LOOK_S = 0.2


class LogFollower:
    """One file; `old`: whether to print what is in it already."""

    def __init__(self, path: pathlib.Path, out: TextIO, *, old: bool) -> None:
        self._path, self._out = path, out
        self._at = 0 if old or not path.exists() else path.stat().st_size

    def look(self) -> None:
        """Print the whole lines that have come."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                came = file.read()
        except FileNotFoundError:
            return
        whole, end, _ = came.rpartition(b"\n")
        if end:
            self._at += len(whole) + 1
            self._out.write(whole.decode(errors="replace") + "\n")
            self._out.flush()


class Output:
    """Of one run."""

    def __init__(self, files: logs.RunFiles, out: TextIO = sys.stdout) -> None:
        self._followers = [
            LogFollower(files.events, out, old=True),
            LogFollower(files.log_of(Role(RoleKind.MASTER)), out, old=False),
        ]

    async def keep(self) -> None:
        """For ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Once; after the end it prints the rest."""
        for follower in self._followers:
            follower.look()
