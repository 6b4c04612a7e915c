"""Pure. Which partitions the next records go to, so that each has its share, and none waits for long.

In: produce.py. Out: how many records each partition gets of the next few.
"""

import numpy as np

from springtide import errors
from springtide.data.stream.records import Floats, Ints


def check(skew: float) -> None:
    """BadInput when no partition can have so many times what others have."""
    if not 0 < skew < float("inf"):
        raise errors.BadInput(f"skew {skew:g}: wanted how many times as much the first partition gets, more than 0")


def shares(partitions: int, skew: float = 1.0) -> Floats:
    """Shares of partitions: the first has `skew` times as much as each of the others."""
    check(skew)
    weights = np.ones(partitions)
    weights[0] = skew
    return np.asarray(weights / weights.sum(), np.float64)


def deal(count: int, sent: Ints, share: Floats) -> Ints:
    """How many of `count` records each partition gets, that has had `sent` so far: those that lack most get more."""
    lack = np.maximum((int(sent.sum()) + count) * share - sent, 0.0)
    total = float(lack.sum())
    whole = np.floor(lack * (count / total)) if total > 0 else np.zeros(len(share))
    dealt = whole.astype(np.int64)
    rest = count - int(dealt.sum())
    order = np.argsort(-(lack - dealt), kind="stable")
    dealt[order[:rest]] += 1
    return dealt
