#!/usr/bin/env python3
"""Write the figures of docs/benchmarks.md from docs/benchmarks/NAME.json, the last lines of `springtide bench --json`.

springtide bench store --json | tail -n 1 > docs/benchmarks/store.json && tools/bench_page.py
"""

import json
import pathlib
from typing import Any

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
HEADING = "## Figures\n"
INTRODUCTION = """The table has the last run of each benchmark, with the machine that it ran on. Read figures marked
*not idle* with care: other processes used the machine during that run.
"""
TABLE = ("| goal | value | target | met | command and raw result | machine | date |", "|---|---|---|---|---|---|---|")


def rows(run: dict[str, Any]) -> list[str]:
    """One line for each goal: the value, the raw file, the machine and the date."""
    name, box = run["bench"], run["machine"]
    sign = {"higher": "≥", "lower": "≤"}
    machine = f"{box['cpu'].replace('(R)', '')}, {box['cores']} cores" + ("" if box["idle"] else ", *not idle*")
    return [
        f"| `{goal['id']}` | {'-' if goal['value'] is None else format(goal['value'], '.3g')} "
        f"| {sign[goal['better']]} {goal['target']:g} | {'yes' if goal['met'] else '**no**'} "
        f"| [`springtide bench {name}`](benchmarks/{name}.json) | {machine} | {run['date']} |"
        for goal in run["goals"]
    ]


def page() -> str:
    """The page: everything above the figures as it is, and the figures anew."""
    above, _, _ = PAGE.read_text().partition(HEADING)
    runs = [json.loads(path.read_text()) for path in sorted((DOCS / "benchmarks").glob("*.json"))]
    lines = [row for run in runs for row in rows(run)]
    return f"{above}{HEADING}\n{INTRODUCTION}\n" + "\n".join([*TABLE, *lines]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
