"""`springtide top`: a job as `springtide run` shows it, from another terminal, until it ends or Ctrl-C.

In: a run from `cli.jobs`. Out: on a terminal the picture of `cli.picture`, redrawn; in a pipe a line at a time. It only
looks.
"""

import time

from rich.console import Console
from rich.live import Live

from springtide import errors
from springtide.cli import jobs, status
from springtide.cli.picture import line_of, picture

EVERY_S = 0.5
LINE_EVERY_S = 2.0


def top(name: str | None, *, folder: str, once: bool = False) -> int:
    """Show it; of a job that is over, how it ended."""
    run = jobs.pick(name, folder)
    console = Console(highlight=False)
    if once or not run.running or not console.is_terminal or console.is_dumb_terminal:
        return _lines(name, folder, once=once)
    with Live(console=console, refresh_per_second=4) as live:
        try:
            while run.running:
                live.update(picture(jobs.status_of(run)))
                time.sleep(EVERY_S)
        except KeyboardInterrupt:
            return 0
        except errors.MasterUnreachable:
            pass  # it ended while we looked
    print(status.text(run, jobs.status_of(run)))
    return 0


def _lines(name: str | None, folder: str, *, once: bool) -> int:
    run = jobs.pick(name, folder)
    while run.running and not once:
        print(line_of(jobs.status_of(run)), flush=True)
        time.sleep(LINE_EVERY_S)
    print(line_of(jobs.status_of(run)))
    return 0
