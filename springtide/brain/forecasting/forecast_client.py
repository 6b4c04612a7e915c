"""Forecasts traffic for a master in a child process, and falls back to the default model.

If the process dies, hangs or is slow, the default model answers and the forecast says so. The client reuses the reply
of a process for an hour.
"""

import asyncio
import logging

import msgspec

from springtide.brain.forecasting import registry
from springtide.brain.forecasting.forecast_process import MAX_BYTES, ForecastReply, question
from springtide.brain.service import child_process
from springtide.planning.online.forecasters import BUILT_IN
from springtide.planning.online.traffic import DAY_S, PastTraffic, RateForecast
from springtide.rpc.transport import frames

log = logging.getLogger(__name__)
PATIENCE_S = 2.0  # most seconds that a caller waits for a running forecast process
LIMIT_S = 1800.0  # seconds after which a process counts as hung; choosing among models may take minutes
AGAIN_S = 3600.0  # seconds seconds between two requests to a process
CHOOSE_AGAIN_S = DAY_S
FIRST_RETRY_S, LAST_RETRY_S = 60.0, 3600.0  # seconds to wait after a failed process; the wait doubles with each failure
_answers = msgspec.msgpack.Decoder(ForecastReply)


class Forecasting:
    """Forecasts of one stream. Use it within one event loop."""

    def __init__(
        self,
        name: str = "default",
        *,
        patience_s: float = PATIENCE_S,
        limit_s: float = LIMIT_S,
        again_s: float = AGAIN_S,
    ) -> None:
        registry.check(name)
        self.name = name
        self.trouble = ""
        """Reason why the last process gave no forecast; empty after a success or before the first request."""
        self.chosen = ""
        """Model that `auto` chose, with the reason."""
        self.chosen_why = ""
        self._patience_s, self._limit_s, self._again_s = patience_s, limit_s, again_s
        self._kept: tuple[float, RateForecast] | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._next_at = self._chosen_at = float("-inf")
        self._retry_s = FIRST_RETRY_S

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def forecast(self, history: PastTraffic, steps: int, *, at: float) -> RateForecast:
        """Forecast the steps after `at`, in seconds of any steady clock. Errors of a model are never raised."""
        if self.name in BUILT_IN:
            return BUILT_IN[self.name](history, steps)
        if self._task is None and at >= self._next_at:
            self._task = asyncio.create_task(self._ask(history, steps + history.day, at))
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._patience_s)
            if self._task.done():
                self._task = None
        if self._kept is not None:
            made_at, forecast = self._kept
            kept = forecast.later(max(round((at - made_at) / history.step_s), 0), steps)
            if kept.step_s == history.step_s and len(kept.mean) == steps:
                return kept.because(self.trouble) if self.trouble else kept
        why = self.trouble or f"forecaster {self.name} is still working"
        return BUILT_IN["default"](history, steps).because(f"{why}: the default model is used")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _ask(self, history: PastTraffic, steps: int, at: float) -> None:
        """Ask the process for a forecast of one day more than needed, so that later requests can use the cached
        forecast."""
        fresh = at - self._chosen_at < CHOOSE_AGAIN_S
        try:
            answer = await self._answer(history, steps, self.chosen if fresh else "")
            if answer.failed:
                raise ValueError(answer.failed)
            kept = (at, answer.forecast(history.step_s, steps))
        except (OSError, EOFError, TimeoutError, ValueError, frames.BadFrame) as error:
            what = f"no answer in {self._limit_s:g} s" if isinstance(error, TimeoutError) else str(error)
            self.trouble = f"forecaster {self.name} failed ({what})"
            log.warning("%s; next attempt in %.0f s", self.trouble, self._retry_s)
            self._next_at = at + self._retry_s
            self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
            return
        self._kept, self.trouble, self._retry_s = kept, "", FIRST_RETRY_S
        self._next_at = at + self._again_s
        if answer.chosen and not fresh:
            self.chosen, self.chosen_why, self._chosen_at = answer.chosen, answer.chosen_why, at
            log.info("%s", answer.chosen_why)

    async def _answer(self, history: PastTraffic, steps: int, chosen: str) -> ForecastReply:
        process = self._process = await child_process.start("springtide.brain.forecasting.forecast_process")
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(self._limit_s):
                process.stdin.write(frames.pack(question(self.name, history, steps, chosen), limit=MAX_BYTES))
                await process.stdin.drain()
                try:
                    return await frames.read(process.stdout, _answers, limit=MAX_BYTES)
                except EOFError:
                    raise EOFError(f"its process ended with {await process.wait()} before it answered") from None
        finally:
            try:
                await child_process.end(process)
            finally:
                self._process = None
