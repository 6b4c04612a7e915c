"""What cpp/batch/envelope.cpp does, in Python: the oracle of its tests."""

import zlib

import numpy as np
from numpy.typing import NDArray

from springtide.data.stream.records import Bytes, Ints

MARK, SIZE = b"\xf5ST\x01", 16
BARE, WHOLE, DAMAGED = 0, 1, 2


def open_envelopes(
    payload: Bytes, starts: Ints, ends: Ints, states: NDArray[np.uint8], event_us: Ints
) -> tuple[int, int]:
    """Count records without and with damaged envelopes; write each record's state and event time."""
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        record = payload[start:end].tobytes()
        states[i] = event_us[i] = BARE
        if len(record) >= SIZE and record.startswith(MARK):
            event_us[i] = int.from_bytes(record[8:16], "little", signed=True)
            states[i] = WHOLE if zlib.crc32(record[8:]) == int.from_bytes(record[4:8], "little") else DAMAGED
    return int(np.sum(states == BARE)), int(np.sum(states == DAMAGED))


def crc32_each(payload: Bytes, starts: Ints, ends: Ints, out: NDArray[np.uint32]) -> None:
    """CRC-32 of each run of bytes."""
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        out[i] = zlib.crc32(payload[start:end].tobytes())
