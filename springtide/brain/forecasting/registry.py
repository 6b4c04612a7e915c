"""Forecasters by name, with `auto`, and with MSTL, which needs the package statsforecast.

`planning.online.forecasters` has the forecasters without extra packages.
"""

import importlib.util
import time
import warnings
from collections.abc import Callable
from functools import partial

from springtide import errors
from springtide.planning.online import forecasters
from springtide.planning.online.forecasters import Forecaster
from springtide.planning.online.seasonal import calibrated, coarsely
from springtide.planning.online.traffic import Array, PastTraffic, RateForecast
from springtide.planning.policy import registry as policies

AUTO = "auto"
BUDGET_S = 400.0
"""Seconds for each model when `auto` chooses. A model that needs more time is skipped, and the choice says so."""


MSTL, PACKAGE = "mstl", "statsforecast"
MSTL_DAYS = 15  # days of history that MSTL needs: two weeks, and one day to test on


def names() -> tuple[str, ...]:
    return tuple(sorted({AUTO, MSTL, *forecasters.names()}))


def installed() -> tuple[str, ...]:
    return (*forecasters.names(), *([MSTL] if importlib.util.find_spec(PACKAGE) else []))


def check(name: str) -> None:
    """Raise an error that the user can fix if the forecaster is unusable. Its package is located, not imported."""
    if name == MSTL and importlib.util.find_spec(PACKAGE) is None:
        raise errors.MissingExtra(f"forecaster {name!r}", "forecast")
    if ":" not in name and name not in names():
        raise errors.UnknownName(forecasters.KIND, name, names())


def load(name: str) -> Forecaster:
    """Return the forecaster of that name; for `auto` call `choose`."""
    check(name)
    if name != MSTL:
        return forecasters.load(name)
    mstl = partial(calibrated, name, coarsely(_mstl), MSTL_DAYS)
    return lambda history, steps: forecasters.sound(name, mstl(history, steps), history, steps)


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
        forecast = self._forecaster(history, steps)
        self._took_s = self._clock() - began
        self._left_s -= self._took_s
        return forecast


def _mstl(past: Array, day: int, steps: int) -> Array:
    from statsforecast.models import MSTL

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsforecast would warn about its own choice of trend
        forecast = MSTL(season_length=[day, 7 * day]).forecast(y=past, h=steps)
    mean: Array = forecast["mean"]
    return mean
