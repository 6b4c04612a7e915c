"""Shows a running job on a terminal, as a panel that is drawn again and again.

In: the statuses and lines that `cli.show.plain_view` gets. Next: `cli.show.job_drawings` draws the panel.
"""

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from springtide.cli.show import job_drawings
from springtide.cli.show.job_drawings import SeenProgress
from springtide.cli.show.plain_view import PlainView, WorkerOutput
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry.output import redact

REDRAW_S = 0.25


class LivePanel(PlainView):
    """Draws a panel again and again at the foot of the terminal, and lets the script's own output scroll above it."""

    def __init__(self, console: Console, heading: list[str], follow: WorkerOutput) -> None:
        super().__init__(heading, follow)
        self._console = console

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
        """Print the script's new lines as they are. The terminal itself wraps long lines."""
        if lines := self._follow.lines():
            self._console.print(Text.from_ansi("\n".join(lines)), soft_wrap=True)
