"""Pure. Simple forecasts that repeat past days or weeks, optionally scaled to the level of the last day or hours.

In: past traffic in equal steps. Out: the next steps. Next: seasonal.py tests all of them on past days and weights them
by their errors.
"""

from collections.abc import Callable

import numpy as np

from springtide.planning.online.forecast.traffic import Array

Member = Callable[[Array, int, int], Array]
"""Function of the past without gaps, the steps per day, and the number of steps to forecast."""
DAYS = 7
WEEKS = 4  # past weeks in a usual week
LEVEL = (0.5, 2.0)  # limits on a day's level relative to the usual day
RECENT = (1 / 3, 3.0)  # limits on the level of the last hours
RECENT_H = 2  # hours that determine the current level
FADES_H = 4  # time constant in hours: about a third of the level correction is left after it


def last_day(past: Array, day: int, steps: int) -> Array:
    return np.resize(past[-day:], steps)


def last_week(past: Array, day: int, steps: int) -> Array:
    return np.resize(past[-7 * day :], steps)


def usual_day(past: Array, day: int, steps: int) -> Array:
    """Return the median of each time of day over the last days."""
    days = min(DAYS, len(past) // day)
    return np.resize(np.median(past[-days * day :].reshape(days, day), axis=0), steps)


def usual_week(past: Array, day: int, steps: int) -> Array:
    """Return the median of each time of week over the last weeks."""
    week = 7 * day
    weeks = min(WEEKS, len(past) // week)
    return np.resize(np.median(past[-weeks * week :].reshape(weeks, week), axis=0), steps)


def at_todays_level(member: Member) -> Member:
    """Scale a member by the ratio of the last day to the member's forecast of it."""

    def forecast(past: Array, day: int, steps: int) -> Array:
        said = member(past[:-day], day, day)
        level = float(past[-day:].sum() / max(said.sum(), 1e-9))
        return np.asarray(member(past, day, steps) * np.clip(level, *LEVEL))

    return forecast


def from_the_last_hours(member: Member) -> Member:
    """Scale a member by the ratio of the last hours to its forecast of them. The correction fades."""

    def forecast(past: Array, day: int, steps: int) -> Array:
        back = max(1, RECENT_H * day // 24)
        said = member(past[:-back], day, back)
        level = np.clip(float(past[-back:].sum() / max(said.sum(), 1e-9)), *RECENT)
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
"""Members by name, each with the days of history it needs."""


COARSE = 48  # steps per day


def coarse(past: Array, day: int) -> tuple[Array, int, int]:
    """Return means of half hours, aligned to the newest step, the steps per half hour, and the half hours per day."""
    times = day // COARSE if day > COARSE and day % COARSE == 0 else 1
    return past[len(past) % times :].reshape(-1, times).mean(axis=1), times, day // times


def fine(said: Array, times: int) -> Array:
    if times == 1:
        return said
    at = (np.arange(len(said) * times) + 0.5) / times - 0.5
    return np.interp(at, np.arange(len(said)), said)


def coarsely(member: Member) -> Member:
    def forecast(past: Array, day: int, steps: int) -> Array:
        halves, times, half_day = coarse(past, day)
        return fine(member(halves, half_day, -(-steps // times)), times)[:steps]

    return forecast
