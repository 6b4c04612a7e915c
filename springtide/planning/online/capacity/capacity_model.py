"""Pure. Models capacity (samples per second by number of workers) with curves of few coefficients.

In: pairs of workers and measured throughput, at a fixed ratio of workers to servers. Out: a `CapacityCurve`. Next:
`planning/online/scaling/min_workers.py` finds the fewest workers for a traffic.

All curves have the form samples / (coefficients x features of w), with non-negative coefficients. The kinds are "sync"
(Kale's Eqn 6), "async" (Eqn 9), "crowded" (Eqn 9 plus contention between workers), and two models for comparison.
throughput_curves.py also models the number of servers.
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
"""What each coefficient is of, in seconds a batch of all workers (sync, ernest, optimus) or a sample (the others)."""
LEARNED: Mapping[Kind, tuple[Kind, tuple[int, ...]]] = {
    "sync": ("sync", (1, 0, 3, 2)),
    "async": ("crowded", (0, 2, 1, 3)),
}
"""What a live job fits for each way of training, and which of its coefficients it finds out first: what one worker does
alone, what no number of workers makes faster, then what grows with them or falls faster than they grow. By Eqn 9 more
workers always train more, which no real job does for ever."""
DOUBT = 0.2
"""How much a live job doubts that more workers do not train in proportion, by how many numbers of workers it has seen:
a tenth for two, as measurements are off by some 5% and a share of half of the time is nothing unusual. Without doubt
400/s by 4 and 440 by 5 would mean 550 by 10. With a tenth for six of them, the first and the last in step were foretold
8% off without any noise. Counted is a coefficient's largest share of a time, from one worker on: that of 1 / w² is
twice as large for one worker as for two."""
PRECISION = 1e-3
"""Of a time: what curves are off by less than this is no reason to believe one of them more."""


class CapacitySample(NamedTuple):
    """Measured throughput of a number of workers."""

    workers: int
    throughput: float
    """Samples a second of all workers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityCurve:
    """Throughput as a function of the number of workers."""

    kind: Kind
    coefficients: tuple[float, ...]
    batch: float = 1.0
    """Samples of one step of all workers together; 1 at one's own pace."""
    most_seen: int = 0
    """The largest number of workers that was measured: beyond it the curve is a guess."""

    def __call__(self, workers: float) -> float:
        at = np.asarray(float(workers))
        seconds = sum(float(of(at)) * by for of, by in zip(FEATURES[self.kind], self.coefficients, strict=True) if by)
        return self.batch / seconds if seconds > 0 else np.inf

    def peak(self, most: int) -> int:
        """The number of workers, up to `most`, that train most: more of them train less."""
        return max(range(1, most + 1), key=lambda workers: (self(workers), -workers))


def fit(kind: Kind, seen: Sequence[CapacitySample], *, batch: float = 1.0) -> CapacityCurve:
    """The curve with the least relative error of the time a step takes, of all coefficients that its kind has."""
    if kind not in FEATURES:
        raise errors.UnknownName("model of throughput", kind, FEATURES)
    return _fit(kind, seen, range(len(FEATURES[kind])), batch)


def learn(
    kind: Kind, seen: Sequence[CapacitySample], *, batch: float = 1.0, weights: Sequence[float] | None = None
) -> CapacityCurve:
    """A curve for a job that goes on: no more coefficients than it has had numbers of workers, so that one number
    seen means that twice as many train twice as much; what is not in proportion has to show clearly (`DOUBT`). Curves
    of one coefficient, of two and so on count as much as each is likely (`_likely`): four coefficients through five
    measurements mostly follow their errors. Of each number the median counts. `weights`: how much each is believed,
    where there is one of each, up to 1.
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


def mape(curve: CapacityCurve, seen: Sequence[CapacitySample]) -> float:
    """Mean absolute error of its throughput, as a share of what was seen."""
    return float(np.mean([abs(curve(one.workers) - one.throughput) / one.throughput for one in seen]))


def _likely(
    curves: Sequence[CapacityCurve], seen: Sequence[CapacitySample], weights: Sequence[float] | None
) -> NDArray[np.float64]:
    """How likely each curve is, the first having one coefficient and each other one more: Akaike's weights.

    A curve with another coefficient has to be off by less than exp(-1 / measurements) times as much to be more likely.
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
    """Non-negative least squares; the first call imports SciPy, which takes half a second."""
    from scipy import optimize

    return optimize.nnls


def relative(
    columns: NDArray[np.float64],
    rates: NDArray[np.float64],
    doubts: NDArray[np.float64] | None = None,
    weights: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """Coefficients, none below zero, of the times 1 / rate, with the least squares of relative errors.

    Columns are brought to one size first: those of 1 / w² and of w differ by a million. `doubts`: what all coefficients
    but the first are taken times, and count as an error then.
    """
    share = columns * rates[:, None]  # of the time that was seen
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
