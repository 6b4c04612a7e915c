"""Pure. Madu, as Kale describes it: scales ahead by an uncertain forecast and a linear capacity model.

In: a `TrafficOutlook` and measurements of a few workers. Out: workers for the next period, the upper end of the
forecast divided by the throughput of one worker. The linear model ignores effects between workers.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from springtide.domain.data.online_view import TrafficOutlook
from springtide.planning.online.capacity.capacity_model import CapacitySample


class MaduSettings(NamedTuple):
    """Settings of Madu."""

    upper: float
    """Position in the forecast's interval: 0 is the mean, 1 the high end."""
    period_s: float
    """Seconds between two plans. Each plan covers the highest traffic of its period and of the change before it."""


def slope(seen: Sequence[CapacitySample]) -> float:
    """Return samples per second per worker, by least squares through the origin."""
    return sum(one.workers * one.throughput for one in seen) / sum(one.workers**2 for one in seen)


def wants(outlook: TrafficOutlook, settings: MaduSettings, *, per_worker: float, most: int) -> int:
    steps = max(1, round(settings.period_s / outlook.step_s)) + 1
    pairs = zip(outlook.mean[:steps], outlook.high[:steps], strict=True)
    highest = max(mean + settings.upper * (high - mean) for mean, high in pairs)
    return min(max(1, math.ceil(highest / per_worker)), most)
