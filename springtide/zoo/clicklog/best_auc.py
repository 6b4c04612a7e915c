"""Pure. The best any model can do on a generated click log: the AUC of its own truth.

In: `clicklog.Generator`. Out: the best AUC, and how it falls when the truth that predicts is some time behind the
events. AUCs here are expected ones: over the labels that could have been drawn, so no noise from those that were.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide.zoo.clicklog.clicklog import Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class LagPoint:
    """How good a truth that stopped learning is after some time."""

    lag_s: float
    auc: float


def expected_auc(probability: NDArray[np.float64], score: NDArray[np.float64]) -> float:
    """The AUC that `score` can expect when labels are drawn with `probability`; ties count half."""
    _, group = np.unique(score, return_inverse=True)
    ones = np.bincount(group, weights=probability)
    zeros = np.bincount(group, weights=1 - probability)
    below = np.cumsum(zeros) - zeros
    itself = (probability * (1 - probability)).sum()  # a sample makes no pair with itself
    right = (ones * (below + zeros / 2)).sum() - itself / 2
    return float(right / (ones.sum() * zeros.sum() - itself))


def best_auc(generator: Generator, start: int, stop: int) -> float:
    """The AUC of the true probabilities over samples start .. stop - 1."""
    true = generator.between(start, stop).probability
    return expected_auc(true, true)


def auc_vs_lag(
    generator: Generator, lags_s: Sequence[float], *, at_s: float = 0.0, samples: int = 100_000
) -> list[LagPoint]:
    """The AUC, on the events from `at_s` on, of the truth as it was `lag` seconds before each of them."""
    first = int(at_s * generator.spec.events_per_s)
    index = np.arange(first, first + samples, dtype=np.int64)
    true = generator.rows(index).probability
    return [LagPoint(lag_s=lag, auc=expected_auc(true, generator.frozen_probability(index, lag))) for lag in lags_s]
