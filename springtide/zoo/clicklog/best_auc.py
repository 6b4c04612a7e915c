"""Pure. Computes the best AUC that any model can reach on a generated click log.

In: `clicklog.Generator`. Out: the best AUC, and its decay when the predicting truth lags behind the events. The AUCs
are expectations over all possible labels, so they have no sampling noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide.zoo.clicklog.clicklog import Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class LagPoint:
    """Expected AUC of a truth that is a given time behind the events."""

    lag_s: float
    auc: float


def expected_auc(probability: NDArray[np.float64], score: NDArray[np.float64]) -> float:
    """Return the expected AUC of `score` if labels are drawn with `probability`; ties count half."""
    _, group = np.unique(score, return_inverse=True)
    ones = np.bincount(group, weights=probability)
    zeros = np.bincount(group, weights=1 - probability)
    below = np.cumsum(zeros) - zeros
    itself = (probability * (1 - probability)).sum()  # a sample makes no pair with itself
    right = (ones * (below + zeros / 2)).sum() - itself / 2
    return float(right / (ones.sum() * zeros.sum() - itself))


def best_auc(generator: Generator, start: int, stop: int) -> float:
    """Return the AUC of the true probabilities over samples start .. stop - 1."""
    true = generator.between(start, stop).probability
    return expected_auc(true, true)


def auc_vs_lag(
    generator: Generator, lags_s: Sequence[float], *, at_s: float = 0.0, samples: int = 100_000
) -> list[LagPoint]:
    """Return the AUC of the truth from `lag` seconds before each event, for events from `at_s` on."""
    first = int(at_s * generator.spec.events_per_s)
    index = np.arange(first, first + samples, dtype=np.int64)
    true = generator.rows(index).probability
    return [LagPoint(lag_s=lag, auc=expected_auc(true, generator.frozen_probability(index, lag))) for lag in lags_s]
