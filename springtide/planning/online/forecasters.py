"""Pure. Looks up forecasters by name (the default, simple baselines, plug-ins), and tests them on past traffic.

In: a name. Out: a function `(PastTraffic, steps) -> RateForecast` whose results are validated. A package registers its
forecasters under the entry point group `springtide.forecasters`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from springtide import errors
from springtide.planning.online.seasonal import calibrated, forecast, last_day, last_week
from springtide.planning.online.traffic import DAY_S, PastTraffic, RateForecast
from springtide.planning.policy import registry

Forecaster = Callable[[PastTraffic, int], RateForecast]
GROUP = "springtide.forecasters"
KIND = "forecaster"
BUILT_IN: dict[str, Forecaster] = {
    "default": forecast,
    "last-day": partial(calibrated, "last-day", last_day, 1),
    "last-week": partial(calibrated, "last-week", last_week, 7),
}
"""Built-in forecasters, which need only NumPy and take milliseconds."""


def load(name: str) -> Forecaster:
    forecaster = registry.find(name, BUILT_IN, GROUP, KIND)
    return forecaster if name in BUILT_IN else partial(_checked, name, forecaster)


def _checked(name: str, theirs: registry.Plugin, history: PastTraffic, steps: int) -> RateForecast:
    return sound(name, theirs(history, steps), history, steps)


def sound(name: str, forecast: object, history: PastTraffic, steps: int) -> RateForecast:
    """Validate a forecast: the forecast must have the requested number of finite values. Clip the forecast to
    values >= 0 and low <= mean <= high.
    """
    if not isinstance(forecast, RateForecast):
        raise errors.BadInput(f"forecaster {name!r} returned a {type(forecast).__name__}; expected a Forecast")
    if abs(forecast.step_s - history.step_s) > 1e-9:
        raise errors.BadInput(
            f"forecaster {name!r} forecasts in steps of {forecast.step_s:g} s; expected {history.step_s:g} s"
        )
    parts = {}
    for part in ("mean", "low", "high"):
        values = np.asarray(getattr(forecast, part), dtype=np.float64)
        if values.shape != (steps,) or not np.isfinite(values).all():
            wrong = f"shape {values.shape}" if values.shape != (steps,) else "numbers that are not finite"
            raise errors.BadInput(f"forecaster {name!r} gave {part} of {wrong}; expected {steps} numbers")
        parts[part] = np.maximum(values, 0.0)
    mean = parts["mean"]
    return replace(forecast, mean=mean, low=np.minimum(parts["low"], mean), high=np.maximum(parts["high"], mean))


KNOWN_DAYS = 28


class BacktestScore(NamedTuple):
    """Errors of a forecaster in a backtest."""

    wape: float
    """Sum of absolute errors as a share of the traffic."""
    covered: float
    """Share of values that lie between low and high; the target is 0.8."""
    below: float
    """Share of values that lie below high; the target is 0.9."""
    bias: float
    """Sum of errors as a share of the traffic; positive if the forecast was too high."""
    tried: int


def backtest(
    history: PastTraffic,
    forecaster: Forecaster,
    *,
    known_days: int = KNOWN_DAYS,
    every_s: float = DAY_S,
    last: int | None = None,
) -> BacktestScore:
    """Score forecasts of the past. A forecast begins every `every_s` seconds, and predicts a day from the `known_days`
    before it. `last` limits the test to the last forecasts."""
    step, ahead = (round(seconds / history.step_s) for seconds in (every_s, DAY_S))
    starts = list(range(len(history.values) - ahead, known_days * history.day - 1, -step))[:last][::-1]
    if not starts or step < 1 or ahead < 1:
        raise errors.BadInput(f"{history.days} days of traffic: expected {known_days}, and 1 to forecast")
    off = over = traffic = 0.0
    inside = under = values = 0
    for start in starts:
        came = history.values[start : start + ahead]
        forecast = forecaster(history.before(start, days=known_days), ahead)
        known = ~np.isnan(came)
        off += float(np.abs(forecast.mean - came)[known].sum())
        over += float((forecast.mean - came)[known].sum())
        traffic += float(came[known].sum())
        inside += int(((forecast.low <= came) & (came <= forecast.high))[known].sum())
        under += int((came <= forecast.high)[known].sum())
        values += int(known.sum())
    share, counted = max(traffic, 1e-9), max(values, 1)
    return BacktestScore(off / share, inside / counted, under / counted, over / share, len(starts))
