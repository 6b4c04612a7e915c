"""A bar on a terminal, one plain line in a pipe: what a benchmark is doing at the moment. Written to stderr."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich import console as rich_console
from rich import progress as rich_progress


def say(line: str) -> None:
    """One line for whoever waits."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def bar(label: str, *, total: int) -> Iterator[Callable[[], None]]:
    """Show progress over `total` steps; the value given is called after each."""
    if not sys.stderr.isatty():
        say(f"measuring {label}")
        yield lambda: None
        return
    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(bar_width=20),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
    )
    screen = rich_console.Console(stderr=True)
    with rich_progress.Progress(*columns, console=screen, transient=True) as shown:
        task = shown.add_task(label[:50], total=total)
        yield lambda: shown.advance(task)
