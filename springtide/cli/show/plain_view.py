"""Shows a running job on standard error, as a line every few seconds.

In: a `JobStatus` ten times a second, and the output of worker 0.
"""

import re
import sys
import time
from typing import Self

import msgspec

from springtide.cli.common.render import decision_of, line_of, saving_of, wrap
from springtide.domain.core.roles import Role, RoleKind
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry.logs import SCRIPT_RAISED, LogTail, RunFiles
from springtide.telemetry.output import redact

LINE_EVERY_S = 2.0


class WorkerOutput:
    """New lines of worker 0's output, up to the traceback of a script that raised."""

    def __init__(self, files: RunFiles) -> None:
        self._tail = LogTail(files.log_of(Role(RoleKind.WORKER, 0)))
        self._over = False

    def lines(self) -> list[str]:
        found = [] if self._over else self._tail.more()
        if SCRIPT_RAISED in found:
            self._over = True
            found = found[: found.index(SCRIPT_RAISED)]
        return found


class PlainView:
    """Shows a job while it runs, as plain lines. Use the view as a context manager that stays open while the job
    runs."""

    def __init__(self, heading: list[str], follow: WorkerOutput) -> None:
        self._heading, self._follow = heading, follow
        self._next_at = 0.0
        self._last = self._shown = self._decision = ""
        self._troubles: dict[str, str] = {}

    def __enter__(self) -> Self:
        for line in self._heading:
            self.say(line)
        return self

    def __exit__(self, *_: object) -> None:
        self.relay()
        if self._last:
            self.say(self._last)

    def update(self, status: JobStatus) -> None:
        self.relay()
        self._last = line_of(status)
        if decision_of(status) != self._decision:
            self._decision = decision_of(status)
            self.say(f"{status.elapsed_s:6.1f} s  {self._decision}")
        again = "" if status.checkpoints.trouble else " is complete, checkpoints work again"
        self._tell("saved", status.checkpoints.trouble, saving_of(status) + again, status)
        disk = status.master.disk_trouble
        self._tell("disk", disk, disk or "the disk has room again, so the job continues", status)
        news = line_of(msgspec.structs.replace(status, elapsed_s=0.0))
        if time.monotonic() >= self._next_at and news != self._shown:
            self._next_at = time.monotonic() + LINE_EVERY_S
            self.say(self._last)
            self._last, self._shown = "", news

    def say(self, line: str) -> None:
        print("\n".join(wrap(redact(line))), file=sys.stderr, flush=True)

    def relay(self) -> None:
        for line in self._follow.lines():  # print the script's own lines unchanged
            print(line, file=sys.stderr, flush=True)

    def _tell(self, what: str, trouble: str, text: str, status: JobStatus) -> None:
        """Print a line when a problem starts and when it ends. If only numbers in the text of a problem change, print
        nothing.
        """
        trouble = re.sub(r"\d+", "", trouble)
        # when the job has ended, its outcome reports the problem
        if trouble != self._troubles.get(what, "") and not status.phase.over:
            self.say(f"{status.elapsed_s:6.1f} s  {what}: {text}")
            self._troubles[what] = trouble
