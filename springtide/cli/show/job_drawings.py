"""Draws a job for terminals: sparklines, bars, and the live panel of `springtide run`.

In: a `JobStatus`, and the progress recorded so far. Next: `cli.show.live_panel` and `cli.show.top` show the drawings.
"""

import time
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from springtide.cli.common import render
from springtide.cli.common.render import short
from springtide.domain.spec.job_spec import JobPhase
from springtide.master.core.progress import point_of
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry.progress import ProgressPoint

LEVELS, ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
FULL, EMPTY, ASCII_FULL, ASCII_EMPTY = "━", "─", "=", "-"
WIDEST = 120  # columns; wider lines are harder to read
MOST_SEEN = 7200  # points that a view keeps
STYLES = {
    JobPhase.RUNNING: "bold green",
    JobPhase.FINISHED: "bold green",
    JobPhase.FAILED: "bold red",
    JobPhase.STOPPED: "bold yellow",
    JobPhase.DRAINING: "bold yellow",
}


class SeenProgress:
    """Progress of a job for sparklines: the points that its master has recorded, and one point for each second watched
    since then.
    """

    def __init__(self, recorded: Sequence[ProgressPoint] = ()) -> None:
        self.points = list(recorded)

    def add(self, status: JobStatus) -> None:
        now = time.time()
        if not self.points or now >= self.points[-1].at + 1.0:
            self.points.append(point_of(status, at=now))
            del self.points[:-MOST_SEEN]

    def span(self, last_s: float | None) -> tuple[float, float]:
        """Return the times of day of the last seconds; None: of the whole life of the job."""
        if not self.points:
            return 0.0, 0.0
        first, end = self.points[0].at, self.points[-1].at
        return first if last_s is None else max(first, end - last_s), end

    def values(
        self, of: Callable[[ProgressPoint], float | None], columns: int, last_s: float | None
    ) -> list[float | None]:
        """Return the means of equal parts of a span. A part without points continues the part before, and is None
        before the first value."""
        begin, end = self.span(last_s)
        width = max(1.0, (end - begin) / columns)
        parts: dict[int, list[float]] = {}
        for point in self.points:
            if point.at >= begin and (value := of(point)) is not None:
                parts.setdefault(min(columns - 1, int((point.at - begin) / width)), []).append(value)
        means: list[float | None] = []
        for part in range(max(parts, default=-1) + 1):
            means.append(sum(parts[part]) / len(parts[part]) if part in parts else means[-1] if means else None)
        return means


def sparkline(values: Sequence[float | None], *, low: float | None = None, ascii_only: bool = False) -> str:
    """Draw values as a line of blocks, from `low` (default: the smallest value) to the largest value."""
    levels, known = ASCII_LEVELS if ascii_only else LEVELS, [value for value in values if value is not None]
    least, most = min(known, default=0.0) if low is None else low, max(known, default=0.0)
    step = (most - least) / (len(levels) - 1)
    return "".join(
        " " if value is None else levels[round((value - least) / step) if step > 0 else 0] for value in values
    )


def bar(share: float, width: int, *, style: str = "green", ascii_only: bool = False) -> Text:
    done = round(max(0.0, min(1.0, share)) * width)
    full, empty = (ASCII_FULL, ASCII_EMPTY) if ascii_only else (FULL, EMPTY)
    return Text.assemble((full * done, style), (empty * (width - done), "dim"))


def clock(seconds: float) -> str:
    """Format seconds as 0:12, 3:45 or 1:02:03."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def title(status: JobStatus) -> Text:
    parts = [f"{short(status.samples)} samples", f"{short(status.training.samples_per_s)}/s"]
    if status.training.loss is not None:
        parts.append(f"loss {status.training.loss:.4f}")
    parts += [f"{name} {text}" for name, text in render.metric_cells(status)]
    return Text.assemble(
        (status.name, "bold"),
        "  ",
        (str(status.phase), STYLES.get(status.phase, "bold")),
        f" {clock(status.elapsed_s)}  ",
        "  ".join(parts),
        no_wrap=True,
        overflow="ellipsis",
    )


def epoch_line(status: JobStatus, width: int, *, ascii_only: bool = False) -> Text | None:
    """Return the progress in the present epoch, with the time that is left; None for a stream."""
    epoch = status.data.epoch
    if epoch is None or status.online is not None:
        return None
    share = epoch.done / epoch.samples
    rate = status.training.samples_per_s
    left = f"{clock((epoch.samples - epoch.done) / rate)} left" if rate > 0 and not status.phase.over else ""
    head, tail = f"epoch {epoch.number} ", f" {share:4.0%}  {left}"
    room = max(10, width - len(head) - 6 - len("00:00:00 left"))
    return Text.assemble(head, bar(share, room, ascii_only=ascii_only), tail, no_wrap=True)


class Panel:
    """The live panel of a job, drawn in the width that the terminal has at that moment."""

    def __init__(self, status: JobStatus, seen: SeenProgress) -> None:
        self._status, self._seen = status, seen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status, width, ascii_only = self._status, min(options.max_width, WIDEST), options.ascii_only
        head = title(status)
        head.truncate(width, overflow="ellipsis")
        yield Text(("-" if ascii_only else EMPTY) * width, style="dim")
        yield head
        line = epoch_line(status, width, ascii_only=ascii_only)
        if line is not None:
            yield line
        yield self._sparklines(width, ascii_only=ascii_only)
        for fact in render.facts(status, width - 1):
            yield Text(fact, no_wrap=True, overflow="ellipsis")

    def _sparklines(self, width: int, *, ascii_only: bool) -> Text:
        """Return the rate beside the lag or the loss, over the last minutes."""
        lagging = self._status.online is not None
        curves: list[tuple[str, Callable[[ProgressPoint], float | None], float | None]] = [
            ("rate", lambda point: point.samples_per_s, 0.0),
            ("lag", lambda point: point.lag_s, 0.0) if lagging else ("loss", lambda point: point.loss, None),
        ]
        room, line = width // 2 - len("rate    "), Text(no_wrap=True)
        for name, of, low in curves:
            drawn = sparkline(self._seen.values(of, room, 600.0), low=low, ascii_only=ascii_only)
            line.append(f"{name:<7} ")
            line.append(f"{drawn:<{room}}", "cyan")
        return line
