"""Process of a forecaster: answers one request and exits, which frees the model's memory.

In: a frame with a `ForecastRequest` on standard input. Out: a frame with a `ForecastReply` on standard output.
"""

import os
import sys

import msgspec
import numpy as np

from springtide.brain.forecasting import registry
from springtide.brain.service import child_process
from springtide.planning.online.traffic import Array, PastTraffic, RateForecast
from springtide.rpc.transport import frames

# most bytes of a request; for comparison, four weeks in steps of a minute take 0.3 MB, a year in steps of a second 250
# MB
MAX_BYTES = 64 * 2**20


class ForecastRequest(msgspec.Struct, frozen=True):
    """Request to forecast the steps after this traffic."""

    name: str
    step_s: float
    values: bytes
    """Traffic as 64-bit floats."""
    steps: int
    chosen: str = ""
    """Model that `auto` chose earlier; empty to choose now."""


class ForecastReply(msgspec.Struct, frozen=True):
    """A forecast, or the reason for a failure."""

    mean: bytes = b""
    low: bytes = b""
    high: bytes = b""
    member: str = ""
    why: str = ""
    tried: int = 0
    chosen: str = ""
    chosen_why: str = ""
    failed: str = ""
    """Reason of the failure; all other fields are then unset."""

    def forecast(self, step_s: float, steps: int) -> RateForecast:
        parts = [np.frombuffer(part) if not len(part) % 8 else np.zeros(0) for part in (self.mean, self.low, self.high)]
        if any(len(part) != steps or not np.isfinite(part).all() for part in parts):
            raise frames.BadFrame(f"a forecast of {len(parts[0])} steps was returned, {steps} were requested")
        mean, low, high = parts
        return RateForecast(
            step_s=step_s, mean=mean, low=low, high=high, member=self.member, why=self.why, tried=self.tried
        )


def question(name: str, history: PastTraffic, steps: int, chosen: str) -> ForecastRequest:
    return ForecastRequest(name, history.step_s, _bytes(history.values), steps, chosen)


def answer(asked: ForecastRequest) -> ForecastReply:
    history = PastTraffic(step_s=asked.step_s, values=np.frombuffer(asked.values))
    name, why = asked.chosen or asked.name, ""
    try:
        if name == registry.AUTO:
            choice = registry.choose(history)
            name, why = choice.name, choice.why
        forecast = registry.load(name)(history, asked.steps)
    except Exception as error:  # third-party code may raise anything; the client reports it and uses the default model
        return ForecastReply(failed=f"{type(error).__name__}: {error}")
    return ForecastReply(
        _bytes(forecast.mean),
        _bytes(forecast.low),
        _bytes(forecast.high),
        forecast.member,
        forecast.why,
        forecast.tried,
        name if asked.name == registry.AUTO else "",
        why,
    )


def _bytes(values: Array) -> bytes:
    return np.ascontiguousarray(values, dtype=np.float64).tobytes()


def main() -> int:
    source, sink = child_process.open_pipes()
    os.nice(10)  # training has priority over forecasts
    asked = child_process.read_request(source, msgspec.msgpack.Decoder(ForecastRequest), limit=MAX_BYTES)
    if asked is not None:
        child_process.write_reply(sink, answer(asked), limit=MAX_BYTES)
    os._exit(0)  # do not wait for threads that the model left behind


if __name__ == "__main__":
    sys.exit(main())
