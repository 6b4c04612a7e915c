"""Pure. Marks stream workers that are much slower than their peers, and counts the backup workers to make up for them.

In: paces in each window in which there was work. Out: a `SlowMark` for each worker, and the number of backup workers
beside the workers that traffic needs. Batches that a slow worker cannot train in time go to its peers at once, by
shuffling. Then all its partitions but one move too (data/partition_assign.py). Backups give the peers room for this
work.

One window proves little, especially with little work. A mark is set after `SLOW_AFTER` consecutive windows and removed
after `FAST_AFTER`. A window without information about a worker changes nothing. A worker that comes and goes costs more
than a surplus worker.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from springtide.domain.spec.job_spec import StragglerRules
from springtide.job.stragglers import stragglers

MOST_SHARE = 0.5  # largest share of workers that may be backed up: if more are slow, the workers are not the cause
SLOW_AFTER, FAST_AFTER = 2, 3  # consecutive windows: 40 s and 60 s, unless the stream runs faster than the clock
SILENT_AFTER = 30  # consecutive windows without information after which a mark is removed: 10 minutes
ROOM = 0.75  # hysteresis in workers between the shortfall and the number of backups: 0.5 would flap


@dataclass(frozen=True, slots=True)
class SlowMark:
    """Evidence about the pace of one worker."""

    slow: bool = False
    against: int = 0
    """Number of consecutive windows that contradict the mark."""
    silent: int = 0
    """Number of consecutive windows without information."""
    lacks: float = 0.0
    """Shortfall against its peers, as a share of a worker, in the last window with information."""
    why: str = ""


class BackupNeed(NamedTuple):
    """Backup workers that the job needs."""

    workers: int
    why: str
    """Which workers are slow, and by how much; empty if none is slow."""
    slow: tuple[int, ...] = ()


def marked(
    before: Mapping[int, SlowMark],
    paces: Mapping[int, float],
    alive: Collection[int],
    rules: StragglerRules,
    sure: Collection[int] | None = None,
) -> dict[int, SlowMark]:
    """Return the marks of all workers after another window.

    `paces` has the workers with enough work. `sure` has the ranks whose pace shows their full speed, or None for all
    ranks. Other ranks may be faster, so the window says nothing about them.
    """
    marks = {}
    for rank in sorted(alive):
        mark, pace = before.get(rank, SlowMark()), paces.get(rank)
        peers = [other for peer, other in paces.items() if peer != rank]
        if pace is None or not peers or (sure is not None and rank not in sure):
            silent = mark.silent + 1
            marks[rank] = replace(mark, silent=silent) if silent < SILENT_AFTER else SlowMark()
            continue
        standard = stragglers.standard_of(peers, rules)
        verdict = stragglers.compare(pace, standard, rules)
        opposite = verdict.recovered if mark.slow else verdict.slow
        against = mark.against + 1 if opposite else 0
        turned = against >= (FAST_AFTER if mark.slow else SLOW_AFTER)
        marks[rank] = SlowMark(
            slow=mark.slow != turned,
            against=0 if turned else against,
            lacks=max(0.0, 1 - pace / standard.middle) if standard.middle else 0.0,
            why=f"worker-{rank} trains {verdict.why}",
        )
    return marks


def wanted(marks: Mapping[int, SlowMark], before: int = 0) -> BackupNeed:
    """Return the backups: one for each whole worker that slow workers lack in total. `before` is the present number."""
    slow = tuple(rank for rank, mark in sorted(marks.items()) if mark.slow)
    if not slow or len(slow) > MOST_SHARE * len(marks):
        return BackupNeed(0, "")
    lacking = sum(marks[rank].lacks for rank in slow)
    count = before if before and abs(lacking - before) <= ROOM else math.floor(lacking + 0.5)
    return BackupNeed(max(1, count), "; ".join(marks[rank].why for rank in slow), slow)
