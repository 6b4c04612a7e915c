"""Looks up forecasters by name, including those that need optional packages and `auto`.

`planning.online.forecasters` holds the forecasters without extra packages.
"""

import importlib.util
import time
from collections.abc import Callable
from typing import NamedTuple

from springtide import errors
from springtide.planning.online import forecasters
from springtide.planning.online.forecasters import Forecaster
from springtide.planning.online.traffic import PastTraffic, RateForecast
from springtide.planning.policy import registry as policies

AUTO = "auto"
BUDGET_S = 400.0
"""Seconds for each model when `auto` chooses. A model that needs more time is skipped, and the choice says so."""


class OptionalForecaster(NamedTuple):
    """A forecaster that needs an optional package."""

    package: str
    extra: str


EXTRAS = {
    "mstl": OptionalForecaster("statsforecast", "forecast"),
    "nhits": OptionalForecaster("neuralforecast", "forecast-neural"),
    "fedformer": OptionalForecaster("neuralforecast", "forecast-neural"),
}


def names() -> tuple[str, ...]:
    return tuple(sorted({AUTO, *EXTRAS, *forecasters.names()}))


def installed() -> tuple[str, ...]:
    return (*forecasters.names(), *(name for name, one in EXTRAS.items() if importlib.util.find_spec(one.package)))


def check(name: str) -> None:
    """Raise an error that the user can fix if the forecaster is unusable. Its package is located, not imported."""
    if name in EXTRAS and importlib.util.find_spec(EXTRAS[name].package) is None:
        raise errors.MissingExtra(f"forecaster {name!r}", EXTRAS[name].extra)
    if ":" not in name and name not in names():
        raise errors.UnknownName(forecasters.KIND, name, names())


def load(name: str) -> Forecaster:
    """Return the forecaster of that name; for `auto` call `choose`."""
    check(name)
    if name not in EXTRAS:
        return forecasters.load(name)
    from springtide.brain.forecasting import optional_models

    ours = optional_models.forecaster(name)
    return lambda history, steps: forecasters.sound(name, ours(history, steps), history, steps)


def choose(history: PastTraffic, clock: Callable[[], float] = time.monotonic) -> forecasters.ForecasterChoice:
    """Return the installed forecaster with the smallest error on the last days of this history."""
    offered = policies.offered(forecasters.GROUP)
    ours = [name for name in installed() if name not in offered]
    tried = {name: TimedForecaster(load(name), BUDGET_S, clock) for name in (*ours, *offered)}
    return forecasters.choose(history, tried)


class TimedForecaster:
    """A forecaster that raises if the next forecast would exceed its time budget."""

    def __init__(self, forecaster: Forecaster, budget_s: float, clock: Callable[[], float]) -> None:
        self._forecaster, self._clock = forecaster, clock
        self._left_s, self._took_s = budget_s, 0.0

    def __call__(self, history: PastTraffic, steps: int) -> RateForecast:
        if self._took_s > self._left_s:
            raise TimeoutError(f"it takes {self._took_s:.0f} s a forecast")
        began = self._clock()
        said = self._forecaster(history, steps)
        self._took_s = self._clock() - began
        self._left_s -= self._took_s
        return said
