"""`springtide top`: a job as `springtide run` shows it, from another terminal, until it ends or Ctrl-C.

In: a job, by `launch.job_lookup`. Out: on a terminal the picture of `cli.common.render`, redrawn; in a pipe a line at a
time. It only looks. `springtide submit --follow` looks on in the same way.
"""

import sys
import time

from rich.console import Console
from rich.live import Live

from springtide import errors
from springtide.cli.common import exit_status
from springtide.cli.common.render import line_of, picture
from springtide.cli.show import status
from springtide.launch import job_lookup
from springtide.launch.job_lookup import JobLocation
from springtide.platforms.agent.job_handle import JobHandle
from springtide.rpc.messages.messages import JobStatus

EVERY_S = 0.5
LINE_EVERY_S = 2.0


def top(name: str | None, where: JobLocation, *, once: bool = False) -> int:
    reach = job_lookup.find(name, where)
    if once:
        print(line_of(reach.status()))
        return 0
    console = Console(highlight=False)
    drawn = reach.running() and console.is_terminal and not console.is_dumb_terminal
    try:
        watch(reach, console)
    except KeyboardInterrupt:
        return 0
    print(status.text(reach, reach.status()) if drawn else line_of(reach.status()))
    return 0


def watch(reach: JobHandle, console: Console) -> None:
    if not console.is_terminal or console.is_dumb_terminal:
        while (status := look(reach)) is not None:
            print(line_of(status), file=console.file, flush=True)
            time.sleep(LINE_EVERY_S)
        return
    with Live(console=console, refresh_per_second=4) as live:
        while (status := look(reach)) is not None:
            live.update(picture(exit_status.called(status, reach.name)))
            time.sleep(EVERY_S)


def look(reach: JobHandle) -> JobStatus | None:
    """Return the status, waiting for a master that is being replaced; None when the job is over."""
    while reach.running():
        try:
            return reach.status()
        except errors.MasterUnreachable:
            time.sleep(EVERY_S)
    return None


def err() -> Console:
    return Console(file=sys.stderr, highlight=False)
