"""Pure. What a job's gain counts for beside the gains of other jobs: WG of Eqn 14, and other preferences.

In: a job's `Standing` and the throughput of each of its candidates. Out: the logarithm of a weight for each candidate:
weights of one cluster may lie hundreds of orders of magnitude apart, their logarithms do not.
Next: `planning.allocate.choose` multiplies gains by them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide import errors

Floats = NDArray[np.float64]
LEAST_RATE = 1e-9
"""Samples a second: what stands still has a long time before it, not an infinite one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a preference may look at: one job."""

    samples_left: float
    throughput: float
    """Samples a second now; 0: nothing runs."""
    waited_s: float = 0.0
    """Since it was submitted."""
    given: float = 1.0
    """The priority that its user gave."""


Priority = Callable[[Standing, Floats, float, float], Floats]
"""A job, the throughput of its candidates, rho and epsilon: the log of each candidate's weight."""


def remaining(job: Standing, throughput: Floats, rho: float, epsilon: float) -> Floats:
    """Eqn 14: by the time that would be left with the candidate. rho > 0 favours jobs that end soon, < 0 late ones."""
    left_s = job.samples_left / np.maximum(throughput, LEAST_RATE)
    return -rho * np.log(np.maximum(left_s + epsilon, LEAST_RATE))


def remaining_now(job: Standing, throughput: Floats, rho: float, epsilon: float) -> Floats:
    """Eqn 14 at today's speed: all candidates of a job weigh the same, so that gains fall off and are shared out."""
    now = job.throughput if job.throughput > 0 else float(np.min(throughput, initial=LEAST_RATE))
    return np.broadcast_to(remaining(job, np.array([now]), rho, epsilon), throughput.shape)


def equal(job: Standing, throughput: Floats, rho: float, epsilon: float) -> Floats:
    return np.zeros(throughput.shape)


def given(job: Standing, throughput: Floats, rho: float, epsilon: float) -> Floats:
    return np.full(throughput.shape, math.log(max(job.given, LEAST_RATE)))


def waiting(job: Standing, throughput: Floats, rho: float, epsilon: float) -> Floats:
    """Who was submitted first comes first, the more so the larger rho is."""
    return np.full(throughput.shape, rho * math.log(max(job.waited_s, 0.0) + 1.0))


PRIORITIES: dict[str, Priority] = {
    "remaining": remaining,
    "remaining_now": remaining_now,
    "equal": equal,
    "given": given,
    "waiting": waiting,
}


def priority(name: str) -> Priority:
    if name not in PRIORITIES:
        raise errors.UnknownName("priority", name, PRIORITIES)
    return PRIORITIES[name]
