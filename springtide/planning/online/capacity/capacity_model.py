"""Pure. Models capacity (samples per second by number of workers) with curves of few coefficients.

In: pairs of workers and measured throughput, at a fixed ratio of workers to servers. Out: a `CapacityCurve`.

All curves have the form samples / (coefficients x features of w), with non-negative coefficients. The kinds are "sync"
(Kale's Eqn 6), "async" (Eqn 9), "crowded" (Eqn 9 plus contention between workers), and models for comparison.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide import errors

Kind = Literal["sync", "async", "crowded", "ernest", "optimus", "optimus-async"]
Feature = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _one(workers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.ones_like(workers)


def _each(workers: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / workers


def _each_squared(workers: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / workers**2


def _all(workers: NDArray[np.float64]) -> NDArray[np.float64]:
    return workers


FEATURES: Mapping[Kind, tuple[Feature, ...]] = {
    "sync": (_one, _each, _each_squared, _all),
    "async": (_each, _each_squared, _one),
    "crowded": (_each, _each_squared, _one, _all),
    "ernest": (_one, _each, np.log, _all),
    "optimus": (_one, _each, _all),
    "optimus-async": (_each, _one),
}
"""Feature of each coefficient, in seconds per batch of all workers (sync, ernest, optimus) or per sample (others)."""
LEARNED: Mapping[Kind, tuple[Kind, tuple[int, ...]]] = {
    "sync": ("sync", (1, 0, 3, 2)),
    "async": ("crowded", (0, 2, 1, 3)),
}
"""Curve that a live job fits for each sync mode, and the order in which the fit adds coefficients. The first
coefficient is the work of a single worker. The second is the constant part. The last ones are parts that grow with
workers or fall faster. Under Eqn 9, more workers always train more, which no real job does forever."""
DOUBT = 0.2
"""Penalty on deviations from proportional scaling, divided by the number of worker counts seen: a tenth for two counts.

Measurements err by about 5%, and a share of half of the time is normal. Without a penalty, 400/s with 4 workers and
440/s with 5 would mean 550/s with 10. With a tenth for six counts, the extremes in sync mode were predicted 8% off even
without noise. The penalty applies to a coefficient's largest share of the time, from one worker on. For 1 / w², this
share is twice as large for one worker as for two.
"""
PRECISION = 1e-3
"""Relative error below which differences between curves do not count."""


class CapacitySample(NamedTuple):
    """Measured throughput of a number of workers."""

    workers: int
    throughput: float
    """Samples per second of all workers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityCurve:
    """Throughput as a function of the number of workers."""

    kind: Kind
    coefficients: tuple[float, ...]
    batch: float = 1.0
    """Samples per step of all workers together; 1 in async."""
    most_seen: int = 0
    """Largest measured number of workers. Beyond it, the curve is an extrapolation."""

    def __call__(self, workers: float) -> float:
        at = np.asarray(float(workers))
        seconds = sum(float(of(at)) * by for of, by in zip(FEATURES[self.kind], self.coefficients, strict=True) if by)
        return self.batch / seconds if seconds > 0 else np.inf

    def peak(self, most: int) -> int:
        """Return the number of workers, up to `most`, with the highest throughput."""
        return max(range(1, most + 1), key=lambda workers: (self(workers), -workers))


def fit(kind: Kind, seen: Sequence[CapacitySample], *, batch: float = 1.0) -> CapacityCurve:
    """Fit all coefficients of a curve by least relative error of the step time."""
    if kind not in FEATURES:
        raise errors.UnknownName("model of throughput", kind, FEATURES)
    return _fit(kind, seen, range(len(FEATURES[kind])), batch)


