"""Shows a running job on standard error: as a live panel on a terminal, and as a line every few seconds in a pipe.

In: a `JobStatus` ten times a second, and the output of worker 0. Next: `cli.show.job_drawings` draws the panel.
"""

import re
import sys
import time
from typing import Self

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from springtide.cli.common.render import decision_of, line_of, saving_of, wrap
from springtide.cli.show import job_drawings
from springtide.cli.show.job_drawings import SeenProgress
from springtide.domain.core.resources import show_memory
from springtide.domain.core.roles import Role, RoleKind
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry.logs import SCRIPT_RAISED, LogTail, RunFiles
from springtide.telemetry.output import redact

LINE_EVERY_S = 2.0
REDRAW_S = 0.25


def open_view(plan: RunPlan, files: RunFiles, *, plain: bool = False) -> "PlainView":
    console = Console(stderr=True, highlight=False)  # rich honours NO_COLOR and TERM
    spec = plan.spec
    heading = (
        f"job {files.root.name}: {count(spec.servers, 'server')}, {count(spec.workers, 'worker')}, "
        f"{spec.sync}, {count(plan.threads_per_worker, 'thread')} a worker"
    )
    bounds = spec.planning.bounds
    if bounds is not None:
        heading += f", planned within {bounds.quota.cpu:g} cores"
    elif spec.worker_cpu is not None:
        heading += f", cpu {spec.worker_cpu:g} each"
    if spec.feeding.workers:
        heading += f", {count(spec.feeding.workers, 'data worker')}"
    if spec.worker_memory is not None:
        heading += f", memory {show_memory(spec.worker_memory)} each"
    follow = WorkerOutput(files)
    chosen = LiveView if console.is_terminal and not (console.is_dumb_terminal or plain) else PlainView
    return chosen(console, [heading, f"logs {files.logs}"], follow)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


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

    def __init__(self, console: Console, heading: list[str], follow: WorkerOutput) -> None:
        self._console, self._heading, self._follow = console, heading, follow
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


class LiveView(PlainView):
    """Draws a panel again and again at the foot of the terminal, and lets the script's own output scroll above it."""

    def __enter__(self) -> Self:
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()
        self._seen = SeenProgress()
        self._drawn: tuple[object, ...] = ()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self.relay()
        self._live.refresh()
        self._live.stop()

    def update(self, status: JobStatus) -> None:
        """Draw a few times a second, and only what has changed, so that nothing flickers."""
        self.relay()
        self._seen.add(status)
        self._live.update(job_drawings.Panel(status, self._seen))
        now = (int(time.monotonic() / REDRAW_S), self._console.size, status.phase)
        if now != self._drawn:
            self._drawn = now
            self._live.refresh()

    def say(self, line: str) -> None:
        self._console.print(Text(redact(line)), soft_wrap=True)

    def relay(self) -> None:
        """Print the script's new lines as they are. The terminal itself wraps long ones."""
        if lines := self._follow.lines():
            self._console.print(Text.from_ansi("\n".join(lines)), soft_wrap=True)
