"""Click logs as text, and what it takes to make a mini-batch of them: the load of data workers in this walk.

A line has a label, 13 counts and 26 words in hexadecimal, some missing, as public click logs have them. A batch of it:
split, counts to buckets, words to ids by a fixed hash, pairs of words crossed, and the distinct ids of each column.
Plain Python and torch, one thread, as a user's data set would have it.
"""

import random
import zlib
from typing import Any

import torch
from numpy.typing import NDArray

from springtide.dataworker.feed.worker import Pipeline, PipelineStage

BATCH = 96
COUNTS, WORDS = 13, 26
CROSSES = tuple((first, first + 1) for first in range(0, WORDS - 1, 2))
ROWS = 100_000
LINES = 4096


class WalkClicks:
    """A log of some thousand lines that is read again and again: every number of a sample is a line of it."""

    def __init__(self, seed: int = 7) -> None:
        chance = random.Random(seed)
        self._lines = [_line(chance) for _ in range(LINES)]
        self._edges = torch.logspace(0, 4, 32)

    def __call__(self, indices: NDArray[Any]) -> dict[str, Any]:
        rows = [self._lines[index % LINES].split("\t") for index in indices.tolist()]
        labels = torch.tensor([float(row[0]) for row in rows])
        counts = torch.tensor([[float(text) if text else 0.0 for text in row[1 : COUNTS + 1]] for row in rows])
        buckets = torch.bucketize(counts, self._edges)
        words = [row[COUNTS + 1 :] for row in rows]
        ids = [[zlib.crc32(word.encode()) % ROWS for word in row] for row in words]
        crossed = [[zlib.crc32(f"{row[a]}:{row[b]}".encode()) % ROWS for a, b in CROSSES] for row in words]
        sparse = torch.tensor([mine + others for mine, others in zip(ids, crossed, strict=True)])
        distinct, places = torch.unique(sparse + torch.arange(sparse.shape[1]) * ROWS, return_inverse=True)
        return {"label": labels, "dense": torch.log1p(counts), "buckets": buckets, "ids": distinct, "places": places}


def pipeline() -> Pipeline:
    """What data workers run, and the trainer while it has none."""
    return Pipeline((PipelineStage("clicks", WalkClicks()),))


def _line(chance: random.Random) -> str:
    counts = [str(int(chance.expovariate(0.01))) if chance.random() > 0.1 else "" for _ in range(COUNTS)]
    words = [f"{int(chance.paretovariate(0.6)) % 2**32:08x}" if chance.random() > 0.05 else "" for _ in range(WORDS)]
    return "\t".join([str(int(chance.random() < 0.25)), *counts, *words])
