"""Records a job's progress over time in `progress.jsonl` of its run, for sparklines, plots and experiment trackers.

In: a `ProgressPoint` each second, from `master.core.progress.point_of`. The file holds the whole life of a job in a
bounded number of points: whenever the file is full, every second point is dropped, and points come half as often.
"""

import pathlib

import msgspec

from springtide.telemetry import events

EVERY_S = 1.0  # seconds between the first points
MOST = 3600  # points; an hour at full resolution, and at most 1 MB


class ProgressPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a job at one moment."""

    at: float
    """Time of day, as Unix time in seconds."""
    samples: int
    """Number of samples trained so far, including the samples of the run from which this run resumed. After the loss of
    a server, the number may fall, because samples are trained again.
    """
    samples_per_s: float
    loss: float | None = None
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    shards_done: int = 0
    workers: int = 0
    servers: int = 0
    data_workers: int = 0
    lag_s: float | None = None
    """Waiting time of the oldest untrained sample of a stream; None for a job without a stream."""


class ProgressLog:
    """An open `progress.jsonl`."""

    def __init__(self, path: pathlib.Path, *, every_s: float = EVERY_S, most: int = MOST) -> None:
        self._series, self._most = events.Series(path, ProgressPoint, most=2 * most), most
        points = self._series.points
        self._every_s = every_s
        while points and points[-1].at - points[0].at > self._every_s * most:
            self._every_s *= 2

    def is_due(self, at: float) -> bool:
        """Return True if the last point is old enough, or lies in the future because the machine's clock was set."""
        points = self._series.points
        return not points or not 0 <= at - points[-1].at < self._every_s

    def add(self, point: ProgressPoint) -> None:
        self._series.add(point)
        if len(self._series.points) > self._most:
            self._every_s *= 2
            self._series.thin()


def read(path: pathlib.Path) -> list[ProgressPoint]:
    return events.read_points(path, ProgressPoint)
