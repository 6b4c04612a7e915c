"""How a cost grows: the exponent of a power law through the measured points, and one picture of all curves.

In: (size, seconds) points. Out: exponents (1 is linear) and a PNG. `batches` draws the ids of most benchmarks.
"""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide_lab import charts

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
        raise ValueError(f"expected two positive points or more, got {list(zip(sizes, seconds, strict=True))}")
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def plot(curves: Sequence[Curve], path: pathlib.Path, *, cost: str = "step, ms") -> None:
    """Small multiples: measured points, and a dashed line that grows linearly from the last one down."""
    panels = []
    for curve in curves:
        milliseconds = [1e3 * seconds for seconds in curve.seconds]
        linear = [milliseconds[-1] * size / curve.sizes[-1] for size in curve.sizes]
        lines = (
            charts.Curve(curve.sizes, linear, "linear", charts.LIGHT, "--"),
            charts.Curve(curve.sizes, milliseconds, f"exponent {curve.exponent:.2f}"),
            charts.Curve(curve.sizes, milliseconds, style="o"),
        )
        panels.append(charts.Panel(x=curve.what, y=cost, curves=lines, log="xy"))
    charts.draw(path, panels, size=(3.2 * len(curves), 3.0))
