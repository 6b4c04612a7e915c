"""Reproduce Herald (004): all rows, and a picture of bars for each figure.

In: seeds, optionally a file of ids; otherwise streams are generated. The scheduler is that of real jobs. Next:
`rows_counted` and `rows_timed`.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from springtide_lab import charts
from springtide_lab.bench.core import harness
from springtide_lab.charts import Panel
from springtide_lab.reproduce.herald import preset, rows_counted, rows_timed
from springtide_lab.reproduce.herald.preset import HeraldSize
from springtide_lab.reproduce.report import Row, bars_of
from springtide_lab.reproduce.runner import Reproduced, ReproduceOptions

W1 = "w1"
"""Data set of the figures that the paper shows for one data set only."""


class Sheet(NamedTuple):
    """One picture: its figure, titles, and the paper's range."""

    figure: str
    title: str
    axis: str
    low: float
    high: float


SHEETS = (
    Sheet("004 Fig. 3", "Fig. 3: rows an iteration, batch 256 over 64", "times", 2.7, 4.0),
    Sheet("004 Fig. 6", "Fig. 6: infrequent among cached rows", "DoI", 0.99, 1.0),
    Sheet("004 Fig. 10", "Fig. 10: DoI of the lowest and the highest table", "DoI", 0.0, 1.0),
    Sheet("004 Fig. 11", "Fig. 11: transmissions saved", "part of vanilla's", 0.48, 0.89),
    Sheet("004 Fig. 13", "Fig. 13: scoring with four tables over all", "transmissions", 1.0, 1.11),
    Sheet("004 Fig. 14", "Fig. 14: speed-up over HET in bsp", "times", 1.09, 2.11),
    Sheet("004 Fig. 15", "Fig. 15: scaling factor", "of ideal", 0.42, 0.90),
    Sheet("004 Fig. 16", "Fig. 16: speed-up by cache size", "times", 1.97, 2.15),
    Sheet("004 Fig. 19", "Fig. 19: speed-up by servers", "times", 1.4, 1.4),
)


def reproduce(seeds: range, options: ReproduceOptions) -> Reproduced:
    size = preset.QUICK if options.quick else HeraldSize()
    rows = rows_of(list(seeds), size, options.ids)
    facts = {"iterations": size.iterations}
    if options.ids is not None:
        return Reproduced(rows, {**facts, "ids": pathlib.Path(options.ids).name}, functools.partial(draw, rows))
    return Reproduced(rows, facts, functools.partial(draw, rows))


def rows_of(seeds: Sequence[int], size: HeraldSize, ids: str | None = None) -> list[Row]:
    rows: list[Row] = []
    cost = preset.costs()
    for load in preset.workloads(ids):
        harness.say(f"{load.name}: popularity, transmissions, times")
        rows += rows_counted.reductions(load, size, seeds)
        if load.name in preset.HARDER:
            continue
        rows += rows_counted.popular(load, size, seeds)
        rows += rows_counted.causes(load, size, seeds)
        rows += rows_timed.timed(load, size, seeds, cost)
        if ids is None and load.name != W1:
            continue
        harness.say(f"{load.name}: breakdown, adaptive scheduling, shapes of the cluster")
        rows += rows_counted.breakdown(load, size, seeds)
        rows += rows_counted.adaptive(load, size, seeds)
        rows += rows_timed.shapes(load, size, seeds, cost)
    rows += [*rows_timed.measured(), *rows_timed.overhead()]
    return sorted(rows, key=lambda row: _order(row.figure))


def _order(figure: str) -> tuple[int, int]:
    """Return a sort key: figures by number, the table after Fig. 11, to which it belongs."""
    word, _, number = figure.removeprefix("004 ").partition(" ")
    if word == "Fig.":
        return int(number), 0
    return (11, 1) if word == "Table" else (4, 1)


def draw(rows: Sequence[Row], folder: pathlib.Path) -> list[pathlib.Path]:
    pictures = []
    for sheet in SHEETS:
        bars = bars_of(row for row in rows if row.figure == sheet.figure)
        if bars:
            path = folder / f"herald-fig{sheet.figure.rpartition(' ')[2]}.png"
            panel = Panel(title=sheet.title, x=sheet.axis, bars=bars, shaded=(sheet.low, sheet.high))
            pictures.append(charts.draw(path, [panel], size=(8, 0.9 + 0.26 * len(bars))))
    return pictures
