"""What `make demo` trains: a click log of known best AUC and a model sized for two cores and about a minute.

In: nothing, or a number of samples. Out: `log()` (train and test part) and `model(tables)`. Batch 512, Adagrad at
0.05 and one pass bring it to within about 0.01 of the best AUC; `docs/zoo.md` has the figures.
"""

from pathlib import Path

from torch import nn

from springtide.zoo.clickdata import ClickLog
from springtide.zoo.logspec import LogSpec
from springtide.zoo.widedeep import WideDeep

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


def model(*, sparse: bool = True) -> nn.Module:
    """The model for it: some 30 thousand weights in 52 tables, 16 thousand in the MLP."""
    return WideDeep(SPEC.cardinalities, dim=8, hidden=(64, 32), sparse=sparse)
