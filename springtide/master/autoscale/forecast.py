"""Forecasts the traffic of an online job from the history in the run's folder.

The history outlives the master and the run, because a job can start with the `traffic.jsonl` of an earlier run. Out:
a `TrafficOutlook` from now on, in steps of stream time.
"""

import asyncio
import logging
import math
import pathlib

import msgspec

from springtide import private_files
from springtide.brain.service.advisers import AdviserThread
from springtide.domain.spec.online_job import OnlineJob, TrafficOutlook, TrafficStep
from springtide.planning.online import forecasters
from springtide.planning.online.seasonal import LOOKED_AT_S, outlook
from springtide.planning.online.traffic import KEPT_S, STEP_S, PastTraffic, RateForecast, TrafficHistory
from springtide.telemetry import events
from springtide.telemetry.events import Series, as_disk_error
from springtide.telemetry.logs import RunFiles

log = logging.getLogger(__name__)

# one hour: without history, the forecast assumes for this long that the traffic of the last minutes continues
COLD_STEPS = 6
COLD_HIGH = 1.5
PATIENCE_S = 2.0  # seconds that a decision waits for a forecaster of a user


class JobForecaster:
    """Forecaster of one job. A user's own forecaster runs in a thread. If the user's forecaster fails or is slow, the
    default forecaster answers.
    """

    def __init__(self, name: str = "default", *, patience_s: float = PATIENCE_S) -> None:
        self._name, self._patience_s, self._forecast = name, patience_s, forecasters.load(name)
        self._thread = AdviserThread()
        self.trouble = ""
        """Why the forecaster gave no forecast the last time; empty if it did."""

    async def forecast(self, history: PastTraffic, steps: int) -> RateForecast:
        if self._name in forecasters.BUILT_IN:
            return self._forecast(history, steps)

        async def ask() -> RateForecast:
            return self._forecast(history, steps)

        try:
            async with asyncio.timeout(self._patience_s):
                made = await self._thread.run(ask)
        except Exception as error:  # third-party code may raise anything
            late = isinstance(error, TimeoutError)
            why = f"no answer in {self._patience_s:g} s" if late else f"{type(error).__name__}: {error}"
            self.trouble = f"forecaster {self._name} failed ({why})"
            log.warning("%s", self.trouble)
            made = forecasters.BUILT_IN["default"](history, steps)
            return made.because(f"{self.trouble}: the default model is used")
        self.trouble = ""
        return made

    def close(self) -> None:
        self._thread.stop()


class TrafficForecast:
    """Traffic history and forecast of one job."""

    def __init__(self, job: OnlineJob, forecasts: JobForecaster, files: RunFiles, *, wall: float, at: float) -> None:
        """`files` are the files of the run. `wall` and `at` are the time of day and the clock time at this moment."""
        self._speedup, self._forecasts, self._since = job.speedup, forecasts, wall - at
        self._traffic = TrafficHistory()
        self._path = files.forecast
        self._file = Series(files.traffic, TrafficStep, most=math.ceil(KEPT_S / STEP_S))
        given = events.read_points(pathlib.Path(job.history), TrafficStep, strict=True) if job.history else []
        first = self._file.points[0].at if self._file.points else math.inf
        for step in [*(point for point in given if point.at < first), *self._file.points]:
            began = step.at * self._speedup
            self._traffic.arrive(began, began + step.seconds * self._speedup, step.samples * self._speedup)
        # copy the given history, so that the next run finds it in this run's folder
        if given and not self._file.points:
            self._file.add(*given)
        self._made: TrafficOutlook | None = None
        self._begins = -1

    def wall(self, now: float) -> float:
        """Return the time of day, unaffected by later changes of the machine's clock."""
        return self._since + now

    @property
    def why(self) -> str:
        return self._made.why if self._made is not None else "no forecast yet"

    @property
    def cold(self) -> bool:
        return len(self._traffic.steps) < self._traffic.day

    @property
    def trouble(self) -> str:
        return self._forecasts.trouble

    def arrived(self, since: float, until: float, samples: float) -> None:
        for step in self._traffic.arrive(self._stream(since), self._stream(until), samples * self._speedup):
            at, seconds = step.number * STEP_S / self._speedup, step.seconds / self._speedup
            self._file.add(TrafficStep(at=at, seconds=seconds, samples=step.samples / self._speedup))

    async def outlook(self, now: float, arriving: float) -> TrafficOutlook:
        """Return the expected traffic from now on. `arriving` is the recent rate, in samples per clock second."""
        at = self._stream(now)
        step = math.floor(at / STEP_S)
        history = self._traffic.history(at)
        if history is None:
            mean = arriving
            why = "only the last minutes are known: assumed to continue"
            return TrafficOutlook(
                step_s=STEP_S, mean=(mean,) * COLD_STEPS, high=(mean * COLD_HIGH,) * COLD_STEPS, why=why
            )
        if self._made is None or step != self._begins:
            over = min(round(LOOKED_AT_S / STEP_S), len(history.values) - 1)
            before = PastTraffic(step_s=STEP_S, values=history.values[: len(history.values) - over])
            forecast = await self._forecasts.forecast(before, self._traffic.day + over)
            self._made = outlook(forecast, history.filled().values[len(history.values) - over :])
            self._begins = step
            self._show(self._made)
        return self._made

    def expected(self, now: float) -> tuple[float | None, float | None]:
        """Return the forecast for now: the mean and the 90% quantile, in samples per clock second."""
        made = self._made
        place = 0 if made is None else int((self._stream(now) - self._begins * STEP_S) // made.step_s)
        if made is None or not 0 <= place < len(made.mean):
            return None, None
        return made.mean[place], made.high[place]

    def _show(self, made: TrafficOutlook) -> None:
        shown = {
            "at": self._begins * STEP_S / self._speedup,
            "step_s": made.step_s / self._speedup,
            "why": made.why,
            "mean": made.mean,
            "high": made.high,
        }
        try:
            private_files.replace(self._path, msgspec.json.encode(shown))
        except OSError as error:  # ignore the error, because the file is only for display
            log.warning("%s", as_disk_error(error, self._path))

    def close(self) -> None:
        self._forecasts.close()

    def _stream(self, now: float) -> float:
        return self.wall(now) * self._speedup
