"""Pure. KEDA on a Kafka topic, for many lanes at once: lag divided by a threshold gives the number of workers.

In: workers and backlog, every 30 s. Out: wanted workers, under HPA's rules (hpa.py). Lag is summed over partitions and
capped at partitions x threshold. Changes within 10% are ignored, and stabilization windows apply. It never scales to
zero here, because an online job without workers would be late as soon as samples arrive.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.planning.policy.baselines import hpa
from springtide.planning.policy.baselines.hpa import Array, Counts

PARTITIONS = 800  # partitions of a topic, as in section 4.1 of Kale


class KedaSettings(NamedTuple):
    """Settings of KEDA, as arrays by lane."""

    threshold: Array
    """Waiting samples allowed per worker."""
    down_s: Array
    up_s: Array


class Keda:
    """Autoscaler that follows lag."""

    def __init__(self, settings: KedaSettings, *, most: int, every_s: float) -> None:
        self._threshold, self._most = settings.threshold, most
        self._windows = hpa.Windows(settings.down_s, settings.up_s, every_s=every_s)

    def wants(self, workers: Counts, backlog: Array, free: NDArray[np.bool_]) -> Counts:
        lag = np.minimum(backlog, PARTITIONS * self._threshold)
        asked = hpa.recommend(workers, lag / (self._threshold * workers), most=self._most)
        return self._windows.settle(workers, np.where(free, asked, workers))
