"""Pure. Forecasts the number of rows on table servers from the growth so far.

In: `RowCount` points (trained samples, rows). Out: a `Growth` that predicts rows for any later number of samples, by
the law that predicted the recent past best. Next: `planning.guards.oom` turns rows into bytes.

Ids in real logs follow different laws. New ids may arrive at a steady rate (timestamps), at a falling rate (Heaps' law,
Zipf ids), or run out (a closed set). The module fits each law to the older points and tests it on the newest third.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

FEWEST = 6
"""Number of points below which growth is assumed steady. For concave growth this is a safe overestimate."""
HELD_OUT = 1 / 3
LEAST_MARGIN, LARGEST_MARGIN = 0.02, 0.5
REACH = 4.0
"""Extrapolation limit, as a multiple of the samples so far, because nearly every id is new in a job's first seconds."""


class RowCount(NamedTuple):
    """Number of rows after a number of samples."""

    samples: float
    rows: float


Law = Callable[[Sequence[RowCount], float], float]
"""Function of points and a later number of samples. It returns the rows by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth law and the points that it extrapolates."""

    law: str
    points: tuple[RowCount, ...]
    margin: float
    """Largest error on the held-out points, within limits, as a share of the predicted growth."""

    def rows(self, samples: float) -> float:
        """Return the expected rows after `samples`, never fewer than now."""
        newest = self.points[-1]
        return newest.rows if samples <= newest.samples else max(newest.rows, LAWS[self.law](self.points, samples))

    def cautious(self, samples: float) -> float:
        now = self.points[-1].rows
        return now + (self.rows(samples) - now) * (1 + self.margin)


def horizon(points: Sequence[RowCount], end: float) -> float:
    """Return the samples up to which growth is predicted: the end of the job, or the limit REACH."""
    return max(points[-1].samples, min(end, REACH * points[-1].samples))


def fit(points: Sequence[RowCount]) -> Growth:
    """Return the law with the smallest error. Points are sorted by samples; at least one is needed."""
    kept = tuple(points)
    if len(kept) < FEWEST:
        return Growth(law="steady", points=kept, margin=LARGEST_MARGIN if len(kept) < 3 else LEAST_MARGIN)
    known = kept[: math.ceil(len(kept) * (1 - HELD_OUT))]
    held_out = kept[len(known) :]
    errors = {name: _error(law, known, held_out) for name, law in LAWS.items()}
    best = min(errors, key=lambda name: errors[name])
    return Growth(law=best, points=kept, margin=min(max(errors[best], LEAST_MARGIN), LARGEST_MARGIN))


def _error(law: Law, known: Sequence[RowCount], held_out: Sequence[RowCount]) -> float:
    """Return the largest error as a share of the actual growth."""
    came = max(held_out[-1].rows - known[-1].rows, 1.0)
    return max(abs(law(known, seen.samples) - seen.rows) / came for seen in held_out)


def steady(points: Sequence[RowCount], samples: float) -> float:
    newest = points[-1]
    return newest.rows + _rate(points[len(points) // 2 :], points) * (samples - newest.samples)


def heaps(points: Sequence[RowCount], samples: float) -> float:
    """Extrapolate by a power of the samples, with the exponent of the newer half of the points."""
    newest = points[-1]
    middle = points[len(points) // 2]
    if middle.samples <= 0 or middle.rows <= 0 or newest.samples <= middle.samples:
        return steady(points, samples)
    exponent = math.log(newest.rows / middle.rows) / math.log(newest.samples / middle.samples)
    return newest.rows * math.pow(samples / newest.samples, min(max(exponent, 0.0), 1.0))


def running_out(points: Sequence[RowCount], samples: float) -> float:
    """Extrapolate with a rate that falls by a constant factor per span, estimated from the older and newer half."""
    newest, span = points[-1], (points[-1].samples - points[0].samples) / 2
    middle = _rows_at(points, points[0].samples + span)
    older, newer = middle - points[0].rows, newest.rows - middle
    if span <= 0 or older <= 0 or newer <= 0 or newer >= older:
        return steady(points, samples)
    share = newer / older
    spans = (samples - newest.samples) / span
    return newest.rows + newer * share * (1 - math.pow(share, spans)) / (1 - share)


LAWS: dict[str, Law] = {"steady": steady, "heaps": heaps, "running out": running_out}


def _rows_at(points: Sequence[RowCount], samples: float) -> float:
    for before, after in itertools.pairwise(points):
        if before.samples <= samples <= after.samples and after.samples > before.samples:
            share = (samples - before.samples) / (after.samples - before.samples)
            return before.rows + share * (after.rows - before.rows)
    return points[-1].rows


def _rate(points: Sequence[RowCount], fallback: Sequence[RowCount]) -> float:
    """Return rows per sample between the first and last point."""
    for some in (points, fallback):
        gone = some[-1].samples - some[0].samples
        if gone > 0:
            return max(0.0, (some[-1].rows - some[0].rows) / gone)
    only = fallback[-1]
    return only.rows / only.samples if only.samples > 0 else 0.0
