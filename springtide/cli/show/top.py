"""`springtide top`: watches a job in views with sparklines on a terminal, and as a line every two seconds in a pipe.

In: a job's status, its recorded progress and its events. Next: `cli.show.top_views` draws the views.
"""

import threading
import time
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from springtide import errors
from springtide.cli.common import render
from springtide.cli.common.options import Job, WhereOptions, verb
from springtide.cli.common.render import line_of
from springtide.cli.show import job_drawings
from springtide.cli.show import status as shown_status
from springtide.cli.show.job_drawings import SeenProgress
from springtide.cli.show.terminal_keys import TerminalKeys
from springtide.cli.show.top_views import VIEWS, Lines, TopData
from springtide.launch import job_lookup
from springtide.platforms.agent.job_handle import JobHandle
from springtide.platforms.local.job_handle import LocalJobHandle
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import progress

POLL_S = 0.5
STORY_S = 2.0  # seconds between two readings of the events, for views that show events
LOOK_S = 0.25  # seconds after which the view notices new data or another size of the terminal
LINE_EVERY_S = 2.0
SPANS: tuple[float | None, ...] = (600.0, 3600.0, None)
HELP = "1-7 or arrows: views   j k: scroll   w: span   q: quit"
HEAD, FOOT = 3, 1  # lines above and below a view


@verb("springtide top train")
def top(
    at: WhereOptions,
    job: Job = None,
    once: Annotated[bool, typer.Option("--once", help="Print one line and exit.")] = False,
) -> int:
    """Watch a job from another terminal. Keys 1 to 7 change the view, q ends it. In a pipe, print a line every two
    seconds."""
    reach = job_lookup.find(job, at.where())
    if once:
        print(line_of(reach.status()))
        return 0
    console = Console(highlight=False)
    drawn = reach.running() and has_screen(console)
    try:
        left = watch(reach, console)
    except KeyboardInterrupt:
        return 0
    if not left:
        print(shown_status.text(reach, reach.status()) if drawn else line_of(reach.status()))
    return 0


def has_screen(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def watch(reach: JobHandle, console: Console) -> bool:
    """Show a job until it ends. Return True if the user has left earlier."""
    if has_screen(console):
        poller = Poller(reach)
        with TerminalKeys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            return Screen(poller, console, live).run(keys)
    while (status := poll_status(reach)) is not None:
        print(line_of(status), file=console.file, flush=True)
        time.sleep(LINE_EVERY_S)
    return False


def poll_status(reach: JobHandle) -> JobStatus | None:
    """Return the status, or None for a finished job. If the master is being replaced, wait for the new master."""
    while reach.running():
        try:
            return reach.status()
        except errors.MasterUnreachable:
            time.sleep(POLL_S)
    return None


class Poller:
    """Reads a job in a separate thread, so that keys work while a master does not answer."""

    def __init__(self, reach: JobHandle) -> None:
        self._reach = reach
        recorded = progress.read(reach.run.files.progress) if isinstance(reach, LocalJobHandle) else []
        self.seen = SeenProgress(recorded)
        self.began_at = reach.card.began_at
        self.data: TopData | None = None
        self.version = 0
        """Grows with each change of `data`."""
        self.over = False
        self.error: errors.SpringtideError | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="springtide-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._leaving.set()

    def _keep(self) -> None:
        read_at = 0.0
        try:
            while not self._leaving.is_set():
                status = poll_status(self._reach)
                if status is None:
                    break
                status = render.called(status, self._reach.name)
                data = self.data or TopData(status, self.seen, began_at=self.began_at)
                data.take(status)
                if time.monotonic() >= read_at + STORY_S:
                    data.story, read_at = self._reach.story(), time.monotonic()
                self.data, self.version = data, self.version + 1
                self._leaving.wait(POLL_S)
        except errors.SpringtideError as error:
            self.error = error
        self.over = True


class Screen:
    """The terminal while a job is watched: the chosen view, and how far it is scrolled."""

    def __init__(self, poller: Poller, console: Console, live: Live) -> None:
        self._poller, self._console, self._live = poller, console, live
        self._view, self._offset, self._span = 0, 0, 0
        self._drawn: tuple[object, ...] = ()

    def run(self, keys: TerminalKeys) -> bool:
        self._poller.start()
        try:
            while not self._poller.over:
                self._draw()
                key = keys.wait(LOOK_S)
                if key in ("q", "Q"):
                    return True
                self._press(key)
        finally:
            self._poller.stop()
        if self._poller.error is not None:
            raise self._poller.error
        return False

    def _press(self, key: str) -> None:
        if key.isdigit() and 1 <= int(key) <= len(VIEWS):
            self._view, self._offset = int(key) - 1, 0
        elif key in ("left", "right"):
            self._view, self._offset = (self._view + (1 if key == "right" else -1)) % len(VIEWS), 0
        elif key in ("up", "down", "page up", "page down"):
            lines = self._room if key.startswith("page") else 1
            self._offset = max(0, self._offset + (lines if key.endswith("down") else -lines))
        elif key == "w":
            self._span = (self._span + 1) % len(SPANS)

    @property
    def _room(self) -> int:
        return max(1, self._console.height - HEAD - FOOT)

    def _draw(self) -> None:
        """Draw if anything has changed, so that a slow connection has little to carry."""
        size = (self._console.width, self._console.height)
        now = (size, self._view, self._offset, self._span, self._poller.version)
        if now != self._drawn:
            self._drawn = now
            self._live.update(Group(*self._lines(*size)), refresh=True)

    def _lines(self, width: int, height: int) -> Lines:
        data, ascii_only = self._poller.data, self._console.options.ascii_only
        if data is None:
            return [Text("waiting for the job's master")]
        data.last_s = SPANS[self._span]
        width = min(width, job_drawings.WIDEST)
        found = list(VIEWS.values())[self._view](data, width, ascii_only)
        lines = [part for line in found for part in line.split("\n", allow_blank=True)]
        self._offset = max(0, min(self._offset, len(lines) - self._room))
        shown = lines[self._offset : self._offset + self._room]
        head = job_drawings.title(data.status)
        below = len(lines) - self._offset - len(shown)
        more = f"{below} more lines below" if below else ""
        blank = [Text()] * (self._room - len(shown))
        for line in (head, *shown):
            line.truncate(width)
        foot = Text(f"{HELP}   {more}"[:width], style="dim")
        return [head, self._tabs(width), Text(), *shown, *blank, foot]

    def _tabs(self, width: int) -> Text:
        line = Text(no_wrap=True)
        for number, name in enumerate(VIEWS):
            line.append(f" {number + 1} {name} ", "reverse" if number == self._view else "")
        line.truncate(width)
        return line
