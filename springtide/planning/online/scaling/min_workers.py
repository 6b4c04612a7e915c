"""Pure. The fewest workers that keep up with a traffic, over a horizon.

In: a `CapacityCurve` (planning/online/capacity/capacity_model.py) and traffic to come, in samples a second
(planning/online/forecast/seasonal.py). Out: a number of workers for each step, and whether that is enough. Next:
stabilizer.py takes out what does not pay.
"""

from collections.abc import Sequence
from typing import NamedTuple

from springtide.planning.online.capacity.capacity_model import CapacityCurve


class WorkerNeed(NamedTuple):
    """What a traffic asks for."""

    workers: int
    enough: bool
    """Whether they keep up; else no number of workers would, and these fall behind least."""


def least(curve: CapacityCurve, traffic: float, *, most: int, fewest: int = 1) -> WorkerNeed:
    """The fewest workers that train more than comes in (Eqn 10)."""
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
