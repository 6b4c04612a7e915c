"""Pure. How many samples a second so many workers train: a curve with few coefficients, fitted to what was seen.

In: pairs of workers and measured throughput, at a fixed ratio of workers to servers. Out: a `Curve`. Next: `least.py`
finds the fewest workers for a traffic. All curves here are of the form samples / (coefficients x features of w), with
no coefficient below zero: in step (Kale's Eqn 6), at one's own pace (Eqn 9), and the two models they are compared with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from springtide import errors

Kind = Literal["sync", "async", "ernest", "optimus"]
Features = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _columns(*of: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Features:
    return lambda workers: np.stack([one(workers) for one in of], axis=-1)


FEATURES: dict[Kind, Features] = {
    "sync": _columns(np.ones_like, lambda w: 1 / w, lambda w: 1 / w**2, lambda w: w),
    "async": _columns(lambda w: 1 / w, lambda w: 1 / w**2, np.ones_like),
    "ernest": _columns(np.ones_like, lambda w: 1 / w, np.log, lambda w: w),
    "optimus": _columns(np.ones_like, lambda w: 1 / w, lambda w: w),
}
"""What each coefficient is of, in seconds a batch (sync, ernest, optimus) or a sample (async)."""


class Seen(NamedTuple):
    """A measurement."""

    workers: int
    throughput: float
    """Samples a second of all workers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Throughput by workers."""

    kind: Kind
    coefficients: tuple[float, ...]
    batch: float = 1.0
    """Samples of one step of all workers together; 1 at one's own pace."""
    most_seen: int = 0
    """The largest number of workers that was measured: beyond it the curve is a guess."""

    def __call__(self, workers: float) -> float:
        """Samples a second."""
        seconds = float(FEATURES[self.kind](np.asarray(float(workers))) @ np.asarray(self.coefficients))
        return self.batch / seconds if seconds > 0 else np.inf

    def peak(self, most: int) -> int:
        """The number of workers, up to `most`, that train most: more of them train less."""
        return max(range(1, most + 1), key=lambda workers: (self(workers), -workers))


def fit(kind: Kind, seen: Sequence[Seen], *, batch: float = 1.0) -> Curve:
    """The curve with the least relative error of the time a step takes."""
    if kind not in FEATURES:
        raise errors.UnknownName("model of throughput", kind, tuple(FEATURES))
    workers = np.asarray([one.workers for one in seen], dtype=float)
    rates = np.asarray([one.throughput for one in seen], dtype=float)
    if not len(seen) or (workers < 1).any() or not (np.isfinite(rates) & (rates > 0)).all():
        raise errors.BadInput(f"{len(seen)} measurements of throughput: wanted some, each of a worker or more, above 0")
    share = FEATURES[kind](workers) * (rates / batch)[:, None]  # of the time that was seen
    coefficients, _ = nnls(share, np.ones(len(seen)))
    return Curve(
        kind=kind, coefficients=tuple(map(float, coefficients)), batch=batch, most_seen=int(workers.max())
    )  # fmt: skip


def mape(curve: Curve, seen: Sequence[Seen]) -> float:
    """Mean absolute error of its throughput, as a share of what was seen."""
    return float(np.mean([abs(curve(one.workers) - one.throughput) / one.throughput for one in seen]))
