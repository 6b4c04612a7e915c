"""Pure. Streaming metrics of click predictions: AUC, log loss, normalized entropy. The states of several workers can
be merged.

In: labels and scores, one batch at a time. Out: the metric of all batches so far. `auc` computes the exact AUC over
arrays. Labels are 0 or 1. Scores are probabilities, or logits with `from_logits`.

`StreamingAUC` counts clicks and non-clicks in 2**16 cells of the logit. A pair of a click and a non-click in the
same cell counts half. The error is therefore at most half the share of such pairs, which `StreamingAUC.error_bound`
returns.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from springtide import errors

__all__ = ["StreamingAUC", "StreamingLogLoss", "auc"]

_CELLS = 1 << 16
_LOGIT_RANGE = 16.0  # larger logits share the outermost cell; sigmoid(-16) is 1e-7
_TINY = 1e-7  # smallest distance of a probability from 0 and 1 in the log loss, about the resolution of float32 near 1


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Return the exact area under the ROC curve: the share of (1, 0) pairs in the right order, where a tie counts half.
    Return NaN if only one class occurs.
    """
    y, s = _checked(labels, scores)
    _, which = np.unique(s, return_inverse=True)
    return _ordered_share(np.bincount(which, weights=y), np.bincount(which, weights=1 - y))


def _ordered_share(ones: NDArray[Any], zeros: NDArray[Any]) -> float:
    """Return the share of (1, 0) pairs in the right order, given the number of ones and zeros at each score in
    ascending order."""
    pairs = ones.sum() * zeros.sum()
    return float((ones * (np.cumsum(zeros) - zeros / 2)).sum() / pairs) if pairs else float("nan")


class StreamingAUC:
    """AUC over any number of batches, with 1 MiB of memory."""

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
        """Return the AUC of all samples so far; NaN until both classes have occurred."""
        return _ordered_share(self._ones.astype(np.float64), self._zeros.astype(np.float64))

    def error_bound(self) -> float:
        """Return how far `value` can be from the exact AUC at most."""
        ones, zeros = self._ones.astype(np.float64), self._zeros.astype(np.float64)
        pairs = ones.sum() * zeros.sum()
        return float((ones * zeros).sum() / (2 * pairs)) if pairs else float("nan")

    def state(self) -> NDArray[np.int64]:
        """Return the counts to send or save, in the shape [2, cells]."""
        return np.stack([self._ones, self._zeros])

    @classmethod
    def from_state(cls, state: NDArray[np.int64], *, from_logits: bool = True) -> "StreamingAUC":
        if state.shape != (2, _CELLS):
            raise errors.BadInput(f"the state of a StreamingAUC has shape (2, {_CELLS}), got {state.shape}")
        made = cls(from_logits=from_logits)
        made._ones += state[0]
        made._zeros += state[1]
        return made


class StreamingLogLoss:
    """Mean log loss, and normalized entropy: the log loss divided by the entropy of the click rate."""

    def __init__(self, *, from_logits: bool = True) -> None:
        self._from_logits = from_logits
        self.samples = 0
        self._ones = 0.0
        self._total = 0.0

    def update(self, labels: ArrayLike, scores: ArrayLike) -> None:
        y, s = _checked(labels, scores)
        logit = s if self._from_logits else _logit(s)
        signed = np.where(y > 0, -logit, logit)
        self._total += float(np.logaddexp(0.0, signed).sum())
        self._ones += float((y > 0).sum())
        self.samples += len(y)

    def merge(self, other: "StreamingLogLoss") -> None:
        self.samples += other.samples
        self._ones += other._ones
        self._total += other._total

    def value(self) -> float:
        """Return the mean log loss so far; NaN if there are no samples."""
        return self._total / self.samples if self.samples else float("nan")

    def normalised_entropy(self) -> float:
        """Return the mean log loss divided by the entropy of the mean label; NaN until both classes have occurred."""
        if self._ones == 0 or self._ones == self.samples:
            return float("nan")
        rate = self._ones / self.samples
        return float(self.value() / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))


def _logit(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(probability) and not (probability.min() >= 0 and probability.max() <= 1):
        low, high = probability.min(), probability.max()
        raise errors.BadInput(
            f"scores are {low:.4g} to {high:.4g}, expected probabilities; for logits pass from_logits=True"
        )
    inside = np.clip(probability, _TINY, 1 - _TINY)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _checked(labels: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    y = np.asarray(labels, dtype=np.float64).ravel()
    s = np.asarray(scores, dtype=np.float64).ravel()
    if y.shape != s.shape:
        raise errors.BadInput(f"got {len(y)} labels and {len(s)} scores; expected equal numbers")
    if np.isnan(s).any():
        raise errors.BadInput(
            f"{int(np.isnan(s).sum())} of {len(s)} scores are NaN; the model has diverged, lower its learning rate"
        )
    if not np.isin(y, (0.0, 1.0)).all():
        raise errors.BadInput(f"labels must be 0 or 1, got {np.unique(y)[:5].tolist()}")
    return y, s
