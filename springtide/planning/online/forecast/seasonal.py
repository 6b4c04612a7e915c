"""Pure. Forecasts traffic from daily and weekly patterns, scaled to the level of the last day.

In: traffic in equal steps, newest last (`PastTraffic`). Out: a `RateForecast` of the next steps, with an 80% interval
and the reason. It needs NumPy only.

Several simple members forecast. Each member's weight depends on its errors on the job's own past days (`weigh`). With
less than two days of history no test is possible, and the reason says so. Other forecasters: registry.py. Next:
planning/online/scaling/min_workers.py.
"""

from dataclasses import dataclass

import numpy as np

from springtide.planning.online.forecast.simple_forecasts import MEMBERS, Member, last_day
from springtide.planning.online.forecast.traffic import DAY_S, HOUR_S, Array, PastTraffic, RateForecast

__all__ = [
    "DAY_S",
    "HOUR_S",
    "Array",
    "MemberWeights",
    "PastTraffic",
    "RateForecast",
    "calibrated",
    "forecast",
    "interval",
    "weigh",
]

TRIED_DAYS = 7  # past days for testing members
INTERVAL = (10.0, 90.0)  # percentiles of past errors
FEW_DAYS = (2.94, 2.94, 1.70, 1.43, 1.31, 1.24, 1.20)
"""Factor on the interval for 1, 2 ... 7 days of errors. Errors within a day are correlated, so days count. The factor
is Student's t relative to the normal distribution, times the root of 1 + 1 / days for the uncertain mean."""
TRUST = 4  # exponent of 1 / error in a member's weight; 2 to 8 work about equally well on real traffic
UNTRIED = 1.15  # assumed error of an untested member, as a multiple of the best error
EXACT = 1e-4  # smallest error
ONLY_GUESS = 0.5  # relative interval if nothing is known


@dataclass(frozen=True, slots=True)
class MemberWeights:
    """Weight of each member, and the errors of the combined forecast on past days."""

    members: tuple[tuple[str, float], ...]
    """Names and weights, largest first."""
    wape: float
    """Sum of absolute errors of the combined forecast, as a share of the traffic."""
    ratios: Array
    """Ratios of actual to forecast values on past days."""
    tried: int

    def forecast(self, past: Array, day: int, steps: int) -> Array:
        said: Array = np.zeros(steps)
        for name, share in self.members:
            said = said + share * MEMBERS[name][0](past, day, steps)
        return said


