"""What a running job looks like: a live view on a terminal, a line every few seconds in a pipe. On standard error.

In: a `JobStatus` ten times a second, and the output of worker 0, read from its log. Out: 80 columns of text.
"""

import sys
import time
from types import TracebackType
from typing import Protocol, Self

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from springtide.domain.cluster import Role, RoleKind
from springtide.platforms.agent import RunPlan
from springtide.rpc.messages import JobStatus
from springtide.telemetry.logs import SCRIPT_RAISED, RunFiles

LINE_EVERY_S = 2.0


class View(Protocol):
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


def open_view(plan: RunPlan, files: RunFiles) -> View:
    """The view that fits standard error."""
    console = Console(stderr=True, highlight=False)  # honours NO_COLOR and TERM
    heading = (
        f"job {plan.spec.name}: {count(plan.spec.servers, 'server')}, {count(plan.spec.workers, 'worker')}, "
        f"{plan.spec.sync}, {count(plan.threads_per_worker, 'thread')} a worker"
    )
    follow = Follow(files)
    chosen = LiveView if console.is_terminal and not console.is_dumb_terminal else PlainView
    return chosen(console, [heading, f"logs {files.logs}"], follow)


def count(number: int, noun: str) -> str:
    """`1 server`, `2 servers`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Follow:
    """New lines of worker 0's output, up to the traceback of a script that raised."""

    def __init__(self, files: RunFiles) -> None:
        self._path = files.log_of(Role(RoleKind.WORKER, 0))
        self._at = 0
        self._over = False

    def lines(self) -> list[str]:
        """Whole lines since the last call."""
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

    def __init__(self, console: Console, heading: list[str], follow: Follow) -> None:
        self._heading, self._follow = heading, follow
        self._next_at = 0.0
        self._last = self._shown = ""

    def __enter__(self) -> Self:
        for line in self._heading:
            self.say(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._relay()
        if self._last:
            self.say(self._last)

    def update(self, status: JobStatus) -> None:
        """A line, if it is time for one."""
        self._relay()
        self._last = line_of(status)
        news = line_of(msgspec.structs.replace(status, elapsed_s=0.0))
        if time.monotonic() >= self._next_at and news != self._shown:
            self._next_at = time.monotonic() + LINE_EVERY_S
            self.say(self._last)
            self._last, self._shown = "", news

    def say(self, line: str) -> None:
        """One line."""
        print(line, file=sys.stderr, flush=True)

    def _relay(self) -> None:
        for line in self._follow.lines():
            self.say(line)


class LiveView:
    """Redrawn in place at the foot of the terminal; the script's own output scrolls above it."""

    def __init__(self, console: Console, heading: list[str], follow: Follow) -> None:
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
        """Draw the job anew."""
        self._relay()
        self._live.update(picture(status))

    def say(self, line: str) -> None:
        """A line above the picture."""
        self._console.print(Text(line))

    def _relay(self) -> None:
        for line in self._follow.lines():
            self.say(line)


def line_of(status: JobStatus) -> str:
    """A status on one line of at most 80 columns or so."""
    parts = [f"{status.elapsed_s:6.1f} s", str(status.phase)]
    if status.shards_total:
        parts.append(f"shards {status.shards_done}/{status.shards_total}")
    parts += [f"{short(status.samples)} samples", f"{short(status.samples_per_s)}/s"]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    parts += [f"{name} {value:.4f}" for name, value in sorted(status.metrics.items())]
    return "  ".join(parts)


def picture(status: JobStatus) -> Group:
    """A status as a small table with a bar."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", min_width=8)
    facts.add_column(min_width=20)
    facts.add_column(style="dim", min_width=8)
    facts.add_column()
    members = {kind: [each for each in status.members if each.role.kind is kind] for kind in RoleKind}
    alive = {kind: sum(each.alive and each.joined for each in found) for kind, found in members.items()}
    loss = "" if status.loss is None else f"{status.loss:.4f}"
    facts.add_row("job", f"{status.name} ({status.phase})", "elapsed", f"{status.elapsed_s:.0f} s")
    facts.add_row("samples", f"{status.samples:,}", "rate", f"{status.samples_per_s:,.0f} samples/s")
    facts.add_row(
        "workers", f"{alive[RoleKind.WORKER]}/{len(members[RoleKind.WORKER])}",
        "servers", f"{alive[RoleKind.SERVER]}/{len(members[RoleKind.SERVER])}",
    )  # fmt: skip
    facts.add_row("loss", loss, *next(iter(metric_cells(status)), ("", "")))
    for cells in metric_cells(status)[1:]:
        facts.add_row("", "", *cells)
    total = max(1, status.shards_total)
    bar = Table.grid(padding=(0, 2))
    bar.add_column(style="dim", min_width=8)
    bar.add_row(
        "shards",
        ProgressBar(total=total, completed=status.shards_done, width=40),
        f"{status.shards_done}/{status.shards_total}",
    )
    return Group(facts, bar)


def metric_cells(status: JobStatus) -> list[tuple[str, str]]:
    """The user's metrics, as pairs of cells."""
    return [(name, f"{value:.4f}") for name, value in sorted(status.metrics.items())]


def short(number: float) -> str:
    """12345 as 12.3k."""
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= bound:
            return f"{number / bound:.1f}{unit}"
    return f"{number:.0f}"
