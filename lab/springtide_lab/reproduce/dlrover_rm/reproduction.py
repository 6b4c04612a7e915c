"""`springtide reproduce dlrover-rm`: the papers' figures from this code, beside the papers' own.

In: seeds and a number of jobs a day. Out: rows; plots as PNG and a page as HTML. What cannot be reproduced is a
row too.
"""

import math
import pathlib
from collections.abc import Callable, Sequence

import msgspec

from springtide_lab.reproduce import report
from springtide_lab.reproduce.dlrover_rm import clusterdays, figures, figures_days, tables, testbed, trained, trouble
from springtide_lab.reproduce.report import Row


def rows(
    seeds: Sequence[int], jobs: int, *, say: Callable[[str], None]
) -> tuple[list[Row], list[clusterdays.ClusterDay]]:
    say(f"test bed: one job at a time, {len(seeds)} seeds")
    found = [*testbed.rows(seeds), *trouble.rows(seeds), *trained.rows(), *tables.rows(seeds)]
    seen = []
    for seed in seeds:
        say(f"cluster: {jobs} jobs of seed {seed}, five systems")
        seen += clusterdays.days(jobs, [seed])
    found += clusterdays.rows(seen)
    return [_finite(one) for one in found], seen


def _finite(one: Row) -> Row:
    if one.ours is None or math.isfinite(one.ours):
        return one
    return msgspec.structs.replace(one, ours=None, met=None, spread=None, why="no job of that kind finished")


def write(
    folder: pathlib.Path, found: Sequence[Row], seen: Sequence[clusterdays.ClusterDay], seeds: Sequence[int]
) -> list[pathlib.Path]:
    folder.mkdir(parents=True, exist_ok=True)
    pictures = sorted(
        [*figures.draw(folder, seeds), *figures_days.draw(folder, seen)],
        key=lambda one: int(one.path.name.removeprefix("fig").partition("-")[0]),
    )
    return report.write(folder, "dlrover-rm", found, pictures, title="DLRover-RM, reproduced")
