"""Generated traffic: days and weeks, levels of days, noise."""

import numpy as np

from springtide.planning.online.traffic import PastTraffic

DAY = 48
STEP_S = 86_400 / DAY


def days(count: int, *, seed: int = 1, weekly: float = 0.7, levels: float = 0.05, noise: float = 0.03) -> PastTraffic:
    """So many days, low at night; the last two of each week lower still."""
    chance = np.random.default_rng(seed)
    at = np.arange(count * DAY) / DAY
    shape = 1 + 6.65 * np.clip(np.sin(np.pi * ((at % 1) * 24 - 5) / 19), 0, 1)
    week = np.where(at.astype(int) % 7 >= 5, weekly, 1.0)
    level = np.repeat(np.exp(chance.normal(0, levels, count)), DAY)
    return PastTraffic(step_s=STEP_S, values=1000 * shape * week * level * chance.normal(1, noise, len(at)).clip(0.5))
