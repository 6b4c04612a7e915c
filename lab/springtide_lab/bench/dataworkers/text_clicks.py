"""Define click models and logs as users write them: strings hashed in collate; buckets, crosses, unique in forward().

The models contain no code for data workers. `Ready` and `PlainModel` use ids without hashing, crosses or unique.
`LogLines` makes batches of text lines, for `bench dataworkers-walk`. Some processes import this module as
`text_clicks`.
"""

import random
import zlib
from typing import Any

import numpy as np
import torch
from torch import nn

WORDS, COLUMNS, DENSE, EDGES = 6, 26, 13, 64
PAIRS = [(first, second) for first in range(WORDS) for second in range(first + 1, COLUMNS)][:64]
ROWS, DIM = 20_000, 8


class TextClicks(torch.utils.data.Dataset[Any]):
    """Events as in a log: 6 words, 20 ids, 13 numbers, clicked or not."""

    def __init__(self, samples: int, seed: int = 0) -> None:
        drawn = torch.Generator().manual_seed(seed)
        ids = (torch.rand(samples, COLUMNS, generator=drawn) ** 3 * 50_000).long()
        self.words = [[f"column-{number}:{one}" for number, one in enumerate(row)] for row in ids[:, :WORDS].tolist()]
        self.ids = ids[:, WORDS:].numpy()
        self.numbers = (torch.rand(samples, DENSE, generator=drawn) * 100).numpy()
        self.clicked = (torch.rand(samples, generator=drawn) < 0.25).tolist()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[list[str], Any, Any, float]:
        return self.words[index], self.ids[index], self.numbers[index], float(self.clicked[index])


def collate(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Collate samples into tensors; convert words to numbers by a hash that is the same in every process."""
    texts, ids, numbers, clicked = zip(*samples, strict=True)
    hashed = torch.tensor([[zlib.crc32(word.encode()) for word in words] for words in texts])
    columns = torch.cat([hashed, torch.from_numpy(np.stack(ids))], dim=1)
    return columns, torch.from_numpy(np.stack(numbers)), torch.tensor(clicked)


class TextModel(nn.Module):
    """Click model over ids, buckets of numbers and crosses of ids in one table, and the frequencies of crosses."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.edges: torch.Tensor
        self.register_buffer("edges", torch.linspace(0, 100, EDGES).repeat(DENSE, 1).contiguous())
        self.first = [pair[0] for pair in PAIRS]
        self.second = [pair[1] for pair in PAIRS]
        self.rows = nn.Embedding(ROWS, DIM)
        self.top = nn.Sequential(
            nn.Linear(DIM + DENSE + 1, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, columns: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        crosses = columns[:, self.first] * 0x9E3779B1 + columns[:, self.second]
        for shift in (33, 29, 32):
            crosses = (crosses ^ (crosses >> shift)) * 0x2545F4914F6CDD1D
        each = numbers.t().contiguous()
        buckets = torch.stack([torch.bucketize(each[number], self.edges[number]) for number in range(DENSE)], dim=1)
        buckets = buckets + torch.arange(DENSE) * EDGES
        _, which, often = torch.unique(crosses, return_inverse=True, return_counts=True)
        popular = torch.log1p(often[which].to(torch.float32)).mean(dim=1, keepdim=True)
        ids = torch.cat([columns, crosses, buckets], dim=1).remainder(ROWS)
        there, places = torch.unique(ids, return_inverse=True)
        summed = nn.functional.embedding_bag(places, self.rows(there), mode="sum")
        scores: torch.Tensor = self.top(torch.cat([summed, torch.log1p(numbers), popular], dim=1)).squeeze(1)
        return scores


class Ready(torch.utils.data.Dataset[Any]):
    """Events with ready ids, which need almost no preprocessing."""

    def __init__(self, samples: int, seed: int = 0) -> None:
        drawn = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, ROWS, (samples, COLUMNS), generator=drawn)
        self.numbers = torch.rand(samples, DENSE, generator=drawn)
        self.clicked = (torch.rand(samples, generator=drawn) < 0.25).float()

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, indices: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        chosen = torch.as_tensor(indices)
        return self.ids[chosen], self.numbers[chosen], self.clicked[chosen]


class PlainModel(nn.Module):
    """Click model that gets ids as integers, so that it needs no preprocessing."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, DIM)
        self.top = nn.Sequential(
            nn.Linear(COLUMNS * DIM + DENSE, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.top(torch.cat([self.rows(ids).flatten(1), numbers], dim=1)).squeeze(1)
        return scores


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: Any) -> None:
    columns, numbers, clicked = batch
    loss = nn.functional.binary_cross_entropy_with_logits(model(columns, numbers), clicked)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


class LogLines:
    """Batches from a log of some thousand lines, read repeatedly. A line has a label, 13 counts and 26 words.

    Some counts and words are missing. Making a batch splits the lines, puts counts into buckets, hashes words to ids,
    crosses pairs of words and finds distinct ids.
    """

    BATCH, LINES, COUNTS, WORDS, ROWS = 96, 4096, 13, 26, 100_000
    CROSSES = tuple((first, first + 1) for first in range(0, 25, 2))

    def __init__(self, seed: int = 7) -> None:
        chance = random.Random(seed)
        self._lines = [_line(chance) for _ in range(self.LINES)]
        self._edges = torch.logspace(0, 4, 32)

    def __call__(self, indices: Any) -> dict[str, Any]:
        rows = [self._lines[index % self.LINES].split("\t") for index in indices.tolist()]
        labels = torch.tensor([float(row[0]) for row in rows])
        counts = torch.tensor([[float(text) if text else 0.0 for text in row[1 : self.COUNTS + 1]] for row in rows])
        buckets = torch.bucketize(counts, self._edges)
        words = [row[self.COUNTS + 1 :] for row in rows]
        ids = [[zlib.crc32(word.encode()) % self.ROWS for word in row] for row in words]
        crossed = [[zlib.crc32(f"{row[a]}:{row[b]}".encode()) % self.ROWS for a, b in self.CROSSES] for row in words]
        sparse = torch.tensor([mine + others for mine, others in zip(ids, crossed, strict=True)])
        distinct, places = torch.unique(sparse + torch.arange(sparse.shape[1]) * self.ROWS, return_inverse=True)
        return {"label": labels, "dense": torch.log1p(counts), "buckets": buckets, "ids": distinct, "places": places}


def _line(chance: random.Random) -> str:
    counts = [str(int(chance.expovariate(0.01))) if chance.random() > 0.1 else "" for _ in range(LogLines.COUNTS)]
    drawn = (f"{int(chance.paretovariate(0.6)) % 2**32:08x}" for _ in range(LogLines.WORDS))
    words = [word if chance.random() > 0.05 else "" for word in drawn]
    return "\t".join([str(int(chance.random() < 0.25)), *counts, *words])


def log_pipeline() -> Any:
    """Return the preprocessing of the walk. Data workers run it; without data workers, the trainer runs it."""
    from springtide.dataworker.feed.worker import Pipeline, PipelineStage

    return Pipeline((PipelineStage("clicks", LogLines()),))
