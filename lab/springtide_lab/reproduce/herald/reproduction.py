"""Reproduce Herald (004): all rows.

In: seeds, optionally a file of ids; otherwise streams are generated. The scheduler is also used by real jobs. Next:
`rows_counted` and `rows_timed`.
"""

import pathlib
from collections.abc import Sequence

from springtide_lab.bench.core import harness
from springtide_lab.reproduce.herald import preset, rows_counted, rows_timed
from springtide_lab.reproduce.herald.preset import HeraldSize
from springtide_lab.reproduce.report import Row
from springtide_lab.reproduce.runner import Reproduced, ReproduceOptions

W1 = "w1"
"""Data set of the figures that the paper shows for one data set only."""


def reproduce(seeds: range, options: ReproduceOptions) -> Reproduced:
    size = preset.QUICK if options.quick else HeraldSize()
    rows = rows_of(list(seeds), size, options.ids)
    ids = {} if options.ids is None else {"ids": pathlib.Path(options.ids).name}
    return Reproduced(rows, {"iterations": size.iterations, **ids})


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
    """Return a sort key: figures by number, and the table after Fig. 11."""
    word, _, number = figure.removeprefix("004 ").partition(" ")
    if word == "Fig.":
        return int(number), 0
    return (11, 1) if word == "Table" else (4, 1)
