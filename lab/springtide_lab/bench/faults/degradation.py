"""Pure. How a disturbance shows in the moments at which a job's steps were done: how long too slow, when over it.

In: moments, from `springtide_lab.bench.core.step_times`. Out: seconds below a share of the full rate, and when so many
steps were done.
"""

from collections.abc import Sequence

import numpy as np

BUCKET_S = 0.5
"""Rates are those of half seconds: long enough to hold a few dozen steps, short against what is looked for."""
SHARE = 0.9
"""Of the full rate: below that a job counts as held up."""


def rate(times: Sequence[float], begin: float, end: float) -> float:
    """Steps a second between two moments."""
    return float(np.count_nonzero((np.asarray(times) >= begin) & (np.asarray(times) < end))) / (end - begin)


def seconds_below(times: Sequence[float], begin: float, end: float, full: float) -> float:
    """How much of the time between two moments lies in half seconds with fewer steps than a share of the full rate."""
    edges = np.arange(begin, end + 1e-9, BUCKET_S)
    counts, _ = np.histogram(np.asarray(times), edges)
    return float(np.count_nonzero(counts < SHARE * full * BUCKET_S)) * BUCKET_S


def done_at(times: Sequence[float], begin: float, steps: int) -> float | None:
    """When so many steps had been done after `begin`; None: they have not been yet."""
    later = sorted(at for at in times if at >= begin)
    return later[steps - 1] if 0 < steps <= len(later) else None
