"""Pure. Fixed 64-bit hash of strings: the same id for the same text on every machine, in every version.

In: bytes, or cells of a byte buffer. Out: non-zero int64 ids (0 means "missing"). The hash reads the text in words of
eight bytes, little-endian, with the last word padded with zeros:

    h = mix(length + 0x9E3779B97F4A7C15)
    for word in words: h = mix((h ^ word) + 0x9E3779B97F4A7C15)        (mod 2**64)

mix is the finalizer of SplitMix64 (`counter_rng`). A hash of 0 becomes 1. The hash mixes well but does not resist
attackers.
"""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
PADDING = 8
"""Number of bytes that must follow the last cell in a buffer for `hash_cells`."""


def hash_text(text: bytes | str) -> int:
    raw = text.encode() if isinstance(text, str) else text
    state = _mix((len(raw) + _GOLDEN) & _WORD)
    for at in range(0, len(raw), 8):
        word = int.from_bytes(raw[at : at + 8], "little")
        state = _mix(((state ^ word) + _GOLDEN) & _WORD)
    return _signed(state or 1)


def hash_cells(buffer: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids of the texts buffer[start:stop]; the arrays may have any shape."""
    lengths = stops - starts
    state = _mix_all(lengths.astype(np.uint64) + np.uint64(_GOLDEN))
    words: NDArray[np.uint64] = np.ndarray(
        shape=(len(buffer) - PADDING + 1,), dtype="<u8", buffer=buffer.data, strides=(1,)
    )
    for at in range(0, int(lengths.max(initial=0)), 8):
        more = lengths > at
        left = lengths[more] - at
        word = words[starts[more] + at]
        cut = np.clip(8 * (8 - left), 0, 56).astype(np.uint64)  # bits that belong to the next cell
        word = (word << cut) >> cut
        state[more] = _mix_all((state[more] ^ word) + np.uint64(_GOLDEN))
    state[state == 0] = 1
    return state.view(np.int64)


def fold(ids: NDArray[np.int64], rows: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Fold ids into tables of `rows` rows: 0 stays 0 (missing), all other ids map to 1 .. rows - 1."""
    inside = ids.view(np.uint64) % np.asarray(np.asarray(rows) - 1, dtype=np.uint64) + np.uint64(1)
    return np.where(ids == 0, 0, inside.view(np.int64))


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _WORD
    return state ^ (state >> 31)


def _mix_all(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
