"""Pure. AUC of click predictions: `auc` is exact, `StreamingAUC` takes a batch at a time and can be merged.

`StreamingAUC` counts clicks and non-clicks in 2**16 cells of the logit. A pair within one cell counts half. The error
is therefore at most half the share of such pairs, which `StreamingAUC.error_bound` returns.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from springtide import errors

_CELLS = 1 << 16
_LOGIT_RANGE = 16.0  # logits beyond this limit share the outermost cell; sigmoid(-16) is 1e-7
_TINY = 1e-7  # distance of probabilities from 0 and 1, about the resolution of float32 next to 1


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Return the exact area under the ROC curve: the share of ordered (1, 0) pairs, ties half. NaN with one class."""
    y, s = _checked(labels, scores)
    _, which, count = np.unique(s, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - (count - 1) / 2  # average rank of each group of ties, from 1
    ones = float(y.sum())
    zeros = len(y) - ones
    if ones == 0 or zeros == 0:
        return float("nan")
    return float((middle[which][y > 0].sum() - ones * (ones + 1) / 2) / (ones * zeros))


class StreamingAUC:
    """AUC over any number of batches, in 1 MiB."""

    def __init__(self, *, from_logits: bool = True) -> None:
        self._from_logits = from_logits
        self._ones = np.zeros(_CELLS, dtype=np.int64)
        self._zeros = np.zeros(_CELLS, dtype=np.int64)

    def update(self, labels: ArrayLike, scores: ArrayLike) -> None:
        y, s = _checked(labels, scores)
        logit = s if self._from_logits else _logit(s)
        place = (logit + _LOGIT_RANGE) * (_CELLS / (2 * _LOGIT_RANGE))
        cell = np.clip(place, 0, _CELLS - 1).astype(np.int64)
        clicked = y > 0
        self._ones += np.bincount(cell[clicked], minlength=_CELLS)
        self._zeros += np.bincount(cell[~clicked], minlength=_CELLS)

    def merge(self, other: "StreamingAUC") -> None:
        self._ones += other._ones
        self._zeros += other._zeros

    @property
    def samples(self) -> int:
        return int(self._ones.sum() + self._zeros.sum())

    def value(self) -> float:
        """Return the AUC so far; NaN while one class is missing."""
        ones, zeros = self._ones.astype(np.float64), self._zeros.astype(np.float64)
        pairs = ones.sum() * zeros.sum()
        if pairs == 0:
            return float("nan")
        below = np.cumsum(zeros) - zeros
        return float((ones * (below + zeros / 2)).sum() / pairs)

    def error_bound(self) -> float:
        """Return the largest possible distance of `value` from the exact AUC."""
        ones, zeros = self._ones.astype(np.float64), self._zeros.astype(np.float64)
        pairs = ones.sum() * zeros.sum()
        return float((ones * zeros).sum() / (2 * pairs)) if pairs else float("nan")


def _logit(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(probability) and not (probability.min() >= 0 and probability.max() <= 1):
        low, high = probability.min(), probability.max()
        raise errors.BadInput(
            f"scores are {low:.4g} to {high:.4g}; expected probabilities. For logits, use from_logits=True"
        )
    inside = np.clip(probability, _TINY, 1 - _TINY)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _checked(labels: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    y = np.asarray(labels, dtype=np.float64).ravel()
    s = np.asarray(scores, dtype=np.float64).ravel()
    if y.shape != s.shape:
        raise errors.BadInput(f"got {len(y)} labels and {len(s)} scores; they must be as many")
    if np.isnan(s).any():
        raise errors.BadInput(
            f"{int(np.isnan(s).sum())} of {len(s)} scores are NaN; the model has diverged, lower its rate"
        )
    if not np.isin(y, (0.0, 1.0)).all():
        raise errors.BadInput(f"labels must be 0 or 1, got {np.unique(y)[:5].tolist()}")
    return y, s
