"""Pure. Google's Autopilot (horizontal scaling), for many lanes at once: recent usage divided by a target.

In: workers in use, every 5 minutes. Out: wanted workers. This is the 95th percentile or maximum of a moving window,
divided by the target utilization. For scale-down, the highest request of the last hour counts, and the excess halves
every hour.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.planning.policy.baselines.hpa import Array, Counts

EVERY_S = 300.0
DEFERRED_S = 3600.0


class AutopilotSettings(NamedTuple):
    """Settings of Autopilot, as arrays by lane."""

    target: Array
    percentile: Array
    """Percentile of usage in the window: 95, or 100 for the maximum."""
    window_s: Array


class Autopilot:
    """Autoscaler that follows recent usage."""

    def __init__(self, settings: AutopilotSettings, *, most: int) -> None:
        self._settings, self._most = settings, most
        self._window = np.maximum(np.round(settings.window_s / EVERY_S).astype(int), 1)
        self._used: list[Array] = []
        self._asked: list[Array] = []
        self._held: Array = np.zeros(0)

    def wants(self, workers: Counts, used: Array, free: NDArray[np.bool_]) -> Counts:
        """Return the wanted workers. `used` is workers x utilization, the mean of the last 5 minutes of training."""
        self._used.append(used)
        asked = np.zeros(len(workers))
        for window in np.unique(self._window):
            lanes = np.flatnonzero(self._window == window)
            seen = np.sort(np.asarray([one[lanes] for one in self._used[-window:]]), axis=0)
            place = np.ceil(self._settings.percentile[lanes] / 100 * len(seen)).astype(int) - 1
            asked[lanes] = seen[place, np.arange(len(lanes))] / self._settings.target[lanes]
        self._asked.append(asked)
        highest = np.max(self._asked[-round(DEFERRED_S / EVERY_S) :], axis=0)
        wanted = np.ceil(highest - 1e-9)
        held = self._held if len(self._held) else workers.astype(float)
        self._held = np.where(wanted < held, wanted + (held - wanted) * 0.5 ** (EVERY_S / DEFERRED_S), wanted)
        wanted = np.clip(np.ceil(self._held - 1e-9), 1, self._most)
        return np.where(free, wanted, workers).astype(np.int64)
