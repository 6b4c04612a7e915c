"""`springtide reproduce goldminer`: all rows, and a page with pictures.

In: seeds, a number of jobs, perhaps a trace. Out: rows; PNG files and HTML. Who shares out cores and who tunes a job is
the code of `springtide.planning.dataworkers`. Next: reproduce/command.py prints, tools/reproduction_page.py publishes.
"""

import pathlib
from collections.abc import Callable, Sequence

from springtide.planning.dataworkers import allocation
from springtide_lab.reproduce import report
from springtide_lab.reproduce.goldminer import pictures, rows_job
from springtide_lab.reproduce.goldminer import rows as cluster_rows
from springtide_lab.reproduce.goldminer.simulation import run, systems, trace
from springtide_lab.reproduce.goldminer.simulation.systems import FIXED, MAXTP, SYSTEMS, TUNED
from springtide_lab.reproduce.goldminer.simulation.trace import TracePreset
from springtide_lab.reproduce.report import Row

VARIED_SEEDS = 8
"""Seeds of what is run for sensitivity only."""


def rows(
    seeds: Sequence[int], preset: TracePreset, *, own: Sequence[str] = (), say: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Everything; `own` are names of metrics that the paper does not have."""
    for name in own:
        allocation.load(name)
    which = (*SYSTEMS, *map(systems.own, own))
    say(f"64 GPUs: {preset.jobs} jobs, {len(which)} systems, {len(seeds)} seeds")
    found = cluster_rows.results(preset, seeds, which)
    mine = [
        *cluster_rows.table(found),
        *cluster_rows.others(found),
        *cluster_rows.bounds(preset, found, seeds),
        *cluster_rows.use(found),
    ]
    varied = list(seeds)[:VARIED_SEEDS]
    say(f"sensitivity: {len(cluster_rows.VARIANTS)} other worlds, {len(varied)} seeds")
    return [*mine, *rows_job.rows(), *cluster_rows.sensitivity(preset, varied)]


def write(folder: pathlib.Path, found: Sequence[Row], preset: TracePreset, seed: int) -> list[pathlib.Path]:
    folder.mkdir(parents=True, exist_ok=True)
    jobs = trace.draw(preset, seed)
    stories = {system: run.run(jobs, system, preset, seed) for system in (TUNED, FIXED, MAXTP)}
    drawn = pictures.draw(folder, found, stories)
    return report.write(folder, "goldminer", found, drawn, title="GoldMiner, reproduced")
