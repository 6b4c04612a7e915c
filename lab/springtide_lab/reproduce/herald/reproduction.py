"""`springtide reproduce herald`: all rows, and a page with pictures.

In: seeds, sizes, perhaps a file of ids. Out: rows; PNG files and HTML. The scheduler is the one that jobs train with;
data are generated unless a file is given. Next: reproduce/command.py prints, tools/reproduction_page.py publishes.
"""

import pathlib
from collections.abc import Callable, Sequence

from springtide_lab.reproduce import report
from springtide_lab.reproduce.herald import pictures, preset, rows_counted, rows_timed
from springtide_lab.reproduce.herald.preset import HeraldSize
from springtide_lab.reproduce.report import Row

W1 = "w1"
"""What the paper shows of one data set only is of this one."""


def rows(
    seeds: Sequence[int], size: HeraldSize, *, ids: str | None = None, say: Callable[[str], None] = lambda _: None
) -> list[Row]:
    found: list[Row] = []
    cost = preset.costs()
    for load in preset.workloads(ids):
        say(f"{load.name}: popularity, transmissions, times")
        found += rows_counted.reductions(load, size, seeds)
        if load.name in preset.HARDER:
            continue
        found += rows_counted.popular(load, size, seeds)
        found += rows_counted.causes(load, size, seeds)
        found += rows_timed.timed(load, size, seeds, cost)
        if ids is None and load.name != W1:
            continue
        say(f"{load.name}: breakdown, adaptive scheduling, shapes of the cluster")
        found += rows_counted.breakdown(load, size, seeds)
        found += rows_counted.adaptive(load, size, seeds)
        found += rows_timed.shapes(load, size, seeds, cost)
    found += [*rows_timed.measured(), *rows_timed.overhead()]
    return sorted(found, key=lambda one: _order(one.figure))


def _order(figure: str) -> tuple[int, int]:
    """Figures by number; the table after Fig. 11, to which it belongs."""
    word, _, number = figure.removeprefix("004 ").partition(" ")
    if word == "Fig.":
        return int(number), 0
    return (11, 1) if word == "Table" else (4, 1)


def write(folder: pathlib.Path, found: Sequence[Row]) -> list[pathlib.Path]:
    folder.mkdir(parents=True, exist_ok=True)
    drawn = pictures.draw(folder, found)
    return report.write(folder, "herald", found, drawn, title="Herald, reproduced")
