"""Data and model of `make demo`: a click log with a known best AUC, and a model that trains in about a minute on two
cores.

In: optionally a number of samples. Out: `log()` (train and test part) and `model(tables)`. With batch 512, Adagrad
at 0.05 and one pass, training gets within about 0.01 of the best AUC; `docs/reference/zoo.md` has the figures.
`CountedModel` checks that every sample was trained once despite faults.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from springtide import errors
from springtide.zoo.clicklog.dataset import ClickLog
from springtide.zoo.clicklog.population import LogSpec
from springtide.zoo.layers import ClickBatch
from springtide.zoo.models import WideDeep, XDeepFM

SAMPLES = 500_000
BATCH = 512
LEARNING_RATE = 0.05
"""Learning rate of `torch.optim.Adagrad` for dense and sparse parameters."""

SPEC = LogSpec(
    seed=2024,
    cardinalities=(
        *(1_500, 400),
        *(20, 30, 24, 50, 40, 7, 100, 60, 50, 10, 20, 200),
        *(50, 25, 100, 40, 30, 12, 30, 40, 100, 200, 100, 50),
    ),
    zipf=1.1,
    field_strength=1.4,
    interaction_strength=0.2,
)
"""Spec of the demo. The fields have few ids, so half a million samples teach the model nearly everything."""


def log(samples: int = SAMPLES, *, folder: str | Path | None = None) -> tuple[ClickLog, ClickLog]:
    """Return the training part and the test part (the last tenth by event time). With a `folder`, both parts are in
    shared files."""
    return ClickLog(samples, spec=SPEC, folder=folder).split(0.1)


def model(name: str = "widedeep", *, sparse: bool = True) -> nn.Module:
    """Return the demo model: 30 thousand weights in 52 tables and 16 thousand in the MLP."""
    if name == "widedeep":
        return WideDeep(SPEC.cardinalities, dim=8, hidden=(64, 32), sparse=sparse)
    if name == "xdeepfm":
        return XDeepFM(SPEC.cardinalities, dim=8, hidden=(64, 32), maps=(8, 8), sparse=sparse)
    raise errors.UnknownName("model of the demo", name, ("widedeep", "xdeepfm"))


class CountedModel(nn.Module):
    """A model with an additional table that counts how often each first id was trained.

    The rows start at zero. SGD with rate 1 trains the rows on a loss that decreases by one for each occurrence of an
    id. Each row therefore counts the applied samples with its id, which shows lost and repeated samples.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.seen = nn.EmbeddingBag(SPEC.cardinalities[0], 1, mode="sum", sparse=True)
        nn.init.zeros_(self.seen.weight)

    def forward(self, x: ClickBatch) -> Tensor:
        logits: Tensor = self.model(x)
        return logits

    def count(self, x: ClickBatch) -> Tensor:
        """Return the counting term to add to the loss. The term does not affect the model."""
        rows: Tensor = self.seen(x.sparse[:, :1])
        return -rows.sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Comparison of the samples that the table has counted with the samples of the log."""

    counted: int
    lost: int
    repeated: int


def compare(seen: Tensor, log: ClickLog) -> Count:
    """Compare the rows of the counting table with the log."""
    wanted = torch.zeros(len(seen), dtype=torch.int64)
    for part in np.array_split(np.arange(len(log)), max(1, len(log) // 65536)):
        x, _ = log.batch(part)
        assert isinstance(x, ClickBatch)
        wanted += torch.bincount(x.sparse[:, 0], minlength=len(seen))
    counted = seen.reshape(-1).round().to(torch.int64)
    return Count(
        counted=int(counted.sum()),
        lost=int((wanted - counted).clamp(min=0).sum()),
        repeated=int((counted - wanted).clamp(min=0).sum()),
    )
