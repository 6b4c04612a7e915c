"""Pure. Computes the fewest workers that keep up with a traffic, for each step of a horizon.

In: a `CapacityCurve` (planning/online/capacity/capacity_model.py) and a traffic forecast in samples per second
(planning/online/forecast/seasonal.py). Out: a number of workers per step, and whether it is enough. `stabilize` then
removes changes that are too short to pay off.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from springtide.planning.online.capacity.capacity_model import CapacityCurve


class WorkerNeed(NamedTuple):
    """Number of workers that a traffic needs."""

    workers: int
    enough: bool
    """True if these workers keep up. Otherwise no number does, and these fall behind least."""


def least(curve: CapacityCurve, traffic: float, *, most: int, fewest: int = 1) -> WorkerNeed:
    """Return the fewest workers that train more than arrives (Eqn 10)."""
    peak = max(fewest, curve.peak(most))
    for workers in range(fewest, peak + 1):
        if curve(workers) > traffic:
            return WorkerNeed(workers, True)
    return WorkerNeed(peak, False)


def plan(curve: CapacityCurve, traffic: Sequence[float], *, most: int, fewest: int = 1) -> tuple[WorkerNeed, ...]:
    known: dict[float, WorkerNeed] = {}
    for one in traffic:
        if one not in known:
            known[one] = least(curve, one, most=most, fewest=fewest)
    return tuple(known[one] for one in traffic)


CHANGE = 1  # workers; smaller changes are ignored
SHORT_S = 600.0  # seconds; a shorter run of one worker count is not worth a change


def stabilize(
    workers: Sequence[int], *, step_s: float, change: int = CHANGE, short_s: float = SHORT_S
) -> tuple[int, ...]:
    """Remove short runs of one worker count, from the first run on.

    A run that begins with a change of at least `change` and lasts less than `short_s` takes the larger neighbouring
    count. The first run has no predecessor, and the last may continue beyond the horizon, so both stay.
    """
    runs = [(number, len(list(same))) for number, same in groupby(workers)]
    calm: list[tuple[int, int]] = runs[:1]
    for place in range(1, len(runs)):
        number, length = runs[place]
        before = calm[-1][0]
        if place + 1 < len(runs) and abs(number - before) >= change and length * step_s < short_s:
            number = max(before, runs[place + 1][0])
        if number == before:
            calm[-1] = (before, calm[-1][1] + length)
        else:
            calm.append((number, length))
    return tuple(number for number, length in calm for _ in range(length))
