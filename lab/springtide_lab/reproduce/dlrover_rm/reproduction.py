"""Reproduce DLRover-RM (000) and DLRover (001): all rows.

In: seeds and a number of jobs per day. Next: `testbed` and `trouble` simulate one job at a time, `cluster_days` a
cluster.
"""

import math

import msgspec

from springtide_lab.bench.core import harness
from springtide_lab.reproduce.dlrover_rm import cluster_days, testbed, trouble
from springtide_lab.reproduce.report import Row
from springtide_lab.reproduce.runner import Reproduced, ReproduceOptions

QUICK_JOBS, JOBS = 30, 500


def reproduce(seeds: range, options: ReproduceOptions) -> Reproduced:
    jobs = options.jobs or (QUICK_JOBS if options.quick else JOBS)
    harness.say(f"test bed: one job at a time, {len(seeds)} seeds")
    rows = [*testbed.rows(seeds), *trouble.rows(seeds)]
    days = []
    for seed in seeds:
        harness.say(f"cluster: {jobs} jobs of seed {seed}, five systems")
        days += cluster_days.days(jobs, [seed])
    rows += cluster_days.rows(days)
    return Reproduced([_finite(row) for row in rows], {"jobs": jobs})


def _finite(row: Row) -> Row:
    if row.ours is None or math.isfinite(row.ours):
        return row
    return msgspec.structs.replace(row, ours=None, met=None, spread=None, why="no job of that kind finished")
