"""Rows of keys that were never trained: the same rows as a server returns, computed from an export alone.

In: a table's id, its init and the job's seed, from the card of an export. Out: the rows that the store's
`kernels/row_init.cpp` makes, equal to the bit wherever log, cos and sin agree. `docs/how-to/export.md` gives
the same steps for other languages.
"""

from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.domain.core.splitmix import GOLDEN, mix64
from springtide.domain.model.tables import DType, Init

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint64]

HALF_ULP, LAST_BIT = np.uint32(0x7FFF), np.uint32(1)


class UntrainedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Initial values of one table's rows: a hash of the job's seed, the table's id and the key."""

    table: int
    seed: int
    init: Init

    def rows(self, keys: Keys, *, dim: int, dtype: DType) -> Rows:
        """Return the rows of these keys as float32, rounded to the table's data type as on the servers."""
        keys = np.ascontiguousarray(keys, dtype=np.int64).reshape(-1)
        kind, a, b = self.init.kind, self.init.a, self.init.b
        if kind == "zeros":
            return np.zeros((len(keys), dim), dtype=np.float32)
        pairs = (dim + 1) // 2
        low, high = _halves(self._bits(keys, pairs))
        if kind == "normal":
            drawn = _normal(low, high, np.float32(a), np.float32(b))
        else:
            if kind == "xavier":
                bound = np.float32(float(np.float32(a)) * np.sqrt(6.0 / (float(np.float32(b)) + dim)))
                start, span = -bound, np.float32(2) * bound
            else:
                start, span = np.float32(a), np.float32(b) - np.float32(a)
            drawn = start + span * _fractions(np.stack((low, high), axis=2))
        return rounded(np.ascontiguousarray(drawn.reshape(len(keys), 2 * pairs)[:, :dim]), dtype)

    def _bits(self, keys: Keys, pairs: int) -> Bits:
        """Return 64 random bits for each key and pair of columns."""
        golden = np.uint64(GOLDEN)
        ids = np.array([self.table + 1, self.seed % 2**64], dtype=np.uint64)
        table, seed = ids[:1] * golden, mix64(ids[1:] + golden)
        of_key = mix64(mix64(keys.view(np.uint64) + table) ^ seed)
        return mix64(of_key[:, None] + np.arange(1, pairs + 1, dtype=np.uint64) * golden)


def _halves(bits: Bits) -> tuple[Bits, Bits]:
    return bits & np.uint64(0xFFFFFFFF), bits >> np.uint64(32)


def _fractions(bits: Bits) -> Rows:
    """Return numbers from 0 to 1 with 24 random bits."""
    return (bits >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)


def _normal(low: Bits, high: Bits, mean: np.float32, std: np.float32) -> Rows:
    """Return normal numbers in pairs, by the Box-Muller transform in double precision."""
    radius = np.sqrt(-2 * np.log((low + 0.5) * 2**-32))
    angle = 2 * np.pi * (high * 2.0**-32)
    pairs = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=2)
    return cast(Rows, (float(mean) + float(std) * pairs).astype(np.float32))


def rounded(rows: Rows, dtype: DType) -> Rows:
    """Return the rows as they read after they were stored in this data type."""
    if dtype == "float16":
        return rows.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = rows.view(np.uint32)
        # round to nearest, ties to even
        return ((bits + HALF_ULP + ((bits >> np.uint32(16)) & LAST_BIT)) & np.uint32(0xFFFF0000)).view(np.float32)
    return rows
