"""Forecasters by name, with those that need extras and the one that chooses among all.

In: a name. Out: a forecaster as in `planning.online.forecast.registry`, which has those that need nothing. Nothing
heavy is imported before a forecast is made. Next: `brain.forecasting.forecast_process` calls it.
"""

import importlib
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from springtide import errors
from springtide.planning.online.forecast import backtest, registry
from springtide.planning.online.forecast.registry import Forecaster
from springtide.planning.online.forecast.traffic import PastTraffic, RateForecast
from springtide.planning.policy import registry as policies

AUTO = "auto"
BUDGET_S = 400.0
"""For each model, when one is chosen: one that would take longer to be tried is left out, and that is said."""


class OptionalForecaster(NamedTuple):
    """A forecaster that needs a package."""

    module: str
    """Of ours; it has a function `forecaster(name)`."""
    package: str
    extra: str


EXTRAS = {
    "mstl": OptionalForecaster("springtide.brain.forecasting.mstl", "statsforecast", "forecast"),
    "nhits": OptionalForecaster("springtide.brain.forecasting.neural", "neuralforecast", "forecast-neural"),
    "fedformer": OptionalForecaster("springtide.brain.forecasting.neural", "neuralforecast", "forecast-neural"),
}


def names() -> tuple[str, ...]:
    """All that can be called by a plain name, installed or not."""
    return tuple(sorted({AUTO, *EXTRAS, *registry.names()}))


def installed() -> tuple[str, ...]:
    return (*registry.names(), *(name for name, one in EXTRAS.items() if importlib.util.find_spec(one.package)))


def check(name: str) -> None:
    """Raise what a user has to mend before it can be used; its package is looked for, not imported."""
    if name in EXTRAS and importlib.util.find_spec(EXTRAS[name].package) is None:
        raise errors.MissingExtra(f"forecaster {name!r}", EXTRAS[name].extra)
    if ":" not in name and name not in names():
        raise errors.UnknownName(registry.KIND, name, names())


def load(name: str) -> Forecaster:
    """The forecaster of that name; `auto` has to be asked by `choose`."""
    check(name)
    if name not in EXTRAS:
        return registry.load(name)
    make: Callable[[str], Forecaster] = importlib.import_module(EXTRAS[name].module).forecaster
    return partial(_sound, name, make(name))


def _sound(name: str, ours: Forecaster, history: PastTraffic, steps: int) -> RateForecast:
    return registry.sound(name, ours(history, steps), history, steps)


def choose(history: PastTraffic, clock: Callable[[], float] = time.monotonic) -> backtest.ForecasterChoice:
    """The best of all that are installed, by how they would have done on this history's own last days."""
    offered = policies.offered(registry.GROUP)
    ours = [name for name in installed() if name not in offered]
    tried = {name: TimedForecaster(load(name), BUDGET_S, clock) for name in (*ours, *offered)}
    return backtest.choose(history, tried)


class TimedForecaster:
    """A forecaster that raises when the next forecast would take it beyond its time."""

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
