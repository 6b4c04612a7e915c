"""How a cost grows: the exponent of a power law through the measured points, and one picture of all curves.

In: (size, seconds) points. Out: exponents (1 is linear) and a PNG. Used by bench/train/cost_growth.py and
bench/control/plan.py.
"""

import math
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide import errors

ZIPF = 1.05  # the exponent that facts about click logs are usually given for


def zipf(rng: np.random.Generator, *, rows: int, count: int, exponent: float = ZIPF) -> NDArray[np.int64]:
    """`count` ids below `rows`; the k-th most frequent comes with weight k**-exponent, and lies anywhere."""
    weight = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    rank = np.searchsorted(weight, rng.random(count) * weight[-1])
    scattered: NDArray[np.int64] = rng.permutation(rows).astype(np.int64)[rank]
    return scattered


def batches(seed: int, *, batches: int, tables: int, rows: int, batch: int) -> NDArray[np.int64]:
    """Ids of shape [batches, tables, batch], one id a bag; each table has its own order of popularity."""
    rng = np.random.default_rng(seed)
    drawn = [zipf(rng, rows=rows, count=batches * batch).reshape(batches, batch) for _ in range(tables)]
    return np.ascontiguousarray(np.stack(drawn, axis=1))


def write(ids: NDArray[np.int64], path: pathlib.Path) -> None:
    """Raw little-endian int64, for `torch.from_file` in a worker."""
    ids.astype("<i8").tofile(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Cost of a step against one size, everything else fixed."""

    what: str
    sizes: Sequence[float]
    seconds: Sequence[float]

    @property
    def exponent(self) -> float:
        """Slope of log(seconds) over log(size) by least squares, over the upper half, where fixed costs hide least."""
        upper = max(3, (len(self.sizes) + 1) // 2)
        return slope(self.sizes[-upper:], self.seconds[-upper:])


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    if len(sizes) < 2 or min(*sizes, *seconds) <= 0:
        raise ValueError(f"wanted at least two positive points, got {list(zip(sizes, seconds, strict=True))}")
    x = [math.log(size) for size in sizes]
    y = [math.log(cost) for cost in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return across / sum((a - mean_x) ** 2 for a in x)


def round_marks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten within these values and one beyond either end: an axis of less than a decade."""
    tens = range(math.floor(math.log10(min(values))) - 1, math.ceil(math.log10(max(values))) + 1)
    marks = [digit * 10.0**ten for ten in tens for digit in (1, 2, 5)]
    inside = [mark for mark in marks if min(values) <= mark <= max(values)]
    return [max(m for m in marks if m < min(values)), *inside, min(m for m in marks if m > max(values))]


def plot(curves: Sequence[Curve], path: pathlib.Path, *, cost: str = "step, ms") -> None:
    """Small multiples: measured points, and a dashed line that grows linearly from the last one down."""
    try:
        import matplotlib
    except ImportError:
        raise errors.MissingExtra("the plot of a benchmark", "bench") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(3.2 * len(curves), 3.0), layout="constrained")
    for axis, curve in zip(axes if len(curves) > 1 else [axes], curves, strict=True):
        milliseconds = [1e3 * cost for cost in curve.seconds]
        linear = [milliseconds[-1] * size / curve.sizes[-1] for size in curve.sizes]
        axis.loglog(curve.sizes, linear, "--", color="0.7", label="linear")
        axis.loglog(curve.sizes, milliseconds, "o-", color="tab:blue", label=f"exponent {curve.exponent:.2f}")
        axis.set_xlabel(curve.what)
        axis.set_ylabel(cost)
        axis.set_xticks(
            list(curve.sizes), [f"{size:g}" for size in curve.sizes], rotation=90 if len(curve.sizes) > 5 else 0
        )
        axis.minorticks_off()
        marks = round_marks([*linear, *milliseconds])
        axis.set_yticks(marks, [f"{mark:g}" for mark in marks])
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
