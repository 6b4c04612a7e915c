"""Makes `Records` of bodies, for tests."""

from collections.abc import Sequence

import numpy as np

from springtide.data.stream.records import Floats, Ints, Records


def records_of(
    bodies: Sequence[bytes],
    *,
    first: int = 0,
    offsets: Sequence[int] | Ints | None = None,
    appended_at: float | Sequence[float] | Floats = 0.0,
) -> Records:
    sizes = np.fromiter((len(body) for body in bodies), np.int64, len(bodies))
    places = np.arange(first, first + len(bodies)) if offsets is None else np.asarray(offsets, np.int64)
    times = np.broadcast_to(np.asarray(appended_at, np.float64), (len(bodies),))
    ends = np.cumsum(sizes, dtype=np.int64)
    return Records(np.frombuffer(b"".join(bodies), np.uint8), ends - sizes, ends, places, times)
