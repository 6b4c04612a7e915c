#!/usr/bin/env python3
"""Write the tables of docs/reproduction/NAME.md from NAME.json beside it, the last line of `springtide reproduce NAME
--json`. The introduction above the tables is written by hand and stays.

springtide reproduce herald --json --out docs/reproduction | tail -n 1 > docs/reproduction/herald.json
tools/reproduction_page.py
"""

import json
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from springtide.sim.world import parameters  # noqa: E402

FOLDER = ROOT / "docs" / "reproduction"
HEADS = ("figure", "what", "paper", "ours", "spread", "goal", "met", "seeds")
GENERATED = "<!-- everything below is written by tools/reproduction_page.py -->\n"


def page(run: dict[str, Any]) -> str:
    """The whole page."""
    name = run["reproduction"]
    goals = [row["met"] for row in run["rows"] if row["met"] is not None]
    jobs = f" --jobs {run['jobs']}" if "jobs" in run else ""
    jobs += " --trace traces" if run.get("traces") else ""
    command = f"springtide reproduce {name} --seeds {run['seeds']}{jobs}"
    parts = [
        _introduction(name) + GENERATED,
        f"`{command} --json --out docs/reproduction`, {run['date']}: {sum(goals)} of {len(goals)} goals are met.\n",
        "\n".join(["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS), *map(_line, run["rows"])]) + "\n",
        "## Notes\n",
        "\n".join(dict.fromkeys(f"* {row['figure']}: {row['why']}" for row in run["rows"] if row["why"])) + "\n",
        "## Pictures\n",
        "\n".join(_pictures(name)) + "\n",
    ]
    if name == "dlrover-rm":
        parts += [
            "## What is assumed\n",
            "These parameters of the world have no source in the papers. The page of the\n"
            "[simulator](../design/simulator.md) lists all others with their sources.\n"
            "No parameter was chosen to favour our results.\n",
            "| parameter | value | unit | why |\n|---|---|---|---|\n" + "".join(_assumed()),
        ]
    return "\n".join(parts)


def _introduction(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text().partition(GENERATED)[0]


def _line(row: dict[str, Any]) -> str:
    spread = f"{row['spread'][0]:g} to {row['spread'][1]:g}" if row["spread"] else ""
    met = "" if row["met"] is None else "yes" if row["met"] else "**no**"
    if row["met"] is False and row.get("bound") is not None:
        met += f", at best {_figure(row['bound'])}"
    figures = (_figure(row["paper"]), _figure(row["ours"]), spread, row["goal"])
    cells = (row["figure"], row["what"], *figures, met, row["seeds"] or "")
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _figure(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def _pictures(name: str) -> list[str]:
    return [f"![{path.stem.replace('-', ' ')}]({path.name})" for path in sorted(FOLDER.glob(f"{name}-*.png"))]


def _assumed() -> list[str]:
    return [
        f"| `{row.name}` | {row.default:g} | {row.metadata['unit']} | {source[7:].lstrip(':; ')} |\n"
        for _, row in parameters.CONSTANTS.values()
        if (source := row.metadata["source"]).startswith("assumed")
    ]


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.json")):
        path.with_suffix(".md").write_text(page(json.loads(path.read_text())))
