"""What `make demo` trains: a click log of known best AUC and a model sized for two cores and about a minute.

In: nothing, or a number of samples. Out: `log()` (train and test part) and `model(tables)`. Batch 512, Adagrad at 0.05
and one pass bring it to within about 0.01 of the best AUC; `docs/zoo.md` has the figures. `CountedModel` tells whether
every sample was trained once, whatever happened meanwhile.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from springtide import errors
from springtide.zoo.batches import ClickBatch
from springtide.zoo.clicklog.dataset import ClickLog
from springtide.zoo.clicklog.spec import LogSpec
from springtide.zoo.models.widedeep import WideDeep
from springtide.zoo.models.xdeepfm import XDeepFM

SAMPLES = 500_000
BATCH = 512
LEARNING_RATE = 0.05
"""For `torch.optim.Adagrad`, dense and sparse alike."""

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
"""Fields small enough that half a million samples teach nearly all there is to learn."""


def log(samples: int = SAMPLES, *, folder: str | Path | None = None) -> tuple[ClickLog, ClickLog]:
    """Train and test part (the last tenth by event time); with a `folder`, in files that all workers share."""
    return ClickLog(samples, spec=SPEC, folder=folder).split(0.1)


def model(name: str = "widedeep", *, sparse: bool = True) -> nn.Module:
    """The model for it: some 30 thousand weights in 52 tables, 16 thousand in the MLP. Or xDeepFM of that size."""
    if name == "widedeep":
        return WideDeep(SPEC.cardinalities, dim=8, hidden=(64, 32), sparse=sparse)
    if name == "xdeepfm":
        return XDeepFM(SPEC.cardinalities, dim=8, hidden=(64, 32), maps=(8, 8), sparse=sparse)
    raise errors.UnknownName("model of the demo", name, ("widedeep", "xdeepfm"))


class CountedModel(nn.Module):
    """A model and, beside it, a table that counts how often each first id was trained.

    Its rows begin at zero and are trained by SGD at rate 1 on a loss that falls by one an occurrence: so a row holds a
    whole number, one for each sample with its id that was applied. A sample lost or repeated shows.
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
        """To be added to the loss: nothing that the model could see."""
        rows: Tensor = self.seen(x.sparse[:, :1])
        return -rows.sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Samples that the tables have seen, against those of the log."""

    counted: int
    lost: int
    repeated: int


def compare(seen: Tensor, log: ClickLog) -> Count:
    """Hold the counting table's rows against what the log has."""
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
