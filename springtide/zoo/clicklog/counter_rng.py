"""Pure. Counter-based random numbers. Number i of a stream is a hash of (seed, stream, i), so any slice can be
drawn.

In: an array of indices and a key. Out: for each index, 64 random bits, a normal float, or a rank by a power law
(`Zipf`). The hash is the finalizer of SplitMix64: a few integer operations with the same result on every machine.
"""

import functools
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.splitmix import GOLDEN, mix64

Index = NDArray[np.int64]
Bits = NDArray[np.uint64]
Floats = NDArray[np.float32]

_WORD = (1 << 64) - 1
# log2 of the number of distinct values of a normal; a table of 16384 values fits the second-level cache
_LEVELS_LOG2 = 14


@functools.lru_cache(maxsize=4096)
def key(*parts: int) -> int:
    """Return the key of a stream, from the seed and the parts of its name."""
    state = 0
    for part in parts:
        state = int(mix64(np.array([(state + GOLDEN + part) & _WORD], dtype=np.uint64))[0])
    return state


def bits(index: Index, stream: int) -> Bits:
    state = index.astype(np.uint64)
    state *= np.uint64(GOLDEN)
    state += np.uint64(stream)
    return mix64(state)


def uniforms(index: Index, stream: int) -> NDArray[np.float64]:
    """Return floats in the open interval (0, 1)."""
    unit = (bits(index, stream) >> np.uint64(12)).astype(np.float64)
    unit += 0.5
    unit *= 2.0**-52
    return unit


def normals(index: Index, stream: int, columns: int = 1) -> Floats:
    """Return standard normal floats, with `columns` values per index, in the shape [columns, len(index)]."""
    table = _normal_levels()
    out = np.empty((columns, len(index)), dtype=np.float32)
    for column in range(columns):
        lane = column % 4  # four columns use the four 16-bit lanes of one hash
        if lane == 0:
            word = bits(index, key(stream, column))
        level = (word >> np.uint64(16 * lane + 2)) & np.uint64((1 << _LEVELS_LOG2) - 1)
        table.take(level.astype(np.int64), out=out[column], mode="clip")
    return out


@functools.cache
def _normal_levels() -> Floats:
    count = 1 << _LEVELS_LOG2
    bell = NormalDist()
    return np.array([bell.inv_cdf((level + 0.5) / count) for level in range(count)], dtype=np.float32)


_CELLS_LOG2 = 13  # log2 of the number of cells; the tables of a dozen fields fit the second-level cache


class Zipf:
    """Power law over `size` ranks, cut off at the end."""

    def __init__(self, size: int, exponent: float) -> None:
        self.size = size
        self.exponent = exponent
        edges = self.quantile(np.arange((1 << _CELLS_LOG2) + 1) / (1 << _CELLS_LOG2))
        self._first = edges[:-1].astype(np.int32)
        self._width = np.maximum(np.diff(edges), 1).astype(np.uint32)

    def quantile(self, share: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the rank below which this share of the probability lies."""
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
