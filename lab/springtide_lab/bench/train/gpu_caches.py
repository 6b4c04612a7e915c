"""Train a DLRM with a part of the rows in GPU memory and the others in CPU memory, against all rows in GPU memory.

In: gpu_loops.py. Out: ratios, and the share of ids whose rows were in GPU memory. Frequent rows have any ids, and the
cache starts with rows that do not depend on their frequency. Measuring starts when the cache has settled.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from springtide_lab.bench.core import harness, report
from springtide_lab.bench.train import gpu_loops
from springtide_lab.bench.train.gpu_loops import GpuClicks, GpuWorkload

ALL, PART = "all rows in GPU memory", "a part of the rows in GPU memory"
SETTLED_AFTER = 1500
COUNTED_STEPS = 320  # a multiple of the steps after which the count of misses is read


@dataclass(frozen=True, slots=True)
class CacheCase:
    """One measurement of a cache of a part of the rows."""

    batch: int
    power: int
    """Ids are drawn as u to this power."""
    share: float
    """Share of the rows in GPU memory."""


CASES = {
    "small_cache_vs_all": CacheCase(16384, 4, 0.1),
    "small_cache_vs_all, batch 4096": CacheCase(4096, 4, 0.1),
    "tables_4x_cache_vs_all": CacheCase(65536, 16, 0.25),
}


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """Samples/s with all rows in GPU memory and with a part of them, and the share of ids found there."""

    rounds: harness.Rounds
    hits: float

    @property
    def speed(self) -> harness.Ratio:
        return self.rounds.ratio(PART, ALL)

    @property
    def time(self) -> harness.Ratio:
        return self.rounds.ratio(ALL, PART)


def measure(case: CacheCase, *, rows: int, rounds: int, seconds: float, quick: bool) -> CacheFigures:
    """Train both in turns. The variants have a server each, and the same batches."""
    work = GpuWorkload(rows=rows, dim=64, batch=case.batch, batches=32, power=case.power, scattered=True)
    data = GpuClicks(work)
    with contextlib.ExitStack() as stack:
        loops = {ALL: gpu_loops.ours(work, data, stack, servers=1)}
        loops[PART] = gpu_loops.ours(work, data, stack, servers=1, cache=case.share)
        loops[PART](100 if quick else SETTLED_AFTER)
        found = loops[PART].hits(COUNTED_STEPS)
        timed = {name: gpu_loops.timed(train, case.batch, seconds) for name, train in loops.items()}
        measured = harness.alternate(timed, rounds=rounds, label=f"cache, batch {case.batch}")
        del loops, timed  # the loops write their cached rows back here, while the servers still run
        return CacheFigures(measured, found)


def goals(found: Mapping[str, CacheFigures]) -> tuple[report.Goal, ...]:
    made = [report.goal(name, found[name].speed, target=0.7) for name in CASES if name.startswith("small")]
    four_times = found["tables_4x_cache_vs_all"]
    return (*made, report.goal("tables_4x_cache_vs_all", four_times.time, target=1.25, better="lower"))


def notes(found: Mapping[str, CacheFigures]) -> list[str]:
    return [
        f"{name}: {CASES[name].share:.0%} of the rows in GPU memory had {figures.hits:.1%} of the ids; "
        f"{figures.rounds.median(PART):,.0f} samples/s, {figures.rounds.median(ALL):,.0f} with all rows"
        for name, figures in found.items()
    ]