def learn(
    kind: Kind, seen: Sequence[CapacitySample], *, batch: float = 1.0, weights: Sequence[float] | None = None
) -> CapacityCurve:
    """Fit a curve for a running job, with at most one coefficient per worker count seen.

    After one count, throughput is assumed proportional. Deviations must be clear (`DOUBT`). Curves with one, two and
    more coefficients are averaged by their likelihood (`_likely`), because four coefficients through five measurements
    mostly follow noise. The median represents each count. `weights` (up to 1) is the confidence in each count, with one
    measurement per count.
    """
    if kind not in LEARNED:
        raise errors.UnknownName("way of training", kind, LEARNED)
    by_number: dict[int, list[float]] = {}
    for one in seen:
        by_number.setdefault(one.workers, []).append(one.throughput)
    typical = [CapacitySample(workers, median(rates)) for workers, rates in sorted(by_number.items())]
    if weights is not None and len(typical) < len(seen):
        raise errors.BadInput("weights of several measurements of one number of workers: wanted one of each")
    form, order = LEARNED[kind]
    doubt = DOUBT / max(1, len(typical))
    curves = [
        _fit(form, typical, order[:number], batch, doubt, weights)
        for number in range(1, max(1, min(len(order), len(typical))) + 1)
    ]
    shares = _likely(curves, typical, weights)
    mean = np.asarray([curve.coefficients for curve in curves]).T @ shares
    return replace(curves[-1], coefficients=tuple(map(float, mean)))


def _likely(
    curves: Sequence[CapacityCurve], seen: Sequence[CapacitySample], weights: Sequence[float] | None
) -> NDArray[np.float64]:
    """Return the Akaike weight of each curve. Each curve has one coefficient more than the previous curve.

    A further coefficient must reduce the error below exp(-1 / measurements) times the previous error.
    """
    rates = np.asarray([one.throughput for one in seen])
    off = np.asarray(
        [[1 - rate / curve(one.workers) for one, rate in zip(seen, rates, strict=True)] for curve in curves]
    )
    squares = np.average(off**2, axis=1, weights=weights) + PRECISION**2
    criterion = len(seen) * np.log(squares) + 2 * np.arange(len(curves))
    odds = np.exp((criterion.min() - criterion) / 2)
    shares: NDArray[np.float64] = odds / odds.sum()
    return shares


def _fit(
    kind: Kind,
    seen: Sequence[CapacitySample],
    used: Sequence[int],
    batch: float,
    doubt: float = 0.0,
    weights: Sequence[float] | None = None,
) -> CapacityCurve:
    workers = np.asarray([one.workers for one in seen], dtype=float)
    rates = np.asarray([one.throughput for one in seen], dtype=float)
    if not len(seen) or (workers < 1).any() or not (np.isfinite(rates) & (rates > 0)).all():
        raise errors.BadInput(f"{len(seen)} measurements of throughput: wanted some, each of a worker or more, above 0")
    columns = np.stack([FEATURES[kind][each](workers) for each in used], axis=-1)
    fewest = int(workers.argmin())
    alone = np.stack([FEATURES[kind][each](np.ones(1)) for each in used], axis=-1) * rates[fewest] / workers[fewest]
    doubts = doubt * np.maximum((columns * rates[:, None]).max(axis=0), alone[0]) / batch
    found = relative(columns, rates / batch, doubts, weights)
    coefficients = [0.0] * len(FEATURES[kind])
    for each, by in zip(used, found, strict=True):
        coefficients[each] = by
    return CapacityCurve(kind=kind, coefficients=tuple(coefficients), batch=batch, most_seen=int(workers.max()))


def solver() -> Any:
    """Return SciPy's NNLS. The first call imports SciPy, which takes half a second."""
    from scipy import optimize

    return optimize.nnls


def relative(
    columns: NDArray[np.float64],
    rates: NDArray[np.float64],
    doubts: NDArray[np.float64] | None = None,
    weights: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """Fit non-negative coefficients to the times 1 / rate by least squares of relative errors.

    Columns are normalized first, because 1 / w² and w differ by a factor of a million. `doubts` are penalty factors on
    all coefficients except the first.
    """
    share = columns * rates[:, None]  # share of the measured time that each term explains per unit of its coefficient
    wanted = np.ones(len(rates))
    if weights is not None:
        trust = np.sqrt(np.asarray(weights, dtype=float))
        share, wanted = share * trust[:, None], wanted * trust
    size = np.maximum(np.linalg.norm(share, axis=0), 1e-300)
    if doubts is not None and columns.shape[1] > 1:
        share = np.concatenate([share, np.diag(doubts)[1:]])
        wanted = np.concatenate([wanted, np.zeros(columns.shape[1] - 1)])
    found, _ = solver()(share / size, wanted)
    return tuple(map(float, found / size))
