"""MSTL: trend, day and week taken apart by smoothing, each carried on (statsforecast; `pip install
'springtide[forecast]'`).

In: a `History` of two weeks or more. Out: a `Forecast` with an interval of its own errors on the past days. It is made
by half hours, which takes a second, and told by the history's steps. Next: `brain.forecasting.registry` checks it.
"""

import warnings
from functools import partial

from springtide.planning.online.forecast.registry import Forecaster
from springtide.planning.online.forecast.seasonal import calibrated
from springtide.planning.online.forecast.simple_forecasts import coarsely
from springtide.planning.online.forecast.traffic import Array

NEEDS_DAYS = 15  # two weeks, and a day to see where they go


def forecaster(name: str) -> Forecaster:
    return partial(calibrated, name, coarsely(_mstl), NEEDS_DAYS)


def _mstl(past: Array, day: int, steps: int) -> Array:
    from statsforecast.models import MSTL

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it does not like in its own choice of a trend
        said = MSTL(season_length=[day, 7 * day]).forecast(y=past, h=steps)
    mean: Array = said["mean"]
    return mean
