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
"""Wanted age of a forecast in seconds, so that later traffic shows its level. Values from half an hour to 2 hours work
equally well."""
FADES_S = 4 * 3600.0
"""Time constant of the level correction in seconds. On traces of taxis, messages and web pages, 3 to 12 hours work
equally well."""
LEVEL = (0.2, 5.0)
"""Limits on the level correction."""
SURE = 0.35
"""Share of the interval that applies to the next minutes, once the level is known."""
UNSURE_S = 4 * 3600.0
"""Seconds until the whole interval applies."""
OLDEST = 0.3
"""Weight of the oldest step in the level; the newest has weight 1."""


def outlook(said: RateForecast, came: Array) -> TrafficOutlook:
    """Return the rest of a forecast at the current level. `came` is the traffic of its first, completed steps."""
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
    """Return the recent ratio of actual to forecast traffic."""
    looked_at = min(len(came), max(1, round(LOOKED_AT_S / said.step_s)))
    if not looked_at:
        return 1.0
    weights = np.linspace(OLDEST, 1, looked_at) if looked_at > 1 else np.ones(1)
    told = float(said.mean[len(came) - looked_at : len(came)] @ weights)
    return float(np.clip(came[-looked_at:] @ weights / max(told, 1e-9), *LEVEL))