def weigh(history: PastTraffic) -> MemberWeights | None:
    """Test every member on the last days and return the weights; None if the history is too short.

    A member with just enough history to forecast, but not to be tested, gets nearly the best weight.
    """
    past, day = history.filled().values, history.day
    told: dict[str, Array] = {}
    off: dict[str, float | None] = {}
    for name, (member, needs) in MEMBERS.items():
        days = min(TRIED_DAYS, len(past) // day - needs)
        if days < 0:
            continue
        told[name] = _told(member, past, day, days)
        off[name] = _wape(told[name], _last(history, day, days)) if days else None
    tested = {name: one for name, one in off.items() if one is not None}
    if not tested:
        return None
    untried = UNTRIED * min(tested.values())
    weights = {name: max(untried if one is None else one, EXACT) ** -TRUST for name, one in off.items()}
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    days = min(len(told[name]) for name in tested)
    together = np.average(
        [told[name][len(told[name]) - days :] for name in tested], axis=0, weights=[shares[name] for name in tested]
    )
    came = _last(history, day, days)
    return MemberWeights(
        members=tuple(sorted(shares.items(), key=lambda one: -one[1])),
        wape=_wape(together, came),
        ratios=_ratios(together, came),
        tried=days,
    )


def forecast(history: PastTraffic, steps: int, *, weights: MemberWeights | None = None) -> RateForecast:
    """Forecast the next steps. `weights` reuses earlier weights."""
    weights = weights or weigh(history)
    past = history.filled().values
    if weights is None:
        return _untried(history.step_s, past, history.day, steps)
    mean = weights.forecast(past, history.day, steps)
    low, high = interval(weights.ratios, weights.tried)
    first, share = weights.members[0]
    why = f"{first} for {share:.0%} of it; together {weights.wape:.1%} off on the last {_days(weights.tried)}"
    return RateForecast(
        step_s=history.step_s, mean=mean, low=mean * low, high=mean * high, member=first, why=why, tried=weights.tried
    )


def calibrated(name: str, member: Member, needs: int, history: PastTraffic, steps: int) -> RateForecast:
    """Forecast with a single member, with the interval of its own errors on the last days.

    Without enough history for the member and its test, return the default forecast.
    """
    past, day = history.filled().values, history.day
    days = min(TRIED_DAYS, len(past) // day - needs)
    if days < 1:
        return forecast(history, steps).because(f"{name} needs {needs + 1} days, {len(past) // day} are known")
    told, came = _told(member, past, day, days), _last(history, day, days)
    mean = np.maximum(member(past, day, steps), 0.0)
    low, high = interval(_ratios(told, came), days)
    why = f"{name}; {_wape(told, came):.1%} off on the last {_days(days)}"
    return RateForecast(
        step_s=history.step_s, mean=mean, low=mean * low, high=mean * high, member=name, why=why, tried=days
    )


def interval(ratios: Array, days: int) -> tuple[float, float]:
    """Return the factors that put a tenth of the values below and a tenth above the interval.

    `ratios` are actual / forecast over `days` days.
    """
    if not len(ratios):
        return 1 - ONLY_GUESS, 1 + ONLY_GUESS
    low, high = np.log(np.maximum(np.percentile(ratios, INTERVAL), EXACT))
    wider = FEW_DAYS[min(max(days, 1), len(FEW_DAYS)) - 1]
    return float(np.exp(min(low, 0.0) * wider)), float(np.exp(max(high, 0.0) * wider))


def _told(member: Member, past: Array, day: int, days: int) -> Array:
    """Return the member's forecast of each of the last days, made before that day."""
    starts = [len(past) - back * day for back in range(days, 0, -1)]
    return np.asarray([member(past[:start], day, day) for start in starts]).reshape(days, day)


def _last(history: PastTraffic, day: int, days: int) -> Array:
    """Return the values of the last days, including gaps, so that unknown values add no error."""
    return history.values[len(history.values) - days * day :].reshape(days, day)


def _wape(told: Array, came: Array) -> float:
    return float(np.nansum(np.abs(told - came)) / max(float(np.nansum(came)), 1e-9))


def _ratios(told: Array, came: Array) -> Array:
    ratios = (came / np.maximum(told, 1e-9)).ravel()
    return ratios[~np.isnan(ratios)]


def _days(days: int) -> str:
    return f"{days} days" if days > 1 else "day"


def _untried(step_s: float, past: Array, day: int, steps: int) -> RateForecast:
    """Forecast without a test: repeat yesterday, or the last hour, with a wide interval."""
    hour = max(1, int(HOUR_S // step_s))
    if len(past) >= day:
        mean, member = last_day(past, day, steps), "like the last day"
        why = "one day is known: taken to come again, which nothing is known to speak for yet"
        low, high = mean * (1 - ONLY_GUESS), mean * (1 + ONLY_GUESS)
    elif len(past):
        mean, member = np.full(steps, float(past[-hour:].mean())), "like the last hour"
        known = f"{len(past) * step_s / HOUR_S:.1f} hours are known, which is less than a day"
        why = f"{known}: taken to go on as in the last hour"
        low = np.minimum(mean * (1 - ONLY_GUESS), float(past.min()))
        high = np.maximum(mean * (1 + ONLY_GUESS), float(past.max()))
    else:
        mean = low = high = np.zeros(steps)
        member, why = "nothing", "no traffic was seen yet"
    return RateForecast(step_s=step_s, mean=mean, low=low, high=high, member=member, why=why)
