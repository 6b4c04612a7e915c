"""MSTL forecaster: splits traffic into trend, day and week, and extrapolates each part.

Needs statsforecast (`pip install 'springtide[forecast]'`). In: a `PastTraffic` of two weeks or more. Out: a
`RateForecast` with an interval from the model's errors on past days. The model works on half hours, which takes a
second. The result has the time step of the history. Next: `brain.forecasting.registry` checks it.
"""

import warnings
from functools import partial

from springtide.planning.online.forecasters import Forecaster
from springtide.planning.online.seasonal import calibrated, coarsely
from springtide.planning.online.traffic import Array

NEEDS_DAYS = 15  # two weeks of history and one day to test on


def forecaster(name: str) -> Forecaster:
    return partial(calibrated, name, coarsely(_mstl), NEEDS_DAYS)


def _mstl(past: Array, day: int, steps: int) -> Array:
    from statsforecast.models import MSTL

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsforecast warns about its own choice of trend
        said = MSTL(season_length=[day, 7 * day]).forecast(y=past, h=steps)
    mean: Array = said["mean"]
    return mean
