"""Pure. Forecasts traffic from daily and weekly patterns, and corrects the forecast by the latest traffic.

Several simple forecasters, the members, forecast. The weight of a member depends on its errors on the job's own past
days (`weigh`).
"""

from collections.abc import Callable

import msgspec
import numpy as np

from springtide import errors
from springtide.domain.spec.online_job import TrafficOutlook
from springtide.planning.online.traffic import HOUR_S, Array, PastTraffic, RateForecast

__all__ = ["forecast"]

Member = Callable[[Array, int, int], Array]
"""A member: a function of the past without gaps, the steps per day, and the number of steps to forecast."""
DAYS = 7
WEEKS = 4  # number of past weeks from which a usual week is computed
LEVEL = (0.5, 2.0)  # smallest and largest level of a day, relative to the usual day
RECENT = (1 / 3, 3.0)  # smallest and largest level of the last hours
RECENT_H = 2  # number of last hours that determine the current level
FADES_H = 4  # hours after which about a third of the correction is left


def last_day(past: Array, day: int, steps: int) -> Array:
    return np.resize(past[-day:], steps)


def last_week(past: Array, day: int, steps: int) -> Array:
    return np.resize(past[-7 * day :], steps)


def usual_day(past: Array, day: int, steps: int) -> Array:
    days = min(DAYS, len(past) // day)
    return np.resize(np.median(past[-days * day :].reshape(days, day), axis=0), steps)


def usual_week(past: Array, day: int, steps: int) -> Array:
    week = 7 * day
    weeks = min(WEEKS, len(past) // week)
    return np.resize(np.median(past[-weeks * week :].reshape(weeks, week), axis=0), steps)


def at_todays_level(member: Member) -> Member:
    """Scale a member by the ratio of the last day's traffic to the member's forecast of that day."""

    def forecast(past: Array, day: int, steps: int) -> Array:
        forecast = member(past[:-day], day, day)
        level = float(past[-day:].sum() / max(forecast.sum(), 1e-9))
        return np.asarray(member(past, day, steps) * np.clip(level, *LEVEL))

    return forecast


def from_the_last_hours(member: Member) -> Member:
    """Scale a member by the ratio of the last hours' traffic to its forecast of these hours. The correction decreases
    over time."""

    def forecast(past: Array, day: int, steps: int) -> Array:
        back = max(1, RECENT_H * day // 24)
        forecast = member(past[:-back], day, back)
        level = np.clip(float(past[-back:].sum() / max(forecast.sum(), 1e-9)), *RECENT)
        fades = np.exp(-(np.arange(steps) + 0.5) / (FADES_H * day / 24))
        return np.asarray(member(past, day, steps) * level**fades)

    return forecast


MEMBERS: dict[str, tuple[Member, int]] = {
    "like the last day": (last_day, 1),
    "like the last day, from the last hours": (from_the_last_hours(last_day), 2),
    "like the last days": (usual_day, 2),
    "like the last days, at today's level": (at_todays_level(usual_day), 3),
    "like the last days, from the last hours": (from_the_last_hours(usual_day), 3),
    "like the last weeks": (usual_week, 7),
    "like the last weeks, at today's level": (at_todays_level(usual_week), 8),
    "like the last weeks, from the last hours": (from_the_last_hours(at_todays_level(usual_week)), 9),
}
"""Members of the ensemble by name, each with the days of history that it needs."""


TRIED_DAYS = 7  # number of past days on which members are tested
INTERVAL = (10.0, 90.0)  # percentiles of past errors that are the ends of the interval
FEW_DAYS = (2.94, 2.94, 1.70, 1.43, 1.31, 1.24, 1.20)
"""Factor on the interval's width, by the number of days (1 to 7) with known errors. 7 days of errors. Errors within a
day are correlated, so the number of days counts, not the number of errors. The factor is Student's t relative to the
normal distribution, times the root of 1 + 1 / days for the uncertain mean."""
TRUST = 4  # exponent of 1 / error in a member's weight; values from 2 to 8 work about equally well on real traffic
UNTRIED = 1.15  # error to assume for an untested member, as a multiple of the smallest error
EXACT = 1e-4  # smallest error to assume for a member
ONLY_GUESS = 0.5  # relative width of the interval if nothing is known about the errors


class MemberWeights(msgspec.Struct, frozen=True):
    """Weight of each member, and the errors of the combined forecast on past days."""

    members: tuple[tuple[str, float], ...]
    """Names and weights, largest first."""
    wape: float
    """Sum of absolute errors of the combined forecast, as a share of the traffic."""
    ratios: Array
    """Ratios of the actual values to the forecast values on past days."""
    tried: int

    def forecast(self, past: Array, day: int, steps: int) -> Array:
        forecast: Array = np.zeros(steps)
        for name, share in self.members:
            forecast = forecast + share * MEMBERS[name][0](past, day, steps)
        return forecast


def weigh(history: PastTraffic) -> MemberWeights | None:
    """Test every member on the last days and return the weights; None if the traffic history is too short.

    A member that has enough history to forecast, but not enough for a test, gets almost the weight of the best
    member.
    """
    past, day = history.filled().values, history.day
    forecasts: dict[str, Array] = {}
    off: dict[str, float | None] = {}
    for name, (member, needs) in MEMBERS.items():
        days = min(TRIED_DAYS, len(past) // day - needs)
        if days < 0:
            continue
        forecasts[name] = _past_forecasts(member, past, day, days)
        off[name] = _wape(forecasts[name], _last(history, day, days)) if days else None
    tested = {name: error for name, error in off.items() if error is not None}
    if not tested:
        return None
    untried = UNTRIED * min(tested.values())
    weights = {name: max(untried if error is None else error, EXACT) ** -TRUST for name, error in off.items()}
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    days = min(len(forecasts[name]) for name in tested)
    together = np.average(
        [forecasts[name][len(forecasts[name]) - days :] for name in tested],
        axis=0,
        weights=[shares[name] for name in tested],
    )
    came = _last(history, day, days)
    return MemberWeights(
        members=tuple(sorted(shares.items(), key=lambda member: -member[1])),
        wape=_wape(together, came),
        ratios=_ratios(together, came),
        tried=days,
    )


def forecast(history: PastTraffic, steps: int, *, weights: MemberWeights | None = None) -> RateForecast:
    """Forecast the next steps. If `weights` is given, these weights are used again."""
    weights = weights or weigh(history)
    past = history.filled().values
    if weights is None:
        return _untried(history.step_s, past, history.day, steps)
    mean = weights.forecast(past, history.day, steps)
    first, share = weights.members[0]
    why = f"{first} for {share:.0%} of it; together {weights.wape:.1%} off on the last {_days(weights.tried)}"
    return _tested(history, mean, weights.ratios, weights.tried, first, why)


def calibrated(name: str, member: Member, needs: int, history: PastTraffic, steps: int) -> RateForecast:
    """Forecast with one member. The interval follows from the member's errors on the last days.

    Return the default forecast if the history is too short for the member and its test.
    """
    past, day = history.filled().values, history.day
    days = min(TRIED_DAYS, len(past) // day - needs)
    if days < 1:
        return forecast(history, steps).because(f"{name} needs {needs + 1} days, {len(past) // day} are known")
    forecasts, came = _past_forecasts(member, past, day, days), _last(history, day, days)
    mean = np.maximum(member(past, day, steps), 0.0)
    why = f"{name}; {_wape(forecasts, came):.1%} off on the last {_days(days)}"
    return _tested(history, mean, _ratios(forecasts, came), days, name, why)


def _tested(history: PastTraffic, mean: Array, ratios: Array, days: int, member: str, why: str) -> RateForecast:
    low, high = interval(ratios, days)
    return RateForecast(
        step_s=history.step_s, mean=mean, low=mean * low, high=mean * high, member=member, why=why, tried=days
    )


def interval(ratios: Array, days: int) -> tuple[float, float]:
    """Return the two factors that put a tenth of the values below the interval and a tenth above it.

    `ratios` has the ratios of actual to forecast values over `days` days.
    """
    if not len(ratios):
        return 1 - ONLY_GUESS, 1 + ONLY_GUESS
    low, high = np.log(np.maximum(np.percentile(ratios, INTERVAL), EXACT))
    wider = FEW_DAYS[min(max(days, 1), len(FEW_DAYS)) - 1]
    return float(np.exp(min(low, 0.0) * wider)), float(np.exp(max(high, 0.0) * wider))


def _past_forecasts(member: Member, past: Array, day: int, days: int) -> Array:
    """Return the member's forecast of each of the last days, made before that day."""
    starts = [len(past) - back * day for back in range(days, 0, -1)]
    return np.asarray([member(past[:start], day, day) for start in starts]).reshape(days, day)


def _last(history: PastTraffic, day: int, days: int) -> Array:
    """Return the values of the last days. Gaps remain NaN, so that missing values do not count as errors."""
    return history.values[len(history.values) - days * day :].reshape(days, day)


def _wape(forecast: Array, came: Array) -> float:
    return float(np.nansum(np.abs(forecast - came)) / max(float(np.nansum(came)), 1e-9))


def _ratios(forecast: Array, came: Array) -> Array:
    ratios = (came / np.maximum(forecast, 1e-9)).ravel()
    return ratios[~np.isnan(ratios)]


def _days(days: int) -> str:
    return f"{days} days" if days > 1 else "day"


def _untried(step_s: float, past: Array, day: int, steps: int) -> RateForecast:
    """Forecast without any test: repeat yesterday or the last hour, with a wide interval."""
    hour = max(1, int(HOUR_S // step_s))
    if len(past) >= day:
        mean, member = last_day(past, day, steps), "like the last day"
        why = "only one day is known, and the forecast assumes that it repeats"
        low, high = mean * (1 - ONLY_GUESS), mean * (1 + ONLY_GUESS)
    elif len(past):
        mean, member = np.full(steps, float(past[-hour:].mean())), "like the last hour"
        known = f"{len(past) * step_s / HOUR_S:.1f} hours are known, which is less than a day"
        why = f"{known}: traffic is assumed to continue as in the last hour"
        low = np.minimum(mean * (1 - ONLY_GUESS), float(past.min()))
        high = np.maximum(mean * (1 + ONLY_GUESS), float(past.max()))
    else:
        mean = low = high = np.zeros(steps)
        member, why = "nothing", "no traffic was seen yet"
    return RateForecast(step_s=step_s, mean=mean, low=low, high=high, member=member, why=why)


LOOKED_AT_S = 2400.0
"""Age in seconds that a forecast should have. The traffic that has arrived since the forecast was made shows the error
of its level. Values from half an hour to 2 hours work equally well."""
FADES_S = 4 * 3600.0
"""Time constant in seconds of the correction of the level. On real traces, 3 to 12 hours work equally well."""
LEVEL_LIMITS = (0.2, 5.0)
"""Smallest and largest correction of the level."""
SURE = 0.35
"""Share of the interval's width that applies to the next minutes, when the level is known."""
UNSURE_S = 4 * 3600.0
"""Seconds until the full width of the interval applies."""
OLDEST = 0.3
"""Weight of the oldest step in the level; the newest step has weight 1."""


def outlook(forecast: RateForecast, came: Array) -> TrafficOutlook:
    """Return the future steps of a forecast, scaled to the current level. `came` is the actual traffic in the steps
    that are over."""
    over = len(came)
    left = len(forecast.mean) - over
    if left < 1:
        raise errors.BadInput(
            f"a forecast of {len(forecast.mean)} steps, but {over} steps are over: expected at least one step ahead"
        )
    ahead_s = (np.arange(left) + 0.5) * forecast.step_s
    level = _level(forecast, came)
    mean = forecast.mean[over:] * (1 + (level - 1) * np.exp(-ahead_s / FADES_S))
    wide = forecast.high[over:] / np.maximum(forecast.mean[over:], 1e-9) - 1
    high = mean * (1 + np.maximum(wide, 0) * np.minimum(1, SURE + (1 - SURE) * ahead_s / UNSURE_S))
    why = forecast.why if not over else f"{forecast.why}; {level:.0%} of it arrived recently"
    return TrafficOutlook(step_s=forecast.step_s, mean=tuple(mean.tolist()), high=tuple(high.tolist()), why=why)


def _level(forecast: RateForecast, came: Array) -> float:
    looked_at = min(len(came), max(1, round(LOOKED_AT_S / forecast.step_s)))
    if not looked_at:
        return 1.0
    weights = np.linspace(OLDEST, 1, looked_at) if looked_at > 1 else np.ones(1)
    forecast_level = float(forecast.mean[len(came) - looked_at : len(came)] @ weights)
    return float(np.clip(came[-looked_at:] @ weights / max(forecast_level, 1e-9), *LEVEL_LIMITS))
