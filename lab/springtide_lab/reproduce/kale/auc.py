"""Measure AUC against lag on a click stream whose true weights drift (Fig. 1).

In: a seed. Out: AUC by lag. A linear model is trained on the stream. For each lag, the model of that many minutes ago
scores every second minute. The paper does not give the speed of the drift; we chose it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.zoo import metrics
from springtide.zoo.clicklog.generator import Generator
from springtide.zoo.clicklog.population import LogSpec
from springtide_lab.reproduce.kale.world import Array, Counts

LAGS_MIN = (0, 5, 10, 20, 30, 45, 60, 90, 120)
FIELDS = (200, 100, 40, 60, 24, 200, 100, 7)
"""Number of ids of each field. There are so few ids that the model can learn each id again while the id's weight
drifts.
"""
RATE = 0.1  # learning rate of Adagrad
DRIFT = 0.8  # per hour: true weights correlate by 0.73 with those of an hour before
FORGETS = 0.995  # decay of Adagrad's sum of squares per minute, so that the learning rate does not vanish


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSize:
    """Length and rate of the stream."""

    hours: float = 5.0
    events_per_s: float = 20.0


USUAL, QUICK = StreamSize(), StreamSize(hours=2.5, events_per_s=5.0)


def against_lag(seed: int, size: StreamSize) -> Array:
    """Return the AUC at each lag of `LAGS_MIN`."""
    spec = LogSpec(seed=seed, cardinalities=FIELDS, drift_per_hour=DRIFT, events_per_s=size.events_per_s)
    generator = Generator(spec)
    minute = round(60 * size.events_per_s)
    starts = np.cumsum([0, *FIELDS])
    weights, squares = np.zeros(starts[-1] + spec.dense), np.full(starts[-1] + spec.dense, 1e-2)
    kept: list[Array] = []
    judged: dict[int, tuple[list[Array], list[Array]]] = {lag: ([], []) for lag in LAGS_MIN}
    for now in range(round(size.hours * 60)):
        rows = generator.rows(np.arange(now * minute, (now + 1) * minute))
        ids, dense, click = rows.sparse + starts[:-1], rows.dense.astype(float), rows.click.astype(float)
        kept.append(weights.copy())
        for lag, (labels, scores) in judged.items():
            if now > max(LAGS_MIN) and now % 2 == 0:
                labels.append(click)
                scores.append(_logit(kept[now - lag], ids, dense))
        squares *= FORGETS
        for part in np.array_split(np.arange(minute), max(1, minute // 128)):
            weights, squares = _step(weights, squares, ids[part], dense[part], click[part])
    return np.asarray(
        [metrics.auc(np.concatenate(labels), np.concatenate(scores)) for labels, scores in judged.values()]
    )


def of(lag_s: Array, curve: Sequence[float]) -> float:
    return float(np.interp(lag_s / 60, LAGS_MIN, curve).mean())


def _logit(weights: Array, ids: Counts, dense: Array) -> Array:
    counters = weights[len(weights) - dense.shape[1] :]
    return np.asarray(weights[ids].sum(axis=1) + dense @ counters)


def _step(weights: Array, squares: Array, ids: Counts, dense: Array, click: Array) -> tuple[Array, Array]:
    off = 1 / (1 + np.exp(-_logit(weights, ids, dense))) - click
    grad: Array = np.bincount(ids.ravel(), np.repeat(off, ids.shape[1]), minlength=len(weights)).astype(float)
    grad[len(weights) - dense.shape[1] :] += off @ dense
    grad /= len(off)
    squares = squares + grad**2
    return weights - RATE * grad / np.sqrt(squares), squares
