"""What a running job looks like: a live view on a terminal, a line every few seconds in a pipe. On standard error.

In: a `JobStatus` ten times a second, and the output of worker 0, read from its log. Out: 80 columns of text; what a
status looks like is in `cli.common.render`.
"""

import re
import sys
import time
from types import TracebackType
from typing import Protocol, Self

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from springtide.cli.common.render import decision_of, line_of, picture, saving_of, wrap
from springtide.domain.core.resources import show_memory
from springtide.domain.core.roles import Role, RoleKind
from springtide.platforms.agent.agent import RunPlan
from springtide.rpc.messages.messages import JobStatus
from springtide.telemetry.logs import SCRIPT_RAISED, RunFiles
from springtide.telemetry.redactor import redact

LINE_EVERY_S = 2.0


class JobDisplay(Protocol):
    """Shows a job while it runs. A context manager: open while the job runs."""

    def update(self, status: JobStatus) -> None:
        """A new look at the job."""
        ...

    def say(self, line: str) -> None:
        """Something the user should know now."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_view(plan: RunPlan, files: RunFiles) -> JobDisplay:
    console = Console(stderr=True, highlight=False)  # honours NO_COLOR and TERM
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
    chosen = LiveView if console.is_terminal and not console.is_dumb_terminal else PlainView
    return chosen(console, [heading, f"logs {files.logs}"], follow)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class WorkerOutput:
    """New lines of worker 0's output, up to the traceback of a script that raised."""

    def __init__(self, files: RunFiles) -> None:
        self._path = files.log_of(Role(RoleKind.WORKER, 0))
        self._at = 0
        self._over = False

    def lines(self) -> list[str]:
        if self._over or not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        found = whole.decode(errors="replace").splitlines()
        if SCRIPT_RAISED in found:
            self._over = True
            found = found[: found.index(SCRIPT_RAISED)]
        return found


class PlainView:
    """Plain lines."""

    def __init__(self, console: Console, heading: list[str], follow: WorkerOutput) -> None:
        self._heading, self._follow = heading, follow
        self._next_at = 0.0
        self._last = self._shown = self._decision = self._trouble = self._disk = ""

    def __enter__(self) -> Self:
        for line in self._heading:
            self.say(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._relay()
        if self._last:
            self.say(self._last)

    def update(self, status: JobStatus) -> None:
        self._relay()
        self._last = line_of(status)
        if decision_of(status) != self._decision:
            self._decision = decision_of(status)
            self.say(f"{status.elapsed_s:6.1f} s  {self._decision}")
        self._tell_saving(status)
        self._tell_disk(status)
        news = line_of(msgspec.structs.replace(status, elapsed_s=0.0))
        if time.monotonic() >= self._next_at and news != self._shown:
            self._next_at = time.monotonic() + LINE_EVERY_S
            self.say(self._last)
            self._last, self._shown = "", news

    def say(self, line: str) -> None:
        print("\n".join(wrap(redact(line))), file=sys.stderr, flush=True)

    def _tell_saving(self, status: JobStatus) -> None:
        """Print when checkpoints start to fail and when they recover; ignore the changing numbers."""
        trouble = re.sub(r"\d+", "", status.checkpoint_trouble)
        if trouble != self._trouble and not status.phase.over:  # the outcome has it then
            again = "" if trouble else "is complete, checkpoints are well again"
            self.say(f"{status.elapsed_s:6.1f} s  saved: {saving_of(status)} {again}".rstrip())
            self._trouble = trouble

    def _tell_disk(self, status: JobStatus) -> None:
        trouble = re.sub(r"\d+", "", status.disk_trouble)
        if trouble != self._disk and not status.phase.over:
            self.say(
                f"{status.elapsed_s:6.1f} s  disk: {status.disk_trouble or 'there is room again, the job goes on'}"
            )
            self._disk = trouble

    def _relay(self) -> None:
        for line in self._follow.lines():  # the script's own lines stay as they are
            print(line, file=sys.stderr, flush=True)


class LiveView:
    """Redrawn in place at the foot of the terminal; the script's own output scrolls above it."""

    def __init__(self, console: Console, heading: list[str], follow: WorkerOutput) -> None:
        self._console, self._heading, self._follow = console, heading, follow
        self._live = Live(console=console, refresh_per_second=8, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        for line in self._heading:
            self.say(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._relay()
        self._live.stop()

    def update(self, status: JobStatus) -> None:
        self._relay()
        self._live.update(picture(status))

    def say(self, line: str) -> None:
        self._console.print(Text(redact(line)))

    def _relay(self) -> None:
        for line in self._follow.lines():  # the script's own lines stay as they are
            self._console.print(Text(line))
