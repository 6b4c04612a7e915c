"""Pure. The hash that turns strings and integers into 64-bit ids, published for serving in docs/how-to/data-on-disk.md.

In: strings, bytes, integers or missing values. Out: int64 ids; only missing values have the id 0.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.core import validation
from springtide.domain.core.splitmix import GOLDEN, mix64

PADDING = 8
"""Number of bytes that must follow the last cell in a buffer for `hash_cells`."""


def hash_cells(buffer: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids of the texts buffer[start:stop]; the arrays may have any shape."""
    lengths = stops - starts
    state = mix64(lengths.astype(np.uint64) + np.uint64(GOLDEN))
    words: NDArray[np.uint64] = np.ndarray(
        shape=(len(buffer) - PADDING + 1,), dtype="<u8", buffer=buffer.data, strides=(1,)
    )
    for at in range(0, int(lengths.max(initial=0)), 8):
        more = lengths > at
        left = lengths[more] - at
        word = words[starts[more] + at]
        cut = np.clip(8 * (8 - left), 0, 56).astype(np.uint64)  # mask of the bits that belong to the next cell
        word = (word << cut) >> cut
        state[more] = mix64((state[more] ^ word) + np.uint64(GOLDEN))
    state[state == 0] = 1
    return state.view(np.int64)


def fold(ids: NDArray[np.int64], rows: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Fold ids into tables of `rows` rows. 0 (missing) stays 0, and all other ids map to 1 .. rows - 1."""
    inside = ids.view(np.uint64) % np.asarray(np.asarray(rows) - 1, dtype=np.uint64) + np.uint64(1)
    return np.where(ids == 0, 0, inside.view(np.int64))


def hash_ids(values: Any, buckets: int | None = None) -> NDArray[np.int64]:
    """Return the ids of strings, bytes or integers, in the shape of `values`.

    An integer has the hash of its decimal digits. None, NaN and the empty string are missing, and have id 0. Other ids
    are 64 bits wide, or 1 to `buckets` - 1.
    """
    given = np.asarray(values, dtype=object)
    texts = [_encoded(value) for value in given.ravel().tolist()]
    stops = np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), stops[:-1]])[: len(stops)]
    ids = ids_of_texts(np.frombuffer(b"".join(texts), dtype=np.uint8), starts, stops)
    return (ids if buckets is None else fold(ids, checked_buckets(buckets))).reshape(given.shape)


def ids_of_texts(raw: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids of the texts raw[start:stop]; 0 for empty texts."""
    buffer = np.concatenate([raw, np.zeros(PADDING, dtype=np.uint8)])
    return np.where(stops > starts, hash_cells(buffer, starts, stops), 0)


def checked_buckets(buckets: Any, name: str = "buckets") -> int:
    return validation.number(buckets, name, "a whole number, 2 or more: 0 is for missing values", least=2)


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if value is None or (isinstance(value, float) and value != value):
        return b""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return b"%d" % int(value)
    raise errors.BadInput(f"cannot hash {value!r}, a {type(value).__name__}: expected strings, integers or None")
