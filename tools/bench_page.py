#!/usr/bin/env python3
"""Write the figures of docs/benchmarks.md from docs/benchmarks/NAME.json, the last lines of `springtide bench --json`.

springtide bench store --json | tail -n 1 > docs/benchmarks/store.json && tools/bench_page.py
"""

import json
import pathlib
from typing import Any

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
HEADING = "## Figures\n"


def rows(run: dict[str, Any]) -> list[str]:
    """One line a goal, and the raw file."""
    name = run["bench"]
    sign = {"higher": "≥", "lower": "≤"}
    return [
        f"| `{goal['id']}` | {'-' if goal['value'] is None else format(goal['value'], '.3g')} "
        f"| {sign[goal['better']]} {goal['target']:g} | {'yes' if goal['met'] else 'no'} "
        f"| [`springtide bench {name}`](benchmarks/{name}.json) | {run['date']} |"
        for goal in run["goals"]
    ]


def figures() -> str:
    """The section below the heading."""
    runs = [json.loads(path.read_text()) for path in sorted((DOCS / "benchmarks").glob("*.json"))]
    if not runs:
        return "None has been measured on an idle machine yet.\n"
    machines = sorted({f"{run['machine']['cpu']}, {run['machine']['cores']} cores" for run in runs})
    busy = [run["bench"] for run in runs if not run["machine"]["idle"]]
    lines = [f"Measured on: {'; '.join(machines)}.", ""]
    if busy:
        lines += [f"The machine was not idle while these ran, take them with care: {', '.join(busy)}.", ""]
    lines += ["| goal | value | wanted | met | command and raw result | date |", "|---|---|---|---|---|---|"]
    for run in runs:
        lines += rows(run)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = DOCS / "benchmarks.md"
    head, _, _ = page.read_text().partition(HEADING)
    page.write_text(f"{head}{HEADING}\n{figures()}")
