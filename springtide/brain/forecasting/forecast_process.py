"""Process of a forecaster: answers one request and exits (`python -m springtide.brain.forecasting.forecast_process`).

In: a frame with a `ForecastRequest` on standard input. Out: a frame with a `ForecastReply` on standard output. Output
that a model prints goes to standard error. The process exits after its reply, which frees the model's memory. Next:
`brain.forecasting.forecast_client` reads the reply.
"""

import os
import sys
from typing import BinaryIO

import msgspec
import numpy as np

from springtide import errors
from springtide.brain.forecasting import registry
from springtide.planning.online.traffic import Array, PastTraffic, RateForecast
from springtide.rpc.transport import frames

MAX_BYTES = 64 * 2**20  # a year of seconds takes 250 MB, four weeks of minutes 0.3 MB


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
            raise frames.BadFrame(f"a forecast of {len(parts[0])} steps came, {steps} were asked for")
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
        said = registry.load(name)(history, asked.steps)
    except Exception as error:  # third-party code may raise anything; the client reports it and uses the default model
        return ForecastReply(failed=f"{type(error).__name__}: {error}")
    return ForecastReply(
        _bytes(said.mean),
        _bytes(said.low),
        _bytes(said.high),
        said.member,
        said.why,
        said.tried,
        name if asked.name == registry.AUTO else "",
        why,
    )


def _bytes(values: Array) -> bytes:
    return np.ascontiguousarray(values, dtype=np.float64).tobytes()


def main() -> int:
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep a model's prints out of the reply frame
    os.nice(10)  # training has priority over forecasts
    asked = read(source)
    if asked is None:
        return 0
    sink.write(frames.pack(answer(asked), limit=MAX_BYTES))
    sink.flush()
    os._exit(0)  # do not wait for threads that the model left behind


def read(source: BinaryIO) -> ForecastRequest | None:
    """Return the request, or None at the end of the input."""
    head = source.read(frames.LENGTH.size)
    if len(head) < frames.LENGTH.size:
        return None
    (size,) = frames.LENGTH.unpack(head)
    if size > MAX_BYTES:
        raise errors.BadInput(f"a question of {size} bytes announced, at most {MAX_BYTES} are taken")
    return frames.unpack(source.read(size), msgspec.msgpack.Decoder(ForecastRequest))


if __name__ == "__main__":
    sys.exit(main())
