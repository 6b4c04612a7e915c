"""Pure. Packs a server's slots and their loads into the bytes of its heartbeat.

In: (slot, bytes, requests so far) of each slot of a server. Out: the unpacked values at the master. Next:
`master.servers.migration`.
"""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from springtide import errors


class SlotCount(NamedTuple):
    """Load of one slot."""

    slot: int
    bytes: int
    requests: int
    """Number of keys pulled or pushed since this server received the slot."""


def pack(counts: Iterable[SlotCount]) -> bytes:
    return np.fromiter(itertools.chain.from_iterable(counts), dtype="<i8").tobytes()


def unpack(packed: bytes, slots: int) -> list[SlotCount]:
    if len(packed) % 24:
        raise errors.BadInput(f"slot loads of {len(packed)} bytes: expected three numbers of 8 bytes a slot")
    counts = [SlotCount(*row) for row in np.frombuffer(packed, dtype="<i8").reshape(-1, 3).tolist()]
    if any(not 0 <= count.slot < slots for count in counts):
        raise errors.BadInput(f"slot loads name a slot outside 0..{slots - 1}")
    return counts
