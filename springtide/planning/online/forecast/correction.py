"""Pure. Corrects a traffic forecast by the traffic that arrived since it was made.

In: a `RateForecast` that began some steps ago, and the traffic of those steps. Out: a `TrafficOutlook` from now on. A
day above its forecast stays above it for a while, so the ratio of the last steps is applied and fades over hours. For
the same reason the next hour is more certain than tomorrow. The master and the simulator both use this module. Next:
planning/online/scaling/decision.py.
"""

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.data.online_view import TrafficOutlook
from springtide.planning.online.forecast.seasonal import RateForecast

Array = NDArray[np.float64]
LOOKED_AT_S = 2400.0
"""A forecast should have been made so long ago: what came since tells its level. Half an hour to 2 do as well."""
FADES_S = 4 * 3600.0
"""The level is believed less by e in so long (on traces of taxis, messages and web pages 3 to 12 hours do as well)."""
LEVEL = (0.2, 5.0)
"""A forecast is not taken to be wrong by more than this."""
SURE = 0.35
"""Part of its interval that a forecast is wrong by in the next minutes, once its level is known."""
UNSURE_S = 4 * 3600.0
"""After so long it is wrong by all of it."""
OLDEST = 0.3
"""How much the oldest of the steps that are looked at counts, the newest counting 1."""


def outlook(said: RateForecast, came: Array) -> TrafficOutlook:
    """`came` is the traffic of the forecast's first steps, which are over; what is left of it, at today's level."""
    over = len(came)
    left = len(said.mean) - over
    if left < 1:
        raise errors.BadInput(f"a forecast of {len(said.mean)} steps of which {over} are over: wanted one that goes on")
    ahead_s = (np.arange(left) + 0.5) * said.step_s
    level = _level(said, came)
    mean = said.mean[over:] * (1 + (level - 1) * np.exp(-ahead_s / FADES_S))
    wide = said.high[over:] / np.maximum(said.mean[over:], 1e-9) - 1
    high = mean * (1 + np.maximum(wide, 0) * np.minimum(1, SURE + (1 - SURE) * ahead_s / UNSURE_S))
    why = said.why if not over else f"{said.why}; {level:.0%} of it came of late"
    return TrafficOutlook(step_s=said.step_s, mean=tuple(mean.tolist()), high=tuple(high.tolist()), why=why)


def _level(said: RateForecast, came: Array) -> float:
    """What came of late / what was said of it."""
    looked_at = min(len(came), max(1, round(LOOKED_AT_S / said.step_s)))
    if not looked_at:
        return 1.0
    weights = np.linspace(OLDEST, 1, looked_at) if looked_at > 1 else np.ones(1)
    told = float(said.mean[len(came) - looked_at : len(came)] @ weights)
    return float(np.clip(came[-looked_at:] @ weights / max(told, 1e-9), *LEVEL))
