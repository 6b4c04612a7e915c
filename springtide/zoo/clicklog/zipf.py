"""Pure. Draws ranks by a power law from hashed bits through a table, without floating point in the draw.

In: 64 random bits (`counter_rng.bits`). Out: ranks 0 .. size - 1, rank r with weight near (r + 1) ** -exponent. The
continuous law P(rank < k) ~ (k + 1) ** (1 - exponent) - 1 is cut into 8192 cells of equal mass. Ranks within one cell
are equally likely. The result is the same on every machine.
"""

import numpy as np
from numpy.typing import NDArray

from springtide.zoo.clicklog.counter_rng import Bits

_CELLS_LOG2 = 13  # tables of a dozen fields fit the second-level cache


class Zipf:
    """A truncated power law over `size` ranks."""

    def __init__(self, size: int, exponent: float) -> None:
        self.size = size
        self.exponent = exponent
        edges = self.quantile(np.arange((1 << _CELLS_LOG2) + 1) / (1 << _CELLS_LOG2))
        self._first = edges[:-1].astype(np.int32)
        self._width = np.maximum(np.diff(edges), 1).astype(np.uint32)

    def quantile(self, share: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the rank below which this share of the mass lies."""
        if abs(self.exponent - 1.0) < 1e-9:
            edge = np.exp(share * np.log(self.size + 1.0))
        else:
            power = 1.0 - self.exponent
            edge = (1.0 + share * ((self.size + 1.0) ** power - 1.0)) ** (1.0 / power)
        return np.asarray(np.clip(edge.astype(np.int64) - 1, 0, self.size - 1))

    def ranks(self, bits: Bits) -> NDArray[np.int64]:
        """Return a rank for each word of random bits."""
        cell = (bits >> np.uint64(64 - _CELLS_LOG2)).astype(np.int64)
        within = (bits >> np.uint64(8)) & np.uint64(0xFFFFFFFF)
        within *= self._width.take(cell, mode="clip")
        within >>= np.uint64(32)
        rank = within.astype(np.int64)
        rank += self._first.take(cell, mode="clip")
        return rank
