"""Pure. Traffic of days for a benchmark: quiet nights, a noon, a busier evening, no two days alike.

In: a seed. Out: rates by time of day as shares of the usual peak; the quietest is 1 / 7.65 of it, as in Kale's
production stream. Next: online_job.py plays one of them, those before are what a forecast is made of.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEPS = 288
"""Of a day: five minutes each."""
RATIO = 7.65
DAY_NOISE, STEP_NOISE, STAYS = 0.05, 0.04, 0.8


@dataclass(frozen=True, slots=True)
class Days:
    """Several days in a row, from one in the past to today."""

    shares: NDArray[np.float64]
    """[days, steps]; the last row is today."""

    def at(self, day: float) -> float:
        """Share of the usual peak, `day` days after today's midnight (below 0: before)."""
        place = (day + len(self.shares) - 1) * STEPS
        flat = self.shares.ravel()
        return float(np.interp(place, np.arange(len(flat)) + 0.5, flat))


def days(count: int, *, seed: int) -> Days:
    """So many days; noise of a step stays for a while, a whole day may be higher or lower than others."""
    rng = np.random.default_rng(seed)
    noise = np.zeros(count * STEPS)
    for step in range(1, len(noise)):
        noise[step] = STAYS * noise[step - 1] + rng.normal(0, STEP_NOISE) * np.sqrt(1 - STAYS**2)
    level = np.repeat(1 + rng.normal(0, DAY_NOISE, count), STEPS)
    whole = np.tile(usual(), count) * level * (1 + noise)
    return Days(np.maximum(whole, 0.5 / RATIO).reshape(count, STEPS))


def usual() -> NDArray[np.float64]:
    """A day without noise, from midnight on: its night, its noon and its evening."""
    hour = (np.arange(STEPS) + 0.5) * 24 / STEPS
    humps = 0.6 * _hump(hour, at=12.0, wide=2.8) + _hump(hour, at=20.0, wide=2.6)
    humps = (humps - humps.min()) / (humps.max() - humps.min())
    return np.asarray(1 / RATIO + (1 - 1 / RATIO) * humps)


def _hump(hour: NDArray[np.float64], *, at: float, wide: float) -> NDArray[np.float64]:
    away = (hour - at + 12) % 24 - 12
    return np.exp(-((away / wide) ** 2) / 2)
