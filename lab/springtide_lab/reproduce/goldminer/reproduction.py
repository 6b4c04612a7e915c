"""Reproduce GoldMiner (002): all rows.

In: seeds, a number of jobs, optionally a trace. The code that allocates cores and tunes jobs is also used by real
jobs: `springtide.planning.dataworkers`. Next: `rows`.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

from springtide.planning.dataworkers import allocation
from springtide_lab.bench.core import harness
from springtide_lab.reproduce.goldminer import rows, systems
from springtide_lab.reproduce.goldminer.jobs import JOBS, TracePreset
from springtide_lab.reproduce.goldminer.systems import SYSTEMS
from springtide_lab.reproduce.report import Row
from springtide_lab.reproduce.runner import Reproduced, ReproduceOptions

QUICK_JOBS = 30
VARIED_SEEDS = 8
"""Number of seeds for the sensitivity rows."""


def reproduce(seeds: range, options: ReproduceOptions) -> Reproduced:
    preset = TracePreset(jobs=options.jobs or (QUICK_JOBS if options.quick else JOBS), trace=options.trace)
    found = rows_of(seeds, preset, options.metrics)
    facts: dict[str, Any] = {"jobs": preset.jobs}
    if options.trace is not None:
        facts["trace"] = pathlib.Path(options.trace).name
    return Reproduced(found, facts)


def rows_of(seeds: Sequence[int], preset: TracePreset, metrics: Sequence[str] = ()) -> list[Row]:
    """Return all rows; `metrics` names additional metrics of the user."""
    for name in metrics:
        allocation.load(name)
    which = (*SYSTEMS, *map(systems.own, metrics))
    harness.say(f"64 GPUs: {preset.jobs} jobs, {len(which)} systems, {len(seeds)} seeds")
    results = rows.results(preset, seeds, which)
    found = [*rows.table_5(results), *rows.others(results), *rows.bounds(preset, results, seeds), *rows.use(results)]
    varied = list(seeds)[:VARIED_SEEDS]
    harness.say(f"sensitivity: {len(rows.VARIANTS)} other assumptions, {len(varied)} seeds")
    return [*found, *rows.of_one_job(), *rows.sensitivity(preset, varied)]
