"""Report a reproduction: rows with the paper's figure beside ours, as a table and as pictures.

In: figures by seed. Out: `Row`s; `show` prints them, `draw` draws them. Next: `runner`.
"""

import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec
from rich import box as rich_box
from rich import console, table

from springtide_lab import charts
from springtide_lab.charts import Bar, Panel

NOT_IN_TEXT = "not in text"
BENCHES = pathlib.Path(__file__).parents[3] / "docs" / "benchmarks"
"""Folder of published benchmark results, one JSON file each."""
Better = Literal["higher", "lower"]
EQUAL = 1e-9


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. If a figure cannot be reproduced, `ours` is None and `why` is the reason."""

    figure: str
    what: str
    paper: float | str
    ours: float | None
    goal: str = ""
    met: bool | None = None
    seeds: int = 0
    spread: tuple[float, float] | None = None
    why: str = ""
    bound: float | None = None
    """Best value that any system could reach in the simulated world, if it is known."""


def row(
    figure: str,
    what: str,
    paper: float | str,
    ours: Sequence[float | None],
    *,
    why: str = "",
    bound: Sequence[float] = (),
    **goal: Any,
) -> Row:
    """Return a row with the median, smallest and largest value over the seeds; the median decides about the goal."""
    known = [value for value in ours if value is not None]
    if not known:
        return missing(figure, what, paper, why or "nothing was measured")
    best = round(statistics.median(bound), 4) if bound else None
    middle, spread = statistics.median(known), (min(known), max(known))
    made = row_of(figure, what, paper, middle, spread, seeds=len(known), why=why, **goal)
    return msgspec.structs.replace(made, bound=best)


def row_of(
    figure: str,
    what: str,
    paper: float | str,
    ours: float,
    spread: tuple[float, float],
    *,
    seeds: int,
    goal: float | None = None,
    better: Better = "higher",
    why: str = "",
) -> Row:
    met = None if goal is None else ours >= goal - EQUAL if better == "higher" else ours <= goal + EQUAL
    return Row(
        figure=figure,
        what=what,
        paper=paper,
        ours=round(ours, 4),
        met=met,
        seeds=seeds,
        why=why,
        goal="" if goal is None else f"{'≥' if better == 'higher' else '≤'} {goal:g}",
        spread=(round(spread[0], 4), round(spread[1], 4)),
    )


def missing(figure: str, what: str, paper: float | str, why: str) -> Row:
    return Row(figure=figure, what=what, paper=paper, ours=None, why=why)


def show(rows: Sequence[Row], *, title: str) -> None:
    """Print a table of at most 80 columns, with notes below it."""
    screen = console.Console(width=80, highlight=False, emoji=False)
    screen.print(title, style="bold")
    shown = table.Table(box=rich_box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False)  # widths sum to 69, gaps to 11
    for column, width in (("figure", 11), ("what", 28), ("paper", 9), ("ours", 7), ("goal", 8), ("", 6)):
        justify: Literal["left", "right"] = "left" if column in {"figure", "what"} else "right"
        shown.add_column(column, justify=justify, overflow="fold", width=width)
    for one in rows:
        verdict = "" if one.met is None else "met" if one.met else "missed"
        shown.add_row(one.figure, one.what, _figure(one.paper), _figure(one.ours), one.goal, verdict)
    screen.print(shown)
    for why in dict.fromkeys(f"{one.figure}: {one.why}" for one in rows if one.why):
        screen.print(why)


def published(path: pathlib.Path) -> dict[str, Any] | None:
    """Read a benchmark's published result; return None if there is none, or only one of a quick run."""
    try:
        run: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    return None if run.get("quick") else run


def published_goal(folder: pathlib.Path, bench: str, id: str, figure: str, what: str, paper: float | str) -> Row:
    """Return a row from the published goal of a benchmark; it has no value if the goal is not published."""
    run, command = published(folder / f"{bench}.json"), f"`springtide bench {bench} --json`"
    goal = next((goal for goal in (run or {}).get("goals", []) if goal["id"] == id), None)
    if run is None or goal is None or goal["value"] is None:
        return missing(figure, what, paper, f"run {command} to measure it; no result is published here")
    return goal_row(figure, what, paper, goal, f"{command} of {run['date']}")


def goal_row(figure: str, what: str, paper: float | str, goal: dict[str, Any], why: str) -> Row:
    better = goal.get("better", "higher")
    return row(figure, what, paper, [float(goal["value"])], goal=goal.get("target"), better=better, why=why)


def _figure(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def draw(rows: Sequence[Row], name: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw a picture for each figure with three or more values: bars, and the paper's values where they are numbers.

    Rows are of one kind if the text after the last colon of `what` is the same. Each kind gets a separate panel. If no
    kind of a paper's figure has three rows, all its rows share a panel.
    """
    paths = []
    for figure in dict.fromkeys(one.figure for one in rows):
        there = [one for one in rows if one.figure == figure]
        kinds: dict[str, list[Row]] = {}
        for one in there:
            kinds.setdefault(one.what.rpartition(": ")[2], []).append(one)
        panels = [
            Panel(x=kind, bars=bars_of(some, lambda row: row.what.rpartition(": ")[0]))
            for kind, some in kinds.items()
            if len(some) > 2
        ]
        if not panels and "Fig." in figure:
            panels = [Panel(bars=bars_of(there, lambda row: row.what))]
        panels = [panel for panel in panels if len(panel.bars) > 2]
        if panels:
            words = re.sub(r"[^a-z0-9]+", "-", figure.lower()).strip("-")
            height = sum(0.8 + 0.26 * len(panel.bars) for panel in panels)
            paths.append(charts.draw(folder / f"{name}-{words}.png", panels, title=figure, size=(8, height)))
    return paths


def bars_of(rows: Iterable[Row], label: Callable[[Row], str]) -> list[Bar]:
    return [
        Bar(
            label(row),
            row.ours,
            *(row.spread or (row.ours, row.ours)),
            None if isinstance(row.paper, str) else row.paper,
        )
        for row in rows
        if row.ours is not None
    ]
