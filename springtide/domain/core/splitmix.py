"""Pure. SplitMix64 for arrays, equal to `mix64` in cpp/base/hash.h."""

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15


def mix64(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix each number in place, so that every input bit affects every output bit. Return the array."""
    numbers ^= numbers >> np.uint64(30)
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(27)
    numbers *= np.uint64(0x94D049BB133111EB)
    numbers ^= numbers >> np.uint64(31)
    return numbers
