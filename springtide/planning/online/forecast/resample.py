"""Pure. Forecasts by half hours, told by smaller steps: a model that takes seconds at half hours takes minutes at ten.

In: a member (simple_forecasts.py). Out: one that sees means of half hours and is drawn in straight lines between.
Traffic in steps of half an hour or more is left as it is.
"""

import numpy as np

from springtide.planning.online.forecast.simple_forecasts import Member
from springtide.planning.online.forecast.traffic import Array

COARSE = 48  # steps of a day


def coarse(past: Array, day: int) -> tuple[Array, int, int]:
    """Means of half hours, the newest whole; how many steps each is of; how many there are in a day."""
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
