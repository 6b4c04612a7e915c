"""Report a benchmark's result: a table of at most 80 columns for people, one JSON object on the last line for scripts.

In: the Result of a benchmark's module. Out: stdout. The ids of `goals` in the JSON are those that the docs use.
"""

import datetime
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from rich import box as rich_box
from rich import console, table

from springtide import __version__
from springtide_lab.bench.core import harness, peers
from springtide_lab.bench.core.harness import Box
from springtide_lab.bench.core.worker_side import line

WIDTH = 80
Better = Literal["higher", "lower"]
Cells = tuple[str | float | None, ...]
"""The cells of one table row."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One promised figure. If the figure could not be measured, `value` is None and the goal is not met."""

    id: str
    value: float | None
    target: float
    better: Better = "higher"
    met: bool
    spread: tuple[float, float] | None = None
    why: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one benchmark measured."""

    goals: tuple[Goal, ...]
    rounds: int
    columns: tuple[str, ...]
    rows: tuple[Cells, ...]
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}
    bench: str = ""
    quick: bool = False
    date: str = ""
    machine: Box | None = None
    versions: Mapping[str, str] = {}


def goal(
    id: str,
    value: float | harness.Ratio | None,
    *,
    target: float,
    better: Literal["higher", "lower"] = "higher",
    why: str = "",
) -> Goal:
    """Return a goal with its verdict. A Ratio comes with its spread; `why` is the reason for a value of None."""
    spread = (round(value.low, 4), round(value.high, 4)) if isinstance(value, harness.Ratio) else None
    number = value.value if isinstance(value, harness.Ratio) else value
    if number is None or not math.isfinite(number):
        return Goal(id=id, value=None, target=target, better=better, met=False, why=why or "not measured")
    met = number >= target if better == "higher" else number <= target
    return Goal(id=id, value=round(number, 4), target=target, better=better, met=met, spread=spread)


def not_measured(goals: Iterable[tuple[str, float, Better]], why: str) -> Result:
    """Return the result of a benchmark that cannot run on this machine."""
    listed = tuple(goal(id, None, target=target, better=better, why=why) for id, target, better in goals)
    return Result(goals=listed, rounds=0, columns=("not measured",), rows=(), notes=(why,))


def worst(ratios: Sequence[harness.Ratio], *, better: Better = "higher") -> harness.Ratio | None:
    if not ratios:
        return None
    return (min if better == "higher" else max)(ratios, key=lambda ratio: ratio.value)


def complete(result: Result, *, name: str, quick: bool, box: Box) -> Result:
    return msgspec.structs.replace(
        result,
        bench=name,
        quick=quick,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=box,
        versions={**versions(), **peers.PEER_VERSIONS},
    )


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that affect timings."""
    return {"python": platform.python_version(), "springtide": __version__, **line.versions(("torch", "numpy"))}


def show(result: Result, *, json: bool) -> None:
    """Print the tables and the state of the machine; with `json`, print the whole result as the last line."""
    screen = console.Console(width=WIDTH, highlight=False, emoji=False)
    title = f"bench {result.bench}{' (quick: only checks that the benchmark works)' if result.quick else ''}"
    screen.print(title, style="bold")
    measured = table.Table(box=rich_box.SIMPLE)
    for index, column in enumerate(result.columns):
        measured.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in result.rows:
        measured.add_row(*(figure(cell) for cell in row))
    screen.print(measured)
    promised = table.Table(box=rich_box.SIMPLE)
    for column in ("goal", "value", "spread", "target", ""):
        promised.add_column(column, justify="left" if column == "goal" else "right")
    for one in result.goals:
        sign = "≥" if one.better == "higher" else "≤"
        spread = f"{figure(one.spread[0])}-{figure(one.spread[1])}" if one.spread else ""
        verdict = "met" if one.met else "missed" if one.value is not None else "not measured"
        promised.add_row(one.id, figure(one.value), spread, f"{sign} {one.target:g}", verdict)
    screen.print(promised)
    for note in result.notes:
        screen.print(note)
    if result.machine:
        screen.print(result.machine.sentence())
    if json:
        print(msgspec.json.encode(result).decode(), flush=True)


def figure(value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, digits)}f}"
