"""Pure. The memory that a new job begins with: what past jobs like it needed, the more of it the less they are like it.

In: how alike past jobs are to it, and to each other, feature by feature. Out: a `MemoryNeed`, or None where no past job
has told what it needed. Next: `planning.lifecycle.warm_start` puts it into the first shape.

Too little of it kills a server, too much is given back once growth has been measured. So of past jobs of its kind the
one that needed most counts, of many where none is of its kind; and as much is added as jobs of one kind differ by.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.shape import MemoryNeed
from springtide.domain.plan.view import PastJob
from springtide.planning.lifecycle import similarity

Floats = NDArray[np.float64]
FEWEST = 8
"""Past jobs with a known need below which nothing is learned about what tells it: the most of all of them counts."""
ABOUT = 0.25
"""Doublings: past jobs that are expected to be off by no more than this, beside what is chance, are of one kind."""
STRANGERS = 48
"""To a job of a kind that is not known so many of the nearest count: of few, none need have needed as much as it."""
ROOM = 1.25
"""On top of all: two runs of one job differ by their data."""


def foretold(
    past: Sequence[PastJob], to_new: Mapping[str, Floats], told: similarity.DistanceModel | None
) -> MemoryNeed | None:
    """What a new job may need. `to_new`: [1, past] similarities a feature; `told`: what features say about needs."""
    known, rows = _needs(past)
    if not known.any():
        return None
    near, more = known, 1.0
    if told is not None:
        apart = np.where(known, told.apart(to_new)[0], np.inf)
        near = apart <= apart.min() + ABOUT
        more = 2.0**told.chance
        if apart.min() > told.chance + ABOUT:
            near = known & (apart <= np.sort(apart)[min(STRANGERS, int(known.sum())) - 1])
    some = [one.need for one, counts in zip(past, near.tolist(), strict=True) if counts]
    return MemoryNeed(
        worker=max(need.worker for need in some),
        server=max(need.server for need in some),
        rows=round(ROOM * more * float(rows[near].max())),
    )


def _needs(past: Sequence[PastJob]) -> tuple[NDArray[np.bool_], Floats]:
    """Whose need of rows is known, and how much it was."""
    known = np.array([one.need.rows > 0 for one in past], dtype=bool)
    return known, np.array([max(float(one.need.rows), 1.0) for one in past])


def told(past: Sequence[PastJob], among: Mapping[str, Floats]) -> similarity.DistanceModel | None:
    """How far needs are apart, in doublings, by how far jobs are. `among`: [past, past] similarities of the newest."""
    known, rows = _needs(past)
    if not among or int(known.sum()) < FEWEST:
        return None
    newest = next(iter(among.values())).shape[0]
    some, logs = known[-newest:], np.log2(rows[-newest:])
    pairs = np.tri(newest, k=-1, dtype=bool) & some[:, None] & some[None, :]
    if not pairs.any():
        return None
    return similarity.learn(among, np.abs(logs[:, None] - logs[None, :]), pairs)
