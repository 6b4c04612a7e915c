"""Pure. Kubernetes' Horizontal Pod Autoscaler, for many lanes at once: follows utilization, with stabilization windows.

In: workers and utilization of each lane, every 15 s. Out: wanted workers. The rules follow its documentation. Within
10% of the target, nothing changes. A step up adds at most four workers or doubles them. For scale-down, the highest
recommendation of the window counts; for scale-up with `up_s` set, the lowest. KEDA has the same rules (keda.py).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
TOLERANCE = 0.1
MORE, TIMES = 4, 2  # a step up adds at most MORE workers or multiplies them by TIMES, whichever is larger
BUCKET = 4  # recommendations per bucket, stored as highest and lowest: one minute


class HpaSettings(NamedTuple):
    """Settings of the cluster's owner; each may be an array by lane."""

    target: Array
    """Target utilization."""
    down_s: Array
    """Stabilization window for scale-down; Kubernetes' default is 300 s."""
    up_s: Array
    """Stabilization window for scale-up; Kubernetes' default is 0 s."""


def recommend(workers: Counts, ratio: Array, *, most: int) -> Counts:
    """Return the proportional recommendation with tolerance and step limit. `ratio` is usage / target."""
    asked = np.ceil(ratio * workers - 1e-9).astype(np.int64)
    asked = np.where(np.abs(ratio - 1) <= TOLERANCE, workers, asked)
    return np.clip(np.minimum(asked, np.maximum(workers + MORE, workers * TIMES)), 1, most)


class Windows:
    """Stabilization windows: the highest recent recommendation counts for scale-down, the lowest for scale-up."""

    def __init__(self, down_s: Array, up_s: Array, *, every_s: float) -> None:
        bucket_s = every_s * BUCKET
        self._down, self._up = (np.ceil(one / bucket_s).astype(int) for one in (down_s, up_s))
        buckets = int(max(self._down.max(), self._up.max())) + 1
        self._high = np.zeros((buckets, len(down_s)), dtype=np.int64)
        self._low = np.full((buckets, len(down_s)), np.iinfo(np.int64).max)
        self._asked = 0

    def settle(self, workers: Counts, asked: Counts) -> Counts:
        bucket, fresh = divmod(self._asked, BUCKET)
        here = bucket % len(self._high)
        if fresh == 0:
            self._high[here], self._low[here] = asked, asked
        else:
            np.maximum(self._high[here], asked, out=self._high[here])
            np.minimum(self._low[here], asked, out=self._low[here])
        self._asked += 1
        wanted = np.where(asked == workers, workers, asked)
        for windows, kept, less, side in (
            (self._down, self._high, asked < workers, np.max),
            (self._up, self._low, asked > workers, np.min),
        ):
            for window in np.unique(windows[less]):
                lanes = np.flatnonzero(less & (windows == window))
                back = (bucket - np.arange(min(window + 1, bucket + 1))) % len(kept)
                wanted[lanes] = side(kept[np.ix_(back, lanes)], axis=0) if window else asked[lanes]
        return np.where(
            asked < workers,
            np.minimum(wanted, workers),
            np.where(asked > workers, np.maximum(wanted, workers), workers),
        )


class Hpa:
    """Autoscaler that follows utilization."""

    def __init__(self, settings: HpaSettings, *, most: int, every_s: float) -> None:
        self._target, self._most = settings.target, most
        self._windows = Windows(settings.down_s, settings.up_s, every_s=every_s)

    def wants(self, workers: Counts, utilization: Array, free: NDArray[np.bool_]) -> Counts:
        """Return the wanted workers. Lanes that are not `free` are changing, so their workers are not measured."""
        asked = recommend(workers, utilization / self._target, most=self._most)
        return self._windows.settle(workers, np.where(free, asked, workers))
